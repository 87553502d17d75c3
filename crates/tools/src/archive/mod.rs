//! `kv-server archive` keeps what a cluster was at every revision; `kv-server restore` goes back to one of
//! them.
//!
//! ```text
//!   Maintenance.Snapshot ──▶ base/REVISION-TIME-taken.db    now and then
//!   Watch of all keys    ──▶ log/FIRST-LAST-TIME.seg        whole revisions, every few seconds
//!
//!   base at or below N ──▶ store ──▶ events up to N ──▶ leases ──▶ log, identity      restore --revision N
//! ```
//!
//! * An object has a checksum, appears whole, and is never changed. Its name says what it has, so a listing
//!   says which revisions can be restored. `archive.json` says of which cluster.
//! * What was archived is durable at the place before the archiver counts it as archived. A killed archiver
//!   goes on after the last whole object; what a compaction took away meanwhile is a gap, and a new base
//!   begins after it.
//! * An archive has one history. A source that went back to an earlier state is refused, and so is a restore
//!   from objects of two histories.
//! * A watch has no grants of leases and no changes of users. TTLs are asked for per segment; changed users,
//!   and TTLs that no segment has, cause a new base.
//! * Memory of the archiver: two segments, one response of the watch, the ids of the leases whose TTLs are
//!   asked for, the last segment again when it connects.
//!   Of a restore: the store as in a member, one segment.
//! * A client of the cluster, which needs nothing but etcd's API.
//!
//! Why so: docs/decisions/0055.

mod place; // where objects lie

mod segment; // revisions as bytes

mod inventory; // what a listing says

mod documents; // of which cluster, and up to when

mod metrics; // how far the archive is

mod base; // snapshots as objects

mod seam; // whether the source has the history of the archive

mod ttls; // what a watch does not have of leases

mod follow; // the archiver

mod command; // its command line

mod restore; // a data directory at a revision

mod restore_command; // its command line

pub use command::{COMMAND, described, run};
pub use restore_command::{described as described_restore, is_wanted, run as run_restore};
