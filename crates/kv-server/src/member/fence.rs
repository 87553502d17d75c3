//! Stops a corrupt member from serving keys, leases and auth requests, and from sending its state to other
//! members.
//!
//! A member is fenced while an alarm CORRUPT names it. The alarm is replicated and durable: the fence
//! persists across restarts until the alarm is disarmed. The record of an installed store does not: after a
//! restart, the state on disk is assumed to be corrupt.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::LogIndex;
use tokio::sync::watch;

/// Fence state. Set by the apply thread, read by every request.
#[derive(Debug)]
pub struct Fence {
    is_up: AtomicBool,
    /// Last entry of the store installed while the fence is up; 0 if none.
    installed: AtomicU64,
    /// Number of times the fence was raised and lowered; odd while it is up.
    changes: watch::Sender<u64>,
}

impl Default for Fence {
    fn default() -> Fence {
        let (is_up, installed) = (AtomicBool::new(false), AtomicU64::new(0));
        Fence { is_up, installed, changes: watch::channel(0).0 }
    }
}

impl Fence {
    /// Raises or lowers the fence, depending on whether an alarm CORRUPT names this member.
    pub fn set(&self, is_up: bool) {
        if self.is_up.swap(is_up, Ordering::AcqRel) != is_up {
            self.installed.store(0, Ordering::Release);
            self.changes.send_modify(|changes| *changes += 1);
            if is_up {
                tracing::error!("this member is corrupt; not serving until the alarm is disarmed");
            }
        }
    }

    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    /// Records that the leader's store was installed, up to the entry at `index`.
    pub fn note_installed(&self, index: LogIndex) {
        if self.is_up() {
            self.installed.store(index.0, Ordering::Release);
            tracing::warn!(
                index = index.0,
                "state of this member was replaced; it serves again after the alarm is disarmed"
            );
        }
    }

    /// Reports whether the state of this member is corrupt and not yet replaced, so that it must not be
    /// copied.
    pub fn is_state_wrong(&self) -> bool {
        self.is_up() && self.installed() == LogIndex::ZERO
    }

    /// Returns once the state of this member is corrupt.
    pub async fn state_wrong(&self) {
        let mut changes = self.changes.subscribe();
        let _never_closed = changes.wait_for(|_| self.is_state_wrong()).await;
    }

    /// Returns the last entry of the store installed since the fence was raised; 0 if none.
    pub fn installed(&self) -> LogIndex {
        LogIndex(self.installed.load(Ordering::Acquire))
    }

    /// Returns once the member is fenced. Completes even if the fence was lowered again since the call.
    pub fn raised(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut changes = self.changes.subscribe();
        let before = *changes.borrow();
        async move {
            let is_raised = |changes: &u64| changes % 2 == 1 || *changes != before;
            if changes.wait_for(is_raised).await.is_err() {
                std::future::pending().await
            }
        }
    }
}
