//! Shares of a bound: how much each client may hold without waiting, by the rule of [`base::Shares`].
//!
//! * Each client may always hold a small amount, so that clients that together hold everything do not lock
//!   out a new one. The bound may be exceeded by that amount per client.
//! * Calls do not wait here. The caller reports a rejection.

use std::sync::Arc;

use base::ClientId;
use parking_lot::Mutex;

/// A bound and the amounts held by each client.
#[derive(Debug)]
pub struct Shares {
    bound: usize,
    /// Amount that each client may always hold.
    always: usize,
    held: Mutex<base::Shares>,
}

/// A part of the bound. Dropping it releases it.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    client: ClientId,
    weight: usize,
}

impl Shares {
    pub fn new(bound: usize, always: usize) -> Arc<Shares> {
        Arc::new(Shares { bound, always, held: Mutex::default() })
    }

    /// Returns the sum held by all clients.
    pub fn total(&self) -> usize {
        usize::try_from(self.held.lock().total()).unwrap_or(usize::MAX)
    }

    /// Returns a share of this weight for a client; `None` if it holds too much.
    pub fn take(self: &Arc<Self>, client: ClientId, weight: usize) -> Option<Share> {
        let mut held = self.held.lock();
        let with = held.with(client, weight as u64);
        if with.connection > self.always as u64 && !with.leaves_enough(self.bound as u64) {
            return None;
        }
        held.add(client, weight as u64);
        drop(held);
        Some(Share { shares: Arc::clone(self), client, weight })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shares.held.lock().remove(self.client, self.weight as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_leaves_as_much_as_it_holds_and_gives_it_back() {
        let shares = Shares::new(16, 1);
        let fill =
            |client| std::iter::from_fn(|| shares.take(ClientId::alone(client), 1)).collect::<Vec<_>>();
        let held: Vec<_> = (0..6).map(fill).collect();
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [8, 4, 2, 1, 1, 1], "one is always given");
        drop(held);
        assert_eq!(fill(5).len(), 8);
        assert!(shares.held.lock().callers() == 0, "a client that holds nothing is forgotten");
    }

    #[test]
    fn weights_count() {
        let shares = Shares::new(100, 10);
        assert!(shares.take(ClientId::alone(1), 51).is_none());
        let half = shares.take(ClientId::alone(1), 50).unwrap();
        assert!(shares.take(ClientId::alone(2), 26).is_none());
        let _quarter = shares.take(ClientId::alone(2), 25).unwrap();
        assert!(shares.take(ClientId::alone(1), 1).is_none());
        drop(half);
        assert!(shares.take(ClientId::alone(1), 37).is_some());
        assert_eq!(shares.total(), 25, "what was dropped is free");
    }
}
