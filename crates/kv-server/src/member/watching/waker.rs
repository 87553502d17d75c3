//! Ends the sleep of the hub's thread, without waiting.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst, fence};
use std::thread::Thread;
use std::time::Duration;

const AWAKE: u8 = 0;
/// Entries do not matter: there are no watchers.
const IDLE: u8 = 1;
/// Entries matter.
const FOLLOWING: u8 = 2;

/// What ends a sleep besides requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    Requests,
    RequestsAndEntries,
}

/// The state of the thread.
///
/// The thread announces its sleep, looks for work once more, and then parks. What arrives after the
/// announcement changes the state back, so that the thread does not park. Both sides write first and read
/// then, with a full fence between: one of them sees the other.
#[derive(Debug, Default)]
pub(super) struct Waker {
    state: AtomicU8,
    thread: OnceLock<Thread>,
}

impl Waker {
    /// To be called by the thread before its first sleep.
    pub(super) fn is_called_by_its_thread(&self) {
        self.thread.set(std::thread::current()).expect("one thread");
    }

    /// The store has published a revision. Wait-free; one fence and one load while the thread is awake or has
    /// no watchers.
    pub(super) fn entry_ended(&self) {
        fence(SeqCst);
        if self.state.load(SeqCst) == FOLLOWING {
            self.wake();
        }
    }

    /// A request was put down.
    pub(super) fn mail_arrived(&self) {
        fence(SeqCst);
        if self.state.load(SeqCst) != AWAKE {
            self.wake();
        }
    }

    fn wake(&self) {
        // The thread that changes the state unparks, once for each sleep.
        if self.state.swap(AWAKE, SeqCst) != AWAKE
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Announces a sleep. The thread has to look for work once more.
    pub(super) fn announce_sleep(&self, until: Until) {
        let state = match until {
            Until::Requests => IDLE,
            Until::RequestsAndEntries => FOLLOWING,
        };
        self.state.store(state, SeqCst);
        fence(SeqCst);
    }

    /// Sleeps, unless something has arrived since the announcement.
    pub(super) fn sleep(&self, longest: Option<Duration>) {
        while self.state.load(SeqCst) != AWAKE {
            match longest {
                Some(longest) => {
                    std::thread::park_timeout(longest);
                    break;
                }
                None => std::thread::park(),
            }
        }
        self.state.store(AWAKE, SeqCst);
    }

    /// There was work after the announcement.
    pub(super) fn stay_awake(&self) {
        self.state.store(AWAKE, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn each_sleep_ends_by_what_it_waits_for() {
        let waker = Arc::new(Waker::default());
        let (slept, sleeps) = mpsc::channel();
        let (go, going) = mpsc::channel();
        let theirs = Arc::clone(&waker);
        let thread = std::thread::spawn(move || {
            theirs.is_called_by_its_thread();
            for until in going {
                theirs.announce_sleep(until);
                slept.send("announced").unwrap();
                theirs.sleep(None);
                slept.send("woken").unwrap();
            }
        });
        for (until, wakes) in [
            (Until::Requests, Waker::mail_arrived as fn(&Waker)),
            (Until::RequestsAndEntries, Waker::mail_arrived),
            (Until::RequestsAndEntries, Waker::entry_ended),
        ] {
            go.send(until).unwrap();
            assert_eq!(sleeps.recv().unwrap(), "announced");
            if until == Until::Requests {
                waker.entry_ended();
                assert_eq!(waker.state.load(SeqCst), IDLE, "entries do not matter without watchers");
            }
            wakes(&waker);
            assert_eq!(sleeps.recv().unwrap(), "woken");
        }
        drop(go);
        thread.join().unwrap();
    }
}
