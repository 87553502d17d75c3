//! The state of the store, guarded by a lock, and the handles that read and write it.

mod items; // unversioned values
mod state; // the state guarded by the lock

mod counts; // counts of ranges that are read page by page
mod lock; // the lock, and statistics that are read without it
mod pinned_blocks; // blocks held by long reads
mod pins; // revisions that reads in progress still need
mod shared; // state shared by all handles

mod range_read; // range reads
mod reader; // the reader's handle

mod hash; // the hash that members compare
mod pinned_range; // a range resolved once and read in parts
mod writer; // the writer's handle

pub use lock::{LockPurpose, LockStats};
pub use pinned_range::PinnedRange;
pub use reader::Store;
pub use writer::{ITEM_BYTES_MAX, ITEM_KEY_BYTES_MAX, RevisionWriter, Writer};

pub(crate) use counts::CountCache;
pub(crate) use hash::{HashPass, REMEMBERED};
pub(crate) use lock::StateLock;
pub(crate) use pinned_blocks::{BlockOwner, PinRegistry, PinnedBlocks};
pub(crate) use pins::Pins;
pub(crate) use range_read::{load_all, missing_record};
pub(crate) use shared::StoreShared;
pub(crate) use state::{PendingCheckpoint, RecordSource, StoreData};
