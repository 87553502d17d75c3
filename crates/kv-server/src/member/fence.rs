//! Keeps a member whose state is corrupt from serving keys, leases and users' requests.
//!
//! A member is fenced while an alarm CORRUPT names it. The alarm is replicated and durable, so a restart does not
//! end the fence; disarming the alarm does.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// Set by the thread that applies, read by every request.
#[derive(Debug)]
pub struct Fence {
    is_up: AtomicBool,
    /// The same for those who wait.
    changes: watch::Sender<bool>,
}

impl Default for Fence {
    fn default() -> Fence {
        Fence { is_up: AtomicBool::new(false), changes: watch::channel(false).0 }
    }
}

impl Fence {
    /// Whether this member is named by an alarm CORRUPT from now on.
    pub fn set(&self, is_up: bool) {
        if self.is_up.swap(is_up, Ordering::AcqRel) != is_up {
            self.changes.send_replace(is_up);
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

    /// Returns when the member is fenced.
    pub async fn raised(&self) {
        let mut changes = self.changes.subscribe();
        let _never_closed = changes.wait_for(|is_up| *is_up).await;
    }
}
