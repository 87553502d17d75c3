//! A checkpoint travels from one store to another and becomes its state, under readers, writers and crashes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::path::PathBuf;

use bytes::Bytes;
use common::{Oracle, tiny_options};
use mvcc::{
    Applied, Backend, CompactProgress, Error, Export, Maintainer, MemoryBackend, SledBackend, Staged,
    Staging, Store, Writer,
};

/// A store's place, in memory or on disk; all stories are told on both.
enum Home {
    Memory(MemoryBackend),
    Disk(tempfile::TempDir, PathBuf),
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
        if number % 5 == 0 {
            let doomed = common::range(&format!("k{:02}", number % 23), "");
            self.oracle.request(|request| drop(request.delete(&doomed)));
            self.writer.begin().delete_range(&doomed, mvcc::Previous::Skip).unwrap();
        }
        if number % 9 == 0 {
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
