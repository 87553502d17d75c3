//! What each client uses of the bounds that all clients share.
//!
//! * A client takes no more of a bound than it leaves free. So one client takes a half at most, a second one
//!   a quarter, and there is some left for the next.
//! * The keys of a client's watchers are counted for each watcher here, but once for each range in the bound.
//!   So many watchers of one range cost their client more than they cost the member.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::types::WatchLimits;

/// What one client uses.
#[derive(Clone, Debug, Default)]
struct Usage {
    streams: usize,
    watchers: usize,
    key_bytes: usize,
    answers: usize,
    /// Bytes of large responses that its streams hold.
    held: Arc<AtomicUsize>,
}

/// Clients with open streams, by number.
#[derive(Debug, Default)]
pub(crate) struct Owners(HashMap<u64, Usage>);

impl Owners {
    pub fn add_stream(&mut self, owner: u64) {
        self.0.entry(owner).or_default().streams += 1;
    }

    /// Removes a stream, whose watchers were removed before.
    pub fn remove_stream(&mut self, owner: u64) {
        let usage = self.get(owner);
        usage.streams -= 1;
        if usage.streams == 0 {
            assert_eq!((usage.watchers, usage.key_bytes), (0, 0), "watchers without a stream");
            self.0.remove(&owner);
        }
    }

    pub fn add_watcher(&mut self, owner: u64) {
        self.get(owner).watchers += 1;
    }

    pub fn remove_watcher(&mut self, owner: u64) {
        self.get(owner).watchers -= 1;
    }

    pub fn add_key(&mut self, owner: u64, bytes: usize) {
        self.get(owner).key_bytes += bytes;
    }

    pub fn remove_key(&mut self, owner: u64, bytes: usize) {
        self.get(owner).key_bytes -= bytes;
    }

    /// Replaces a part of the answers that wait for a client.
    pub fn change_answers(&mut self, owner: u64, before: usize, after: usize) {
        let usage = self.get(owner);
        usage.answers = usage.answers + after - before;
    }

    /// Answers that wait for a client.
    pub fn answers(&self, owner: u64) -> usize {
        self.0.get(&owner).map_or(0, |usage| usage.answers)
    }

    /// Bytes of large responses that a client holds.
    pub fn held(&self, owner: u64) -> usize {
        self.0.get(&owner).map_or(0, |usage| usage.held.load(Relaxed))
    }

    /// Where they are counted.
    pub fn holds(&mut self, owner: u64) -> Arc<AtomicUsize> {
        Arc::clone(&self.get(owner).held)
    }

    /// Why a client may not have another watcher with a key of so many bytes, if it may not. `watchers` and
    /// `key_bytes` are those of all clients.
    pub fn refuses(
        &self,
        owner: u64,
        (watchers, key_bytes): (usize, usize),
        bytes: usize,
        limits: &WatchLimits,
    ) -> Option<String> {
        let usage = self.0.get(&owner).cloned().unwrap_or_default();
        let refusal = |text: String| Some(format!("etcdserver: too many requests: {text}"));
        let (watchers_max, bytes_max) = (limits.watchers_max, limits.key_bytes_max);
        if watchers >= watchers_max {
            return refusal(format!("the limit of {watchers_max} watchers is reached"));
        }
        if key_bytes + bytes > bytes_max {
            return refusal(format!("the limit of {bytes_max} bytes of watched keys is reached"));
        }
        if usage.watchers + 1 > watchers_max - watchers - 1 {
            let held = usage.watchers;
            return refusal(format!("this connection has {held} of the {watchers_max} watchers"));
        }
        if usage.key_bytes + bytes > bytes_max - key_bytes - bytes {
            let held = usage.key_bytes;
            return refusal(format!("this connection has {held} of the {bytes_max} bytes of watched keys"));
        }
        None
    }

    fn get(&mut self, owner: u64) -> &mut Usage {
        self.0.get_mut(&owner).expect("an owner has a stream")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives `owner` watchers of one byte until it is refused, and returns how many.
    fn fill(owners: &mut Owners, owner: u64, all: &mut usize, limits: &WatchLimits) -> usize {
        owners.add_stream(owner);
        let before = *all;
        while owners.refuses(owner, (*all, *all), 1, limits).is_none() {
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
            let taken: Vec<_> = (0..5).map(|owner| fill(&mut owners, owner, &mut all, &limits)).collect();
            assert_eq!(taken, [32, 16, 8, 4, 2]);
        }
    }

    #[test]
    fn a_refusal_names_the_bound() {
        let limits = WatchLimits { watchers_max: 10, key_bytes_max: 100, ..WatchLimits::default() };
        let mut owners = Owners::default();
        owners.add_stream(1);
        (0..5).for_each(|_| owners.add_watcher(1));
        owners.add_stream(2);
        owners.add_key(2, 40);
        for (owner, all, bytes, reason) in [
            (3, (5, 40), 1, None),
            (3, (10, 40), 1, Some("the limit of 10 watchers is reached")),
            (3, (5, 100), 1, Some("the limit of 100 bytes of watched keys is reached")),
            (1, (5, 40), 1, Some("this connection has 5 of the 10 watchers")),
            (2, (5, 40), 11, Some("this connection has 40 of the 100 bytes of watched keys")),
        ] {
            let refusal = owners.refuses(owner, all, bytes, &limits);
            let expected = reason.map(|reason| format!("etcdserver: too many requests: {reason}"));
            assert_eq!(refusal, expected);
        }
    }
}
