//! The driver's inbox: many put in from any thread, one task takes everything out at once.
//!
//! * Taking swaps two buffers under the lock: no allocation and no work per item while others wait.
//! * Order is kept per sender. The driver relies on it for a `Durable` that must be seen before the answers
//!   to what it allowed.
//! * A sender wakes the owner only if it waits: under load there is no cost of a wake-up.
//! * Bounds are the senders' affair (each says its own); a closed inbox gives items back.

use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::mailbox::Taken;

struct State<T> {
    /// In order of arrival; taken all at once.
    items: Vec<T>,
    /// The owner waits, and no sender has woken it yet: the one who finds this does.
    owner: Option<Waker>,
    /// The owner should look around although there may be no items.
    nudged: bool,
    /// Nothing comes in any more.
    closed: bool,
}

pub(super) struct Inbox<T> {
    state: Mutex<State<T>>,
}

impl<T> Inbox<T> {
    pub fn new() -> Self {
        Inbox { state: Mutex::new(State { items: Vec::new(), owner: None, nudged: false, closed: false }) }
    }

    /// Puts `item` in, or gives it back if the inbox is closed.
    pub fn put(&self, item: T) -> Result<(), T> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(item);
        }
        state.items.push(item);
        let owner = state.owner.take();
        drop(state);
        owner.inspect(Waker::wake_by_ref);
        Ok(())
    }

    /// Puts `item` in without waking the owner; [`Inbox::wake`] is owed.
    pub fn put_quietly(&self, item: T) -> Result<(), T> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(item);
        }
        state.items.push(item);
        Ok(())
    }

    /// Wakes the owner if it waits; what was put in quietly is then found.
    pub fn wake(&self) {
        self.notify(|_| {});
    }

    /// Makes the owner's current or next wait end at once, items or not.
    pub fn nudge(&self) {
        self.notify(|state| state.nudged = true);
    }

    /// Nothing can be put in any more; the owner wakes and takes the rest.
    pub fn close(&self) {
        self.notify(|state| state.closed = true);
    }

    fn notify(&self, change: impl FnOnce(&mut State<T>)) {
        let mut state = self.state.lock();
        change(&mut state);
        let owner = state.owner.take();
        drop(state);
        owner.inspect(Waker::wake_by_ref);
    }

    /// Ready when there is something to take, or the end.
    pub fn poll_filled(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if !state.items.is_empty() || state.closed || std::mem::take(&mut state.nudged) {
            return Poll::Ready(());
        }
        match &mut state.owner {
            Some(owner) => owner.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Takes all items into `into`, which must be empty.
    pub fn take(&self, into: &mut Vec<T>) -> Taken {
        assert!(into.is_empty(), "what was taken before must be handled first");
        let mut state = self.state.lock();
        // The owner is awake: no sender need wake it.
        state.owner = None;
        // The buffers change places: `into` was emptied above, so the senders get an empty one with room in
        // it.
        std::mem::swap(&mut state.items, into);
        if state.closed { Taken::Closed } else { Taken::Open }
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
        let inbox = Inbox::new();
        (0..3).for_each(|i| inbox.put(i).unwrap());
        let mut taken = Vec::new();
        assert_eq!(inbox.take(&mut taken), Taken::Open);
        assert_eq!(taken, [0, 1, 2]);
    }

    #[test]
    fn a_closed_inbox_gives_back_and_still_empties() {
        let inbox = Inbox::new();
        inbox.put("kept").unwrap();
        inbox.close();
        assert_eq!((inbox.put("late"), inbox.put_quietly("late")), (Err("late"), Err("late")));
        let mut taken = Vec::new();
        assert_eq!(inbox.take(&mut taken), Taken::Closed);
        assert_eq!(taken, ["kept"]);
    }

    /// What a sender does, and whether the owner's wait ends.
    type Sending = (fn(&Inbox<u8>), bool);

    #[test]
    fn a_waiting_owner_is_woken_once_and_only_for_cause() {
        let cases: [Sending; 6] = [
            (|inbox| inbox.put(1).unwrap(), true),
            (|inbox| (1..9).for_each(|i| inbox.put(i).unwrap()), true),
            (|inbox| inbox.put_quietly(1).unwrap(), false),
            (
                |inbox| {
                    inbox.put_quietly(1).unwrap();
                    inbox.wake();
                },
                true,
            ),
            (|inbox| inbox.nudge(), true),
            (|inbox| inbox.close(), true),
        ];
        for (case, (sending, ends)) in cases.into_iter().enumerate() {
            let (inbox, woken) = (Inbox::new(), Arc::new(Woken::default()));
            let waker = Waker::from(woken.clone());
            let mut context = Context::from_waker(&waker);
            assert!(inbox.poll_filled(&mut context).is_pending(), "{case}");
            sending(&inbox);
            assert_eq!(woken.0.load(Ordering::Relaxed), usize::from(ends), "{case}");
            assert!(!ends || inbox.poll_filled(&mut context).is_ready(), "{case}");
        }
    }

    #[test]
    fn a_nudge_ends_one_wait() {
        let inbox = Inbox::<u8>::new();
        let mut context = Context::from_waker(Waker::noop());
        inbox.nudge();
        assert!(inbox.poll_filled(&mut context).is_ready());
        assert!(inbox.poll_filled(&mut context).is_pending());
    }
}
