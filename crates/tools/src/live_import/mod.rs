//! `kv-server import --live`: makes a data directory from a running cluster, and follows that until asked to
//! stop.
//!
//! ```text
//!   Maintenance.Snapshot ──▶ file ──▶ import ──▶ store at revision S        1. copy
//!   Watch from S+1 ──▶ whole revisions ──▶ store at S+1, S+2, …                2. follow
//!   leases, HashKV ──▶ compared with the store ──▶ log, identity               3. finish
//! ```
//!
//! * A revision of the source is a revision of the store, with the same changes in the same order. A gap, a
//!   version or a create revision that does not follow ends the import with an error.
//! * The store is at one whole revision at any time. What is on the disk is such a state, too.
//! * The directory gets its identity last. Without it no member starts, and the same command goes on.
//! * Memory: the store as in a member, one response of the watch, and the events of one revision.
//! * A client of the source, which needs nothing but etcd's API.
//!
//! Why so: docs/decisions/0053.

mod source; // calls of the source

mod copy; // phase 1

mod target; // the store that is made

mod revisions; // events of a watch, put together to whole revisions

mod digests; // whether two histories are the same

mod events; // a watch, and how far the source is

mod place; // directories, and how far they are

mod progress; // lines for people

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
