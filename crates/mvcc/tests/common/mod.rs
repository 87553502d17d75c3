//! A naive reference store: every revision is a copy of the whole state.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod failing;
pub mod location;
pub mod member;

use std::collections::BTreeMap;

use bytes::Bytes;
use mvcc::{Error, Fetch, KeyRange, KeyValue, LogPosition, RangeOptions, Store, StoreOptions};

/// Returns small sizes, so that a few keys fill several blocks and files.
pub fn tiny_options() -> StoreOptions {
    StoreOptions {
        block_bytes: 256,
        block_file_bytes: 2048,
        cache_bytes: 1024,
        checkpoint_due_bytes: 1 << 20,
        checkpoint_full_bytes: 4 << 20,
        dropped_max: 5,
        changes_per_hold: 1,
        ..StoreOptions::default()
    }
}

pub fn range(key: &str, end: &str) -> KeyRange {
    KeyRange::new(Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(end.as_bytes()))
}

pub fn everything() -> RangeOptions {
    RangeOptions::default()
}

#[derive(Clone, Debug)]
struct Change {
    main: i64,
    sub: i64,
    key: Vec<u8>,
    put: Option<KeyValue>,
}

#[derive(Clone, Debug)]
pub struct Oracle {
    states: Vec<BTreeMap<Vec<u8>, KeyValue>>,
    changes: Vec<Change>,
    pub compact_revision: i64,
    pub items: BTreeMap<Vec<u8>, Vec<u8>>,
    pub applied: LogPosition,
}

impl Default for Oracle {
    fn default() -> Self {
        let states = vec![BTreeMap::new(), BTreeMap::new()];
        let (changes, items, applied) = Default::default();
        Oracle { states, changes, compact_revision: -1, items, applied }
    }
}

impl Oracle {
    pub fn revision(&self) -> i64 {
        self.states.len() as i64 - 1
    }

    /// Applies a request. An empty one does not change the revision.
    pub fn request(&mut self, work: impl FnOnce(&mut Request<'_>)) {
        let before = self.changes.len();
        let state = self.states.last().unwrap().clone();
        let main = self.revision() + 1;
        let mut request = Request { main, sub: 0, state, changes: &mut self.changes };
        work(&mut request);
        let state = request.state;
        if self.changes.len() > before {
            self.states.push(state);
        }
    }

    pub fn at(&self, revision: i64) -> &BTreeMap<Vec<u8>, KeyValue> {
        &self.states[revision as usize]
    }

    /// Computes etcd's HashKV in the most direct way.
    pub fn hash(&self, at: i64) -> u32 {
        self.hash_keeping(at, false)
    }

    /// Computes the hash. `is_any_kept`: etcd's set of records to keep includes more than those visible at
    /// `at`.
    fn hash_keeping(&self, at: i64, is_any_kept: bool) -> u32 {
        let mut keep = self.visible(at);
        if keep.is_empty() && !is_any_kept {
            // etcd then omits none of the records that its compaction kept: those visible at its revision.
            keep = self.visible(self.compact_revision);
        }
        let mut hashed = b"key".to_vec();
        for change in self.changes.iter().filter(|change| change.main <= at) {
            let is_kept = keep.get(change.key.as_slice()) == Some(&(change.main, change.sub));
            if change.main <= self.compact_revision && !is_kept {
                continue;
            }
            hashed.extend(change.main.to_be_bytes());
            hashed.push(b'_');
            hashed.extend(change.sub.to_be_bytes());
            match &change.put {
                None => {
                    hashed.push(b't');
                    field(&mut hashed, 1, &change.key);
                }
                Some(kv) => {
                    field(&mut hashed, 1, &kv.key);
                    number(&mut hashed, 2, kv.create_revision);
                    number(&mut hashed, 3, kv.mod_revision);
                    number(&mut hashed, 4, kv.version);
                    field(&mut hashed, 5, &kv.value);
                    number(&mut hashed, 6, kv.lease);
                }
            }
        }
        crc_bitwise(&hashed)
    }

    /// Returns the latest put of every key that exists at `at`.
    fn visible(&self, at: i64) -> BTreeMap<&[u8], (i64, i64)> {
        let mut newest: BTreeMap<&[u8], (i64, i64)> = BTreeMap::new();
        for change in self.changes.iter().filter(|change| change.main <= at) {
            match change.put {
                Some(_) => newest.insert(&change.key, (change.main, change.sub)),
                None => newest.remove(change.key.as_slice()),
            };
        }
        newest
    }

    /// Compares every kind of read of `range` at `at`.
    pub fn check_range(&self, store: &Store, range: &KeyRange, at: i64) {
        let resolved = if at <= 0 { self.revision() } else { at };
        for fetch in [Fetch::Full, Fetch::KeysOnly, Fetch::CountOnly] {
            for limit in [0, 1, 3] {
                let found = store.range(range, at, &RangeOptions { limit, fetch });
                if resolved > self.revision() {
                    assert!(matches!(found, Err(Error::FutureRevision { .. })), "{found:?}");
                    continue;
                }
                if resolved < self.compact_revision {
                    assert!(matches!(found, Err(Error::Compacted { .. })), "{found:?}");
                    continue;
                }
                let found = found.unwrap();
                let all: Vec<KeyValue> = self.pairs(range, resolved);
                let context = format!("{range:?} at {at}, limit {limit}, {fetch:?}");
                assert_eq!(found.count, all.len() as i64, "{context}");
                assert_eq!((found.revision, found.at), (self.revision(), resolved), "{context}");
                assert_eq!(found.kvs, trimmed(all, limit, fetch), "{context}");
            }
        }
    }

    pub fn check_all(&self, store: &Store) {
        assert_eq!(store.revision(), self.revision());
        assert_eq!(store.compact_revision(), self.compact_revision);
        assert_eq!(store.applied(), self.applied);
        let items = store.items(b"");
        let expected: Vec<_> =
            self.items.iter().map(|(k, v)| (Bytes::from(k.clone()), Bytes::from(v.clone()))).collect();
        assert_eq!(items, expected);
        for at in -1..=self.revision() + 1 {
            for bounds in [("a", "\0"), ("c", ""), ("c", "f"), ("f", "c"), ("b\0", "zz")] {
                self.check_range(store, &range(bounds.0, bounds.1), at);
            }
        }
        for at in self.compact_revision.max(2)..=self.revision() {
            self.check_hash(store, at);
        }
        let size = store.size();
        let is_ordered = size.in_use <= size.allocated && size.memory <= size.allocated;
        assert!(is_ordered && (size.allocated > 0 || self.revision() == 1), "{size:?}");
    }

    pub fn check_hash(&self, store: &Store, at: i64) {
        let found = store.hash_kv(at).unwrap();
        assert_eq!((found.hash_revision, found.revision), (at, self.revision()));
        // A stored hash of a compaction is against the previous compaction.
        if found.compact_revision == self.compact_revision {
            assert_eq!(found.hash, self.hash(at), "hash at {at}, compacted {}", self.compact_revision);
        } else {
            let then = Oracle { compact_revision: found.compact_revision, ..self.clone() };
            // etcd's compaction also keeps the last tombstone of a key if it is at exactly that revision.
            let is_any_kept = self.changes.iter().any(|change| change.main == at && change.put.is_none());
            assert_eq!(found.hash, then.hash_keeping(at, is_any_kept), "remembered hash at {at}");
        }
    }

    fn pairs(&self, range: &KeyRange, at: i64) -> Vec<KeyValue> {
        self.at(at).values().filter(|kv| range.contains(&kv.key)).cloned().collect()
    }
}

fn trimmed(mut all: Vec<KeyValue>, limit: usize, fetch: Fetch) -> Vec<KeyValue> {
    if limit > 0 {
        all.truncate(limit);
    }
    match fetch {
        Fetch::Full => all,
        Fetch::KeysOnly => {
            all.into_iter().map(|kv| KeyValue { value: Bytes::new(), lease: 0, ..kv }).collect()
        }
        Fetch::CountOnly => Vec::new(),
    }
}

pub struct Request<'o> {
    main: i64,
    sub: i64,
    state: BTreeMap<Vec<u8>, KeyValue>,
    changes: &'o mut Vec<Change>,
}

impl Request<'_> {
    pub fn put(&mut self, key: &str, value: &str, lease: i64) {
        let old = self.state.get(key.as_bytes());
        let kv = KeyValue {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: Bytes::copy_from_slice(value.as_bytes()),
            create_revision: old.map_or(self.main, |old| old.create_revision),
            mod_revision: self.main,
            version: old.map_or(1, |old| old.version + 1),
            lease,
        };
        self.record(key.as_bytes(), Some(kv.clone()));
        self.state.insert(key.into(), kv);
    }

    pub fn delete(&mut self, range: &KeyRange) -> Vec<KeyValue> {
        let doomed: Vec<_> = self.state.values().filter(|kv| range.contains(&kv.key)).cloned().collect();
        for kv in &doomed {
            self.record(&kv.key, None);
            self.state.remove(kv.key.as_ref());
        }
        doomed
    }

    /// Returns the state including the request's own changes.
    pub fn state(&self) -> &BTreeMap<Vec<u8>, KeyValue> {
        &self.state
    }

    fn record(&mut self, key: &[u8], put: Option<KeyValue>) {
        self.changes.push(Change { main: self.main, sub: self.sub, key: key.to_vec(), put });
        self.sub += 1;
    }
}

fn varint(out: &mut Vec<u8>, value: u64) {
    let groups = (1..10).take_while(|group| value >> (7 * group) != 0).count();
    for group in 0..=groups {
        let more = if group < groups { 0x80 } else { 0 };
        out.push((value >> (7 * group) & 0x7f) as u8 | more);
    }
}

fn field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        out.push(number * 8 + 2);
        varint(out, bytes.len() as u64);
        out.extend(bytes);
    }
}

fn number(out: &mut Vec<u8>, number: u8, value: i64) {
    if value != 0 {
        out.push(number * 8);
        varint(out, value as u64);
    }
}

/// Computes CRC-32C from its definition, bit by bit.
pub fn crc_bitwise(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 },
        )
    })
}
