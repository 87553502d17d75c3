//! The data directory: its lock, the member's identity, the log and the store as a start finds them.

mod directory; // one member's directory on disk
mod timed_fs; // the log's file system, timed

mod identity; // who this member is, written once
mod ids; // member and cluster ids

pub(crate) mod bootstrap; // from settings and a directory to an identity and its log
pub(crate) mod open_store; // the store that fits the log

pub(crate) use directory::{Directory, DirectoryError};
#[cfg(test)]
pub(crate) use identity::FORMAT;
pub(crate) use identity::{FirstMember, Identity};
pub(crate) use ids::added_member_id;
pub(crate) use open_store::{OpenStoreError, OpenedStore};
pub(crate) use timed_fs::TimedFs;
