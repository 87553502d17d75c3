//! A mailbox: many put in, one thread takes everything out at once.
//!
//! * Taking swaps two buffers under the lock: no allocation and no work per item while others wait.
//! * Order is kept per sender: what one thread puts in first comes out first. The log thread relies on it for jobs, the
//!   driver for a `Durable` that must be seen before the answers to what it allowed.
//! * A sender wakes the owner only if it sleeps: under load, nobody pays for a wake-up.
//! * Bounds are the senders' affair (each says its own); a closed mailbox gives items back.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

struct Inner<T> {
    /// In order of arrival; taken all at once.
    items: Vec<T>,
    /// The owner waits, and nobody has woken it yet: the one who finds this set does.
    asleep: bool,
    /// The owner should look around although there may be no items.
    nudged: bool,
    /// Nothing comes in any more.
    closed: bool,
}

pub(crate) struct Mailbox<T> {
    inner: Mutex<Inner<T>>,
    filled: Condvar,
}

/// Whether the owner should go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// There may be items; more may come.
    Open,
    /// Closed: what was taken is the last.
    Closed,
}

impl<T> Mailbox<T> {
    pub fn new() -> Self {
        let inner = Inner { items: Vec::new(), asleep: false, nudged: false, closed: false };
        Mailbox { inner: Mutex::new(inner), filled: Condvar::new() }
    }

    /// Puts `item` in, or gives it back if nobody will take it.
    pub fn put(&self, item: T) -> Result<(), T> {
        let mut inner = self.inner.lock();
        if inner.closed {
            return Err(item);
        }
        inner.items.push(item);
        let asleep = std::mem::take(&mut inner.asleep);
        drop(inner);
        if asleep {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Puts all of `items` in, in order; they are lost if nobody will take them.
    pub fn put_all(&self, items: Vec<T>) {
        let mut inner = self.inner.lock();
        if inner.closed || items.is_empty() {
            return;
        }
        inner.items.extend(items);
        let asleep = std::mem::take(&mut inner.asleep);
        drop(inner);
        if asleep {
            self.filled.notify_one();
        }
    }

    /// Puts `item` in without waking the owner; [`Mailbox::wake`] is owed.
    pub fn put_quietly(&self, item: T) -> Result<(), T> {
        let mut inner = self.inner.lock();
        if inner.closed {
            return Err(item);
        }
        inner.items.push(item);
        Ok(())
    }

    /// Wakes the owner if it sleeps; what was put in quietly is then found.
    pub fn wake(&self) {
        self.notify(|_| {});
    }

    /// Makes the owner's current or next take return at once, items or not.
    pub fn nudge(&self) {
        self.notify(|inner| inner.nudged = true);
    }

    fn notify(&self, change: impl FnOnce(&mut Inner<T>)) {
        let mut inner = self.inner.lock();
        change(&mut inner);
        if std::mem::take(&mut inner.asleep) {
            drop(inner);
            self.filled.notify_one();
        }
    }

    /// Takes all items into `into`, which must be empty. Sleeps while there are none, until `deadline` if given.
    pub fn take(&self, into: &mut Vec<T>, deadline: Option<Instant>) -> Taken {
        assert!(into.is_empty(), "what was taken before must be handled first");
        let mut inner = self.inner.lock();
        while inner.items.is_empty() && !inner.closed && !std::mem::take(&mut inner.nudged) {
            inner.asleep = true;
            match deadline {
                None => self.filled.wait(&mut inner),
                Some(deadline) => {
                    if self.filled.wait_until(&mut inner, deadline).timed_out() {
                        break;
                    }
                }
            }
        }
        inner.asleep = false;
        // The buffers change places: `into` was emptied above, so the senders get an empty one with room in it.
        std::mem::swap(&mut inner.items, into);
        if inner.closed { Taken::Closed } else { Taken::Open }
    }

    /// Nothing can be put in any more; the owner wakes and takes the rest.
    pub fn close(&self) {
        self.inner.lock().closed = true;
        self.filled.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_millis(1))
    }

    #[test]
    fn everything_is_taken_at_once_and_in_order() {
        let mailbox = Mailbox::new();
        (0..3).for_each(|i| mailbox.put(i).unwrap());
        let mut taken = Vec::new();
        assert_eq!(mailbox.take(&mut taken, None), Taken::Open);
        assert_eq!(taken, [0, 1, 2]);
        taken.clear();
        assert_eq!(mailbox.take(&mut taken, soon()), Taken::Open, "the deadline passed");
        assert!(taken.is_empty());
    }

    #[test]
    fn a_closed_mailbox_gives_back_and_still_empties() {
        let mailbox = Mailbox::new();
        mailbox.put("kept").unwrap();
        mailbox.close();
        assert_eq!(mailbox.put("late"), Err("late"));
        let mut taken = Vec::new();
        assert_eq!(mailbox.take(&mut taken, None), Taken::Closed);
        assert_eq!(taken, ["kept"]);
    }

    #[test]
    fn a_sleeper_is_woken_by_an_item_and_by_closing() {
        let mailbox = Arc::new(Mailbox::new());
        let owner = mailbox.clone();
        let thread = std::thread::spawn(move || {
            let (mut taken, mut total) = (Vec::new(), 0);
            while owner.take(&mut taken, None) == Taken::Open {
                total += taken.drain(..).sum::<i32>();
            }
            total + taken.drain(..).sum::<i32>()
        });
        (1..=100).for_each(|i| mailbox.put(i).unwrap());
        mailbox.close();
        assert_eq!(thread.join().unwrap(), 5050);
    }
}
