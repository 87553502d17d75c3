//! A thread's mailbox: the driver puts in, the thread takes everything out at once.
//!
//! * Taking swaps two buffers under the lock: no allocation and no work per item while others wait.
//! * Order is kept: what is put in first comes out first.
//! * The owner is woken only if it sleeps: under load there is no cost of a wake-up.
//! * Bounds are the sender's affair (`driver.rs` says each). What comes after the end is dropped.

use parking_lot::{Condvar, Mutex};

struct Inner<T> {
    /// In order of arrival; taken all at once.
    items: Vec<T>,
    /// The owner waits, and no sender has woken it yet: the one who finds this set does.
    asleep: bool,
    /// Nothing comes in any more.
    closed: bool,
}

pub(super) struct Mailbox<T> {
    inner: Mutex<Inner<T>>,
    filled: Condvar,
}

/// Whether the owner of a mailbox, or of the inbox, should go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    /// There may be items; more may come.
    Open,
    /// Closed: what was taken is the last.
    Closed,
}

impl<T> Mailbox<T> {
    pub fn new() -> Self {
        let inner = Inner { items: Vec::new(), asleep: false, closed: false };
        Mailbox { inner: Mutex::new(inner), filled: Condvar::new() }
    }

    /// Puts all of `items` in, in order; they are lost if the mailbox is closed.
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

    /// Takes all items into `into`, which must be empty. Sleeps while there are none.
    pub fn take(&self, into: &mut Vec<T>) -> Taken {
        assert!(into.is_empty(), "what was taken before must be handled first");
        let mut inner = self.inner.lock();
        while inner.items.is_empty() && !inner.closed {
            inner.asleep = true;
            self.filled.wait(&mut inner);
        }
        inner.asleep = false;
        // The buffers change places: `into` was emptied above, so the sender gets an empty one with room in
        // it.
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

    use super::*;

    #[test]
    fn everything_is_taken_at_once_and_in_order() {
        let mailbox = Mailbox::new();
        mailbox.put_all(vec![0, 1]);
        mailbox.put_all(vec![2]);
        let mut taken = Vec::new();
        assert_eq!(mailbox.take(&mut taken), Taken::Open);
        assert_eq!(taken, [0, 1, 2]);
    }

    #[test]
    fn a_closed_mailbox_takes_nothing_and_still_empties() {
        let mailbox = Mailbox::new();
        mailbox.put_all(vec!["kept"]);
        mailbox.close();
        mailbox.put_all(vec!["late"]);
        let mut taken = Vec::new();
        assert_eq!(mailbox.take(&mut taken), Taken::Closed);
        assert_eq!(taken, ["kept"]);
    }

    #[test]
    fn a_sleeper_is_woken_by_an_item_and_by_closing() {
        let mailbox = Arc::new(Mailbox::new());
        let owner = mailbox.clone();
        let thread = std::thread::spawn(move || {
            let (mut taken, mut total) = (Vec::new(), 0);
            while owner.take(&mut taken) == Taken::Open {
                total += taken.drain(..).sum::<i32>();
            }
            total + taken.drain(..).sum::<i32>()
        });
        (1..=100).for_each(|i| mailbox.put_all(vec![i]));
        mailbox.close();
        assert_eq!(thread.join().unwrap(), 5050);
    }
}
