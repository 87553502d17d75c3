//! bcrypt on dedicated threads.
//!
//! * A hash takes 50 ms or more of CPU time, so serving threads never compute one. There are half
//!   as many of these threads as cores, with low priority.
//! * The queue is bounded and shared between connections. A request beyond the connection's share
//!   is rejected with "too many requests".
//! * Addresses are served round-robin, as are the users of an address. So invalid passwords from
//!   one address, or for one user, delay others by a single job.
//! * A job is skipped if its client has disconnected.
//! * A queued password is truncated to the bytes that bcrypt uses.
//!
//! Must not depend on users.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::requester::Requester;
use super::turns::JobTurns;
use admission::{Share, Shares};
use process::runtime::yield_to_others;

/// Maximum jobs of connections with more than one job: some 4 s of a core at bcrypt's default cost.
const JOBS_MAX: usize = 64;
/// Number of jobs that each connection may always have.
const JOBS_ALWAYS: usize = 1;
/// Number of password bytes that bcrypt uses. Longer passwords cannot be set, and are truncated for
/// verification.
const PASSWORD_BYTES_MAX: usize = 72;

/// Maximum cost of a hash set by a client: verifying a password takes a minute of a core.
pub const COST_MAX: u32 = 20;

/// Reason why a password was not hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashError {
    /// The queue is full, for this client or in total.
    TooMany,
    TooLong,
    /// No random numbers for a salt, or the member is stopping.
    Failed,
}

type Job = Box<dyn FnOnce() + Send>;

/// Hashing threads and their queue. The threads exit when this is dropped.
pub struct Passwords {
    jobs: Arc<JobTurns<Job>>,
    places: Arc<Shares>,
    cost: u32,
}

impl Passwords {
    pub fn start(cost: u32) -> std::io::Result<Passwords> {
        let threads = std::thread::available_parallelism().map_or(1, |cores| usize::from(cores).div_ceil(2));
        let jobs = Arc::new(JobTurns::new());
        for number in 0..threads {
            let jobs = Arc::clone(&jobs);
            std::thread::Builder::new().name(format!("passwords-{number}")).spawn(move || run(&jobs))?;
        }
        Ok(Passwords { jobs, places: Shares::new(JOBS_MAX, JOBS_ALWAYS), cost })
    }

    /// Hashes the password of a new user.
    pub async fn hash(&self, requester: &Requester, password: String) -> Result<Bytes, HashError> {
        if password.len() > PASSWORD_BYTES_MAX {
            return Err(HashError::TooLong);
        }
        let cost = self.cost;
        // In the format of Go's bcrypt.
        let hash = move || {
            let parts = bcrypt::hash_with_result(password, cost).ok()?;
            Some(Bytes::from(parts.format_for_version(bcrypt::Version::TwoA)))
        };
        self.run(requester, "", hash).await?.ok_or(HashError::Failed)
    }

    /// Verifies the password of `user`. Returns false for a malformed hash.
    pub async fn verify(
        &self,
        requester: &Requester,
        user: &str,
        password: &Decisive,
        hash: Bytes,
    ) -> Result<bool, HashError> {
        let password = password.0.clone();
        let verify = move || {
            let hash = std::str::from_utf8(&hash).unwrap_or_default();
            bcrypt::verify(password, hash).unwrap_or(false)
        };
        self.run(requester, user, verify).await
    }

    async fn run<T: Send + 'static>(
        &self,
        requester: &Requester,
        user: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HashError> {
        let place: Share = self.places.take(requester.client(), 1).ok_or(HashError::TooMany)?;
        let (done, outcome) = oneshot::channel();
        let job = move || {
            if !done.is_closed() {
                let outcome = work();
                drop(place);
                drop(done.send(outcome)); // The client may have gone.
            }
        };
        self.jobs.push(requester.ip(), user, Box::new(job)).map_err(|_| HashError::TooMany)?;
        outcome.await.map_err(|_| HashError::Failed)
    }
}

impl Drop for Passwords {
    fn drop(&mut self) {
        self.jobs.close();
    }
}

impl std::fmt::Debug for Passwords {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("threads for passwords")
    }
}

/// Reports whether a hash can be verified in acceptable time. A malformed hash takes none.
pub fn is_affordable(hash: &[u8]) -> bool {
    let parts = std::str::from_utf8(hash).ok().and_then(|hash| hash.parse::<bcrypt::HashParts>().ok());
    parts.is_none_or(|parts| parts.get_cost() <= COST_MAX)
}

/// Prefix of a password that bcrypt uses for verification. The rest is dropped. Has no Debug
/// output.
pub struct Decisive(Arc<[u8]>);

impl Decisive {
    pub fn of(password: &str) -> Decisive {
        let bytes = password.as_bytes();
        Decisive(bytes.get(..PASSWORD_BYTES_MAX).unwrap_or(bytes).into())
    }
}

fn run(jobs: &JobTurns<Job>) {
    yield_to_others();
    while let Some(job) = jobs.next() {
        job();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::sync_channel;

    use futures_util::FutureExt;
    use parking_lot::Mutex;

    use super::*;
    use crate::requester::{Connection, Identity};
    use admission::ClientId;

    fn of(client: u64) -> Requester {
        let connection = Connection { client: ClientId::alone(client), ..Connection::default() };
        Requester { connection, identity: Identity::None }
    }

    #[tokio::test]
    async fn a_hash_is_of_its_password_and_of_no_other() {
        let passwords = Passwords::start(4).unwrap();
        let client = of(1);
        let hash = passwords.hash(&client, "right".into()).await.unwrap();
        assert!(hash.starts_with(b"$2a$04$"), "{hash:?}");
        for (password, is_right) in [("right", true), ("wrong", false), ("", false)] {
            let password = Decisive::of(password);
            assert_eq!(passwords.verify(&client, "u", &password, hash.clone()).await, Ok(is_right));
        }
        assert_eq!(
            passwords.verify(&client, "u", &Decisive::of(""), Bytes::new()).await,
            Ok(false),
            "no hash"
        );
        assert_eq!(passwords.hash(&client, "p".repeat(73)).await, Err(HashError::TooLong));
        let longest = passwords.hash(&client, "p".repeat(72)).await.unwrap();
        for (bytes, is_right) in [(71, false), (72, true), (73, true), (1 << 20, true)] {
            let password = Decisive::of(&"p".repeat(bytes));
            assert!(password.0.len() <= 72, "{bytes}");
            assert_eq!(
                passwords.verify(&client, "u", &password, longest.clone()).await,
                Ok(is_right),
                "{bytes}"
            );
        }
        let empty = passwords.hash(&client, String::new()).await.unwrap();
        assert_eq!(passwords.verify(&client, "u", &Decisive::of(""), empty).await, Ok(true));
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
        let (first, second) = (of(1), of(2));
        let released = Arc::new(Mutex::new(released));
        let threads = std::thread::available_parallelism().unwrap().get().div_ceil(2);
        let mut busy: Vec<_> = (0..threads)
            .map(|_| {
                let released = Arc::clone(&released);
                Box::pin(passwords.run(&first, "u", move || released.lock().recv().is_err()))
            })
            .collect();
        assert!(busy.iter_mut().all(|job| job.now_or_never().is_none()));
        let was_begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&was_begun);
        let mut gone = Box::pin(passwords.run(&second, "u", move || begins.store(true, Ordering::SeqCst)));
        assert!((&mut gone).now_or_never().is_none());
        drop(gone);
        drop(release);
        for job in busy {
            assert!(job.await.unwrap());
        }
        passwords.run(&second, "u", || ()).await.unwrap();
        assert!(!was_begun.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn one_client_cannot_take_all_places() {
        let passwords = Passwords::start(4).unwrap();
        let held: Vec<_> = std::iter::from_fn(|| passwords.places.take(ClientId::alone(1), 1)).collect();
        assert_eq!(held.len(), JOBS_MAX / 2);
        let refused = passwords.hash(&of(1), "more".into()).await;
        assert_eq!(refused, Err(HashError::TooMany));
        assert!(passwords.hash(&of(2), "another".into()).await.is_ok());
        drop(held);
        assert!(passwords.hash(&of(1), "again".into()).await.is_ok());
    }
}
