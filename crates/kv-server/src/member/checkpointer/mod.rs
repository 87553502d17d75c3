//! The thread of the store: checkpoints, physical compaction, exports and installs, outside of requests.
//!
//! ```text
//!   apply ─Due, or too many entries─▶ persist ─▶ wake those who found the store Full; report the checkpoint to Raft
//!         ──compacted──▶ step, pause, step, … ──▶ announce the finished revision
//!         ──install──▶ the received store takes the place of the present one
//!   sender of snapshots ──export──▶ the newest checkpoint, pinned
//!   Defragment ─▶ persist, and every step that is pending without a pause; the others have their turn between two steps
//!   idle for a while with something unpersisted ──▶ persist
//!   stop ──▶ persist once more, end
//! ```
//!
//! * Only this thread writes the durable form of the store.
//! * Nothing waits for it but an apply loop that found the store Full or has a snapshot to install, and
//!   clients who asked for a physical compaction or a Defragment.
//! * A failed write or sync is fatal: nothing is tried again.

mod requests; // what is asked of the thread

mod checkpoints; // the thread's handle
mod run; // the loop of the thread
mod thread; // its start and end

pub(crate) use checkpoints::Checkpoints;
pub(crate) use thread::StoreThread;

#[cfg(test)]
mod tests;
