//! The queue to the driver, to the log thread and to the apply thread: many senders, one owner that takes
//! everything out at once.
//!
//! * Taking swaps two buffers under the lock: no allocation and no work per item while others wait.
//! * Order is kept per sender. The driver relies on it for a `Durable` that must be seen before the answers
//!   to what it allowed.
//! * A sender wakes the owner only if it waits: under load there is no cost of a wake-up.
//! * The owner is a task, which polls, or a thread, which sleeps.
//! * Bounds are the senders' affair (each says its own). A closed queue takes nothing more.

use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

struct QueueState<T> {
    /// In order of arrival; taken all at once.
    items: Vec<T>,
    /// The owner waits, and no sender has woken it yet: the one who finds this does.
    waiting: Option<Owner>,
    /// The owner should look around although there may be no items.
    nudged: bool,
    /// Nothing comes in any more.
    closed: bool,
}

enum Owner {
    Task(Waker),
    Thread,
}

pub(super) struct InputQueue<T> {
    state: Mutex<QueueState<T>>,
    /// Wakes an owner that is a thread.
    filled: Condvar,
}

/// Whether the owner should go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueStatus {
    /// There may be items; more may come.
    Open,
    /// Closed: what was taken is the last.
    Closed,
}

impl<T> InputQueue<T> {
    pub fn new() -> Self {
        let state = QueueState { items: Vec::new(), waiting: None, nudged: false, closed: false };
        InputQueue { state: Mutex::new(state), filled: Condvar::new() }
    }

    /// Puts `item` in, or gives it back if the queue is closed.
    pub fn put(&self, item: T) -> Result<(), T> {
        let mut refused = None;
        self.change(|state| match state.closed {
            true => refused = Some(item),
            false => state.items.push(item),
        });
        refused.map_or(Ok(()), Err)
    }

    /// Puts `item` in without waking the owner; [`InputQueue::wake`] is owed.
    pub fn put_quietly(&self, item: T) -> Result<(), T> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(item);
        }
        state.items.push(item);
        Ok(())
    }

    /// Puts all of `items` in, in order; they are lost if the queue is closed.
    pub fn put_all(&self, items: Vec<T>) {
        if !items.is_empty() {
            self.change(|state| {
                if !state.closed {
                    state.items.extend(items);
                }
            });
        }
    }

    /// Wakes the owner if it waits; what was put in quietly is then found.
    pub fn wake(&self) {
        self.change(|_| {});
    }

    /// Makes the owner's current or next wait end at once, items or not.
    pub fn nudge(&self) {
        self.change(|state| state.nudged = true);
    }

    /// Nothing can be put in any more; the owner wakes and takes the rest.
    pub fn close(&self) {
        self.change(|state| state.closed = true);
    }

    /// Changes the state, and wakes the owner after that.
    fn change(&self, change: impl FnOnce(&mut QueueState<T>)) {
        let mut state = self.state.lock();
        change(&mut state);
        let waiting = state.waiting.take();
        drop(state);
        match waiting {
            None => {}
            Some(Owner::Task(waker)) => waker.wake(),
            Some(Owner::Thread) => {
                self.filled.notify_one();
            }
        }
    }

    /// For a task: ready when there is something to take, or the end.
    pub fn poll_filled(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if state.is_worth_a_look() {
            return Poll::Ready(());
        }
        match &mut state.waiting {
            Some(Owner::Task(waker)) => waker.clone_from(context.waker()),
            none => *none = Some(Owner::Task(context.waker().clone())),
        }
        Poll::Pending
    }

    /// For a thread: takes all items into `into`, which must be empty. Sleeps while there are none.
    pub fn wait_and_take(&self, into: &mut Vec<T>) -> QueueStatus {
        let mut state = self.state.lock();
        while !state.is_worth_a_look() {
            state.waiting = Some(Owner::Thread);
            self.filled.wait(&mut state);
        }
        state.take(into)
    }

    /// How many items wait.
    pub fn len(&self) -> usize {
        self.state.lock().items.len()
    }

    /// Takes all items into `into`, which must be empty.
    pub fn take(&self, into: &mut Vec<T>) -> QueueStatus {
        self.state.lock().take(into)
    }
}

impl<T> QueueState<T> {
    /// A nudge ends one wait.
    fn is_worth_a_look(&mut self) -> bool {
        !self.items.is_empty() || self.closed || std::mem::take(&mut self.nudged)
    }

    fn take(&mut self, into: &mut Vec<T>) -> QueueStatus {
        assert!(into.is_empty(), "what was taken before must be handled first");
        // The owner is awake: no sender need wake it.
        self.waiting = None;
        // The buffers change places: `into` was emptied above, so the senders get an empty one with room in
        // it.
        std::mem::swap(&mut self.items, into);
        if self.closed { QueueStatus::Closed } else { QueueStatus::Open }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn everything_is_taken_at_once_and_in_order() {
        let queue = InputQueue::new();
        queue.put_all(vec![0, 1]);
        queue.put(2).unwrap();
        let mut taken = Vec::new();
        assert_eq!(queue.take(&mut taken), QueueStatus::Open);
        assert_eq!(taken, [0, 1, 2]);
    }

    #[test]
    fn a_closed_queue_gives_back_and_still_empties() {
        let queue = InputQueue::new();
        queue.put("kept").unwrap();
        queue.close();
        assert_eq!((queue.put("late"), queue.put_quietly("late")), (Err("late"), Err("late")));
        queue.put_all(vec!["late"]);
        let mut taken = Vec::new();
        assert_eq!(queue.wait_and_take(&mut taken), QueueStatus::Closed);
        assert_eq!(taken, ["kept"]);
    }

    /// What a sender does, and whether the owner's wait ends.
    type Sending = (fn(&InputQueue<u8>), bool);

    #[test]
    fn a_waiting_task_is_woken_once_and_only_for_cause() {
        let cases: [Sending; 8] = [
            (|queue| queue.put(1).unwrap(), true),
            (|queue| (1..9).for_each(|i| queue.put(i).unwrap()), true),
            (|queue| queue.put_all(vec![1, 2]), true),
            (|queue| queue.put_all(Vec::new()), false),
            (|queue| queue.put_quietly(1).unwrap(), false),
            (
                |queue| {
                    queue.put_quietly(1).unwrap();
                    queue.wake();
                },
                true,
            ),
            (|queue| queue.nudge(), true),
            (|queue| queue.close(), true),
        ];
        for (case, (sending, ends)) in cases.into_iter().enumerate() {
            let (queue, woken) = (InputQueue::new(), Arc::new(Woken::default()));
            let waker = Waker::from(woken.clone());
            let mut context = Context::from_waker(&waker);
            assert!(queue.poll_filled(&mut context).is_pending(), "{case}");
            sending(&queue);
            assert_eq!(woken.0.load(Ordering::Relaxed), usize::from(ends), "{case}");
            assert!(!ends || queue.poll_filled(&mut context).is_ready(), "{case}");
        }
    }

    #[test]
    fn a_nudge_ends_one_wait() {
        let queue = InputQueue::<u8>::new();
        let mut context = Context::from_waker(Waker::noop());
        queue.nudge();
        assert!(queue.poll_filled(&mut context).is_ready());
        assert!(queue.poll_filled(&mut context).is_pending());
    }

    #[test]
    fn a_sleeping_thread_is_woken_by_an_item_and_by_closing() {
        let queue = Arc::new(InputQueue::new());
        let owner = queue.clone();
        let thread = std::thread::spawn(move || {
            let (mut taken, mut total) = (Vec::new(), 0);
            while owner.wait_and_take(&mut taken) == QueueStatus::Open {
                total += taken.drain(..).sum::<i32>();
            }
            total + taken.drain(..).sum::<i32>()
        });
        (1..=100).for_each(|i| queue.put_all(vec![i]));
        queue.close();
        assert_eq!(thread.join().unwrap(), 5050);
    }
}
