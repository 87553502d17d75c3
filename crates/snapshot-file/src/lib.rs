//! etcd's database file: exported as a snapshot, imported as a new data directory.
//!
//! ```text
//!   mvcc::History ──▶ SnapshotFile ──▶ bytes of a bbolt file         Maintenance.Snapshot
//!   bbolt file    ──▶ read         ──▶ mvcc::Import                  kvctl import
//! ```
//!
//! * The file has the buckets, keys and values that etcd 3.7 writes. etcd's tools can read it, and etcd
//!   can start from it with the same keys, revisions, history and leases.
//! * Files of both programs can be imported.
//! * Memory is limited to a page per level, a block, and 16 bytes per lease.

pub mod bbolt; // the format of the file

mod record; // keys and values of the buckets

mod export; // export of a history to a file

pub mod trailer; // the checksum at the end of a saved file

pub mod read; // import of a file into a store

pub use export::{ExportError, SnapshotFile};
pub use read::{BUMPED_REVISION_MAX, ImportResult, Revisions, SnapshotReadError};
