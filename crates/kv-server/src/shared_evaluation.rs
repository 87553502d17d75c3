//! One evaluation for all requests that wait for its outcome at the same time.
//!
//! Invariants:
//! - At most one evaluation runs. A request that arrives while it does joins it.
//! - An evaluation lives as long as one of its requests. Without them it is dropped, so a later request does
//!   not see an outcome of an earlier time.

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;

/// The evaluation that runs, if there is one.
pub struct SharedEvaluation<T>(Mutex<Option<WeakShared<BoxFuture<'static, T>>>>);

impl<T> Default for SharedEvaluation<T> {
    fn default() -> Self {
        SharedEvaluation(Mutex::default())
    }
}

impl<T: Clone> SharedEvaluation<T> {
    /// Returns the outcome of the evaluation that runs. Without one, `start` makes it.
    pub fn join(&self, start: impl FnOnce() -> BoxFuture<'static, T>) -> Shared<BoxFuture<'static, T>> {
        let mut running = self.0.lock();
        let joined = running.as_ref().and_then(WeakShared::upgrade).filter(|it| it.peek().is_none());
        joined.unwrap_or_else(|| {
            let started = start().shared();
            *running = started.downgrade();
            started
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;
    use futures_util::future::join_all;
    use tokio::sync::Notify;

    #[tokio::test]
    async fn requests_that_wait_at_the_same_time_share_an_evaluation_and_a_later_one_does_not() {
        let (shared, finish) = (SharedEvaluation::default(), Arc::new(Notify::new()));
        let started = Arc::new(AtomicU32::new(0));
        let request = || {
            let (started, finish) = (Arc::clone(&started), Arc::clone(&finish));
            shared.join(|| {
                let number = started.fetch_add(1, Relaxed) + 1;
                async move {
                    finish.notified().await;
                    number
                }
                .boxed()
            })
        };
        for wanted in 1..=3 {
            let mut waiting = join_all((0..100).map(|_| request()));
            assert!((&mut waiting).now_or_never().is_none());
            // Those that leave neither end the evaluation nor start another.
            for _ in 0..100 {
                assert!(request().now_or_never().is_none());
            }
            finish.notify_one();
            assert!(waiting.await.iter().all(|number| *number == wanted));
        }
        assert!(request().now_or_never().is_none());
        finish.notify_one();
        assert_eq!(request().await, 5, "the one before had been dropped");
    }
}
