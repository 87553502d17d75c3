//! A checkpoint travels from one store to another and becomes its state, under readers, writers and crashes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::path::PathBuf;

use bytes::Bytes;
use common::dying::{Allowance, DyingBackend};
use common::{Oracle, tiny_options};
use mvcc::{
    Applied, Backend, CompactProgress, Error, Export, Maintainer, MemoryBackend, SledBackend, Staged,
    Staging, Store, Writer,
};

/// A store's place, in memory or on disk; all stories are told on both.
enum Home {
    Memory(MemoryBackend),
    /// The directory goes with the test.
    Disk(#[expect(dead_code, reason = "held, not read")] tempfile::TempDir, PathBuf),
}

impl Home {
    fn both() -> [Home; 2] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        [Home::Memory(MemoryBackend::new()), Home::Disk(dir, path)]
    }

    fn backend(&self) -> Box<dyn Backend> {
        match self {
            Home::Memory(memory) => Box::new(memory.clone()),
            Home::Disk(_, path) => Box::new(SledBackend::open(path).unwrap()),
        }
    }

    fn incoming(&self) -> Box<dyn Backend> {
        match self {
            Home::Memory(memory) => Box::new(memory.incoming()),
            Home::Disk(_, path) => Box::new(SledBackend::incoming(path).unwrap()),
        }
    }

    fn staged(&self) -> Option<Applied> {
        match self {
            Home::Memory(memory) => memory.staged().unwrap(),
            Home::Disk(_, path) => mvcc::staged_at(path).unwrap(),
        }
    }

    fn finish_install(&self) -> Result<Applied, Error> {
        match self {
            Home::Memory(memory) => memory.finish_install(),
            Home::Disk(_, path) => mvcc::finish_install(path),
        }
    }

    fn discard(&self) {
        match self {
            Home::Memory(memory) => memory.discard_staged().unwrap(),
            Home::Disk(_, path) => mvcc::discard_staged(path).unwrap(),
        }
    }

    fn open(&self) -> Member {
        let (writer, store, maintainer) = mvcc::open(self.backend(), tiny_options()).unwrap();
        Member { writer, store, maintainer, oracle: Oracle::default() }
    }
}

struct Member {
    writer: Writer,
    store: Store,
    maintainer: Maintainer,
    oracle: Oracle,
}

impl Member {
    /// One entry: a put, now and then a delete and an item.
    fn entry(&mut self, number: u64) {
        let (key, value) = (format!("k{:02}", number * 7 % 23), format!("{number}-").repeat(12));
        self.oracle.request(|request| request.put(&key, &value, 0));
        self.writer.begin().put(key.as_bytes(), value.as_bytes(), 0);
        if number.is_multiple_of(5) {
            let doomed = common::range(&format!("k{:02}", number % 23), "");
            self.oracle.request(|request| drop(request.delete(&doomed)));
            self.writer.begin().delete_range(&doomed, mvcc::Previous::Skip).unwrap();
        }
        if number.is_multiple_of(9) {
            let item = format!("item/{}", number % 4);
            self.oracle.items.insert(item.clone().into(), value.clone().into());
            self.writer.set_item(item.as_bytes(), Some(value.as_bytes()));
        }
        self.oracle.applied = Applied { index: number, term: 1 };
        self.writer.end_entry(self.oracle.applied).unwrap();
    }

    fn entries(&mut self, numbers: std::ops::RangeInclusive<u64>) {
        numbers.for_each(|number| self.entry(number));
    }

    fn compact(&mut self, back: i64) {
        self.oracle.compact_revision = self.oracle.revision() - back;
        self.writer.compact(self.oracle.compact_revision).unwrap();
        self.oracle.applied.index += 1;
        self.writer.end_entry(self.oracle.applied).unwrap();
    }

    fn settle(&mut self) {
        self.maintainer.persist().unwrap();
        while self.maintainer.compact_step(7).unwrap() == CompactProgress::More {}
    }

    fn check(&self) {
        self.oracle.check_all(&self.store);
    }
}

/// A member with some history, part of it compacted, all of it durable.
fn leader() -> Member {
    let mut leader = Home::Memory(MemoryBackend::new()).open();
    leader.entries(1..=60);
    leader.compact(20);
    leader.settle();
    leader.entries(100..=140);
    leader.maintainer.persist().unwrap();
    leader
}

fn chunks(mut export: Export, bytes_max: usize) -> Vec<Bytes> {
    std::iter::from_fn(|| export.next(bytes_max).unwrap()).collect()
}

fn receive(home: &Home, chunks: &[Bytes]) -> Result<Staged, Error> {
    let mut staging = Staging::begin(home.incoming(), &tiny_options())?;
    for chunk in chunks {
        staging.add(chunk)?;
    }
    staging.finish()
}

#[test]
fn what_was_exported_is_what_is_installed() {
    let leader = leader();
    for home in Home::both() {
        for bytes_max in [40, 1000, 1 << 20] {
            let mut follower = home.open();
            let export = leader.maintainer.export();
            assert_eq!(
                (export.applied(), export.revision()),
                (leader.oracle.applied, leader.oracle.revision())
            );
            assert!(export.bytes() > 1000);
            let chunks = chunks(export, bytes_max);
            assert!(chunks.iter().all(|chunk| chunk.len() <= bytes_max));
            let staged = receive(&home, &chunks).unwrap();
            assert_eq!(home.staged(), Some(leader.oracle.applied));
            assert_eq!(staged.applied(), leader.oracle.applied);
            assert_eq!(follower.maintainer.install(staged).unwrap(), leader.oracle.applied);
            assert_eq!(home.staged(), None);
            leader.oracle.check_all(&follower.store);
            assert_eq!(follower.store.hash_kv(0).unwrap().hash, leader.oracle.hash(leader.oracle.revision()));

            // It lives on, and a restart finds the same.
            follower.oracle = leader.oracle.clone();
            follower.entries(200..=230);
            follower.compact(5);
            follower.settle();
            follower.check();
            let Member { oracle, writer, store, maintainer } = follower;
            drop((writer, store, maintainer));
            oracle.check_all(&home.open().store);
            // The next round begins with the store lost.
            home.wipe();
        }
    }
}

impl Home {
    fn wipe(&self) {
        match self {
            Home::Memory(memory) => memory.wipe(),
            Home::Disk(_, path) => std::fs::remove_dir_all(path).unwrap(),
        }
    }
}

#[test]
fn an_export_stays_what_it_was_while_its_store_goes_on() {
    for source in Home::both() {
        let mut leader = source.open();
        leader.entries(1..=80);
        leader.settle();
        let (mut export, expected) = (leader.maintainer.export(), leader.oracle.clone());
        let mut sent = vec![export.next(200).unwrap().unwrap()];
        // Everything that the export names is overwritten, compacted, moved, and removed from the directory.
        leader.entries(100..=250);
        leader.compact(0);
        leader.settle();
        while leader.maintainer.reclaim_step(50).unwrap() != CompactProgress::Idle {}
        leader.check();
        sent.extend(chunks(export, 200));
        let home = Home::Memory(MemoryBackend::new());
        let mut follower = home.open();
        follower.maintainer.install(receive(&home, &sent).unwrap()).unwrap();
        expected.check_all(&follower.store);
    }
}

#[test]
fn an_export_holds_what_is_durable_and_nothing_else() {
    let mut leader = leader();
    let durable = leader.oracle.clone();
    leader.entries(300..=320);
    leader.writer.set_item(b"item/0", Some(b"not persisted"));
    let home = Home::Memory(MemoryBackend::new());
    let mut follower = home.open();
    let staged = receive(&home, &chunks(leader.maintainer.export(), 500)).unwrap();
    follower.maintainer.install(staged).unwrap();
    durable.check_all(&follower.store);
}

#[test]
fn an_empty_store_travels_too() {
    for home in Home::both() {
        let leader = Home::Memory(MemoryBackend::new()).open();
        let mut follower = home.open();
        let staged = receive(&home, &chunks(leader.maintainer.export(), 64)).unwrap();
        assert_eq!((staged.applied(), staged.revision()), (Applied::default(), 1));
        follower.maintainer.install(staged).unwrap();
        follower.entries(1..=3);
        follower.check();
    }
}

#[test]
fn what_was_not_persisted_goes_with_the_old_store_even_half_an_entry() {
    let leader = leader();
    for home in Home::both() {
        let mut follower = home.open();
        follower.entries(1..=9);
        follower.maintainer.persist().unwrap();
        follower.entries(10..=15);
        follower.writer.begin().put(b"half", b"an entry", 0);
        let staged = receive(&home, &chunks(leader.maintainer.export(), 500)).unwrap();
        follower.maintainer.install(staged).unwrap();
        leader.oracle.check_all(&follower.store);
        // Nothing of it comes back with the next checkpoint.
        follower.oracle = leader.oracle.clone();
        follower.entries(400..=401);
        follower.maintainer.persist().unwrap();
        follower.check();
    }
}

#[test]
fn handles_and_pairs_of_before_are_good_afterwards() {
    let leader = leader();
    for home in Home::both() {
        let mut follower = home.open();
        follower.entries(1..=20);
        follower.maintainer.persist().unwrap();
        let (clone, held) = (follower.store.clone(), read_all(&follower.store));
        let copy: Vec<_> = held.iter().map(|kv| (kv.key.to_vec(), kv.value.to_vec())).collect();
        let staged = receive(&home, &chunks(leader.maintainer.export(), 500)).unwrap();
        follower.maintainer.install(staged).unwrap();
        leader.oracle.check_all(&clone);
        assert!(held.iter().map(|kv| (kv.key.to_vec(), kv.value.to_vec())).eq(copy));
    }
}

fn read_all(store: &Store) -> Vec<mvcc::KeyValue> {
    store.range(&mvcc::KeyRange::all(), 0, &mvcc::RangeOptions::default()).unwrap().kvs
}

#[test]
fn a_store_that_is_behind_is_refused_and_harms_nothing() {
    let (leader, home) = (leader(), Home::Memory(MemoryBackend::new()));
    let stale = chunks(leader.maintainer.export(), 500);
    let mut follower = home.open();
    let staged = receive(&home, &stale).unwrap();
    follower.maintainer.install(staged).unwrap();
    follower.oracle = leader.oracle.clone();
    follower.entries(500..=501);
    let refused = follower.maintainer.install(receive(&home, &stale).unwrap());
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    follower.check();
    follower.maintainer.persist().unwrap();
    home.discard();
    follower.check();
}

#[test]
fn two_installs_in_a_row_end_in_the_second() {
    for home in Home::both() {
        let mut leader = Home::Memory(MemoryBackend::new()).open();
        let mut follower = home.open();
        for round in 0..3 {
            leader.entries(round * 50 + 1..=round * 50 + 40);
            leader.compact(3);
            leader.settle();
            let staged = receive(&home, &chunks(leader.maintainer.export(), 300)).unwrap();
            follower.maintainer.install(staged).unwrap();
            leader.oracle.check_all(&follower.store);
            // Reads fill the cache with blocks of this store, under numbers that the next one uses as well.
            read_all(&follower.store);
        }
    }
}

#[test]
fn a_new_stream_replaces_an_aborted_one() {
    let leader = leader();
    let all = chunks(leader.maintainer.export(), 300);
    for home in Home::both() {
        let mut follower = home.open();
        for count in [0, 1, all.len() / 2, all.len() - 1] {
            let mut staging = Staging::begin(home.incoming(), &tiny_options()).unwrap();
            all[..count].iter().for_each(|chunk| staging.add(chunk).unwrap());
            assert!(matches!(staging.finish(), Err(Error::Corrupt { .. })), "{count} chunks are no store");
            assert_eq!(home.staged(), None);
            assert!(matches!(home.finish_install(), Err(Error::Refused { .. })));
        }
        let staged = receive(&home, &all).unwrap();
        follower.maintainer.install(staged).unwrap();
        leader.oracle.check_all(&follower.store);
    }
}

#[test]
fn a_place_that_is_in_use_is_not_received_into() {
    let leader = leader();
    for home in Home::both() {
        let mut member = home.open();
        member.entries(1..=3);
        member.maintainer.persist().unwrap();
        drop(member);
        let begun = Staging::begin(home.backend(), &tiny_options());
        assert!(matches!(begun, Err(Error::Refused { .. })));
        assert_eq!(home.open().store.revision(), 4);
        drop(receive(&home, &chunks(leader.maintainer.export(), 999)).unwrap());
    }
}

#[test]
fn every_flipped_bit_of_the_stream_is_noticed_before_anything_is_complete() {
    let (leader, home) = (leader(), Home::Memory(MemoryBackend::new()));
    let intact = chunks(leader.maintainer.export(), 400);
    for (number, chunk) in intact.iter().enumerate() {
        for position in (0..chunk.len()).step_by(5) {
            let mut damaged = intact.clone();
            let mut bytes = chunk.to_vec();
            bytes[position] ^= 1 << (position % 8);
            damaged[number] = Bytes::from(bytes);
            let received = receive(&home, &damaged);
            assert!(matches!(received, Err(Error::Corrupt { .. })), "chunk {number}, byte {position}");
            assert_eq!(home.staged(), None);
        }
    }
}

#[test]
fn after_a_damaged_chunk_nothing_more_is_taken_in() {
    let (leader, home) = (leader(), Home::Memory(MemoryBackend::new()));
    let chunks = chunks(leader.maintainer.export(), 400);
    let mut staging = Staging::begin(home.incoming(), &tiny_options()).unwrap();
    staging.add(&chunks[0]).unwrap();
    assert!(staging.add(b"garbage").is_err());
    assert!(matches!(staging.add(&chunks[1]), Err(Error::Poisoned)));
    assert!(matches!(staging.finish(), Err(Error::Poisoned)));
}

#[test]
fn a_damaged_block_does_not_leave_its_member() {
    let backend = MemoryBackend::new();
    let mut leader = Home::Memory(backend.clone()).open();
    leader.entries(1..=60);
    leader.settle();
    let mut disk = backend.clone();
    let number = disk.files().unwrap()[0];
    disk.open_file(number).unwrap().write_at(b"?", 24 + 60).unwrap();
    let mut export = leader.maintainer.export();
    let outcome = loop {
        match export.next(300) {
            Ok(Some(_)) => {}
            other => break other,
        }
    };
    let error = outcome.unwrap_err();
    assert!(
        matches!(&error, Error::Corrupt { file, offset: 24, .. } if file.contains("block file")),
        "{error}"
    );
}

/// What a follower's disk may hold after a crash, and must not hold.
#[test]
fn a_disk_that_dies_at_any_operation_of_an_install_leaves_the_old_store_or_the_new_one() {
    let leader = leader();
    let all = chunks(leader.maintainer.export(), 700);
    let disk = MemoryBackend::new();
    let mut follower = Home::Memory(disk.clone()).open();
    follower.entries(1..=12);
    follower.settle();
    let old = follower.oracle.clone();
    drop(follower);
    for allowance in 0.. {
        let disk = disk.fork();
        let allowed = Allowance::of(allowance);
        let is_done = receive_and_install(&disk, &allowed, &all);
        let found = disk.fork();
        match found.staged().unwrap() {
            Some(applied) => {
                assert_eq!(applied, leader.oracle.applied);
                let kept = found.fork();
                kept.discard_staged().unwrap();
                old.check_all(&Home::Memory(kept).open().store);
                found.finish_install().unwrap();
                leader.oracle.check_all(&Home::Memory(found).open().store);
            }
            None => {
                found.discard_staged().unwrap();
                let store = Home::Memory(found).open().store;
                let is_new = store.applied() == leader.oracle.applied;
                assert!(is_new || !is_done, "an install that returned was lost");
                if is_new { &leader.oracle } else { &old }.check_all(&store);
            }
        }
        if is_done {
            assert!(allowance > 12, "an install of only {allowance} operations");
            break;
        }
    }
}

/// On a disk that may die; true if it did not.
fn receive_and_install(disk: &MemoryBackend, allowance: &Allowance, chunks: &[Bytes]) -> bool {
    // The store was opened before: that costs nothing of the allowance but what the opening itself writes.
    let dying = |disk: MemoryBackend| Box::new(DyingBackend::new(disk, allowance));
    let Ok((_writer, _store, mut maintainer)) = mvcc::open(dying(disk.clone()), tiny_options()) else {
        return false;
    };
    let received = || {
        let mut staging = Staging::begin(dying(disk.incoming()), &tiny_options())?;
        chunks.iter().try_for_each(|chunk| staging.add(chunk))?;
        staging.finish()
    };
    let installed = received().and_then(|staged| maintainer.install(staged));
    if installed.is_err() {
        // Only an install poisons: a stream that failed leaves the store as it was.
        let persisted = maintainer.persist();
        assert!(matches!(persisted, Ok(_) | Err(Error::Poisoned)), "{persisted:?}");
    }
    installed.is_ok()
}

/// The directories of a store and of a received one, taken apart and put together as crashes may leave them.
struct Directories {
    dir: tempfile::TempDir,
    old: Oracle,
    new: Oracle,
}

impl Directories {
    /// A store, and beside it a complete one that waits.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::Disk(tempfile::tempdir().unwrap(), dir.path().join("store"));
        let (leader, mut follower) = (leader(), home.open());
        follower.entries(1..=12);
        follower.settle();
        let all = chunks(leader.maintainer.export(), 5000);
        drop(receive(&home, &all).unwrap());
        Directories { old: follower.oracle.clone(), new: leader.oracle.clone(), dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn rename(&self, from: &str, to: &str) {
        std::fs::rename(self.path(from), self.path(to)).unwrap();
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn check(&self, expected: &Oracle) {
        let backend = Box::new(SledBackend::open(&self.path("store")).unwrap());
        let (_, store, _) = mvcc::open(backend, tiny_options()).unwrap();
        expected.check_all(&store);
        assert_eq!(self.names(), ["store"]);
    }
}

type Crash = fn(&Directories);

/// States that a crash may leave in which the received store is there, whole.
const WHILE_STAGED: [(&str, Crash); 3] = [
    ("nothing was renamed", |_| {}),
    ("a leftover of an earlier install is there", |dirs| {
        std::fs::create_dir_all(dirs.path("store.old/blocks")).unwrap();
    }),
    ("stopped between the renames", |dirs| dirs.rename("store", "store.old")),
];

#[test]
fn a_store_that_waits_is_installed_or_discarded_by_the_next_start() {
    for (what, crash) in WHILE_STAGED {
        for is_wanted in [true, false] {
            let dirs = Directories::new();
            crash(&dirs);
            let home = dirs.path("store");
            assert_eq!(mvcc::staged_at(&home).unwrap(), Some(dirs.new.applied), "{what}");
            if is_wanted {
                assert_eq!(mvcc::finish_install(&home).unwrap(), dirs.new.applied, "{what}");
                dirs.check(&dirs.new);
            } else {
                mvcc::discard_staged(&home).unwrap();
                dirs.check(&dirs.old);
            }
        }
    }
}

#[test]
fn leftovers_of_an_install_that_is_done_go_at_the_next_start() {
    let crashes: [(&str, Crash); 2] = [
        ("the old store is whole", |_| {}),
        ("the old store is half removed", |dirs| {
            std::fs::remove_dir_all(dirs.path("store.old/catalogue")).unwrap();
        }),
    ];
    for (what, crash) in crashes {
        let dirs = Directories::new();
        dirs.rename("store", "store.old");
        dirs.rename("store.incoming", "store");
        crash(&dirs);
        let home = dirs.path("store");
        assert_eq!(mvcc::staged_at(&home).unwrap(), None, "{what}");
        mvcc::discard_staged(&home).unwrap();
        dirs.check(&dirs.new);
    }
}

#[test]
fn a_half_received_store_is_no_store() {
    let crashes: [(&str, Crash); 3] = [
        ("without its mark", |dirs| std::fs::remove_file(dirs.path("store.incoming/received")).unwrap()),
        ("its mark half written", |dirs| {
            dirs.rename("store.incoming/received", "store.incoming/received.tmp")
        }),
        ("an empty directory", |dirs| {
            std::fs::remove_dir_all(dirs.path("store.incoming")).unwrap();
            std::fs::create_dir(dirs.path("store.incoming")).unwrap();
        }),
    ];
    for (what, crash) in crashes {
        let dirs = Directories::new();
        crash(&dirs);
        let home = dirs.path("store");
        assert_eq!(mvcc::staged_at(&home).unwrap(), None, "{what}");
        assert!(matches!(mvcc::finish_install(&home), Err(Error::Refused { .. })), "{what}");
        mvcc::discard_staged(&home).unwrap();
        dirs.check(&dirs.old);
    }
}

#[test]
fn a_damaged_mark_is_an_error_that_names_the_file_and_the_old_store_is_kept() {
    let dirs = Directories::new();
    let mark = dirs.path("store.incoming/received");
    let mut bytes = std::fs::read(&mark).unwrap();
    bytes[14] ^= 1;
    std::fs::write(&mark, bytes).unwrap();
    let home = dirs.path("store");
    let error = mvcc::staged_at(&home).unwrap_err();
    assert!(matches!(&error, Error::Corrupt { file, .. } if file.ends_with("received")), "{error}");
    assert!(mvcc::finish_install(&home).is_err());
    mvcc::discard_staged(&home).unwrap();
    dirs.check(&dirs.old);
}

#[test]
fn a_store_whose_replacement_was_interrupted_is_not_opened_as_an_empty_one() {
    let dirs = Directories::new();
    dirs.rename("store", "store.old");
    assert!(matches!(SledBackend::open(&dirs.path("store")), Err(Error::Refused { .. })));
    assert_eq!(dirs.names(), ["store.incoming", "store.old"], "and nothing was made there");
}
