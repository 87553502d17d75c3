//! Keeps a member whose state is corrupt from serving keys, leases and users' requests, and from sending that
//! state to other members.
//!
//! A member is fenced while an alarm CORRUPT names it. The alarm is replicated and durable, so a restart does
//! not end the fence; disarming the alarm does. What the fence knows of an install is forgotten by a restart:
//! the state on the disk may be the corrupt one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::LogIndex;
use tokio::sync::watch;

/// Set by the thread that applies, read by every request.
#[derive(Debug)]
pub struct Fence {
    is_up: AtomicBool,
    /// The last entry of a store that was installed while the fence is up; 0: none was.
    installed: AtomicU64,
    /// The same for those who wait: how often it was raised and lowered. Odd: it is up.
    changes: watch::Sender<u64>,
}

impl Default for Fence {
    fn default() -> Fence {
        let (is_up, installed) = (AtomicBool::new(false), AtomicU64::new(0));
        Fence { is_up, installed, changes: watch::channel(0).0 }
    }
}

impl Fence {
    /// Whether this member is named by an alarm CORRUPT from now on.
    pub fn set(&self, is_up: bool) {
        if self.is_up.swap(is_up, Ordering::AcqRel) != is_up {
            self.installed.store(0, Ordering::Release);
            self.changes.send_modify(|changes| *changes += 1);
            if is_up {
                tracing::error!(
                    "the state of this member is corrupt: it serves nothing until the alarm is disarmed"
                );
            }
        }
    }

    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    /// The leader's store was installed, up to the entry at `index`.
    pub fn note_installed(&self, index: LogIndex) {
        if self.is_up() {
            self.installed.store(index.0, Ordering::Release);
            tracing::warn!(
                index = index.0,
                "the state of this member was replaced; it serves again when the alarm is disarmed"
            );
        }
    }

    /// Whether the state of this member is the wrong one still: it is no state to be copied.
    pub fn is_state_wrong(&self) -> bool {
        self.is_up() && self.installed() == LogIndex::ZERO
    }

    /// Returns when the state of this member is a wrong one.
    pub async fn state_wrong(&self) {
        let mut changes = self.changes.subscribe();
        let _never_closed = changes.wait_for(|_| self.is_state_wrong()).await;
    }

    /// The last entry of the store that was installed since the fence is up; 0 if none was.
    pub fn installed(&self) -> LogIndex {
        LogIndex(self.installed.load(Ordering::Acquire))
    }

    /// Returns when the member is fenced, or has been since this was called.
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
