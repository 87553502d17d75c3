//! Waits for sled's flush, and detects a failed write on one of sled's threads.
//!
//!   flush ─▶ one of sled's threads waits for the log ─▶ done
//!     └─ not done within a period: a small write, which returns sled's error, and wakes the flush
//!
//! sled writes a batch in two parts on two of its threads. If the first part fails, that thread stores
//! an error for later calls but does not wake waiting threads, so a flush would wait forever. The next
//! write returns the error and wakes them.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Flushes `catalogue` to its file. After each `period` of waiting it writes to `key`, which is
/// reserved for this.
pub(super) fn flush(catalogue: &sled::Db, key: &[u8], period: Duration) -> sled::Result<()> {
    let waker_state = Arc::new(FlushWaker::default());
    let waker = Waker::from(Arc::clone(&waker_state));
    let mut flushed = pin!(catalogue.flush_async());
    let mut attempts: u64 = 0;
    loop {
        if let Poll::Ready(written) = flushed.as_mut().poll(&mut Context::from_waker(&waker)) {
            return written.map(|_bytes| ());
        }
        if !waker_state.wait_timeout(period) {
            attempts += 1;
            // The value must change: sled skips writes of an equal value.
            let value = attempts.to_le_bytes();
            if catalogue.get(key)?.is_some_and(|found| found == value) {
                catalogue.remove(key)?;
            } else {
                catalogue.insert(key, &value)?;
            }
        }
    }
}

#[derive(Default)]
struct FlushWaker {
    is_woken: Mutex<bool>,
    rings: Condvar,
}

impl FlushWaker {
    fn wait_timeout(&self, period: Duration) -> bool {
        let mut is_woken = self.is_woken.lock();
        if !*is_woken {
            self.rings.wait_for(&mut is_woken, period);
        }
        std::mem::take(&mut *is_woken)
    }
}

impl Wake for FlushWaker {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock() = true;
        self.rings.notify_one();
    }
}
