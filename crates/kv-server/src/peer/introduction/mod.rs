//! Members at addresses that this member's configuration does not contain.
//!
//! A member that was offline has an outdated configuration. The leader may have been added or moved since,
//! and only the leader can send the update. A configuration may also be ahead of the members, or contain a
//! misspelt address. A sender therefore claims its listen URLs in its hello.
//!
//! ```text
//!   hello with an unknown ID, or other URLs ──▶ Members query to those URLs ──lists both──▶ introduced
//!   own configuration: contains that address, or a removal ──▶ introduction removed
//! ```
//!
//! Invariants:
//! - An introduced member may send messages and snapshots, and receives responses. Quorums are not affected:
//!   Raft uses its own configuration.
//! - A member that responds at its listed URLs is not introduced at others, and a removed member is never
//!   introduced. A member that is alone in its configuration introduces no members.
//! - A claim is verified by a call in the opposite direction: the member must respond at the claimed URLs. If
//!   this member's own URLs use TLS, claimed URLs must too, so that the server there needs a valid certificate.
//!   Without TLS a peer port trusts its network, as in etcd: IDs are public, and members have no secret.
//! - A listed member is not dialed at other URLs while it responds at the listed ones. Each move is logged.
//! - Concurrent checks are limited, and no address can occupy all slots; see `places`.
//!
//! Connections are opened by `transport`.

mod places; // limit of concurrent checks

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use data_dir::bootstrap::RunningCluster;
use data_dir::{FirstMember, Identity};
use process::log::LogPace;

use places::ClaimPlaces;
pub(super) use places::Ticket;

/// Maximum number of introduced members. Clusters rarely have more than seven, so a larger number indicates
/// an attack. The oldest is evicted, and is checked again with its next hello.
const INTRODUCED_MAX: usize = 16;
/// Maximum number of URLs per member. A claim with more is ignored.
const URLS_MAX: usize = 8;
/// Maximum total size of the URLs: eight of the longest host names. A larger claim is ignored.
const URLS_BYTES_MAX: usize = 4 << 10;

#[derive(Debug)]
struct IntroducedMember {
    urls: Vec<String>,
    /// URLs in the latest configuration; empty if the member was not listed.
    listed: Vec<String>,
    number: u64,
}

#[derive(Debug, Default)]
pub(super) struct Introductions {
    held: HashMap<u64, IntroducedMember>,
    places: ClaimPlaces,
    /// Rate limit of log lines about introductions.
    pub pace: LogPace,
    next: u64,
}

impl Introductions {
    /// Acquires a slot to check a claim, if one is available. `source` is the remote address, None for a Unix
    /// socket. The caller releases the slot with [`Introductions::end`].
    pub fn begin(&mut self, id: u64, urls: &[String], source: Option<IpAddr>) -> Option<Ticket> {
        self.places.begin(id, urls, source, Instant::now())
    }

    pub fn end(&mut self, number: u64) {
        self.places.end(number);
    }

    /// Introduces a member, which the configuration has at `listed`.
    pub fn hold(&mut self, id: u64, urls: Vec<String>, listed: Vec<String>) {
        if self.held.len() >= INTRODUCED_MAX && !self.held.contains_key(&id) {
            let oldest = self.held.iter().min_by_key(|(_, introduced)| introduced.number).map(|(id, _)| *id);
            oldest.map(|oldest| self.held.remove(&oldest));
        }
        self.next += 1;
        self.held.insert(id, IntroducedMember { urls, listed, number: self.next });
    }

    pub fn withdraw(&mut self, id: u64) {
        self.held.remove(&id);
    }

    /// Removes introductions that the new configuration supersedes.
    pub fn follow(&mut self, members: &[FirstMember], is_removed: impl Fn(u64) -> bool) {
        self.held.retain(|id, introduced| {
            let before = std::mem::replace(&mut introduced.listed, listed(members, *id));
            let is_gone = introduced.listed.is_empty() && !before.is_empty();
            !is_gone && !holds_all(&introduced.listed, &introduced.urls) && !is_removed(*id)
        });
    }

    pub fn holds(&self, id: u64) -> bool {
        self.held.contains_key(&id)
    }

    /// Returns the introduced members and their claimed URLs.
    pub fn urls(&self) -> impl Iterator<Item = (u64, Vec<String>)> + '_ {
        self.held.iter().map(|(id, introduced)| (*id, introduced.urls.clone()))
    }
}

/// Builds the claim of a hello: this member's listed URLs, then the advertised ones that are missing there.
pub(super) fn claim(own: &[String], advertised: &[String]) -> String {
    let is_more = |url: &&String| may_be_asked(url, own) && !own.contains(url);
    // Mutant: a member that moved cannot be found by members that restart.
    let more = advertised.iter().filter(|_| !base::mutant("hello-of-the-list-alone")).filter(is_more);
    own.iter().chain(more).take(URLS_MAX).map(String::as_str).collect::<Vec<_>>().join(",")
}

/// Parses the URLs of a claim. Returns None if they exceed the limits or may not be dialed. `own` are this
/// member's URLs.
pub(super) fn claimed(urls: &str, own: &[String]) -> Option<Vec<String>> {
    let is_bounded = urls.len() <= URLS_BYTES_MAX && urls.split(',').take(URLS_MAX + 1).count() <= URLS_MAX;
    let sound = is_bounded && urls.split(',').all(|url| may_be_asked(url, own));
    sound.then(|| urls.split(',').map(str::to_owned).collect())
}

fn may_be_asked(url: &str, own: &[String]) -> bool {
    let needs_tls = own.iter().any(|url| url.starts_with("https://"));
    url.starts_with("https://") || (!needs_tls && url.starts_with("http://"))
}

pub(super) fn holds_all(listed: &[String], urls: &[String]) -> bool {
    urls.iter().all(|url| listed.contains(url))
}

/// Returns the member's listed URLs, empty if it is not listed.
pub(super) fn listed(members: &[FirstMember], id: u64) -> Vec<String> {
    let member = members.iter().find(|member| member.id == id);
    member.map(|member| member.peer_urls.clone()).unwrap_or_default()
}

/// Reports whether the cluster that responded at the URLs of `from` is this one and contains both members. It
/// may list other URLs for `from`.
pub(super) fn vouches(running: &RunningCluster, identity: &Identity, from: u64) -> bool {
    running.has(identity) && running.members.iter().any(|member| member.id == from)
}

#[cfg(test)]
mod tests;
