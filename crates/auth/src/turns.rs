//! Fair queue of jobs by address and user.
//!
//! ```text
//!   next job ──▶ addresses round-robin ──▶ users of that address round-robin ──▶ its oldest job
//! ```
//!
//! * Many jobs of the same address, or for the same user, delay each other. A job of another
//!   address waits for at most one job of each address, and a job for another user for one job of
//!   each user.
//! * The number of jobs is limited in total, per address, and per user at an address. Jobs beyond a
//!   limit are rejected.
//!
//! Must not depend on the contents of jobs.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};

use parking_lot::{Condvar, Mutex};

/// Maximum queued jobs, some hundred bytes each.
const JOBS_MAX: usize = 1024;
/// Maximum queued jobs per address, leaving capacity for other addresses.
const JOBS_OF_ADDRESS_MAX: usize = JOBS_MAX / 4;
/// Maximum queued jobs per user of an address, leaving capacity for its other users.
const JOBS_OF_USER_MAX: usize = JOBS_OF_ADDRESS_MAX / 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

pub struct JobTurns<J> {
    waiting: Mutex<WaitingJobs<J>>,
    changed: Condvar,
}

struct WaitingJobs<J> {
    /// Addresses with jobs, in service order.
    addresses: VecDeque<Address<J>>,
    jobs: usize,
    is_closed: bool,
}

struct Address<J> {
    address: Option<IpAddr>,
    /// Users with jobs, in service order.
    users: VecDeque<(Box<str>, VecDeque<J>)>,
}

impl<J> Address<J> {
    fn jobs(&self) -> usize {
        self.users.iter().map(|(_, jobs)| jobs.len()).sum()
    }
}

impl<J> JobTurns<J> {
    pub fn new() -> JobTurns<J> {
        let waiting = WaitingJobs { addresses: VecDeque::new(), jobs: 0, is_closed: false };
        JobTurns { waiting: Mutex::new(waiting), changed: Condvar::new() }
    }

    pub fn push(&self, address: Option<IpAddr>, user: &str, job: J) -> Result<(), Full> {
        let address = address.map(network);
        let mut waiting = self.waiting.lock();
        if waiting.jobs >= JOBS_MAX {
            return Err(Full);
        }
        let at = match waiting.addresses.iter().position(|known| known.address == address) {
            Some(at) => at,
            None => {
                waiting.addresses.push_back(Address { address, users: VecDeque::new() });
                waiting.addresses.len() - 1
            }
        };
        let of_address = &mut waiting.addresses[at];
        if of_address.jobs() >= JOBS_OF_ADDRESS_MAX {
            return Err(Full);
        }
        match of_address.users.iter_mut().find(|(name, _)| **name == *user) {
            Some((_, jobs)) if jobs.len() >= JOBS_OF_USER_MAX => return Err(Full),
            Some((_, jobs)) => jobs.push_back(job),
            None => of_address.users.push_back((user.into(), VecDeque::from([job]))),
        }
        waiting.jobs += 1;
        drop(waiting);
        self.changed.notify_one();
        Ok(())
    }

    /// Waits for the next job. Returns None after `close`, which drops queued jobs.
    pub fn next(&self) -> Option<J> {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.is_closed {
                return None;
            }
            match waiting.take() {
                Some(job) => return Some(job),
                None => self.changed.wait(&mut waiting),
            }
        }
    }

    /// Closes the queue and unblocks every `next`.
    pub fn close(&self) {
        let mut waiting = self.waiting.lock();
        waiting.is_closed = true;
        waiting.addresses.clear();
        drop(waiting);
        self.changed.notify_all();
    }
}

impl<J> WaitingJobs<J> {
    fn take(&mut self) -> Option<J> {
        let mut address = self.addresses.pop_front()?;
        let (user, mut jobs) = address.users.pop_front()?;
        let job = jobs.pop_front()?;
        self.jobs -= 1;
        if !jobs.is_empty() {
            address.users.push_back((user, jobs));
        }
        if !address.users.is_empty() {
            self.addresses.push_back(address);
        }
        Some(job)
    }
}

/// Returns the network of a client: an IPv4 address, or an IPv6 network with a 64-bit prefix.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn drain(turns: &JobTurns<String>) -> Vec<String> {
        std::iter::from_fn(|| turns.waiting.lock().take()).collect()
    }

    #[test]
    fn addresses_take_turns_and_so_do_the_users_of_one() {
        let turns = JobTurns::new();
        for (from, user, job) in [
            ("10.0.0.1", "a", "1a1"),
            ("10.0.0.1", "a", "1a2"),
            ("10.0.0.1", "a", "1a3"),
            ("10.0.0.1", "b", "1b1"),
            ("::ffff:10.0.0.2", "a", "2a1"),
            ("10.0.0.2", "a", "2a2"),
            ("fd00::1", "c", "3c1"),
            ("fd00::2:1", "c", "3c2"),
        ] {
            turns.push(address(from), user, job.to_owned()).unwrap();
        }
        assert_eq!(drain(&turns), ["1a1", "2a1", "3c1", "1b1", "2a2", "3c2", "1a2", "1a3"]);
        let waiting = turns.waiting.lock();
        assert!(waiting.addresses.is_empty() && waiting.jobs == 0);
    }

    #[test]
    fn a_flood_for_one_user_or_of_one_address_leaves_places_to_others() {
        let turns = JobTurns::new();
        let push = |from: &str, user: &str| turns.push(address(from), user, String::new());
        let fill = |from: &str, user: &str| (0..JOBS_MAX).take_while(|_| push(from, user).is_ok()).count();
        assert_eq!(fill("10.0.0.1", "a"), JOBS_OF_USER_MAX);
        assert_eq!(push("10.0.0.1", "b"), Ok(()));
        let rest: usize = ["b", "c", "d", "e"].map(|user| fill("10.0.0.1", user)).iter().sum();
        assert_eq!(rest + 1 + JOBS_OF_USER_MAX, JOBS_OF_ADDRESS_MAX);
        assert_eq!(push("10.0.0.1", "f"), Err(Full));
        assert_eq!(push("10.0.0.2", "a"), Ok(()));
        for from in ["10.0.0.2", "10.0.0.3", "10.0.0.4"] {
            for user in ["a", "b", "c", "d"] {
                fill(from, user);
            }
        }
        assert_eq!(push("10.0.0.5", "a"), Err(Full), "all places are taken");
        assert_eq!(drain(&turns).len(), JOBS_MAX);
        assert_eq!(push("10.0.0.5", "a"), Ok(()));
    }

    #[test]
    fn a_waiting_thread_is_released_when_it_is_closed() {
        let turns = std::sync::Arc::new(JobTurns::<u32>::new());
        let waits = std::sync::Arc::clone(&turns);
        let waiting = std::thread::spawn(move || (waits.next(), waits.next()));
        turns.push(None, "a", 7).unwrap();
        while turns.waiting.lock().jobs > 0 {
            std::thread::yield_now();
        }
        turns.close();
        assert_eq!(waiting.join().unwrap(), (Some(7), None));
        turns.push(None, "a", 8).unwrap();
        assert_eq!(turns.next(), None);
    }
}
