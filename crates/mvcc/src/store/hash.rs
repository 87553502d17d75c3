//! Hash of the history that members compare, equal to etcd's HashKV.
//!
//! CRC-32C over `key`, then over every record with main revision ≤ `at`, in revision order: the 17-byte
//! storage key (main big endian, `_`, sub big endian; a tombstone adds `t`), then the pair as a
//! protobuf message (a tombstone: only its key).
//!
//! Up to the compact revision only records that are visible at `at` are hashed, so the hash does not
//! depend on the progress of compaction. If etcd's set of records to keep is empty, records that are
//! visible at the compact revision are hashed instead, because etcd then omits none of them. The set
//! contains the records visible at `at` and, while a compaction to `at` runs, also tombstones of
//! exactly that revision.
//!
//! * A hash covers a single state. If a compaction or an install happens during the pass, it is
//!   computed again.
//! * etcd also hashes when a compaction finishes, against the previous compact revision, and returns
//!   that hash for requests at the same revision. So does this store.

use std::ops::ControlFlow;

use bytes::BufMut;

use super::lock::LockPurpose;
use super::shared::StoreShared;
use super::state::{KEYS_PER_HOLD, StoreData, check_not_compacted};
use crate::block::{Record, RecordBody};
use crate::cursor::put_varint;
use crate::error::{Error, Result};
use crate::index::IndexWalk;
use crate::meter::Meter;
use crate::range::KeyRange;
use crate::types::{KvHash, Revision};

/// Number of stored compaction hashes, the same as in etcd.
pub(crate) const REMEMBERED: usize = 10;
/// Number of records looked up per lock acquisition: two searches each, some microseconds in a large
/// index.
const RECORDS_PER_HOLD: usize = 250;

pub(super) fn hash_kv(shared: &StoreShared, at: i64, meter: &dyn Meter) -> Result<KvHash> {
    loop {
        let (revision, compact, generation) = {
            let state = shared.state.read(LockPurpose::Hash);
            (state.revision, state.compact_revision, state.generation)
        };
        // Requests at the revision of a finished compaction receive its hash, like in etcd.
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
        while !pass.step(shared, 1, u64::MAX)? {
            meter.check()?;
        }
        // If records between two compactions were removed, or another store was installed, the hash does not
        // correspond to a single state.
        let state = shared.state.read(LockPurpose::Hash);
        if (state.compact_revision, state.generation) == (compact, generation) {
            return Ok(pass.finish(revision));
        }
    }
}

/// A hash in progress, computed in bounded steps.
pub(crate) struct HashPass {
    at: i64,
    compact: i64,
    of_compaction: bool,
    /// Records up to the compact revision are hashed if they are visible at this revision. Determined with
    /// the first record.
    visible_at: Option<i64>,
    next: Revision,
    crc: u32,
    scratch: Vec<u8>,
}

impl HashPass {
    /// Creates a pass up to `at`, with records up to `compact` compacted.
    pub fn new(at: i64, compact: i64) -> Self {
        HashPass {
            at,
            compact,
            of_compaction: false,
            visible_at: None,
            next: Revision::first_of(0),
            crc: crc32c::crc32c(b"key"),
            scratch: Vec::new(),
        }
    }

    /// Creates the pass that etcd runs while it compacts to `at`, against the previous compact revision.
    pub fn of_compaction(at: i64, before: i64) -> Self {
        HashPass { of_compaction: true, ..HashPass::new(at, before) }
    }

    /// Hashes at most `blocks_max` blocks, and stops after `bytes_max` bytes. Returns true when done.
    pub fn step(&mut self, shared: &StoreShared, blocks_max: usize, bytes_max: u64) -> Result<bool> {
        let mut bytes = 0;
        for _ in 0..blocks_max {
            if bytes >= bytes_max {
                break;
            }
            let block = {
                let state = shared.state.read(LockPurpose::Hash);
                match state.block_table.get(state.block_table.position_from(self.next)) {
                    Some(block) => Some(block.clone()),
                    None if state.open.is_empty() => None,
                    // The open block is the last. Make a small copy, so that the writer can continue.
                    None => Some(crate::block::Block::in_memory(state.open.sealed()).into()),
                }
            };
            // Blocks ascend: stop at the first one beyond the revision.
            let Some(block) = block.filter(|block| block.identity.first.main <= self.at) else {
                return Ok(true);
            };
            if block.identity.last < self.next {
                return Ok(true);
            }
            // Bypass the cache, which a hash would fill with old blocks. The block may be replaced in the
            // meantime; its records still belong to the hashed revision.
            let decoded = block.load()?;
            bytes += decoded.raw().len() as u64;
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

    /// Returns the hash of the records so far. `revision` is the store's current revision, for the result.
    pub fn finish(self, revision: i64) -> KvHash {
        KvHash { hash: self.crc, compact_revision: self.compact, hash_revision: self.at, revision }
    }

    /// Hashes records. Selects them during a single lock hold, and encodes them without the lock.
    fn add(&mut self, shared: &StoreShared, records: &[Record<'_>]) {
        let visible_at = match self.visible_at {
            Some(known) => known,
            None => {
                let is_any = keeps_any(shared, self.at, self.of_compaction);
                *self.visible_at.insert(if is_any { self.at } else { self.compact })
            }
        };
        let is_counted: Vec<bool> = {
            let state = shared.state.read(LockPurpose::Hash);
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

    /// Reports whether a record is hashed: always above the compact revision, and up to it if it is visible
    /// at `visible_at`.
    fn counts(&self, state: &StoreData, record: &Record<'_>, visible_at: i64) -> bool {
        if record.revision.main > self.compact {
            return true;
        }
        match record.body {
            // New versions of etcd keep a tombstone at the compact revision and old ones do not. No version
            // hashes it.
            RecordBody::Tombstone => false,
            RecordBody::Put { .. } => {
                let visible = state.index.get(record.key).and_then(|history| history.at(visible_at));
                visible.is_some_and(|visible| visible.revision == record.revision)
            }
        }
    }
}

/// Reports whether etcd's set of records to keep at `at` is not empty.
fn keeps_any(shared: &StoreShared, at: i64, of_compaction: bool) -> bool {
    let is_any = |rest: &KeyRange, steps: &mut usize| {
        let state = shared.state.read(LockPurpose::Hash);
        state.index.visit_at(rest, at, steps, |_, _| ControlFlow::Break(()))
    };
    let is_deleted = |rest: &KeyRange, steps: &mut usize| {
        let state = shared.state.read(LockPurpose::Hash);
        state.index.visit_all(rest, steps, |history| match history.is_deleted_at(at) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })
    };
    search(is_any) || (of_compaction && search(is_deleted))
}

/// Walks over all keys in bounded lock holds, until the visitor stops it.
fn search(walk: impl Fn(&KeyRange, &mut usize) -> IndexWalk) -> bool {
    let mut rest = KeyRange::all();
    loop {
        match walk(&rest, &mut KEYS_PER_HOLD.clone()) {
            IndexWalk::Stopped(()) => return true,
            IndexWalk::Paused(key) => rest = rest.resumed_at(key),
            IndexWalk::Done => return false,
        }
    }
}

fn write_stored(record: &Record<'_>, out: &mut Vec<u8>) {
    out.put_i64(record.revision.main);
    out.put_u8(b'_');
    out.put_i64(record.revision.sub);
    if record.body == RecordBody::Tombstone {
        out.put_u8(b't');
    }
    put_bytes_field(out, 1, record.key);
    if let RecordBody::Put { create, version, lease, value } = record.body {
        put_int_field(out, 2, create);
        put_int_field(out, 3, record.revision.main);
        put_int_field(out, 4, version);
        put_bytes_field(out, 5, value);
        put_int_field(out, 6, lease);
    }
}

fn put_int_field(out: &mut Vec<u8>, number: u8, value: i64) {
    if value != 0 {
        out.put_u8(number << 3);
        put_varint(out, value as u64);
    }
}

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
        let body = RecordBody::Put { create: 2, version: 129, lease: -1, value: b"v" };
        write_stored(&Record { revision, key: b"k", body }, &mut out);
        let key = [0, 0, 0, 0, 0, 0, 1, 44, b'_', 0, 0, 0, 0, 0, 0, 0, 1];
        let value = [10, 1, b'k', 16, 2, 24, 172, 2, 32, 129, 1, 42, 1, b'v', 48];
        let lease = [255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
        assert_eq!(out, [&key[..], &value[..], &lease[..]].concat());

        out.clear();
        write_stored(&Record { revision, key: b"k", body: RecordBody::Tombstone }, &mut out);
        assert_eq!(out, [&key[..], &[b't', 10, 1, b'k']].concat());
    }
}
