//! bcrypt, on separate threads.
//!
//! * A hash takes 50 ms or more of a processor, so serving threads never make one. These threads are half as
//!   many as there are cores, and give others priority.
//! * What waits is bounded, and shared out by connection. Beyond its share a request is refused with "too
//!   many requests".
//! * Addresses take turns, and users of one address do. So wrong passwords of one address, or for one user,
//!   delay those of another one by one job.
//! * A job whose client has gone is not begun.
//! * A password that waits takes at most as many bytes as bcrypt looks at.
//!
//! Knows no users.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::turns::JobTurns;
use admission::{ClientId, Share, Shares};
use process::runtime::yield_to_others;

/// Jobs of connections that have more than one: some 4 s of one core at bcrypt's usual cost.
const JOBS_MAX: usize = 64;
/// Jobs that each connection may always have.
const JOBS_ALWAYS: usize = 1;
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

/// Whose password it is, and where the request comes from.
#[derive(Clone, Copy, Debug)]
pub struct Applicant<'a> {
    pub client: ClientId,
    pub address: Option<IpAddr>,
    pub user: &'a str,
}

/// The threads, and what may wait for them. They end when this is dropped.
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

    /// The hash of a new password.
    pub async fn hash(&self, applicant: Applicant<'_>, password: String) -> Result<Bytes, HashError> {
        if password.len() > PASSWORD_BYTES_MAX {
            return Err(HashError::TooLong);
        }
        let cost = self.cost;
        // In the form that Go's bcrypt makes.
        let hash = move || {
            let parts = bcrypt::hash_with_result(password, cost).ok()?;
            Some(Bytes::from(parts.format_for_version(bcrypt::Version::TwoA)))
        };
        self.run(applicant, hash).await?.ok_or(HashError::Failed)
    }

    /// Whether a password belongs to a hash. A hash that is none belongs to no password.
    pub async fn verify(
        &self,
        applicant: Applicant<'_>,
        password: &Decisive,
        hash: Bytes,
    ) -> Result<bool, HashError> {
        let password = password.0.clone();
        let verify = move || {
            let hash = std::str::from_utf8(&hash).unwrap_or_default();
            bcrypt::verify(password, hash).unwrap_or(false)
        };
        self.run(applicant, verify).await
    }

    async fn run<T: Send + 'static>(
        &self,
        Applicant { client, address, user }: Applicant<'_>,
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
        self.jobs.push(address, user, Box::new(job)).map_err(|_| HashError::TooMany)?;
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

/// Whether a password is verified against a hash in time that can be given. What is no hash takes none.
pub fn is_affordable(hash: &[u8]) -> bool {
    let parts = std::str::from_utf8(hash).ok().and_then(|hash| hash.parse::<bcrypt::HashParts>().ok());
    parts.is_none_or(|parts| parts.get_cost() <= COST_MAX)
}

/// What decides of a password that is to be verified: as much as bcrypt looks at. The rest is not held. It
/// has no Debug form.
pub struct Decisive(Arc<[u8]>);

impl Decisive {
    pub fn of(password: &str) -> Decisive {
        let bytes = password.as_bytes();
        Decisive(bytes.get(..PASSWORD_BYTES_MAX).unwrap_or(bytes).into())
    }
}

/// Runs jobs until there will be none.
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

    fn of(client: u64) -> Applicant<'static> {
        Applicant { client: ClientId::alone(client), address: None, user: "u" }
    }

    #[tokio::test]
    async fn a_hash_is_of_its_password_and_of_no_other() {
        let passwords = Passwords::start(4).unwrap();
        let client = of(1);
        let hash = passwords.hash(client, "right".into()).await.unwrap();
        assert!(hash.starts_with(b"$2a$04$"), "{hash:?}");
        for (password, is_right) in [("right", true), ("wrong", false), ("", false)] {
            let password = Decisive::of(password);
            assert_eq!(passwords.verify(client, &password, hash.clone()).await, Ok(is_right));
        }
        assert_eq!(passwords.verify(client, &Decisive::of(""), Bytes::new()).await, Ok(false), "no hash");
        assert_eq!(passwords.hash(client, "p".repeat(73)).await, Err(HashError::TooLong));
        let longest = passwords.hash(client, "p".repeat(72)).await.unwrap();
        for (bytes, is_right) in [(71, false), (72, true), (73, true), (1 << 20, true)] {
            let password = Decisive::of(&"p".repeat(bytes));
            assert!(password.0.len() <= 72, "{bytes}");
            assert_eq!(passwords.verify(client, &password, longest.clone()).await, Ok(is_right), "{bytes}");
        }
        let empty = passwords.hash(client, String::new()).await.unwrap();
        assert_eq!(passwords.verify(client, &Decisive::of(""), empty).await, Ok(true));
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
                Box::pin(passwords.run(of(1), move || released.lock().recv().is_err()))
            })
            .collect();
        assert!(busy.iter_mut().all(|job| job.now_or_never().is_none()));
        let was_begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&was_begun);
        let mut gone = Box::pin(passwords.run(of(2), move || begins.store(true, Ordering::SeqCst)));
        assert!((&mut gone).now_or_never().is_none());
        drop(gone);
        drop(release);
        for job in busy {
            assert!(job.await.unwrap());
        }
        passwords.run(of(2), || ()).await.unwrap();
        assert!(!was_begun.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn one_client_cannot_take_all_places() {
        let passwords = Passwords::start(4).unwrap();
        let held: Vec<_> = std::iter::from_fn(|| passwords.places.take(ClientId::alone(1), 1)).collect();
        assert_eq!(held.len(), JOBS_MAX / 2);
        let refused = passwords.hash(of(1), "more".into()).await;
        assert_eq!(refused, Err(HashError::TooMany));
        assert!(passwords.hash(of(2), "another".into()).await.is_ok());
        drop(held);
        assert!(passwords.hash(of(1), "again".into()).await.is_ok());
    }
}
