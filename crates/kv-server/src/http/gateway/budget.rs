//! What large requests and answers hold together, in all connections.
//!
//! Small ones are free: the number of calls is bounded.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of a message below which nothing is counted.
pub(super) const FREE_BYTES: usize = 4 << 10;
/// Bytes that all messages above [`FREE_BYTES`] hold, with everything that is made of them.
const BYTES_MAX: usize = 256 << 20;
/// An answer in memory in addition to its encoded form: decoded, many small pairs take three times as much;
/// as JSON five times.
const ANSWER_FACTOR: usize = 8;
/// The largest encoded answer.
pub(super) const ANSWER_BYTES_MAX: usize = BYTES_MAX / ANSWER_FACTOR;
/// A request as JSON, decoded and encoded.
const REQUEST_FACTOR: usize = 4;
const UNIT_BYTES: usize = 1 << 10;

/// Counts in KiB.
pub(super) struct Budget(Arc<Semaphore>);

/// Counted bytes, until it is dropped.
#[derive(Default)]
#[must_use]
pub(super) struct Held(Option<OwnedSemaphorePermit>);

impl Default for Budget {
    fn default() -> Self {
        Budget(Arc::new(Semaphore::new(BYTES_MAX / UNIT_BYTES)))
    }
}

impl Budget {
    /// Waits until an answer of `bytes`, at most [`ANSWER_BYTES_MAX`], may be held. First come, first served.
    pub async fn answer(&self, bytes: usize) -> Held {
        if bytes <= FREE_BYTES {
            return Held(None);
        }
        Held(Arc::clone(&self.0).acquire_many_owned(units(bytes, ANSWER_FACTOR)).await.ok())
    }

    /// Counts a request that has grown to `bytes`. False if there is no room: requests do not wait, since
    /// they hold something already.
    pub fn request(&self, held: &mut Held, bytes: usize) -> bool {
        if bytes <= FREE_BYTES {
            return true;
        }
        let wanted = units(bytes, REQUEST_FACTOR);
        let had = held.0.as_ref().map_or(0, |permit| u32::try_from(permit.num_permits()).unwrap_or(u32::MAX));
        let Ok(more) = Arc::clone(&self.0).try_acquire_many_owned(wanted.saturating_sub(had)) else {
            return false;
        };
        match &mut held.0 {
            Some(permit) => permit.merge(more),
            none => *none = Some(more),
        }
        true
    }
}

fn units(bytes: usize, factor: usize) -> u32 {
    let units = bytes.saturating_mul(factor).min(BYTES_MAX).div_ceil(UNIT_BYTES);
    u32::try_from(units).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_are_refused_and_answers_wait_when_nothing_is_left() {
        let budget = Budget::default();
        let (mut first, mut second) = (Held::default(), Held::default());
        assert!(budget.request(&mut first, FREE_BYTES));
        assert_eq!(budget.0.available_permits() * UNIT_BYTES, BYTES_MAX);
        for bytes in [FREE_BYTES + 1, 1 << 20, 1 << 20] {
            assert!(budget.request(&mut first, bytes));
        }
        assert_eq!(budget.0.available_permits() * UNIT_BYTES, BYTES_MAX - (4 << 20), "counted once");
        let answer = budget.answer(ANSWER_BYTES_MAX - (1 << 20)).await;
        assert!(!budget.request(&mut second, 2 << 20));
        assert!(futures_util::FutureExt::now_or_never(budget.answer(ANSWER_BYTES_MAX)).is_none());
        drop((answer, first));
        let _all = budget.answer(ANSWER_BYTES_MAX).await;
        assert_eq!(budget.0.available_permits(), 0);
    }
}
