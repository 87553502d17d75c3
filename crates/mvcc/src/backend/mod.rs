//! Where checkpoints live.

use std::path::{Path, PathBuf};

use crate::error::Result;

/// Durable home of a store.
pub trait Backend: Send {}

/// A backend in memory, for tests and simulation: a cheap handle to shared state. Drop the store, open another on a clone
/// of the handle, and it stands at the last persisted checkpoint, as after a crash.
#[derive(Clone, Default)]
pub struct MemoryBackend {}

impl MemoryBackend {
    pub fn new() -> Self {
        Self::default()
    }
}

impl Backend for MemoryBackend {}

/// Block files of our own, with sled as their catalogue.
pub struct SledBackend {
    _dir: PathBuf,
}

impl SledBackend {
    /// Opens the store in `dir`, creating it if it is not there.
    pub fn open(dir: &Path) -> Result<Self> {
        Ok(SledBackend { _dir: dir.to_path_buf() })
    }
}

impl Backend for SledBackend {}
