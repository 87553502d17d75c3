//! The database file of etcd, given out as a snapshot.
//!
//! ```text
//!   mvcc::History ──▶ SnapshotFile ──▶ bytes of a bbolt file         Maintenance.Snapshot
//! ```
//!
//! * The file has etcd's buckets, keys and values as etcd 3.7 writes them. So etcd's tools read it, and etcd
//!   starts on it with the same keys, revisions, history and leases.
//! * Memory is bounded by a page for each level, a block, and 16 bytes for each lease.

mod record; // keys and values of the buckets

mod export; // a history becomes a file

pub(crate) use export::{ExportError, SnapshotFile};
