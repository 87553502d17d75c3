//! Usage of shared limits by client, with the rules of [`Shares`].
//!
//! * Keys are counted for each watcher of a client, but once for each range in the limit. Many
//!   watchers of the same range therefore cost their client more than they cost the member.
//! * A small part of each limit is always granted: callers that together use all of it cannot
//!   exclude another.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use base::{ClientId, Shares};

use crate::types::WatchLimits;

/// Divisor for the part of a limit that each caller may always use: 1000 watchers, and 256 KiB of
/// keys.
const ALWAYS_PART: usize = 4096;

/// Number of open streams, and bytes of large responses that they hold.
#[derive(Debug, Default)]
struct OwnerUsage {
    streams: usize,
    held: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
pub(crate) struct Owners {
    connections: HashMap<ClientId, OwnerUsage>,
    callers: HashMap<u64, OwnerUsage>,
    watchers: Shares,
    key_bytes: Shares,
    answers: Shares,
}

impl Owners {
    pub fn add_stream(&mut self, owner: ClientId) {
        self.connections.entry(owner).or_default().streams += 1;
        self.callers.entry(owner.caller).or_default().streams += 1;
    }

    /// Removes a stream, after its watchers were removed.
    pub fn remove_stream(&mut self, owner: ClientId) {
        if is_last(self.connections.get_mut(&owner)) {
            let watchers = (self.watchers.held(owner), self.key_bytes.held(owner));
            assert_eq!(watchers, (0, 0), "watchers without a stream");
            self.connections.remove(&owner);
        }
        if is_last(self.callers.get_mut(&owner.caller)) {
            self.callers.remove(&owner.caller);
        }
    }

    pub fn add_watcher(&mut self, owner: ClientId) {
        self.watchers.add(owner, 1);
    }

    pub fn remove_watcher(&mut self, owner: ClientId) {
        self.watchers.remove(owner, 1);
    }

    pub fn add_key(&mut self, owner: ClientId, bytes: usize) {
        self.key_bytes.add(owner, bytes as u64);
    }

    pub fn remove_key(&mut self, owner: ClientId, bytes: usize) {
        self.key_bytes.remove(owner, bytes as u64);
    }

    pub fn change_answers(&mut self, owner: ClientId, before: usize, after: usize) {
        self.answers.add(owner, after.saturating_sub(before) as u64);
        self.answers.remove(owner, before.saturating_sub(after) as u64);
    }

    /// Reports whether a client with another pending response leaves enough of the limit to other
    /// clients.
    pub fn may_answer(&self, owner: ClientId, answers_max: usize) -> bool {
        self.answers.with(owner, 0).leaves_enough(answers_max.saturating_sub(1) as u64)
    }

    pub fn held(&self, owner: ClientId) -> usize {
        self.connections.get(&owner).map_or(0, |usage| usage.held.load(Relaxed))
    }

    /// Returns the bytes of large responses that all connections of the client's caller hold.
    pub fn held_by_caller(&self, owner: ClientId) -> usize {
        self.callers.get(&owner.caller).map_or(0, |usage| usage.held.load(Relaxed))
    }

    /// Returns the counters of the client and of its caller.
    pub fn holds(&self, owner: ClientId) -> [Arc<AtomicUsize>; 2] {
        let usages = [self.connections.get(&owner), self.callers.get(&owner.caller)];
        usages.map(|usage| Arc::clone(&usage.expect("an owner has a stream").held))
    }

    /// Checks whether a client may have another watcher with a key of `key_bytes` bytes. `watchers`
    /// and `key_bytes` are totals of all clients.
    pub fn refuses(
        &self,
        owner: ClientId,
        watchers: usize,
        key_bytes: usize,
        bytes: usize,
        limits: &WatchLimits,
    ) -> Option<String> {
        let (watchers_max, bytes_max) = (limits.watchers_max, limits.key_bytes_max);
        let watchers = refused(&self.watchers, owner, watchers, 1, watchers_max).map(|reason| match reason {
            OwnerRefusal::Full => format!("the limit of {watchers_max} watchers is reached"),
            OwnerRefusal::Share(who, held) => {
                format!("this {who} has {held} of the {watchers_max} watchers")
            }
        });
        let reason = watchers.or_else(|| {
            refused(&self.key_bytes, owner, key_bytes, bytes, bytes_max).map(|reason| match reason {
                OwnerRefusal::Full => format!("the limit of {bytes_max} bytes of watched keys is reached"),
                OwnerRefusal::Share(who, held) => {
                    format!("this {who} has {held} of the {bytes_max} bytes of watched keys")
                }
            })
        });
        reason.map(|text| format!("etcdserver: too many requests: {text}"))
    }
}

enum OwnerRefusal {
    Full,
    /// A connection or its caller, and its usage.
    Share(&'static str, u64),
}

/// Checks whether a client may use `more` of a limit. `all` is the total usage of all clients.
fn refused(shares: &Shares, owner: ClientId, all: usize, more: usize, bound: usize) -> Option<OwnerRefusal> {
    let mut held = shares.with(owner, more as u64);
    if held.caller <= (bound / ALWAYS_PART) as u64 {
        return None;
    }
    if all + more > bound {
        return Some(OwnerRefusal::Full);
    }
    held.total = (all + more) as u64;
    if held.leaves_enough(bound as u64) {
        return None;
    }
    held.caller = held.connection;
    let connection_fits = held.leaves_enough(bound as u64);
    let before = shares.with(owner, 0);
    Some(match connection_fits {
        true => OwnerRefusal::Share("caller", before.caller),
        false => OwnerRefusal::Share("connection", before.connection),
    })
}

/// Removes a stream from the count. Returns whether it was the last one.
fn is_last(usage: Option<&mut OwnerUsage>) -> bool {
    let usage = usage.expect("an owner has a stream");
    usage.streams -= 1;
    usage.streams == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives `owner` watchers with one-byte keys until one is rejected, and returns the count.
    fn fill(owners: &mut Owners, owner: ClientId, all: &mut usize, limits: &WatchLimits) -> usize {
        owners.add_stream(owner);
        let before = *all;
        while owners.refuses(owner, *all, *all, 1, limits).is_none() {
            owners.add_watcher(owner);
            owners.add_key(owner, 1);
            *all += 1;
        }
        *all - before
    }

    #[test]
    fn each_client_leaves_as_much_as_it_takes() {
        let plenty = WatchLimits { watchers_max: 1 << 20, key_bytes_max: 1 << 20, ..WatchLimits::default() };
        for limits in
            [WatchLimits { watchers_max: 64, ..plenty }, WatchLimits { key_bytes_max: 64, ..plenty }]
        {
            let (mut owners, mut all) = (Owners::default(), 0);
            let taken: Vec<_> =
                (0..5).map(|owner| fill(&mut owners, ClientId::alone(owner), &mut all, &limits)).collect();
            assert_eq!(taken, [32, 16, 8, 4, 2]);
        }
    }

    #[test]
    fn a_refusal_names_the_bound() {
        let limits = WatchLimits { watchers_max: 10, key_bytes_max: 100, ..WatchLimits::default() };
        let mut owners = Owners::default();
        owners.add_stream(ClientId::alone(1));
        (0..5).for_each(|_| owners.add_watcher(ClientId::alone(1)));
        owners.add_stream(ClientId::alone(2));
        owners.add_key(ClientId::alone(2), 40);
        for (owner, watchers, key_bytes, bytes, reason) in [
            (3, 5, 40, 1, None),
            (3, 10, 40, 1, Some("the limit of 10 watchers is reached")),
            (3, 5, 100, 1, Some("the limit of 100 bytes of watched keys is reached")),
            (1, 5, 40, 1, Some("this connection has 5 of the 10 watchers")),
            (2, 5, 40, 11, Some("this connection has 40 of the 100 bytes of watched keys")),
        ] {
            let refusal = owners.refuses(ClientId::alone(owner), watchers, key_bytes, bytes, &limits);
            let expected = reason.map(|reason| format!("etcdserver: too many requests: {reason}"));
            assert_eq!(refusal, expected);
        }
    }

    #[test]
    fn a_caller_with_many_connections_leaves_watchers_to_others_and_each_has_some() {
        let limits = WatchLimits { watchers_max: 8192, key_bytes_max: 8192, ..WatchLimits::default() };
        let (mut owners, mut all) = (Owners::default(), 0);
        let of = |caller, connection| ClientId { caller, connection };
        let taken: Vec<_> =
            (0..56).map(|number| fill(&mut owners, of(1, number), &mut all, &limits)).collect();
        assert!(taken[0] == 4096 && (6100..=6144).contains(&all), "three quarters: {taken:?}");
        let refusal = owners.refuses(of(1, 57), all, all, 1, &limits);
        assert!(
            refusal.is_some_and(|text| text.contains(&format!("this caller has {all} of the 8192 watchers")))
        );
        assert!(fill(&mut owners, of(2, 100), &mut all, &limits) >= 1024);
        // Each of many callers gets a small share, beyond the limit.
        let last: Vec<_> =
            (3..100).map(|caller| fill(&mut owners, ClientId::alone(caller), &mut all, &limits)).collect();
        assert!(last.iter().all(|taken| *taken >= 2), "{last:?}");
    }
}
