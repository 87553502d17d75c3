//! Write-ahead log: everything reported by `sync` survives any crash, and nothing appears that was not
//! appended.
//!
//! ```text
//!   append ──▶ group buffer ──sync: one write, one fdatasync──▶ tail segment ──full: cut──▶ next segment
//!                                                                    │
//!   Reader ◀── entries by a sparse index, from any thread ◀──────────┘      release: whole old segments
//! ```
//!
//! * Entries are numbered without gaps. Appending an existing index replaces it and all later ones,
//!   which is how Raft resolves a conflict.
//! * A group interrupted by a crash is recovered as a prefix of its frames, possibly empty. Corruption
//!   of synced bytes is an error, never a shorter log.
//! * After a failed write or sync, every later call of this process fails.
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
//! I/O per call:
//!
//! | call | writes | syncs |
//! |---|---|---|
//! | `append`, `put_state` | none; the group at 8 MiB | none |
//! | `sync` | one, of the whole group | the file; a new segment adds two and a rename, once in 64 MiB |
//! | `restart_at` | the head of a new segment | file, directory; directory again for each old segment |
//! | `release_before` | none | the directory, for each segment |
//! | `Reader::read` | none | none |
//! | `open` | the last group once more, a new segment's head | the same as for a new segment |
//!
//! `docs/disk-format.md` describes the on-disk format, and
//! `docs/decisions/0002-log-frames-name-their-sync-group.md` the reasons for it.
//!
//! Independent of messages, keys, members, clocks and threads.

mod fs; // file-system abstraction
mod types; // entries and errors

mod format; // on-disk format of frames and segments

mod entries; // the group buffer, the index of synced entries, and readers
mod recovery; // options, and recovery of a log
mod wal; // append, sync, segments, release, restart

mod inspect; // read-only inspection of a log that may be corrupt

pub mod testing; // simulated file system with crashes and faults

pub use entries::Reader;
pub use fs::{File, Fs, ReadOnlyFs, RealFile, RealFs, TimedCall, TimedFile, TimedFs};
pub use inspect::{Finding, FrameContent, FrameFound, Inspection, SegmentFound, inspect};
pub use recovery::{Recovery, WalOptions};
pub use types::{Entry, Error, LogIndex, LogPosition, OwnedEntry, PAYLOAD_BYTES_MAX, Result, Term};
pub use wal::{SyncResult, Wal};
