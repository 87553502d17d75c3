//! Addresses of the hosts in URLs.
//!
//! The system's resolver blocks a thread, for half a minute if a name server does not respond, and cannot be
//! interrupted. It runs on the threads that also read the store, so lookups are bounded.
//!
//! Invariants:
//! - There is at most one lookup per host; concurrent callers share its result.
//! - Hosts named by a stranger use at most [`CLAIMED_MAX`] threads. They never delay the hosts of members.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::Shared;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// Concurrent lookups of listed hosts: eight URLs for each of four unreachable members. Further ones fail,
/// and the link retries.
const LISTED_MAX: usize = 32;
/// Concurrent lookups of claimed hosts. Further ones fail until the claim is repeated.
const CLAIMED_MAX: usize = 4;

/// Source of a host name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum NameSource {
    /// The membership, or a flag.
    #[default]
    Listed,
    /// The hello of a stranger.
    Claimed,
}

type AddressLookup = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;
type OriginKey = (NameSource, String, u16);
/// The error is text, because an `io::Error` cannot be cloned.
type SharedLookup = Shared<Pin<Box<dyn Future<Output = Result<Vec<SocketAddr>, String>> + Send>>>;

/// Looks hosts up. Cheap to clone; clones share the bounds.
#[derive(Clone)]
pub(super) struct Resolver(Arc<ResolverState>);

struct ResolverState {
    lookup: AddressLookup,
    under_way: Mutex<HashMap<OriginKey, SharedLookup>>,
    listed: Arc<Semaphore>,
    claimed: Arc<Semaphore>,
}

impl Default for Resolver {
    fn default() -> Resolver {
        Resolver::with(|host, port| Ok((host, port).to_socket_addrs()?.collect()))
    }
}

impl Resolver {
    fn with(lookup: AddressLookup) -> Resolver {
        Resolver(Arc::new(ResolverState {
            lookup,
            under_way: Mutex::default(),
            listed: Arc::new(Semaphore::new(LISTED_MAX)),
            claimed: Arc::new(Semaphore::new(CLAIMED_MAX)),
        }))
    }

    /// Returns the addresses of a host. Has no timeout; cancel-safe.
    pub async fn find(&self, host: &str, port: u16, origin: NameSource) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![(address, port).into()]);
        }
        let found = self.begin((origin, host.to_owned(), port))?;
        found.await.map_err(io::Error::other)
    }

    fn begin(&self, key: OriginKey) -> io::Result<SharedLookup> {
        let mut under_way = self.0.under_way.lock();
        if let Some(found) = under_way.get(&key) {
            return Ok(found.clone());
        }
        let threads = match key.0 {
            NameSource::Listed => &self.0.listed,
            NameSource::Claimed => &self.0.claimed,
        };
        let permit = Arc::clone(threads).try_acquire_owned().map_err(|_| {
            io::Error::other(format!("too many names are being resolved to look up {}", key.1))
        })?;
        let (state, asked) = (Arc::clone(&self.0), key.clone());
        let looked_up = tokio::task::spawn_blocking(move || {
            let (_, host, port) = &asked;
            let found = (state.lookup)(host, *port).map_err(|error| format!("resolve {host}: {error}"));
            state.under_way.lock().remove(&asked);
            drop(permit);
            found
        });
        let found = async move { looked_up.await.map_err(|error| error.to_string())? }.boxed().shared();
        under_way.insert(key, found.clone());
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use parking_lot::Condvar;

    use super::*;

    static SILENT: AtomicUsize = AtomicUsize::new(0);
    static ANSWERS: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

    /// Blocks lookups of `slow` names until `ANSWERS` is set.
    fn lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if host.starts_with("slow") {
            SILENT.fetch_add(1, Ordering::SeqCst);
            ANSWERS.1.wait_while(&mut ANSWERS.0.lock(), |answers| !*answers);
        }
        Ok(vec![([127, 0, 0, 1], port).into()])
    }

    #[tokio::test]
    async fn names_of_strangers_take_few_threads_and_delay_no_members_name() {
        let resolver = Resolver::with(lookup);
        let hosts: Vec<String> = (0..100).map(|number| format!("slow{number}")).collect();
        let begin = |host: &String| resolver.begin((NameSource::Claimed, host.clone(), 1)).ok();
        let asked: Vec<SharedLookup> = hosts.iter().filter_map(begin).collect();
        assert_eq!(asked.len(), CLAIMED_MAX);
        // The same name again shares the lookup.
        let again: Vec<SharedLookup> = (0..100).filter_map(|_| begin(&hosts[0])).collect();
        assert_eq!(again.len(), 100);
        let found = resolver.find("member", 7, NameSource::Listed).await.unwrap();
        assert_eq!(found, [SocketAddr::from(([127, 0, 0, 1], 7))]);
        let address = resolver.find("::1", 7, NameSource::Claimed).await.unwrap();
        assert_eq!(address, ["[::1]:7".parse::<SocketAddr>().unwrap()], "no lookup");
        *ANSWERS.0.lock() = true;
        ANSWERS.1.notify_all();
        for found in asked.into_iter().chain(again) {
            found.await.unwrap();
        }
        assert_eq!(SILENT.load(Ordering::SeqCst), CLAIMED_MAX);
        assert!(resolver.0.under_way.lock().is_empty());
        resolver.find("slow100", 1, NameSource::Claimed).await.expect("threads are free again");
    }
}
