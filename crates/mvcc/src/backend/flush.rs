//! Waiting for sled to write, without relying on it to say that it failed.
//!
//!   flush ─▶ one of sled's threads waits for the log ─▶ done
//!     └─ not done within a period: a small write of ours, which meets sled's error if there is one, and wakes who waits
//!
//! sled writes a batch in two parts, on two of its threads. When the first part fails, that thread leaves an error behind for
//! later calls and wakes nobody; a flush that was waiting by then would wait for ever. The next call that is about to write
//! finds the error and wakes them all: so there is always a next call.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Makes what was written to `catalogue` reach its file. After each `period` of waiting it writes under `key`, which is
/// nobody else's.
pub(crate) fn flush(catalogue: &sled::Db, key: &[u8], period: Duration) -> sled::Result<()> {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    let mut flushed = pin!(catalogue.flush_async());
    let mut attempts: u64 = 0;
    loop {
        if let Poll::Ready(written) = flushed.as_mut().poll(&mut Context::from_waker(&waker)) {
            return written.map(|_bytes| ());
        }
        if !bell.rings_within(period) {
            attempts += 1;
            // Never the value that is there: sled does not write that.
            let value = attempts.to_le_bytes();
            if catalogue.get(key)?.is_some_and(|found| found == value) {
                catalogue.remove(key)?;
            } else {
                catalogue.insert(key, &value)?;
            }
        }
    }
}

/// Rung by the thread that has flushed.
#[derive(Default)]
struct Bell {
    has_rung: Mutex<bool>,
    rings: Condvar,
}

impl Bell {
    fn rings_within(&self, period: Duration) -> bool {
        let mut has_rung = self.has_rung.lock();
        if !*has_rung {
            self.rings.wait_for(&mut has_rung, period);
        }
        std::mem::take(&mut *has_rung)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.has_rung.lock() = true;
        self.rings.notify_one();
    }
}
