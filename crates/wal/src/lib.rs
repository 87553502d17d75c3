//! Durable log: what `sync` reported is still there after any crash, and nothing that was not appended ever appears.
//!
//! ```text
//!   append ──▶ group buffer ──sync: one write, one fdatasync──▶ tail segment ──full: cut──▶ next segment
//!                                                                    │
//!   Reader ◀── entries by a sparse index, from any thread ◀──────────┘      release: whole old segments
//! ```
//!
//! * Entries are numbered without gaps. Appending an index that exists replaces it and all behind it, as Raft does
//!   with a conflict.
//! * A group that a crash interrupted is kept as a prefix of its frames, possibly none; damage to what was synced
//!   before is an error, never a shorter log.
//! * Any failed write or sync ends the log's life in this process.
//!
//! Knows bytes, indexes and terms; knows nothing of messages, keys, members, clocks or threads.

mod entry; // what is logged: indexes, terms, entries
mod error; // every way to fail
mod wal; // append, sync, cut, release, restart

mod catalogue; // where the synced entries are
mod group; // frames that wait for the next sync
mod reader; // old entries, read back from the segments
mod recovery; // how a log is read back

mod frame; // bytes of a frame
mod segment; // bytes of a segment's head, names, birth
mod walk; // the frames of a segment in order

mod fs; // the only door to the disk
pub mod testing; // a file system in memory that crashes on demand

pub use entry::{Entry, LogIndex, OwnedEntry, PAYLOAD_BYTES_MAX, Position, Term};
pub use error::{Error, Result};
pub use fs::{File, Fs, RealFile, RealFs};
pub use reader::Reader;
pub use wal::{Options, Recovery, Synced, Wal};
