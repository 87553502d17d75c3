//! What waits to be sent to one peer on one lane: bounded in bytes, taken in batches.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;

use super::context::BATCH_BYTES_MAX;

/// Messages in the order in which they were sent. One side pushes from any thread, one task takes.
#[derive(Debug)]
pub struct LaneQueue {
    state: Mutex<LaneState>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct LaneState {
    messages: VecDeque<Bytes>,
    bytes: usize,
    taker: Option<Waker>,
}

/// Whether a message was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushResult {
    Queued,
    Full,
}

impl LaneQueue {
    /// A queue of at most `bytes_max`; a single larger message passes when nothing else waits.
    pub fn new(bytes_max: usize) -> LaneQueue {
        LaneQueue { state: Mutex::default(), bytes_max }
    }

    pub fn push(&self, message: Bytes) -> PushResult {
        let mut state = self.state.lock();
        if !state.messages.is_empty() && state.bytes + message.len() > self.bytes_max {
            return PushResult::Full;
        }
        state.bytes += message.len();
        state.messages.push_back(message);
        let taker = state.taker.take();
        drop(state);
        if let Some(taker) = taker {
            taker.wake();
        }
        PushResult::Queued
    }

    /// Everything that waits, up to a batch; at least one message.
    pub fn poll_batch(&self, context: &mut Context<'_>) -> Poll<Vec<Bytes>> {
        let mut state = self.state.lock();
        if state.messages.is_empty() {
            state.taker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let mut batch = Vec::with_capacity(state.messages.len());
        let mut bytes = 0;
        while let Some(message) = state.messages.front() {
            if !batch.is_empty() && bytes + message.len() > BATCH_BYTES_MAX {
                break;
            }
            bytes += message.len();
            batch.extend(state.messages.pop_front());
        }
        state.bytes -= bytes;
        Poll::Ready(batch)
    }

    /// Forgets what waits, and says how much that was.
    pub fn clear(&self) -> usize {
        let mut state = self.state.lock();
        state.bytes = 0;
        state.messages.drain(..).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(queue: &LaneQueue) -> Option<Vec<usize>> {
        match queue.poll_batch(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(batch) => Some(batch.iter().map(Bytes::len).collect()),
            Poll::Pending => None,
        }
    }

    fn message(bytes: usize) -> Bytes {
        Bytes::from(vec![0; bytes])
    }

    #[test]
    fn what_waits_leaves_together_and_in_order() {
        let queue = LaneQueue::new(100);
        assert_eq!(take(&queue), None);
        for bytes in [1, 2, 3] {
            assert_eq!(queue.push(message(bytes)), PushResult::Queued);
        }
        assert_eq!(take(&queue), Some(vec![1, 2, 3]));
        assert_eq!(take(&queue), None);
    }

    #[test]
    fn a_batch_ends_before_it_grows_too_large() {
        let queue = LaneQueue::new(usize::MAX);
        for bytes in [BATCH_BYTES_MAX - 1, 1, 1, 2 * BATCH_BYTES_MAX, 1] {
            queue.push(message(bytes));
        }
        assert_eq!(take(&queue), Some(vec![BATCH_BYTES_MAX - 1, 1]));
        assert_eq!(take(&queue), Some(vec![1]));
        assert_eq!(take(&queue), Some(vec![2 * BATCH_BYTES_MAX]));
        assert_eq!(take(&queue), Some(vec![1]));
    }

    #[test]
    fn a_full_queue_refuses_but_never_for_a_lone_message() {
        let queue = LaneQueue::new(10);
        assert_eq!(queue.push(message(20)), PushResult::Queued);
        assert_eq!(queue.push(message(1)), PushResult::Full);
        assert_eq!(queue.clear(), 1);
        assert_eq!(queue.push(message(10)), PushResult::Queued);
        assert_eq!(queue.push(message(0)), PushResult::Queued);
        assert_eq!(take(&queue), Some(vec![10, 0]));
        assert_eq!(queue.push(message(10)), PushResult::Queued);
    }
}
