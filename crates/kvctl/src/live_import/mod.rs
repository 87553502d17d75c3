//! `kvctl import --live`: creates a data directory from a running cluster, and follows the cluster until a
//! signal.
//!
//! ```text
//!   Maintenance.Snapshot ──▶ file ──▶ import ──▶ store at revision S        1. copy
//!   Watch from S+1 ──▶ whole revisions ──▶ store at S+1, S+2, …                2. follow
//!   leases, HashKV ──▶ compared with the store ──▶ log, identity               3. finish
//! ```
//!
//! * The store has the source's revisions, with the same changes in the same order. A gap, or an inconsistent
//!   version or create revision, fails the import.
//! * The store, in memory and on disk, is always at a whole revision.
//! * The identity is written last. Without it a member does not start, and the same command resumes.
//! * Memory usage: the store as in a member, one watch response, and a revision's events.
//! * The import is a client of the source and uses only etcd's API.
//!
//! See docs/decisions/0053 for the reasons.

mod source; // requests to the source

mod copy; // phase 1

mod target; // the new store

mod revisions; // grouping of watch events

mod digests; // comparison of histories

mod events; // watch, and the source's revision

mod place; // directories and their states

mod progress; // progress messages

mod follow; // phases 2 and 3

mod command; // the command line

pub use command::{described, is_wanted, run};
pub use copy::{CopyError, copy};
pub use digests::{Digests, KnownDigests, SEAM_REVISIONS};
pub use events::{Events, News};
pub use follow::{cluster_name, first_signal};
pub use progress::{ImportProgress, say};
pub use revisions::{
    EVENT_BYTES, EventsError, REVISION_BYTES_MAX, Revisions as EventRevisions, WholeRevision,
};
pub use source::{Broken, Head, Session, SourceRefusal};
pub use target::{ImportTarget, TargetError};
