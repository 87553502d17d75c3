//! Events: the changes of the store, read back from the block log in revision order.
//!
//!   changes(from) ──▶ lock: clone the blocks from `from` on ──▶ unlock ──▶ load ──▶ Changes ──▶ Change …
//!
//! * Only whole main revisions are returned, up to the published one. A revision is never split.
//! * Every change at or above the compact revision is returned, also a put that was superseded later.
//!   Compaction removes only records below its revision, and puts that are not visible there.
//! * A read that races a compaction gets all changes or `Compacted`: the compact revision is checked under
//!   the same hold of the lock in which the blocks are cloned, and blocks never change.
//!
//! The index is not used, except to find previous values.

mod events; // what a read returns
mod follower; // reads that a compaction waits for
mod read; // finds the blocks

pub use events::{Change, Changes};
pub use follower::Follower;
pub use read::RevisionPart;
