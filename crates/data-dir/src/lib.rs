//! The data directory: its lock, the member's identity, the log and the store at start.

mod directory; // one member's directory on disk

mod identity; // who this member is, written once
mod ids; // member and cluster ids

pub mod bootstrap; // from settings and a directory to an identity and its log
pub mod open_store; // the store that fits the log

pub use directory::{ARCHIVE, Directory, DirectoryError, LOCK};
pub use identity::{FORMAT, FirstMember, Identity, IdentityError, genesis};
pub use ids::added_member_id;
pub use open_store::{OpenStoreError, OpenedStore};
