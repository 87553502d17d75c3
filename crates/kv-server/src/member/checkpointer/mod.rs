//! The store thread: checkpoints, physical compaction, exports and installs, outside of requests.
//!
//! ```text
//!   apply ─Due, or too many entries─▶ persist ─▶ wake apply if the store was Full; report to Raft
//!         ──compacted──▶ step, pause, step, … ──▶ announce the finished revision
//!         ──install──▶ replace the current store with the received one
//!   snapshot sender ──export──▶ the latest checkpoint, pinned
//!   Defragment ─▶ persist, all pending steps without a pause; other requests between two steps
//!   idle with unpersisted changes ──▶ persist
//!   stop ──▶ final persist, exit
//! ```
//!
//! * Only this thread writes the durable form of the store.
//! * Callers that block on it: an apply loop with a full store or a snapshot to install, and clients that
//!   requested a physical compaction or a Defragment.
//! * A failed write or sync is fatal: it is not retried.

mod requests; // requests to the thread

mod checkpoints; // the thread's handle
mod run; // the loop of the thread
mod thread; // start and stop

pub(crate) use checkpoints::Checkpoints;
pub(crate) use thread::StoreThread;

#[cfg(test)]
mod tests;
