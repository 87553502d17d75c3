//! Durable log: what `sync` reported is still there after any crash, and nothing else ever appears.
//!
//!   append ──▶ group buffer ──sync: one write, one fdatasync──▶ tail segment ──full──▶ cut
//!
//! Knows bytes, indexes and terms; knows nothing of messages, keys or members.

mod entry; // what is written: indexes, terms, entries
mod error; // every way to fail
mod fs; // the only door to the disk
mod reader; // old entries, read back from the segments
mod wal; // append, sync, cut, release

pub use entry::{Entry, LogIndex, OwnedEntry, PAYLOAD_BYTES_MAX, Position, Term};
pub use error::{Error, Result};
pub use fs::{File, Fs, RealFile, RealFs};
pub use reader::Reader;
pub use wal::{Options, Recovery, Synced, Wal};
