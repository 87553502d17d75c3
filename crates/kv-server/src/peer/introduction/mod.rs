//! Members at addresses that this member's list does not hold yet.
//!
//! A member that was away has an old list of members. The leader may have been added meanwhile, or may have
//! moved, and only the leader can bring the list up to date. A list may also be ahead of the members, or have
//! a misspelt address. So a sender says in its hello where it listens.
//!
//! ```text
//!   hello with an unknown id, or other URLs ──▶ Members asked at those URLs ──list names both──▶ introduced
//!   own list: holds that address, or a removal ──▶ introduction over
//! ```
//!
//! Invariants:
//! - An introduced member may send messages and snapshots, and is answered. It counts for nothing: Raft goes
//!   by its own configuration.
//! - A member that answers where the list says is not introduced anywhere else, and a removed one nowhere. A
//!   member that is alone in its list introduces no one.
//! - The claim is checked by a call in the other direction: the member itself must answer there. If this
//!   member is reached inside TLS, URLs without TLS are not asked: the server there must have a valid
//!   certificate. Without TLS a peer port trusts its network, as etcd's does: ids are public, and a member
//!   has no secret.
//! - A listed member is not dialled anywhere else while it answers where the list has it. Each move is
//!   logged.
//! - Checks have few places, which one address cannot keep from the others; see `places`.
//!
//! Knows nothing of connections: `transport` dials.

mod places; // claims that are being checked

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use data_dir::bootstrap::RunningCluster;
use data_dir::{FirstMember, Identity};
use process::log::Pace;

use places::ClaimPlaces;
pub(super) use places::Ticket;

/// Members held. A cluster has seldom more than seven, so more are strangers' work. The oldest is dropped,
/// and is asked again with its next hello.
const INTRODUCED_MAX: usize = 16;
/// URLs of one member. One with more is not introduced.
const URLS_MAX: usize = 8;
/// Bytes of them all: eight of the longest names of hosts. A member with more is not introduced.
const URLS_BYTES_MAX: usize = 4 << 10;

#[derive(Debug)]
struct IntroducedMember {
    urls: Vec<String>,
    /// What the list said last. Empty: the member was not in it.
    listed: Vec<String>,
    number: u64,
}

#[derive(Debug, Default)]
pub(super) struct Introductions {
    held: HashMap<u64, IntroducedMember>,
    places: ClaimPlaces,
    /// Of lines about introductions.
    pub pace: Pace,
    next: u64,
}

impl Introductions {
    /// A place to check a claim, if there is one. `source`: the address that it comes from; none of a Unix
    /// socket. To be followed by [`Introductions::end`].
    pub fn begin(&mut self, id: u64, urls: &[String], source: Option<IpAddr>) -> Option<Ticket> {
        self.places.begin(id, urls, source, Instant::now())
    }

    pub fn end(&mut self, number: u64) {
        self.places.end(number);
    }

    /// Takes a member in, which the list has at `listed`.
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

    /// Ends the introductions that the list has overtaken.
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

    /// Members with the URLs that they were introduced with.
    pub fn urls(&self) -> impl Iterator<Item = (u64, Vec<String>)> + '_ {
        self.held.iter().map(|(id, introduced)| (*id, introduced.urls.clone()))
    }
}

/// What a hello says: where the list has this member, and where it listens by its flags.
pub(super) fn claim(own: &[String], advertised: &[String]) -> String {
    let is_more = |url: &&String| may_be_asked(url, own) && !own.contains(url);
    // A bug to be found: a member that the lists have elsewhere is found by no member that restarts.
    let more = advertised.iter().filter(|_| !base::mutant("hello-of-the-list-alone")).filter(is_more);
    own.iter().chain(more).take(URLS_MAX).map(String::as_str).collect::<Vec<_>>().join(",")
}

/// The URLs that a hello claims, if they may be asked. `own`: those of this member.
pub(super) fn claimed(urls: &str, own: &[String]) -> Option<Vec<String>> {
    let is_bounded = urls.len() <= URLS_BYTES_MAX && urls.split(',').take(URLS_MAX + 1).count() <= URLS_MAX;
    let sound = is_bounded && urls.split(',').all(|url| may_be_asked(url, own));
    sound.then(|| urls.split(',').map(str::to_owned).collect())
}

fn may_be_asked(url: &str, own: &[String]) -> bool {
    let needs_tls = own.iter().any(|url| url.starts_with("https://"));
    url.starts_with("https://") || (!needs_tls && url.starts_with("http://"))
}

/// Whether `listed` has all of these URLs.
pub(super) fn holds_all(listed: &[String], urls: &[String]) -> bool {
    urls.iter().all(|url| listed.contains(url))
}

/// The URLs that a list has for a member; none if it is not in the list.
pub(super) fn listed(members: &[FirstMember], id: u64) -> Vec<String> {
    let member = members.iter().find(|member| member.id == id);
    member.map(|member| member.peer_urls.clone()).unwrap_or_default()
}

/// Whether the cluster that answers at the URLs of `from` is this one, with both members in it. Its list may
/// have `from` elsewhere.
pub(super) fn vouches(running: &RunningCluster, identity: &Identity, from: u64) -> bool {
    running.has(identity) && running.members.iter().any(|member| member.id == from)
}

#[cfg(test)]
mod tests;
