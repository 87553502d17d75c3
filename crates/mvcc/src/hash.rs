//! The hash of history that members compare, equal to etcd's HashKV.
//!
//! CRC-32C over `key`, then over every record with main revision ≤ `at`, in revision order: the 17-byte storage key (main
//! big endian, `_`, sub big endian; a tombstone adds `t`), then the pair as a protobuf message (a tombstone: only its key).
//! Up to the compact revision only those records count that a reader at `at` can see, which makes the hash independent of
//! how much compaction has removed so far. If nothing at all lives at `at`, those that a reader at the compact revision can
//! see: etcd then leaves out none that its compaction has kept.
//!
//! * A hash is of one state: if a compaction comes in between, it is taken anew.
//!   The installation of another store counts as such a change too.
//! * etcd hashes once more when a compaction finishes, still against the compact revision before it, and answers with
//!   that hash when asked for the same revision. So does this store.

use std::ops::ControlFlow;

use bytes::BufMut;

use crate::error::{Error, Result};
use crate::range::KeyRange;
use crate::record::{Body, Record, put_varint};
use crate::revision::Revision;
use crate::state::{Shared, State};
use crate::types::KvHash;
use crate::view::check_not_compacted;

/// Hashes remembered from compactions, as etcd does.
pub(crate) const REMEMBERED: usize = 10;
/// Records looked up under one hold of the lock.
const RECORDS_PER_HOLD: usize = 1000;

/// `Store::hash_kv`.
pub(crate) fn hash_kv(shared: &Shared, at: i64) -> Result<KvHash> {
    loop {
        let (revision, compact, generation) = {
            let state = shared.state.read();
            (state.revision, state.compact_revision, state.generation)
        };
        // Asked for at exactly the revision of a compaction that finished here: the answer of that moment, as etcd gives it.
        if let Some(known) = shared.hashes.lock().iter().find(|known| known.hash_revision == at) {
            return Ok(KvHash { revision, ..*known });
        }
        if at > revision {
            return Err(Error::FutureRevision { requested: at, current: revision });
        }
        if at > 0 {
            check_not_compacted(at, compact)?;
        }
        let mut pass = HashPass::new(if at == 0 { revision } else { at }, compact);
        while !pass.step(shared, usize::MAX)? {}
        // Records between two compactions may be gone already, and another store may have come in between: then this
        // hash is of no one state.
        let state = shared.state.read();
        if (state.compact_revision, state.generation) == (compact, generation) {
            return Ok(pass.finish(revision));
        }
    }
}

/// A hash being taken, in bounded steps.
pub(crate) struct HashPass {
    at: i64,
    compact: i64,
    /// Where a record up to the compact revision must be visible to count; found out with the first one.
    visible_at: Option<i64>,
    /// The next revision to hash.
    next: Revision,
    crc: u32,
    /// One record's bytes, kept for its capacity.
    scratch: Vec<u8>,
}

impl HashPass {
    /// Hashes up to `at`, taking everything below `compact` as compacted.
    pub fn new(at: i64, compact: i64) -> Self {
        HashPass {
            at,
            compact,
            visible_at: None,
            next: Revision::first_of(0),
            crc: crc32c::crc32c(b"key"),
            scratch: Vec::new(),
        }
    }

    /// Hashes at most `blocks_max` blocks further; true when done.
    pub fn step(&mut self, shared: &Shared, blocks_max: usize) -> Result<bool> {
        for _ in 0..blocks_max {
            let block = {
                let state = shared.state.read();
                match state.directory.get(state.directory.position_from(self.next)) {
                    Some(block) => Some(block.clone()),
                    None if state.open.is_empty() => None,
                    // The open block goes last. A copy of it is small and keeps writers going.
                    None => Some(crate::directory::Block::in_memory(state.open.sealed()).into()),
                }
            };
            // Blocks ascend: the first one beyond the revision ends the pass.
            let Some(block) = block.filter(|block| block.identity.first.main <= self.at) else {
                return Ok(true);
            };
            if block.identity.last < self.next {
                return Ok(true);
            }
            // Past the cache: a hash reads everything once, and would leave nothing else in it.
            // The block is held by this pass, so it may be replaced meanwhile; what is found in it was true of this revision.
            let decoded = block.load()?;
            let from_next = decoded.records().filter(|record| record.revision >= self.next);
            let records: Vec<_> = from_next.take_while(|record| record.revision.main <= self.at).collect();
            for records in records.chunks(RECORDS_PER_HOLD) {
                self.add(shared, records);
            }
            assert!(block.identity.last >= self.next, "a pass goes forward");
            self.next = block.identity.last.next();
        }
        Ok(false)
    }

    /// The hash of what was passed. `revision` is the store's newest, for the answer only.
    pub fn finish(self, revision: i64) -> KvHash {
        KvHash { hash: self.crc, compact_revision: self.compact, hash_revision: self.at, revision }
    }

    /// Takes records into the hash. Which of them count is asked under the lock, for all of them at once; encoding and
    /// checksumming, the expensive part, is done without it.
    fn add(&mut self, shared: &Shared, records: &[Record<'_>]) {
        let is_counted: Vec<bool> = {
            let state = shared.state.read();
            let visible_at = *self.visible_at.get_or_insert_with(|| match lives_any(&state, self.at) {
                true => self.at,
                false => self.compact,
            });
            records.iter().map(|record| self.counts(&state, record, visible_at)).collect()
        };
        for (record, is_counted) in records.iter().zip(is_counted) {
            if is_counted {
                self.scratch.clear();
                write_stored(record, &mut self.scratch);
                self.crc = crc32c::crc32c_append(self.crc, &self.scratch);
            }
        }
    }

    /// Whether a record enters the hash: all do above the compact revision, and up to it what is visible at `visible_at`.
    fn counts(&self, state: &State, record: &Record<'_>, visible_at: i64) -> bool {
        if record.revision.main > self.compact {
            return true;
        }
        match record.body {
            // etcd's newest versions keep a tombstone exactly at the compact revision, older ones do not: none hashes it.
            Body::Tombstone => false,
            Body::Put { .. } => {
                let visible = state.index.get(record.key).and_then(|history| history.at(visible_at));
                visible.is_some_and(|visible| visible.revision == record.revision)
            }
        }
    }
}

/// Whether any key exists at `at`. The first one found ends the search.
fn lives_any(state: &State, at: i64) -> bool {
    let found = state.index.visit_all(&KeyRange::all(), |_, history| match history.at(at) {
        Some(_) => ControlFlow::Break(()),
        None => ControlFlow::Continue(()),
    });
    found.is_break()
}

/// Appends a record as etcd would store it.
fn write_stored(record: &Record<'_>, out: &mut Vec<u8>) {
    out.put_i64(record.revision.main);
    out.put_u8(b'_');
    out.put_i64(record.revision.sub);
    if record.body == Body::Tombstone {
        out.put_u8(b't');
    }
    put_bytes_field(out, 1, record.key);
    if let Body::Put { create, version, lease, value } = record.body {
        put_int_field(out, 2, create);
        put_int_field(out, 3, record.revision.main);
        put_int_field(out, 4, version);
        put_bytes_field(out, 5, value);
        put_int_field(out, 6, lease);
    }
}

/// A protobuf field of integer type; zero is left out.
fn put_int_field(out: &mut Vec<u8>, number: u8, value: i64) {
    if value != 0 {
        out.put_u8(number << 3);
        put_varint(out, value as u64);
    }
}

/// A protobuf field of bytes; empty is left out.
fn put_bytes_field(out: &mut Vec<u8>, number: u8, value: &[u8]) {
    if !value.is_empty() {
        out.put_u8(number << 3 | 2);
        put_varint(out, value.len() as u64);
        out.put_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_written_as_etcd_stores_them() {
        let mut out = Vec::new();
        let revision = Revision { main: 300, sub: 1 };
        let body = Body::Put { create: 2, version: 129, lease: -1, value: b"v" };
        write_stored(&Record { revision, key: b"k", body }, &mut out);
        let key = [0, 0, 0, 0, 0, 0, 1, 44, b'_', 0, 0, 0, 0, 0, 0, 0, 1];
        let value = [10, 1, b'k', 16, 2, 24, 172, 2, 32, 129, 1, 42, 1, b'v', 48];
        let lease = [255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
        assert_eq!(out, [&key[..], &value[..], &lease[..]].concat());

        out.clear();
        write_stored(&Record { revision, key: b"k", body: Body::Tombstone }, &mut out);
        assert_eq!(out, [&key[..], &[b't', 10, 1, b'k']].concat());
    }
}
