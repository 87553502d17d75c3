//! A place for a store, the place beside it for a received one, and a way to come back to both.

use std::path::PathBuf;

use mvcc::{Applied, Backend, Error, MemoryBackend, SledBackend};

/// In memory or on disk; stories are told on both.
pub enum Home {
    Memory(MemoryBackend),
    /// The directory goes with the test.
    Disk(tempfile::TempDir, PathBuf),
}

impl Home {
    pub fn both() -> [Home; 2] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        [Home::Memory(MemoryBackend::new()), Home::Disk(dir, path)]
    }

    /// The store; at a second call as a process finds it that comes back.
    pub fn backend(&self) -> Box<dyn Backend> {
        match self {
            Home::Memory(memory) => Box::new(memory.clone()),
            Home::Disk(_, path) => Box::new(SledBackend::open(path).unwrap()),
        }
    }

    pub fn incoming(&self) -> Box<dyn Backend> {
        match self {
            Home::Memory(memory) => Box::new(memory.incoming()),
            Home::Disk(_, path) => Box::new(SledBackend::incoming(path).unwrap()),
        }
    }

    pub fn staged(&self) -> Option<Applied> {
        match self {
            Home::Memory(memory) => memory.staged().unwrap(),
            Home::Disk(_, path) => mvcc::staged_at(path).unwrap(),
        }
    }

    pub fn finish_install(&self) -> Result<Applied, Error> {
        match self {
            Home::Memory(memory) => memory.finish_install(),
            Home::Disk(_, path) => mvcc::finish_install(path),
        }
    }

    pub fn discard(&self) {
        match self {
            Home::Memory(memory) => memory.discard_staged().unwrap(),
            Home::Disk(_, path) => mvcc::discard_staged(path).unwrap(),
        }
    }

    pub fn wipe(&self) {
        match self {
            Home::Memory(memory) => memory.wipe(),
            Home::Disk(_, path) => std::fs::remove_dir_all(path).unwrap(),
        }
    }
}
