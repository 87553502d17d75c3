//! State shared by the handles of a store.
//!
//! Lock order: the state's lock, then that of `pins`. The locks of the state and of `hashes` are never
//! held together. The cache has other locks, and is not used under the state's lock.

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

pub(crate) struct StoreShared {
    pub state: StateLock,
    pub cache: BlockCache,
    /// Hashes of finished compactions, the latest one last.
    pub hashes: Mutex<VecDeque<KvHash>>,
    pub counts: CountCache,
    pub pins: Pins,
    pub pinned_blocks: PinRegistry,
    /// Size of removed files that are still open. Written by the maintainer, the only one to close them.
    pub removed_bytes: AtomicU64,
    /// Called when an entry has published a revision. Set at most once.
    pub wake: OnceLock<Arc<dyn Fn() + Send + Sync>>,
    pub options: StoreOptions,
}

impl StoreShared {
    /// Notifies the listener, if there is one. Must be called without locks.
    pub fn notify(&self) {
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }
}
