//! Durable log: what `sync` reported is still there after any crash, and nothing that was not appended ever
//! appears.
//!
//! ```text
//!   append ──▶ group buffer ──sync: one write, one fdatasync──▶ tail segment ──full: cut──▶ next segment
//!                                                                    │
//!   Reader ◀── entries by a sparse index, from any thread ◀──────────┘      release: whole old segments
//! ```
//!
//! * Entries are numbered without gaps. Appending an index that exists replaces it and all after it, as Raft
//!   does with a conflict.
//! * A group that a crash interrupted is kept as a prefix of its frames, possibly none; damage to what was
//!   synced before is an error, never a shorter log.
//! * After any failed write or sync the log fails every later call of this process.
//!
//! ```
//! use std::path::Path;
//! use wal::testing::SimFs;
//! use wal::{Entry, LogIndex, LogPosition, Term, Wal, WalOptions};
//!
//! # fn main() -> wal::Result<()> {
//! let (fs, dir) = (SimFs::new(), Path::new("/wal")); // `RealFs` outside of tests
//! let options = WalOptions { segment_bytes: WalOptions::SEGMENT_BYTES, salt: [7; 16] };
//! let mut log = Wal::create(fs.clone(), dir, b"member 1 of cluster 7", LogPosition::default(), options)?;
//!
//! log.append(Entry { index: LogIndex(1), term: Term(1), kind: 0, payload: b"put a" });
//! log.append(Entry { index: LogIndex(2), term: Term(1), kind: 0, payload: b"put b" });
//! log.put_state(b"term 1, vote 3");
//! log.sync()?; // only now may it be acknowledged
//!
//! drop(log); // or a crash
//! let (log, found) = Wal::open(fs, dir, options)?;
//! assert_eq!(found.last, LogPosition::new(2, 1));
//! assert_eq!(found.state.as_deref(), Some(&b"term 1, vote 3"[..]));
//!
//! let entries = log.reader().read(LogIndex(1), 1 << 20)?;
//! assert_eq!(entries[1].payload, b"put b");
//! # Ok(())
//! # }
//! ```
//!
//! What each call costs the disk:
//!
//! | call | writes | syncs |
//! |---|---|---|
//! | `append`, `put_state` | none; the group at 8 MiB | none |
//! | `sync` | one, of the whole group | one of the file; a cut adds two and a rename, once in 64 MiB |
//! | `restart_at` | the head of a new segment | file, directory; directory again for each old segment |
//! | `release_before` | none | the directory, for each segment |
//! | `Reader::read` | none | none |
//! | `open` | the last group once more, a new segment's head | as a cut |
//!
//! The bytes on the disk are described in `docs/disk-format.md`, the reasons for them in
//! `docs/decisions/0002-log-frames-name-their-sync-group.md`.
//!
//! Knows bytes, indexes and terms; knows nothing of messages, keys, members, clocks or threads.

mod fs; // access to the disk
mod types; // what is logged, every way to fail

mod format; // bytes of frames and segments

mod entries; // entries on their way to the disk, and back to readers
mod recovery; // settings, and how a log is read back
mod wal; // append, sync, cut, release, restart

mod inspect; // a look at a log that may be damaged, without touching it

pub mod testing; // a file system in memory that crashes on demand

pub use entries::Reader;
pub use fs::{File, Fs, ReadOnlyFs, RealFile, RealFs, TimedCall, TimedFile, TimedFs};
pub use inspect::{Finding, FrameContent, FrameFound, Inspection, SegmentFound, inspect};
pub use recovery::{Recovery, WalOptions};
pub use types::{Entry, Error, LogIndex, LogPosition, OwnedEntry, PAYLOAD_BYTES_MAX, Result, Term};
pub use wal::{SyncResult, Wal};
