//! bcrypt, on threads of its own.
//!
//! * A hash takes 50 ms or more of a processor, so serving threads never make one. These threads are half as
//!   many as there are cores, and give others priority.
//! * What waits is bounded, and shared out by connection: wrong passwords of one client leave places to
//!   others. Beyond its share a request is refused with "too many requests".
//! * A job whose client has gone is not begun.
//! * A password that waits takes at most as many bytes as bcrypt looks at.
//!
//! Knows no users.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::admission::{ClientId, Share, Shares};
use crate::process::runtime::yield_to_others;

/// Jobs that wait or run: some 4 s of one core at bcrypt's usual cost.
const JOBS_MAX: usize = 64;
/// Jobs that each client may always have.
const JOBS_ALWAYS: usize = 1;
/// Places of the queue: `JOBS_MAX` and one job for each of so many clients. A client that finds it full is
/// refused.
const QUEUE_PLACES: usize = 1024;
/// Bytes of a password that bcrypt looks at. A longer one is not made, and is verified by these alone.
const PASSWORD_BYTES_MAX: usize = 72;

/// Highest cost of a hash that is set by a client: to verify a password takes a minute of a core.
pub const COST_MAX: u32 = 20;

/// Why there is no hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashError {
    /// Too many of this client, or of all, wait.
    TooMany,
    /// Longer than bcrypt takes.
    TooLong,
    /// The random numbers for a salt are missing, or the member stops.
    Failed,
}

type Job = Box<dyn FnOnce() + Send>;

/// The threads, and what may wait for them. They end when this is dropped.
#[derive(Debug)]
pub struct Passwords {
    queue: SyncSender<Job>,
    places: Arc<Shares>,
    cost: u32,
}

impl Passwords {
    pub fn start(cost: u32) -> std::io::Result<Passwords> {
        let threads = std::thread::available_parallelism().map_or(1, |cores| usize::from(cores).div_ceil(2));
        let (queue, jobs) = sync_channel(QUEUE_PLACES);
        let jobs = Arc::new(Mutex::new(jobs));
        for number in 0..threads {
            let jobs = Arc::clone(&jobs);
            std::thread::Builder::new().name(format!("passwords-{number}")).spawn(move || run(&jobs))?;
        }
        Ok(Passwords { queue, places: Shares::new(JOBS_MAX, JOBS_ALWAYS), cost })
    }

    /// The hash of a new password.
    pub async fn hash(&self, client: ClientId, password: String) -> Result<Bytes, HashError> {
        if password.len() > PASSWORD_BYTES_MAX {
            return Err(HashError::TooLong);
        }
        let cost = self.cost;
        // In the form that Go's bcrypt makes.
        let hash = move || {
            let parts = bcrypt::hash_with_result(password, cost).ok()?;
            Some(Bytes::from(parts.format_for_version(bcrypt::Version::TwoA)))
        };
        self.run(client, hash).await?.ok_or(HashError::Failed)
    }

    /// Whether a password belongs to a hash. A hash that is none belongs to no password.
    pub async fn verify(&self, client: ClientId, password: &[u8], hash: Bytes) -> Result<bool, HashError> {
        let password = password.get(..PASSWORD_BYTES_MAX).unwrap_or(password).to_vec();
        let verify = move || {
            let hash = std::str::from_utf8(&hash).unwrap_or_default();
            bcrypt::verify(password, hash).unwrap_or(false)
        };
        self.run(client, verify).await
    }

    async fn run<T: Send + 'static>(
        &self,
        client: ClientId,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HashError> {
        let place: Share = self.places.take(client, 1).ok_or(HashError::TooMany)?;
        let (done, outcome) = oneshot::channel();
        let job = move || {
            if !done.is_closed() {
                let outcome = work();
                drop(place);
                drop(done.send(outcome)); // The client may have gone.
            }
        };
        self.queue.try_send(Box::new(job)).map_err(|_| HashError::TooMany)?;
        outcome.await.map_err(|_| HashError::Failed)
    }
}

/// Whether a password is verified against a hash in time that can be given. What is no hash takes none.
pub fn is_affordable(hash: &[u8]) -> bool {
    let parts = std::str::from_utf8(hash).ok().and_then(|hash| hash.parse::<bcrypt::HashParts>().ok());
    parts.is_none_or(|parts| parts.get_cost() <= COST_MAX)
}

/// What decides of a password that is to be verified. The rest is not held.
pub fn decisive(password: String) -> Box<[u8]> {
    let mut bytes = password.into_bytes();
    bytes.truncate(PASSWORD_BYTES_MAX);
    bytes.into_boxed_slice()
}

/// Runs jobs until the queue is gone.
fn run(jobs: &Mutex<Receiver<Job>>) {
    yield_to_others();
    loop {
        let next = jobs.lock().recv();
        match next {
            Ok(job) => job(),
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_hash_is_of_its_password_and_of_no_other() {
        let passwords = Passwords::start(4).unwrap();
        let client = ClientId(1);
        let hash = passwords.hash(client, "right".into()).await.unwrap();
        assert!(hash.starts_with(b"$2a$04$"), "{hash:?}");
        for (password, is_right) in [("right", true), ("wrong", false), ("", false)] {
            assert_eq!(passwords.verify(client, password.as_bytes(), hash.clone()).await, Ok(is_right));
        }
        assert_eq!(passwords.verify(client, b"", Bytes::new()).await, Ok(false), "no hash");
        assert_eq!(passwords.hash(client, "p".repeat(73)).await, Err(HashError::TooLong));
        let longest = passwords.hash(client, "p".repeat(72)).await.unwrap();
        for (bytes, is_right) in [(71, false), (72, true), (73, true), (1 << 20, true)] {
            let password = decisive("p".repeat(bytes));
            assert!(password.len() <= 72, "{bytes}");
            assert_eq!(passwords.verify(client, &password, longest.clone()).await, Ok(is_right), "{bytes}");
        }
        let empty = passwords.hash(client, String::new()).await.unwrap();
        assert_eq!(passwords.verify(client, b"", empty).await, Ok(true));
    }

    #[test]
    fn a_hash_of_a_higher_cost_than_can_be_given_is_known() {
        let rest = "N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy";
        for (hash, wanted) in [
            (format!("$2a$20${rest}"), true),
            (format!("$2a$21${rest}"), false),
            (format!("$2b$31${rest}"), false),
            (format!("$2a$04${rest}"), true),
            ("no hash".to_owned(), true),
            (String::new(), true),
        ] {
            assert_eq!(is_affordable(hash.as_bytes()), wanted, "{hash}");
        }
    }

    #[tokio::test]
    async fn a_job_whose_caller_has_gone_is_not_begun() {
        let passwords = Passwords::start(4).unwrap();
        let (release, released) = sync_channel::<()>(0);
        let released = Arc::new(Mutex::new(released));
        let threads = std::thread::available_parallelism().unwrap().get().div_ceil(2);
        let mut busy: Vec<_> = (0..threads)
            .map(|_| {
                let released = Arc::clone(&released);
                Box::pin(passwords.run(ClientId(1), move || released.lock().recv().is_err()))
            })
            .collect();
        assert!(busy.iter_mut().all(|job| job.now_or_never().is_none()));
        let was_begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&was_begun);
        let mut gone = Box::pin(passwords.run(ClientId(2), move || begins.store(true, Ordering::SeqCst)));
        assert!((&mut gone).now_or_never().is_none());
        drop(gone);
        drop(release);
        for job in busy {
            assert!(job.await.unwrap());
        }
        passwords.run(ClientId(2), || ()).await.unwrap();
        assert!(!was_begun.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn one_client_cannot_take_all_places() {
        let passwords = Passwords::start(4).unwrap();
        let held: Vec<_> = std::iter::from_fn(|| passwords.places.take(ClientId(1), 1)).collect();
        assert_eq!(held.len(), JOBS_MAX / 2);
        let refused = passwords.hash(ClientId(1), "more".into()).await;
        assert_eq!(refused, Err(HashError::TooMany));
        assert!(passwords.hash(ClientId(2), "another".into()).await.is_ok());
        drop(held);
        assert!(passwords.hash(ClientId(1), "again".into()).await.is_ok());
    }
}
