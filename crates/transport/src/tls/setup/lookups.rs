//! Checks with the system's resolver that names of a certificate lead to the address that it is used from.
//!
//! A lookup blocks a thread, for half a minute if the name server does not respond, and cannot be
//! interrupted. Only certificates of the port's authority cause lookups. The authority chose their names;
//! the network that an address belongs to chose its name.
//!
//! Invariants:
//! - At most [`HOSTS_MAX`] names per certificate are looked up. The handshake's deadline bounds the wait.
//! - Certificates used from the same address occupy at most [`OF_ONE_ADDRESS_MAX`] threads. Further lookups
//!   for that address wait without delaying other addresses.
//! - The total is at most [`HOSTS_AT_ONCE_MAX`] threads for hosts, and [`ADDRESSES_AT_ONCE_MAX`] for names
//!   of addresses. The latter never delay the former.
//! - Identical lookups are shared. An unresponsive name server for one name thus costs one thread,
//!   regardless of how often and from which addresses its certificate is used, and the remaining names are
//!   still looked up. A single certificate never occupies all threads for hosts.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Weak};

use futures_util::future::Shared;
use futures_util::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A member's certificate has about ten host names: with and without each domain.
const HOSTS_MAX: usize = 32;
/// Longest valid host name (RFC 1035, 2.3.4).
const HOST_BYTES_MAX: usize = 253;
/// The reverse lookup of the address, and seven hosts.
const OF_ONE_ADDRESS_MAX: usize = 8;
/// Two certificates with only unresponsive names, from any number of addresses.
const HOSTS_AT_ONCE_MAX: usize = 2 * HOSTS_MAX;
/// Addresses with an unresponsive name server. More of them delay members that are known only by wildcards.
const ADDRESSES_AT_ONCE_MAX: usize = 32;

/// A query to the system's resolver.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ResolverQuery {
    NameOf(IpAddr),
    AddressesOf(String),
}

/// Looks up a name or address. Addresses are in canonical form.
type NameLookup = fn(&ResolverQuery) -> io::Result<Vec<String>>;
type SharedAnswer = Shared<Pin<Box<dyn Future<Output = Vec<String>> + Send>>>;

/// Lookups of a port. Cheap to clone; clones share the bounds.
#[derive(Clone)]
pub struct Lookups(Arc<LookupState>);

struct LookupState {
    lookup: NameLookup,
    under_way: Mutex<HashMap<ResolverQuery, SharedAnswer>>,
    hosts: Arc<Semaphore>,
    addresses: Arc<Semaphore>,
    /// Permits per address from which a certificate is currently in use.
    of_one: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
}

impl Default for Lookups {
    fn default() -> Lookups {
        Lookups::with(|question| match question {
            ResolverQuery::NameOf(address) => Ok(vec![dns_lookup::lookup_addr(address)?]),
            ResolverQuery::AddressesOf(host) => {
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

    /// Reports whether the name of `remote` matches one of `names`, which may be wildcards, or one of them
    /// resolves to `remote`. Has no timeout; cancel-safe.
    pub async fn lead_to(&self, names: &[String], remote: IpAddr) -> bool {
        if names.is_empty() {
            return false;
        }
        let backwards = async {
            let found = self.ask(remote, ResolverQuery::NameOf(remote)).await;
            found.iter().any(|name| is_one_of(name.trim_end_matches('.'), names))
        };
        let forwards = async {
            let hosts = names.iter().filter(|name| !name.starts_with("*.") && name.len() <= HOST_BYTES_MAX);
            let hosts: Vec<String> = hosts.take(HOSTS_MAX).cloned().collect();
            let address = remote.to_string();
            let mut answers = stream::iter(hosts)
                .map(|host| self.ask(remote, ResolverQuery::AddressesOf(host)))
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

    /// Returns the result, empty on failure, once there is a thread for `remote`.
    async fn ask(&self, remote: IpAddr, question: ResolverQuery) -> Vec<String> {
        let known = self.0.under_way.lock().get(&question).cloned();
        let answer = match known {
            Some(answer) => answer,
            None => {
                let of_all = match &question {
                    ResolverQuery::NameOf(_) => &self.0.addresses,
                    ResolverQuery::AddressesOf(_) => &self.0.hosts,
                };
                let (of_one, of_all) = (self.of_one(remote), Arc::clone(of_all));
                let Ok(of_one) = of_one.acquire_owned().await else { return Vec::new() };
                let Ok(of_all) = of_all.acquire_owned().await else { return Vec::new() };
                self.begin(question, [of_one, of_all])
            }
        };
        answer.await
    }

    /// Runs the lookup in a thread. The permits are held until the thread is free again, possibly after the
    /// handshake was abandoned.
    fn begin(&self, question: ResolverQuery, permits: [OwnedSemaphorePermit; 2]) -> SharedAnswer {
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
        // Bounded by the number of handshakes and threads.
        of_one.retain(|_, threads| threads.strong_count() > 0);
        let threads = Arc::new(Semaphore::new(OF_ONE_ADDRESS_MAX));
        of_one.insert(remote, Arc::downgrade(&threads));
        threads
    }
}

/// Matches a name like etcd does for reverse lookups.
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

    use super::ResolverQuery::{AddressesOf, NameOf};
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
            // Wildcards need their dot, and match complete labels only.
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

    /// Blocks reverse lookups and lookups of `silent` names until `ANSWERS` is set.
    fn silent(question: &ResolverQuery) -> io::Result<Vec<String>> {
        if !matches!(question, AddressesOf(host) if !host.starts_with("silent")) {
            ANSWERS.1.wait_while(&mut ANSWERS.0.lock(), |answers| !*answers);
        }
        Ok(names(&["10.0.0.1"]))
    }

    /// Returns the threads in use for hosts and for names of addresses.
    fn held(lookups: &Lookups) -> (usize, usize) {
        let (hosts, addresses) = (&lookups.0.hosts, &lookups.0.addresses);
        (HOSTS_AT_ONCE_MAX - hosts.available_permits(), ADDRESSES_AT_ONCE_MAX - addresses.available_permits())
    }

    #[tokio::test]
    async fn names_that_no_server_answers_hold_few_threads_and_delay_no_other_address() {
        let lookups = Lookups::with(silent);
        // A member with two unresponsive names and an unresponsive reverse lookup.
        let mixed = names(&["silent1.test", "silent2.test", "home.test"]);
        for _ in 0..100 {
            assert_eq!(timeout(PATIENCE, lookups.lead_to(&mixed, HOME)).await, Ok(true));
        }
        assert_eq!(held(&lookups), (2, 1), "each question once");
        // A neighbour presents certificates with unresponsive names. Each handshake is abandoned.
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
