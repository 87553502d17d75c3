//! `kvctl archive` stores every revision of a cluster; `kvctl restore` creates a data directory from one of
//! them.
//!
//! ```text
//!   Maintenance.Snapshot ──▶ base/REVISION-TIME-taken.db    periodically
//!   Watch of all keys    ──▶ log/FIRST-LAST-TIME.seg        whole revisions, every few seconds
//!
//!   base at or below N ──▶ store ──▶ events up to N ──▶ leases ──▶ log, identity      restore --revision N
//! ```
//!
//! * Objects have a checksum, are written atomically, and are immutable. Their names contain their revisions,
//!   so a listing is enough to know which revisions can be restored. `archive.json` contains the cluster ID.
//! * Revisions count as archived only after they are durable in the archive. A killed archiver resumes after
//!   the last complete object. Revisions that were compacted before that leave a gap, followed by a new base.
//! * An archive has a single history. A source that was rolled back to an earlier state is rejected, and so
//!   is a restore from objects of two histories.
//! * A watch does not report lease grants and changes of users. TTLs are requested for each segment; changed
//!   users, and TTLs missing from all segments, trigger a new base.
//! * Memory usage of the archiver: two segments, one watch response, the IDs of leases with pending TTL
//!   requests, and the last segment while connecting.
//!   Memory usage of a restore: the store as in a member, and one segment.
//! * The archiver is a client of the cluster and uses only etcd's API.
//!
//! See docs/decisions/0055 for the reasons.

mod place; // directory or bucket

mod segment; // encoding of revisions

mod inventory; // object names

mod documents; // JSON objects

mod metrics;

mod base; // snapshots

mod seam; // comparison of histories

mod ttls; // TTLs of leases

mod follow; // the archiver

mod review; // what an archive has, and whether it is intact

mod command; // command lines of all three

mod restore;

mod restore_command; // its command line

pub use command::{COMMAND, described, run};
pub use restore_command::{described as described_restore, is_wanted, run as run_restore};
