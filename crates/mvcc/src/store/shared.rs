//! What the handles of one store share.
//!
//! Lock order: the state's lock, then that of `pins`. The state's lock and that of `hashes` are never held
//! together. The cache has other locks, and is not used under the state's lock.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::counts::CountCache;
use super::lock::StateLock;
use super::pinned_blocks::PinRegistry;
use super::pins::Pins;
use crate::block::BlockCache;
use crate::types::{KvHash, StoreOptions};

/// State that all handles share.
pub(crate) struct StoreShared {
    pub state: StateLock,
    pub cache: BlockCache,
    /// Hashes of finished compactions, newest last.
    pub hashes: Mutex<VecDeque<KvHash>>,
    /// Recent counts of ranges.
    pub counts: CountCache,
    /// Revisions that reads in progress still need.
    pub pins: Pins,
    /// Blocks that long reads hold.
    pub pinned_blocks: PinRegistry,
    /// Of removed files that are still open. Written by the maintainer, which alone closes them.
    pub removed_bytes: AtomicU64,
    /// Called when an entry has published a revision. Set at most once.
    pub wake: OnceLock<Arc<dyn Fn() + Send + Sync>>,
    pub options: StoreOptions,
}

impl StoreShared {
    /// Notifies the listener, if there is one. No lock is held.
    pub fn notify(&self) {
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }
}
