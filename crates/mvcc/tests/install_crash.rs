//! A checkpoint is received and installed on a failing disk. The old store or the new one remains,
//! complete.

use std::path::PathBuf;

use crate::common::failing::{Allowance, FailingBackend};
use crate::common::location::Location;
use crate::common::member::{chunks, leader, receive};
use crate::common::{Oracle, tiny_options};
use bytes::Bytes;
use mvcc::{Error, MemoryBackend, SledBackend, Staging};

#[test]
fn a_disk_that_fails_at_any_operation_of_an_install_leaves_the_old_or_the_new_store() {
    let leader = leader();
    let all = chunks(leader.maintainer.export(), 700);
    let disk = MemoryBackend::new();
    let mut follower = Location::Memory(disk.clone()).open();
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
                old.check_all(&Location::Memory(kept).open().store);
                found.finish_install().unwrap();
                leader.oracle.check_all(&Location::Memory(found).open().store);
            }
            None => {
                found.discard_staged().unwrap();
                let store = Location::Memory(found).open().store;
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

/// Receives and installs a store. Returns true if the disk has not failed.
fn receive_and_install(disk: &MemoryBackend, allowance: &Allowance, chunks: &[Bytes]) -> bool {
    // The store was opened before. The opening counts only its own writes.
    let failing = |disk: MemoryBackend| Box::new(FailingBackend::new(disk, allowance));
    let Ok((_writer, _store, mut maintainer)) = mvcc::open(failing(disk.clone()), tiny_options()) else {
        return false;
    };
    let received = || {
        let mut staging = Staging::begin(failing(disk.incoming()), &tiny_options())?;
        chunks.iter().try_for_each(|chunk| staging.add(chunk))?;
        staging.finish()
    };
    let installed = received().and_then(|staged| maintainer.install(staged));
    if installed.is_err() {
        // Only a failed install poisons. A failed stream leaves the store unchanged.
        let persisted = maintainer.persist();
        assert!(matches!(persisted, Ok(_) | Err(Error::Poisoned)), "{persisted:?}");
    }
    installed.is_ok()
}

/// Directories of a store and of a received one, rearranged like after a crash.
struct DirectorySlots {
    dir: tempfile::TempDir,
    old: Oracle,
    new: Oracle,
}

impl DirectorySlots {
    /// Creates a store, and a completely received one next to it.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = Location::Disk(tempfile::tempdir().unwrap(), dir.path().join("store"));
        let (leader, mut follower) = (leader(), home.open());
        follower.entries(1..=12);
        follower.settle();
        let all = chunks(leader.maintainer.export(), 5000);
        drop(receive(&home, &all).unwrap());
        DirectorySlots { old: follower.oracle.clone(), new: leader.oracle.clone(), dir }
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

type Crash = fn(&DirectorySlots);

/// States after a crash with a complete received store.
const WHILE_STAGED: [(&str, Crash); 3] = [
    ("nothing was renamed", |_| {}),
    ("a leftover of an earlier install is there", |dirs| {
        std::fs::create_dir_all(dirs.path("store.old/blocks")).unwrap();
    }),
    ("stopped between the renames", |dirs| dirs.rename("store", "store.old")),
];

#[test]
fn a_staged_store_is_installed_or_discarded_by_the_next_start() {
    for (what, crash) in WHILE_STAGED {
        for is_wanted in [true, false] {
            let dirs = DirectorySlots::new();
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
fn leftovers_of_a_finished_install_are_removed_by_the_next_start() {
    let crashes: [(&str, Crash); 2] = [
        ("the old store is whole", |_| {}),
        ("the old store is half removed", |dirs| {
            std::fs::remove_dir_all(dirs.path("store.old/catalogue")).unwrap();
        }),
    ];
    for (what, crash) in crashes {
        let dirs = DirectorySlots::new();
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
fn a_partly_received_store_is_not_installed() {
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
        let dirs = DirectorySlots::new();
        crash(&dirs);
        let home = dirs.path("store");
        assert_eq!(mvcc::staged_at(&home).unwrap(), None, "{what}");
        assert!(matches!(mvcc::finish_install(&home), Err(Error::Refused { .. })), "{what}");
        mvcc::discard_staged(&home).unwrap();
        dirs.check(&dirs.old);
    }
}

#[test]
fn a_damaged_marker_is_an_error_and_the_old_store_is_kept() {
    let dirs = DirectorySlots::new();
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
    let dirs = DirectorySlots::new();
    dirs.rename("store", "store.old");
    assert!(matches!(SledBackend::open(&dirs.path("store")), Err(Error::Refused { .. })));
    assert_eq!(dirs.names(), ["store.incoming", "store.old"], "and nothing was made there");
}
