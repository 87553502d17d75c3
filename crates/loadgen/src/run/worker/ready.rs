//! Tracks which connections and callers of a worker can make progress.
//!
//! ```text
//!   h2 wakes ──▶ waker of slot n ──▶ queue ──▶ worker drains it
//!                                      └─ worker asleep? wake it
//! ```
//!
//! A worker polls thousands of callers inside a single task, so it must track which of them are ready. Each
//! slot has a waker that queues the slot's number, at most once until the worker has dequeued it.
//!
//! * FIFO order: no connection can starve another.
//! * A wake during the worker's poll costs no reschedule; a wake from another thread is never lost: either
//!   the waker sees that the worker is asleep, or the worker sees the queued slot before it goes to sleep.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// Slot numbers queued for the worker.
#[derive(Debug)]
pub struct ReadyQueue {
    shared: Arc<ReadyShared>,
    wakers: Vec<Waker>,
}

#[derive(Debug)]
struct ReadyShared {
    /// At most one entry per slot.
    waiting: Mutex<Vec<u32>>,
    worker: Mutex<Option<Waker>>,
    awake: AtomicBool,
    queued: Box<[AtomicBool]>,
}

struct SlotWaker {
    shared: Arc<ReadyShared>,
    slot: u32,
}

impl ReadyQueue {
    /// Creates an empty queue for `slots` slots.
    pub fn new(slots: usize) -> Self {
        let slots = u32::try_from(slots).expect("fewer than 2^32 callers and connections");
        let shared = Arc::new(ReadyShared {
            waiting: Mutex::new(Vec::new()),
            worker: Mutex::new(None),
            awake: AtomicBool::new(false),
            queued: (0..slots).map(|_| AtomicBool::new(false)).collect(),
        });
        let wakers = (0..slots).map(|slot| Waker::from(Arc::new(SlotWaker { shared: shared.clone(), slot })));
        let wakers = wakers.collect();
        Self { shared, wakers }
    }

    pub fn waker(&self, slot: u32) -> &Waker {
        &self.wakers[slot as usize]
    }

    pub fn push(&self, slot: u32) {
        self.shared.push(slot);
    }

    /// Starts a poll of the worker; `worker` wakes it later.
    pub fn begin(&self, worker: &Waker) {
        let mut kept = lock(&self.shared.worker);
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(worker)) {
            *kept = Some(worker.clone());
        }
        drop(kept);
        self.shared.awake.store(true, SeqCst);
    }

    /// Moves all queued slots, oldest first, into `batch`, which must be empty.
    pub fn take(&self, batch: &mut Vec<u32>) {
        assert!(batch.is_empty(), "the batch before was not worked off");
        std::mem::swap(batch, &mut *lock(&self.shared.waiting));
        for &slot in batch.iter() {
            self.shared.queued[slot as usize].store(false, SeqCst);
        }
    }

    /// Finishes a poll of the worker. Returns true if slots are queued, so that it must be polled again
    /// immediately.
    pub fn end(&self) -> bool {
        self.shared.awake.store(false, SeqCst);
        !lock(&self.shared.waiting).is_empty()
    }
}

impl ReadyShared {
    fn push(&self, slot: u32) {
        if self.queued[slot as usize].swap(true, SeqCst) {
            return;
        }
        lock(&self.waiting).push(slot);
        if !self.awake.load(SeqCst)
            && let Some(worker) = &*lock(&self.worker)
        {
            worker.wake_by_ref();
        }
    }
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.shared.push(self.slot);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.shared.push(self.slot);
    }
}

/// Code under these locks does not panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn taken(queue: &ReadyQueue) -> Vec<u32> {
        let mut batch = Vec::new();
        queue.take(&mut batch);
        batch
    }

    #[test]
    fn a_slot_waits_once_however_often_it_is_woken() {
        let queue = ReadyQueue::new(3);
        assert_eq!(taken(&queue), [0; 0]);
        for slot in [2, 0, 2, 2, 0] {
            queue.waker(slot).wake_by_ref();
        }
        assert_eq!(taken(&queue), [2, 0]);
        queue.waker(2).wake_by_ref();
        assert_eq!(taken(&queue), [2]);
    }

    #[test]
    fn a_wake_reschedules_only_a_sleeping_worker() {
        let count = Arc::new(Count::default());
        let queue = ReadyQueue::new(1);
        queue.begin(&Waker::from(count.clone()));
        queue.waker(0).wake_by_ref();
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        assert!(queue.end(), "something came in during the turn");
        taken(&queue);
        queue.waker(0).wake_by_ref();
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn wakes_from_other_threads_are_never_lost() {
        const WAKES: u32 = 2_000;
        let queue = ReadyQueue::new(1);
        let waker = queue.waker(0).clone();
        let (woken, sleeping) = std::sync::mpsc::channel::<()>();
        struct Channel(std::sync::mpsc::Sender<()>);
        impl Wake for Channel {
            fn wake(self: Arc<Self>) {
                let _ = self.0.send(());
            }
        }
        let worker = Waker::from(Arc::new(Channel(woken)));
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || asked.iter().for_each(|()| waker.wake_by_ref()));
        for _ in 0..WAKES {
            ask.send(()).expect("the other thread listens");
            loop {
                queue.begin(&worker);
                let got = taken(&queue);
                if queue.end() || !got.is_empty() {
                    break;
                }
                sleeping.recv_timeout(std::time::Duration::from_secs(10)).expect("the wake arrives");
            }
            // Dequeued now if it was pushed between take and end.
            taken(&queue);
        }
        drop(ask);
        other.join().expect("no panic");
    }
}
