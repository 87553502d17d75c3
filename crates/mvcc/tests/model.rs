//! Random operations compared with a naive store: all reads at all revisions, on both backends, with
//! checkpoints, crashes, restarts and compactions in any order.

use std::path::PathBuf;

use crate::common::{Oracle, everything, range, tiny_options};
use bytes::Bytes;
use mvcc::{
    Backend, CompactProgress, Error, Export, KeyRange, LogPosition, Maintainer, MemoryBackend, Previous,
    SledBackend, Staging, Store, Writer,
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Operation {
    /// An entry of the log with these requests.
    Entry(Vec<Vec<Change>>),
    /// Compacts this share of the remaining history.
    Compact(u8),
    CompactStep(u8),
    CompactFully,
    Reclaim,
    /// Pins the durable checkpoint, to be sent later.
    Export,
    /// Sends the pinned checkpoint, in chunks of this size, to a member without a store.
    Deliver(u16),
    /// Moves the store to another location by export and install.
    Move(u16),
    Persist,
    /// Crashes, and restarts from the durable state.
    Reopen,
    SetItem(u8, Option<u8>),
}

#[derive(Clone, Debug)]
enum Change {
    Put(u8, u16, i64),
    Delete(u8, u8),
    /// Reads inside the request, and must see its changes.
    Read,
    /// Reads from another reader during the request, and must see the state before it.
    Others,
    /// Requests a checkpoint and compacts during the request.
    Maintain,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (0..12u8, any::<u16>(), 0..3i64).prop_map(|(key, value, lease)| Change::Put(key, value, lease)),
        2 => (0..12u8, 0..14u8).prop_map(|(key, end)| Change::Delete(key, end)),
        1 => Just(Change::Read),
        1 => Just(Change::Others),
        1 => Just(Change::Maintain),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let request = prop::collection::vec(change(), 0..4);
    prop_oneof![
        10 => prop::collection::vec(request, 0..4).prop_map(Operation::Entry),
        2 => any::<u8>().prop_map(Operation::Compact),
        4 => (1..30u8).prop_map(Operation::CompactStep),
        1 => Just(Operation::CompactFully),
        1 => Just(Operation::Reclaim),
        1 => Just(Operation::Export),
        1 => (1..3000u16).prop_map(Operation::Deliver),
        1 => (1..3000u16).prop_map(Operation::Move),
        2 => Just(Operation::Persist),
        1 => Just(Operation::Reopen),
        1 => (0..4u8, any::<Option<u8>>()).prop_map(|(key, value)| Operation::SetItem(key, value)),
    ]
}

/// Location from which a crashed store is reopened.
enum Location {
    Memory(MemoryBackend),
    Sled(PathBuf),
}

impl Location {
    fn backend(&self) -> Box<dyn Backend> {
        match self {
            // A fork, so that the dropped store cannot change it.
            Location::Memory(backend) => Box::new(backend.clone()),
            Location::Sled(dir) => Box::new(SledBackend::open(dir).unwrap()),
        }
    }

    fn incoming(&self) -> Box<dyn Backend> {
        match self {
            Location::Memory(backend) => Box::new(backend.incoming()),
            Location::Sled(dir) => Box::new(SledBackend::incoming(dir).unwrap()),
        }
    }

    /// Returns an empty location of the same kind.
    fn another(&self) -> Self {
        match self {
            Location::Memory(_) => Location::Memory(MemoryBackend::new()),
            Location::Sled(dir) => {
                Location::Sled(dir.with_file_name(format!("{}+", dir.file_name().unwrap().to_str().unwrap())))
            }
        }
    }
}

/// Creates an empty store, and receives and installs the export.
fn install(home: &Location, mut export: Export, bytes_max: u16) -> (Writer, Store, Maintainer) {
    let mut handles = mvcc::open(home.backend(), tiny_options()).unwrap();
    let mut staging = Staging::begin(home.incoming(), &tiny_options()).unwrap();
    while let Some(chunk) = export.next(usize::from(bytes_max)).unwrap() {
        staging.add(&chunk).unwrap();
    }
    let installed = handles.2.install(staging.finish().unwrap()).unwrap();
    assert_eq!((installed, handles.1.applied()), (export.applied(), export.applied()));
    handles
}

struct Subject {
    home: Location,
    handles: Option<(Writer, Store, Maintainer)>,
    oracle: Oracle,
    /// Oracle after every entry. A crash returns to one of them.
    past: Vec<Oracle>,
    /// Minimum position after a crash.
    persisted: LogPosition,
    /// A pinned checkpoint, and its expected contents.
    pinned: Option<(Export, Oracle)>,
}

impl Subject {
    fn new(home: Location) -> Self {
        let handles = mvcc::open(home.backend(), tiny_options()).unwrap();
        let oracle = Oracle::default();
        Subject {
            home,
            handles: Some(handles),
            past: vec![oracle.clone()],
            oracle,
            persisted: LogPosition::default(),
            pinned: None,
        }
    }

    fn handles(&mut self) -> &mut (Writer, Store, Maintainer) {
        self.handles.as_mut().unwrap()
    }

    fn run(&mut self, operation: &Operation) {
        match operation {
            Operation::Entry(requests) => {
                for request in requests {
                    self.request(request);
                }
                self.end_entry();
            }
            Operation::Compact(share) => self.compact(*share),
            Operation::CompactStep(keys) => {
                self.handles().2.compact_step(usize::from(*keys)).unwrap();
            }
            Operation::CompactFully => {
                while self.handles().2.compact_step(3).unwrap() == CompactProgress::More {}
            }
            Operation::Reclaim => {
                while self.handles().2.reclaim_step(3).unwrap() != CompactProgress::Idle {}
                self.check();
            }
            Operation::Export => {
                let export = self.handles().2.export();
                let expected = self.past[export.applied().index.0 as usize].clone();
                self.pinned = Some((export, expected));
            }
            Operation::Deliver(bytes_max) => {
                let Some((export, expected)) = self.pinned.take() else { return };
                let home = Location::Memory(MemoryBackend::new());
                let (_, store, _) = install(&home, export, *bytes_max);
                expected.check_all(&store);
            }
            Operation::Move(bytes_max) => self.move_elsewhere(*bytes_max),
            Operation::Persist => {
                let persisted = self.handles().2.persist().unwrap();
                assert_eq!(persisted.applied, self.oracle.applied, "between entries everything is persisted");
                self.persisted = persisted.applied;
            }
            Operation::Reopen => self.reopen(),
            Operation::SetItem(key, value) => {
                let (key, value) = (vec![b'k', *key], value.map(|value| vec![value; 5]));
                self.handles().0.set_item(&key, value.as_deref());
                match value {
                    Some(value) => self.oracle.items.insert(key, value),
                    None => self.oracle.items.remove(&key),
                };
                self.end_entry();
            }
        }
    }

    fn request(&mut self, changes: &[Change]) {
        let before = self.oracle.clone();
        let (writer, store, maintainer) = self.handles.as_mut().unwrap();
        let revision_before = store.revision();
        let mut expected_revision = self.oracle.revision();
        self.oracle.request(|oracle| {
            let mut request = writer.begin();
            for change in changes {
                match change {
                    Change::Put(key, value, lease) => {
                        let (key, value) =
                            (key_name(*key), "v".repeat(usize::from(*value % 90)) + &value.to_string());
                        oracle.put(&key, &value, *lease);
                        request.put(key.as_bytes(), value.as_bytes(), *lease);
                    }
                    Change::Delete(key, end) => {
                        let range = key_range(*key, *end);
                        let deleted = request.delete_range(&range, Previous::Return).unwrap();
                        let expected = oracle.delete(&range);
                        assert_eq!(deleted.count, expected.len() as i64);
                        assert_eq!(deleted.previous, expected);
                    }
                    Change::Read => {
                        let seen = request.range(&KeyRange::all(), 0, &everything()).unwrap();
                        assert_eq!(seen.kvs, oracle.state().values().cloned().collect::<Vec<_>>());
                        let one = request.get(b"c").unwrap();
                        assert_eq!(one.as_ref(), oracle.state().get(b"c".as_slice()));
                    }
                    Change::Others => before.check_all(store),
                    Change::Maintain => {
                        self.persisted = maintainer.persist().unwrap().applied;
                        maintainer.compact_step(3).unwrap();
                        maintainer.reclaim_step(3).unwrap();
                    }
                }
            }
            assert!(request.revision() - revision_before <= 1);
            expected_revision = request.finish();
        });
        assert_eq!(expected_revision, self.oracle.revision());
        self.check_leases();
    }

    fn compact(&mut self, share: u8) {
        let (from, to) = (self.oracle.compact_revision, self.oracle.revision());
        let revision = from + (to - from) * i64::from(share) / 255;
        let compacted = self.handles().0.compact(revision);
        if revision <= from {
            assert!(matches!(compacted, Err(Error::Compacted { .. })));
        } else {
            compacted.unwrap();
            self.oracle.compact_revision = revision;
        }
        self.end_entry();
    }

    fn end_entry(&mut self) {
        self.oracle.applied.index += 1;
        let applied = self.oracle.applied;
        self.handles().0.end_entry(applied).unwrap();
        self.past.push(self.oracle.clone());
    }

    fn reopen(&mut self) {
        self.handles = None;
        self.handles = Some(mvcc::open(self.home.backend(), tiny_options()).unwrap());
        let applied = self.handles().1.applied();
        assert!(applied >= self.persisted, "what was persisted is there");
        self.past.truncate(applied.index.0 as usize + 1);
        self.oracle = self.past.last().unwrap().clone();
        assert_eq!(self.oracle.applied, applied, "a checkpoint is a state between two entries");
        self.check();
    }

    fn move_elsewhere(&mut self, bytes_max: u16) {
        let export = self.handles().2.export();
        let (applied, home) = (export.applied(), self.home.another());
        let handles = install(&home, export, bytes_max);
        // Entries that were not persisted are lost, like in a crash.
        self.handles = Some(handles);
        self.home = home;
        self.persisted = applied;
        self.past.truncate(applied.index.0 as usize + 1);
        self.oracle = self.past.last().unwrap().clone();
        self.check();
    }

    fn check(&mut self) {
        let store = self.handles().1.clone();
        self.oracle.check_all(&store);
        self.check_leases();
    }

    /// Checks the keys of each lease between two requests.
    fn check_leases(&mut self) {
        let store = self.handles().1.clone();
        let mut state = None;
        self.oracle.clone().request(|oracle| state = Some(oracle.state().clone()));
        let state = state.expect("the closure runs");
        let leased = |lease| state.values().filter(move |kv| kv.lease == lease).map(|kv| kv.key.clone());
        for lease in 1..3 {
            assert_eq!(
                store.keys_of_lease(lease, &()).unwrap(),
                leased(lease).collect::<Vec<_>>(),
                "lease {lease}"
            );
        }
        assert_eq!(store.leased_keys(), state.values().filter(|kv| kv.lease != 0).count());
    }
}

fn key_name(number: u8) -> String {
    // Keys of different lengths, some of them prefixes of each other.
    ["a", "aa", "b", "c", "ca", "cab", "d", "e", "f", "g", "ga", "z"][usize::from(number % 12)].into()
}

fn key_range(key: u8, end: u8) -> KeyRange {
    match end {
        12 => range(&key_name(key), "\0"),
        13 => KeyRange::one(Bytes::from(key_name(key))),
        end => range(&key_name(key), &key_name(end)),
    }
}

fn run(home: Location, operations: &[Operation]) {
    let mut subject = Subject::new(home);
    for operation in operations {
        subject.run(operation);
    }
    subject.check();
    subject.reopen();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn in_memory_history_answers_as_the_naive_store_does(
        operations in prop::collection::vec(operation(), 1..60),
    ) {
        run(Location::Memory(MemoryBackend::new()), &operations);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn on_disk_history_answers_as_the_naive_store_does(
        operations in prop::collection::vec(operation(), 1..60),
    ) {
        let dir = tempfile::tempdir().unwrap();
        run(Location::Sled(dir.path().join("store")), &operations);
    }
}
