//! Whether names of a certificate lead to the address that it is used from, by the system's resolver.
//!
//! A lookup blocks a thread, for half a minute if the name server is silent, and cannot be interrupted. Only
//! certificates of the port's authority lead here. Their names were chosen by the authority; the name of an
//! address by the network that it belongs to.
//!
//! Invariants:
//! - Of one certificate at most [`HOSTS_MAX`] names are looked up. The handshake's deadline bounds the wait.
//! - Certificates used from one address hold at most [`OF_ONE_ADDRESS_MAX`] threads. What comes meanwhile
//!   from the same address waits; others do not.
//! - All hold at most [`HOSTS_AT_ONCE_MAX`] threads for hosts, and [`ADDRESSES_AT_ONCE_MAX`] for names of
//!   addresses. The latter never delay the former.
//! - The same question is asked once at a time. So a silent server of one name costs one thread, however
//!   often and from wherever its certificate is used, and its other names are looked up. One certificate
//!   never holds all threads for hosts.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Weak};

use futures_util::future::Shared;
use futures_util::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A certificate of a member names about ten hosts: its own names, with and without each domain.
const HOSTS_MAX: usize = 32;
/// Longer names are no host names (RFC 1035, 2.3.4).
const HOST_BYTES_MAX: usize = 253;
/// The name of the address, and seven hosts.
const OF_ONE_ADDRESS_MAX: usize = 8;
/// Two certificates with silent names only, from any number of addresses.
const HOSTS_AT_ONCE_MAX: usize = 2 * HOSTS_MAX;
/// As many addresses whose name servers are silent. More of them delay members that are known by wildcards
/// only.
const ADDRESSES_AT_ONCE_MAX: usize = 32;

/// What the system's resolver is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Question {
    NameOf(IpAddr),
    AddressesOf(String),
}

/// Addresses are in canonical form.
type NameLookup = fn(&Question) -> io::Result<Vec<String>>;
type SharedAnswer = Shared<Pin<Box<dyn Future<Output = Vec<String>> + Send>>>;

/// Lookups of one port. Cheap to clone; clones share the bounds.
#[derive(Clone)]
pub struct Lookups(Arc<LookupState>);

struct LookupState {
    lookup: NameLookup,
    under_way: Mutex<HashMap<Question, SharedAnswer>>,
    hosts: Arc<Semaphore>,
    addresses: Arc<Semaphore>,
    /// Of each address from which a certificate is used now.
    of_one: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
}

impl Default for Lookups {
    fn default() -> Lookups {
        Lookups::with(|question| match question {
            Question::NameOf(address) => Ok(vec![dns_lookup::lookup_addr(address)?]),
            Question::AddressesOf(host) => {
                let found = (host.as_str(), 0).to_socket_addrs()?;
                Ok(found.map(|address| address.ip().to_canonical().to_string()).collect())
            }
        })
    }
}

impl Lookups {
    fn with(lookup: NameLookup) -> Lookups {
        Lookups(Arc::new(LookupState {
            lookup,
            under_way: Mutex::default(),
            hosts: Arc::new(Semaphore::new(HOSTS_AT_ONCE_MAX)),
            addresses: Arc::new(Semaphore::new(ADDRESSES_AT_ONCE_MAX)),
            of_one: Mutex::default(),
        }))
    }

    /// Whether the name of `remote` is one of `names`, of which some may be wildcards, or one of them has the
    /// address `remote`. To be bounded in time by the caller, and to be dropped at any time.
    pub async fn lead_to(&self, names: &[String], remote: IpAddr) -> bool {
        if names.is_empty() {
            return false;
        }
        let backwards = async {
            let found = self.ask(remote, Question::NameOf(remote)).await;
            found.iter().any(|name| is_one_of(name.trim_end_matches('.'), names))
        };
        let forwards = async {
            let hosts = names.iter().filter(|name| !name.starts_with("*.") && name.len() <= HOST_BYTES_MAX);
            let hosts: Vec<String> = hosts.take(HOSTS_MAX).cloned().collect();
            let address = remote.to_string();
            let mut answers = stream::iter(hosts)
                .map(|host| self.ask(remote, Question::AddressesOf(host)))
                .buffer_unordered(OF_ONE_ADDRESS_MAX - 1);
            while let Some(found) = answers.next().await {
                if found.contains(&address) {
                    return true;
                }
            }
            false
        };
        tokio::select! {
            true = backwards => true,
            true = forwards => true,
            else => false,
        }
    }

    /// The answer, empty if there is none, once there is a thread for `remote`.
    async fn ask(&self, remote: IpAddr, question: Question) -> Vec<String> {
        let known = self.0.under_way.lock().get(&question).cloned();
        let answer = match known {
            Some(answer) => answer,
            None => {
                let of_all = match &question {
                    Question::NameOf(_) => &self.0.addresses,
                    Question::AddressesOf(_) => &self.0.hosts,
                };
                let (of_one, of_all) = (self.of_one(remote), Arc::clone(of_all));
                let Ok(of_one) = of_one.acquire_owned().await else { return Vec::new() };
                let Ok(of_all) = of_all.acquire_owned().await else { return Vec::new() };
                self.begin(question, [of_one, of_all])
            }
        };
        answer.await
    }

    /// Asks in a thread. The permits are held until it is free again, which may be after the handshake was
    /// given up.
    fn begin(&self, question: Question, permits: [OwnedSemaphorePermit; 2]) -> SharedAnswer {
        let mut under_way = self.0.under_way.lock();
        if let Some(answer) = under_way.get(&question) {
            return answer.clone();
        }
        let (state, asked) = (Arc::clone(&self.0), question.clone());
        let looked_up = tokio::task::spawn_blocking(move || {
            let found = (state.lookup)(&asked).unwrap_or_default();
            state.under_way.lock().remove(&asked);
            drop(permits);
            found
        });
        let answer = async move { looked_up.await.unwrap_or_default() }.boxed().shared();
        under_way.insert(question, answer.clone());
        answer
    }

    fn of_one(&self, remote: IpAddr) -> Arc<Semaphore> {
        let mut of_one = self.0.of_one.lock();
        if let Some(threads) = of_one.get(&remote).and_then(Weak::upgrade) {
            return threads;
        }
        // As many as there are handshakes and threads.
        of_one.retain(|_, threads| threads.strong_count() > 0);
        let threads = Arc::new(Semaphore::new(OF_ONE_ADDRESS_MAX));
        of_one.insert(remote, Arc::downgrade(&threads));
        threads
    }
}

/// As etcd compares the name of an address.
fn is_one_of(name: &str, names: &[String]) -> bool {
    names.iter().any(|known| {
        let is_wildcard = known.starts_with("*.");
        if is_wildcard { name.ends_with(&known[1..]) } else { known == name }
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use parking_lot::Condvar;
    use tokio::time::timeout;

    use super::Question::{AddressesOf, NameOf};
    use super::*;

    const HOME: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const NEIGHBOUR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    const PATIENCE: Duration = Duration::from_secs(60);

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[tokio::test]
    async fn a_name_or_the_name_of_the_address_suffices() {
        let lookups = Lookups::with(|question| match question {
            NameOf(_) => Ok(names(&["a.back.test."])),
            AddressesOf(host) if host == "home.test" => Ok(names(&["10.0.0.2", "10.0.0.1"])),
            AddressesOf(_) => Err(io::ErrorKind::NotFound.into()),
        });
        for (given, wanted) in [
            (&[][..], false),
            (&["away.test"], false),
            (&["away.test", "home.test"], true),
            (&["a.back.test"], true),
            (&["*.back.test"], true),
            (&["*.a.back.test"], false),
            // No wildcard without its dot, and none of a part of a label.
            (&["*back.test"], false),
            (&["*.ack.test"], false),
        ] {
            assert_eq!(lookups.lead_to(&names(given), HOME).await, wanted, "{given:?}");
        }
        assert_eq!(lookups.0.of_one.lock().len(), 1);
        assert!(Lookups::default().lead_to(&names(&["localhost"]), Ipv4Addr::LOCALHOST.into()).await);
    }

    #[tokio::test]
    async fn a_certificate_with_many_names_causes_few_lookups() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let lookups = Lookups::with(|_| {
            ASKED.fetch_add(1, Ordering::SeqCst);
            Err(io::ErrorKind::NotFound.into())
        });
        let mut many = vec!["x".repeat(HOST_BYTES_MAX + 1)];
        many.extend((0..10_000).map(|number| format!("{number}.test")));
        assert!(!lookups.lead_to(&many, HOME).await);
        assert_eq!(ASKED.load(Ordering::SeqCst), HOSTS_MAX + 1);
    }

    static ANSWERS: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

    /// Names of addresses and names of `silent` are answered once `ANSWERS` says so.
    fn silent(question: &Question) -> io::Result<Vec<String>> {
        if !matches!(question, AddressesOf(host) if !host.starts_with("silent")) {
            ANSWERS.1.wait_while(&mut ANSWERS.0.lock(), |answers| !*answers);
        }
        Ok(names(&["10.0.0.1"]))
    }

    /// Threads for hosts and for names of addresses.
    fn held(lookups: &Lookups) -> (usize, usize) {
        let (hosts, addresses) = (&lookups.0.hosts, &lookups.0.addresses);
        (HOSTS_AT_ONCE_MAX - hosts.available_permits(), ADDRESSES_AT_ONCE_MAX - addresses.available_permits())
    }

    #[tokio::test]
    async fn names_that_no_server_answers_hold_few_threads_and_delay_no_other_address() {
        let lookups = Lookups::with(silent);
        // A member with two names that are silent, as is that of its address.
        let mixed = names(&["silent1.test", "silent2.test", "home.test"]);
        for _ in 0..100 {
            assert_eq!(timeout(PATIENCE, lookups.lead_to(&mixed, HOME)).await, Ok(true));
        }
        assert_eq!(held(&lookups), (2, 1), "each question once");
        // A neighbour shows certificates with silent names. Each handshake is given up.
        for round in 0..100 {
            let many: Vec<String> = (0..100).map(|number| format!("silent{round}-{number}.test")).collect();
            timeout(Duration::from_millis(1), lookups.lead_to(&many, NEIGHBOUR)).await.unwrap_err();
        }
        assert_eq!(held(&lookups), (2 + OF_ONE_ADDRESS_MAX - 1, 1 + 1));
        assert_eq!(timeout(PATIENCE, lookups.lead_to(&mixed, HOME)).await, Ok(true));
        *ANSWERS.0.lock() = true;
        ANSWERS.1.notify_all();
        assert!(!lookups.lead_to(&names(&["silent.test"]), NEIGHBOUR).await, "its threads are free again");
    }

    #[tokio::test]
    async fn one_certificate_that_is_used_from_many_addresses_delays_no_other_one() {
        static ANSWERS: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
        let lookups = Lookups::with(|question| {
            if !matches!(question, AddressesOf(host) if host == "home.test") {
                ANSWERS.1.wait_while(&mut ANSWERS.0.lock(), |answers| !*answers);
            }
            Ok(names(&["10.0.0.1"]))
        });
        let many: Vec<String> = (0..100).map(|number| format!("silent{number}.test")).collect();
        for number in 1..=200 {
            let stranger = Ipv4Addr::new(10, 1, 0, number).into();
            timeout(Duration::from_millis(1), lookups.lead_to(&many, stranger)).await.unwrap_err();
        }
        assert_eq!(held(&lookups), (OF_ONE_ADDRESS_MAX - 1, ADDRESSES_AT_ONCE_MAX));
        assert_eq!(timeout(PATIENCE, lookups.lead_to(&names(&["home.test"]), HOME)).await, Ok(true));
        *ANSWERS.0.lock() = true;
        ANSWERS.1.notify_all();
    }
}
