//! The database file of etcd: given out as a snapshot, and taken in as a new data directory.
//!
//! ```text
//!   mvcc::History ──▶ SnapshotFile ──▶ bytes of a bbolt file         Maintenance.Snapshot
//!   bbolt file    ──▶ read         ──▶ mvcc::Import                  kv-server import
//! ```
//!
//! * The file has etcd's buckets, keys and values as etcd 3.7 writes them. So etcd's tools read it, and etcd
//!   starts on it with the same keys, revisions, history and leases.
//! * A file of either program is taken in: ours is etcd's.
//! * Memory is bounded by a page for each level, a block, and 16 bytes for each lease.

pub mod bbolt; // the format of the file

mod record; // keys and values of the buckets

mod export; // a history becomes a file

pub mod trailer; // the checksum at the end of a saved file

pub mod read; // a file becomes a store

pub use export::{ExportError, SnapshotFile};
pub use read::{BUMPED_REVISION_MAX, ImportResult, Revisions, SnapshotReadError};
