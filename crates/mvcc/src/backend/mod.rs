//! Storage of checkpoints: a catalogue and block files.
//!
//! * `Backend::update` is atomic and durable on return. It completes a checkpoint.
//! * Block files are append-only. They are synced before the catalogue refers to their contents, and
//!   removed as a whole.
//! * Bytes after the last block in the catalogue are not part of the store.
//!
//! A backend stores opaque bytes. `checkpoint::catalogue` and `block` define their format and
//! checksums, which therefore apply to all backends.

mod directories;
mod memory;
mod sled;
mod slots;

use std::io;
use std::sync::Arc;

use crate::error::Result;
use crate::types::LogPosition;

pub use self::directories::{discard_staged, finish_install, staged_at};
pub use self::memory::MemoryBackend;
pub use self::sled::SledBackend;

pub(crate) use self::sled::SEQUENCE_FILE;
pub(crate) use directories::{copy_regular, open_regular, refused};

/// An atomic change of the catalogue. Keys are disjoint. A key is not empty and does not start with 0,
/// which is reserved for backends.
#[derive(Debug, Default)]
pub struct Update {
    pub puts: Vec<(Vec<u8>, Vec<u8>)>,
    pub removals: Vec<Vec<u8>>,
}

/// Storage of a store, which has exclusive access.
pub trait Backend: Send {
    /// Returns the whole catalogue in any order.
    fn catalogue(&mut self) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;

    /// Changes the catalogue atomically and durably.
    fn update(&mut self, update: Update) -> Result<()>;

    /// Returns the numbers of the existing block files.
    fn files(&mut self) -> Result<Vec<u64>>;

    /// Creates an empty file. Its name is durable on return.
    fn create_file(&mut self, number: u64) -> Result<Arc<dyn BlockFile>>;

    /// Opens an existing file for reading and appending.
    fn open_file(&mut self, number: u64) -> Result<Arc<dyn BlockFile>>;

    /// Removes the name of a file. Open handles can still read it.
    fn remove_file(&mut self, number: u64) -> Result<()>;

    /// Records durably that this store was received completely, up to `applied`. Its contents must be
    /// synced.
    fn complete(&mut self, applied: LogPosition) -> Result<()>;

    /// Replaces this store with the completed one in `incoming`, which becomes `self`. After a crash either
    /// store is present and complete. Open handles can still read files of the old one.
    fn replace(&mut self, incoming: Box<dyn Backend>) -> Result<()>;
}

/// A block file with one writer and many readers.
pub trait BlockFile: Send + Sync {
    fn name(&self) -> String;
    /// Fills the buffer. Fails with `UnexpectedEof` if the file is too short.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all bytes. An error may leave a partial write.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes earlier writes durable.
    fn sync(&self) -> io::Result<()>;
    /// Truncates the file after its last block. Only called at start.
    fn truncate(&self, bytes: u64) -> io::Result<()>;
    fn bytes(&self) -> io::Result<u64>;
}
