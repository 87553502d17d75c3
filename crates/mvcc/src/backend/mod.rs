//! Where checkpoints are stored: a catalogue and block files.
//!
//! * `Backend::update` is atomic and durable on return. It completes a checkpoint.
//! * Block files are only appended to. They are synced before the catalogue refers to their contents, and
//!   removed as a whole.
//! * Bytes after the last block that the catalogue refers to are not part of the store.
//!
//! A backend stores bytes. Their meaning and checksums are defined in `checkpoint::catalogue` and `block`, so
//! that all backends are checked alike.

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

/// One atomic change of the catalogue. Keys are disjoint. No key is empty or begins with 0, which is reserved
/// for backends.
#[derive(Debug, Default)]
pub struct Update {
    pub puts: Vec<(Vec<u8>, Vec<u8>)>,
    pub removals: Vec<Vec<u8>>,
}

/// The storage of one store, which is the only user.
pub trait Backend: Send {
    /// The whole catalogue, in any order.
    fn catalogue(&mut self) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;

    /// Changes the catalogue, atomically and durably.
    fn update(&mut self, update: Update) -> Result<()>;

    /// Numbers of the existing block files.
    fn files(&mut self) -> Result<Vec<u64>>;

    /// Creates an empty file. Its name is durable on return.
    fn create_file(&mut self, number: u64) -> Result<Arc<dyn BlockFile>>;

    /// Opens an existing file, to read it and to append to it.
    fn open_file(&mut self, number: u64) -> Result<Arc<dyn BlockFile>>;

    /// Removes the name. Open handles can still read the file.
    fn remove_file(&mut self, number: u64) -> Result<()>;

    /// Records durably that this store was received completely, up to `applied`. Its contents are synced
    /// already.
    fn complete(&mut self, applied: LogPosition) -> Result<()>;

    /// Replaces this store by the completed one in `incoming`: `self` is that store from now on. After a
    /// crash one of the two stores is there, complete. Open handles can still read files of the old one.
    fn replace(&mut self, incoming: Box<dyn Backend>) -> Result<()>;
}

/// A block file with one writer and many readers.
pub trait BlockFile: Send + Sync {
    /// The name in errors.
    fn name(&self) -> String;
    /// Fills the buffer. Fails with `UnexpectedEof` if the file is too short.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all bytes. After an error any part may be written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes earlier writes durable.
    fn sync(&self) -> io::Result<()>;
    /// Truncates the file. Only a start does this, to what no block is in.
    fn truncate(&self, bytes: u64) -> io::Result<()>;
    /// The length of the file.
    fn bytes(&self) -> io::Result<u64>;
}
