//! The state of the store, guarded by a lock, and the handles that read and write it.

mod items; // values without versions
mod state; // everything that the lock guards

mod counts; // counts of ranges that are read page by page
mod lock; // the lock, and figures that are read without it
mod pinned_blocks; // blocks that long reads hold
mod pins; // revisions that reads in progress still need
mod shared; // what all handles share

mod range_read; // how a range is read
mod reader; // the reader's handle

mod hash; // the hash that members compare
mod pinned_range; // a range found once and read in parts
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
