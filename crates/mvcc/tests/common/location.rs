//! A location of a store and of a received one, which can be opened repeatedly.

use std::path::PathBuf;

use mvcc::{Backend, Error, LogPosition, MemoryBackend, SledBackend};

pub enum Location {
    Memory(MemoryBackend),
    /// The directory is removed after the test.
    Disk(tempfile::TempDir, PathBuf),
}

impl Location {
    pub fn both() -> [Location; 2] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        [Location::Memory(MemoryBackend::new()), Location::Disk(dir, path)]
    }

    /// Opens the store; a second call simulates a restart.
    pub fn backend(&self) -> Box<dyn Backend> {
        match self {
            Location::Memory(memory) => Box::new(memory.clone()),
            Location::Disk(_, path) => Box::new(SledBackend::open(path).unwrap()),
        }
    }

    pub fn incoming(&self) -> Box<dyn Backend> {
        match self {
            Location::Memory(memory) => Box::new(memory.incoming()),
            Location::Disk(_, path) => Box::new(SledBackend::incoming(path).unwrap()),
        }
    }

    pub fn staged(&self) -> Option<LogPosition> {
        match self {
            Location::Memory(memory) => memory.staged().unwrap(),
            Location::Disk(_, path) => mvcc::staged_at(path).unwrap(),
        }
    }

    pub fn finish_install(&self) -> Result<LogPosition, Error> {
        match self {
            Location::Memory(memory) => memory.finish_install(),
            Location::Disk(_, path) => mvcc::finish_install(path),
        }
    }

    pub fn discard(&self) {
        match self {
            Location::Memory(memory) => memory.discard_staged().unwrap(),
            Location::Disk(_, path) => mvcc::discard_staged(path).unwrap(),
        }
    }

    pub fn wipe(&self) {
        match self {
            Location::Memory(memory) => memory.wipe(),
            Location::Disk(_, path) => std::fs::remove_dir_all(path).unwrap(),
        }
    }
}
