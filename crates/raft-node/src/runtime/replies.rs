//! Answers on their way back to those who wait on the async runtime.
//!
//! ```text
//!   driver, apply thread ──one answer──▶ its waiter
//!                        └─many at once─▶ channel ──▶ Pump (a task of the runtime) ──▶ their waiters
//! ```
//!
//! * Waking a task from outside its runtime costs a lock and often a system call; from inside, a push on a
//!   queue. So the answers of one entry cross the border together, and the pump hands them out on the other
//!   side.
//! * A permit (`entrance.rs`) is given back just before the answer goes out, or when its holder is dropped: a
//!   caller that has its answer finds the room that it took free again.
//! * The channel needs no bound: each waiter has a permit, and permits are bounded.
//! * A waiter that went away is no error; its answer is dropped.

use tokio::sync::{mpsc, oneshot};

use super::entrance::Permit;
use crate::{LogIndex, ProposeError, ReadError};

/// The receiver of one waiter.
#[derive(Debug)]
pub(super) struct PendingReply<T> {
    /// Before `to`, for the order in which a reply without an answer is dropped.
    pub permit: Permit,
    pub to: oneshot::Sender<T>,
}

impl<T> PendingReply<T> {
    fn complete(self, answer: T) {
        drop(self.permit);
        let _ = self.to.send(answer);
    }
}

pub(super) type ProposeReply<O> = PendingReply<Result<O, ProposeError>>;
pub(super) type ReadReply = PendingReply<Result<LogIndex, ReadError>>;

/// One answer and where it goes.
pub(super) enum Completion<O> {
    Proposal(ProposeReply<O>, Result<O, ProposeError>),
    Read(ReadReply, Result<LogIndex, ReadError>),
}

impl<O> Completion<O> {
    fn complete(self) {
        match self {
            Completion::Proposal(reply, outcome) => reply.complete(outcome),
            Completion::Read(reply, index) => reply.complete(index),
        }
    }
}

/// The threads' end.
pub(super) struct ReplySender<O> {
    to_pump: mpsc::UnboundedSender<Vec<Completion<O>>>,
}

impl<O> Clone for ReplySender<O> {
    fn clone(&self) -> Self {
        ReplySender { to_pump: self.to_pump.clone() }
    }
}

impl<O> ReplySender<O> {
    pub fn complete(&self, mut completions: Vec<Completion<O>>) {
        if completions.len() <= 1 {
            return completions.drain(..).for_each(Completion::complete);
        }
        // Without a pump (its runtime is gone) the waiters may be gone, but permits must still be given back.
        if let Err(unsent) = self.to_pump.send(completions) {
            unsent.0.into_iter().for_each(Completion::complete);
        }
    }
}

/// The runtime's end: spawn [`Pump::run`] there. Without it no waiter is ever answered whose
/// answer came together with others.
pub struct Pump<O> {
    from_threads: mpsc::UnboundedReceiver<Vec<Completion<O>>>,
}

impl<O: Send + 'static> Pump<O> {
    /// Runs until the member has stopped.
    pub async fn run(mut self) {
        while let Some(completions) = self.from_threads.recv().await {
            completions.into_iter().for_each(Completion::complete);
        }
    }
}

pub(super) fn replies<O>() -> (ReplySender<O>, Pump<O>) {
    let (to_pump, from_threads) = mpsc::unbounded_channel();
    (ReplySender { to_pump }, Pump { from_threads })
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    use super::super::entrance::Occupancy;
    use super::*;

    fn waiter(
        occupancy: &Arc<Occupancy>,
    ) -> (ProposeReply<u32>, oneshot::Receiver<Result<u32, ProposeError>>) {
        let (to, from) = oneshot::channel();
        (PendingReply { to, permit: occupancy.admit(10, 100, 1000).unwrap() }, from)
    }

    #[tokio::test]
    async fn one_answer_goes_straight_and_many_through_the_pump() {
        let occupancy = Arc::new(Occupancy::default());
        let (replies, pump) = replies();
        let (first, told_first) = waiter(&occupancy);
        replies.complete(vec![Completion::Proposal(first, Ok(1))]);
        assert_eq!(told_first.await, Ok(Ok(1)));

        let (mut receivers, mut completions) = (Vec::new(), Vec::new());
        for i in 0..3 {
            let (reply, from) = waiter(&occupancy);
            completions.push(Completion::Proposal(reply, Ok(i)));
            receivers.push(from);
        }
        replies.complete(completions);
        assert_eq!(occupancy.count(), 3, "still waiting: the pump does not run yet");
        drop(replies);
        pump.run().await;
        for (i, from) in (0..).zip(receivers) {
            assert_eq!(from.await, Ok(Ok(i)));
        }
        assert_eq!(occupancy.count(), 0);
    }

    /// Notes how many permits are out when a waiter is woken.
    struct CountAtWake {
        occupancy: Arc<Occupancy>,
        count: AtomicUsize,
    }

    impl Wake for CountAtWake {
        fn wake(self: Arc<Self>) {
            self.count.store(self.occupancy.count(), Ordering::Relaxed);
        }
    }

    #[test]
    fn a_waiter_that_is_woken_finds_its_permit_given_back() {
        let finish: [fn(ProposeReply<u32>); 2] = [|reply| reply.complete(Ok(1)), drop];
        for finish in finish {
            let occupancy = Arc::new(Occupancy::default());
            let (reply, answer) = waiter(&occupancy);
            let at_wake =
                Arc::new(CountAtWake { occupancy: occupancy.clone(), count: AtomicUsize::new(usize::MAX) });
            let mut answer = pin!(answer);
            assert!(answer.as_mut().poll(&mut Context::from_waker(&at_wake.clone().into())).is_pending());
            finish(reply);
            assert_eq!(at_wake.count.load(Ordering::Relaxed), 0);
        }
    }

    #[tokio::test]
    async fn answers_are_given_even_when_the_pump_is_gone() {
        let occupancy = Arc::new(Occupancy::default());
        let (replies, pump) = replies();
        drop(pump);
        let ((a, told_a), (b, told_b)) = (waiter(&occupancy), waiter(&occupancy));
        drop(told_a);
        replies.complete(vec![
            Completion::Proposal(a, Ok(1)),
            Completion::Proposal(b, Err(ProposeError::Stopped)),
        ]);
        assert_eq!(told_b.await, Ok(Err(ProposeError::Stopped)));
        assert_eq!(occupancy.count(), 0);
    }
}
