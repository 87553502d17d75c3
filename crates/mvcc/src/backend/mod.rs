//! Where checkpoints live: a catalogue and block files.
//!
//! * `Backend::update` is atomic and durable on return. It is the one moment at which a checkpoint comes to be.
//! * Block files are only appended to, synced before the catalogue names what is in them, and removed whole.
//! * What a file holds beyond the last block that the catalogue names never happened.
//!
//! A backend stores bytes; their meaning and their checksums belong to `catalogue` and `block_file`, so that every
//! backend is checked alike.

pub(crate) mod directories;
mod flush;
mod memory;
mod shelf;
mod sled;
pub(crate) mod witness;

use std::io;
use std::sync::Arc;

use crate::error::Result;
use crate::types::Applied;

pub use self::directories::{discard_staged, finish_install, staged_at};
pub use self::memory::MemoryBackend;
pub use self::sled::SledBackend;

/// One atomic change of the catalogue. Keys are disjoint; none is empty or begins with 0, which backends keep for themselves.
#[derive(Debug, Default)]
pub struct Update {
    pub puts: Vec<(Vec<u8>, Vec<u8>)>,
    pub removals: Vec<Vec<u8>>,
}

/// Durable home of one store. One store at a time uses it.
pub trait Backend: Send {
    /// The whole catalogue, in any order.
    fn catalogue(&mut self) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;

    /// Changes the catalogue: after a crash either all of it or nothing; durable on return.
    fn update(&mut self, update: Update) -> Result<()>;

    /// Bytes that the catalogue occupies.
    fn catalogue_bytes(&self) -> u64;

    /// Numbers of the block files there are.
    fn files(&mut self) -> Result<Vec<u64>>;

    /// Creates an empty file, whose name survives a crash from then on.
    fn create_file(&mut self, number: u64) -> Result<Arc<dyn BlockFile>>;

    /// Opens a file that is there, to read it and to append to it.
    fn open_file(&mut self, number: u64) -> Result<Arc<dyn BlockFile>>;

    /// Removes the name. Readers that hold the file still read it.
    fn remove_file(&mut self, number: u64) -> Result<()>;

    /// Says durably that this store was received wholly, up to `applied`. Everything in it is synced by then.
    fn complete(&mut self, applied: Applied) -> Result<()>;

    /// The store in `incoming`, received beside this one and completed, takes its place: from now on `self` is that
    /// store. After a crash either of them is there, whole. Files of the old one stay readable for who holds them.
    fn replace(&mut self, incoming: Box<dyn Backend>) -> Result<()>;
}

/// One block file, written by one owner and read by many.
pub trait BlockFile: Send + Sync {
    /// How errors call it.
    fn name(&self) -> String;
    /// Fills the buffer, or fails: with `UnexpectedEof` if the file ends before.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of it, or fails; then any part may have arrived.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// What was written before survives a power cut once this returns.
    fn sync(&self) -> io::Result<()>;
    /// Cuts what lies behind. Only a start does this, to what a crash has left.
    fn truncate(&self, bytes: u64) -> io::Result<()>;
    /// The length of the file.
    fn bytes(&self) -> io::Result<u64>;
}
