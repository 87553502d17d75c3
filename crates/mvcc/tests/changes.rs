//! Changes are read back as they were written: whole revisions, in order, until they are compacted.

use std::collections::BTreeMap;

use crate::common::tiny_options;
use bytes::Bytes;
use mvcc::{
    Change, ChangeReader, Changes, CompactProgress, Error, KeyRange, LogPosition, Maintainer, MemoryBackend,
    Previous, Revision, Store, Writer,
};
use proptest::prelude::*;

/// A change: revision, key, and for a put (value, create, version, lease).
type Made = (Revision, Vec<u8>, Option<(Vec<u8>, i64, i64, i64)>);

fn made(changes: &Changes) -> Vec<Made> {
    let one = |change: Change<'_>| {
        let put = match change {
            Change::Put { kv, revision } => {
                assert_eq!(kv.mod_revision, revision.main);
                Some((kv.value.to_vec(), kv.create_revision, kv.version, kv.lease))
            }
            Change::Delete { .. } => None,
        };
        (change.revision(), change.key().to_vec(), put)
    };
    changes.iter().map(one).collect()
}

/// A store, and the changes made to it.
struct Recorded {
    writer: Writer,
    store: Store,
    maintainer: Maintainer,
    made: Vec<Made>,
    /// Create revision and version of each key that exists.
    live: BTreeMap<Vec<u8>, (i64, i64)>,
    index: u64,
}

impl Recorded {
    fn new() -> Self {
        let backend = Box::new(MemoryBackend::new());
        let (writer, store, maintainer) = mvcc::open(backend, tiny_options()).unwrap();
        Recorded { writer, store, maintainer, made: Vec::new(), live: BTreeMap::new(), index: 0 }
    }

    /// Runs a request: puts, then deletes of other keys.
    fn request(&mut self, puts: &[(u8, usize)], deletes: &[u8]) {
        let mut request = self.writer.begin();
        let (main, mut sub) = (request.revision() + 1, 0);
        for (number, (key, length)) in puts.iter().enumerate() {
            if puts[..number].iter().any(|put| put.0 == *key) {
                continue;
            }
            let (key, value) = (vec![b'a' + key], vec![*key; *length]);
            request.put(&key, &value, i64::from(key[0]));
            let (create, version) = self.live.get(&key).map_or((main, 1), |(c, v)| (*c, v + 1));
            self.live.insert(key.clone(), (create, version));
            let put = Some((value, create, version, i64::from(key[0])));
            self.made.push((Revision { main, sub }, key, put));
            sub += 1;
        }
        for key in deletes {
            let key = vec![b'a' + key];
            if puts.iter().any(|put| b'a' + put.0 == key[0]) || self.live.remove(&key).is_none() {
                continue;
            }
            request.delete_range(&KeyRange::one(Bytes::from(key.clone())), Previous::Skip).unwrap();
            self.made.push((Revision { main, sub }, key, None));
            sub += 1;
        }
        request.finish();
        self.end_entry();
    }

    fn end_entry(&mut self) {
        self.index += 1;
        self.writer.end_entry(LogPosition::new(self.index, 1)).unwrap();
    }

    fn compact(&mut self, revision: i64) {
        if self.writer.compact(revision).is_ok() {
            self.end_entry();
        }
    }

    fn step(&mut self, keys_max: usize) -> CompactProgress {
        self.maintainer.persist().unwrap();
        self.maintainer.compact_step(keys_max).unwrap()
    }

    /// Returns the changes of the revisions in a range.
    fn between(&self, from: i64, through: i64) -> Vec<Made> {
        let within = |made: &&Made| made.0.main >= from && made.0.main <= through;
        self.made.iter().filter(within).cloned().collect()
    }

    fn check_from(&self, from: i64, bytes_max: usize) {
        let compacted = self.store.compact_revision();
        match self.store.changes(from, bytes_max) {
            Ok(changes) => {
                assert!(from >= compacted, "{from} is below the compact revision {compacted}");
                assert!(from > self.store.revision() || changes.through() >= from, "nothing from {from}");
                assert_eq!(made(&changes), self.between(from, changes.through()), "from {from}");
                assert_eq!(changes.revision(), self.store.revision());
                self.check_parts(from);
            }
            Err(Error::Compacted { requested, compacted: answer }) => {
                assert_eq!((requested, answer), (from, compacted));
                assert!(from < compacted);
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Checks that the parts of a revision add up to its changes.
    fn check_parts(&self, main: i64) {
        let (mut next, mut parts) = (Some(Revision { main, sub: 0 }), Vec::new());
        while let Some(from) = next {
            let part = self.store.changes_within(from).unwrap();
            let changes = made(&part.changes);
            assert!(part.next.is_none_or(|next| changes.last().is_some_and(|last| last.0 < next)));
            parts.extend(changes);
            next = part.next;
        }
        assert_eq!(parts, self.between(main, main), "parts of {main}");
    }

    /// Checks that the previous pair of each event is the latest put before its revision.
    fn check_previous(&self) {
        let events: Vec<(&[u8], i64)> =
            self.made.iter().map(|(revision, key, _)| (&key[..], revision.main)).collect();
        let found = self.store.previous(&events).unwrap();
        for ((key, main), found) in events.into_iter().zip(found) {
            let before = self.made.iter().rev().find(|made| made.1 == key && made.0.main < main);
            let expected = before.filter(|_| main > self.store.compact_revision());
            let expected = expected.and_then(|made| {
                let (value, create, version, _) = made.2.clone()?;
                Some((made.0.main, value, create, version))
            });
            let found = found.map(|kv| (kv.mod_revision, kv.value.to_vec(), kv.create_revision, kv.version));
            assert_eq!(found, expected, "before {key:?} at {main}");
        }
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Request(Vec<(u8, usize)>, Vec<u8>),
    Compact(u8),
    Step(usize),
    Read(u8, usize),
    Follow(usize),
}

fn operation() -> impl Strategy<Value = Operation> {
    let puts = prop::collection::vec((0..8u8, 0..120usize), 0..6);
    prop_oneof![
        8 => (puts, prop::collection::vec(0..8u8, 0..4)).prop_map(|(p, d)| Operation::Request(p, d)),
        1 => any::<u8>().prop_map(Operation::Compact),
        3 => (1..20usize).prop_map(Operation::Step),
        3 => (any::<u8>(), 0..800usize).prop_map(|(from, bytes)| Operation::Read(from, bytes)),
        2 => (0..800usize).prop_map(Operation::Follow),
    ]
}

/// Reads once, and checks that no change is missing.
fn follow(recorded: &Recorded, follower: &mut ChangeReader, bytes_max: usize) {
    let changes = follower.changes(bytes_max).unwrap();
    assert_eq!(made(&changes), recorded.between(follower.next(), changes.through()));
    follower.advance(changes.through() + 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn changes_are_read_as_they_were_made(operations in prop::collection::vec(operation(), 1..60)) {
        let mut recorded = Recorded::new();
        let mut follower = recorded.store.follow();
        for operation in operations {
            match operation {
                Operation::Request(puts, deletes) => recorded.request(&puts, &deletes),
                Operation::Compact(share) => {
                    let revision = recorded.store.revision();
                    recorded.compact(revision - revision * i64::from(share) / 512);
                }
                Operation::Step(keys) => drop(recorded.step(keys)),
                Operation::Read(share, bytes_max) => {
                    let from = (recorded.store.revision() + 2) * i64::from(share) / 255;
                    recorded.check_from(from, bytes_max);
                    recorded.check_previous();
                }
                Operation::Follow(bytes_max) => follow(&recorded, &mut follower, bytes_max),
            }
        }
        while follower.next() <= recorded.store.revision() {
            follow(&recorded, &mut follower, 200);
        }
        for from in -1..=recorded.store.revision() + 1 {
            recorded.check_from(from, 150);
        }
        recorded.check_previous();
    }
}

#[test]
fn a_request_in_progress_is_not_visible() {
    let mut recorded = Recorded::new();
    recorded.request(&[(0, 10)], &[]);
    let store = recorded.store.clone();
    let mut request = recorded.writer.begin();
    for key in 0..200u8 {
        request.put(&[key, 1], &[7; 100], 0);
    }
    let changes = store.changes(2, 1 << 20).unwrap();
    assert_eq!((changes.through(), changes.iter().count()), (2, 1));
    assert_eq!(store.changes(3, 1 << 20).unwrap().iter().count(), 0);
    request.finish();
    let changes = store.changes(3, 1).unwrap();
    assert_eq!((changes.through(), changes.iter().count()), (3, 200));
    let part = store.changes_within(Revision { main: 3, sub: 0 }).unwrap();
    assert!(part.changes.iter().count() < 100, "a part is a block");
    assert_eq!(store.changes_within(Revision { main: 4, sub: 0 }).unwrap().changes.iter().count(), 0);
}
