//! Streams that wait for room, clients in turn.

use std::collections::{BTreeMap, VecDeque};

use crate::types::StreamId;

/// Streams that wait, by client.
#[derive(Default)]
pub(crate) struct HeldBack {
    clients: BTreeMap<u64, VecDeque<Waiting>>,
    /// The client that had the last turn.
    last: u64,
}

/// A stream that waits, and the bytes of its next response.
#[derive(Clone, Copy)]
pub(crate) struct Waiting {
    pub stream: StreamId,
    pub bytes: usize,
}

impl HeldBack {
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    pub fn push(&mut self, owner: u64, waiting: Waiting) {
        self.clients.entry(owner).or_default().push_back(waiting);
    }

    /// The first stream of each client, in the order of their turns.
    pub fn in_turn(&self) -> impl Iterator<Item = (u64, Waiting)> + '_ {
        let later = self.clients.range(self.last.saturating_add(1)..);
        let clients = later.chain(self.clients.range(..=self.last));
        clients.filter_map(|(owner, streams)| Some((*owner, *streams.front()?)))
    }

    pub fn pop(&mut self, owner: u64) {
        self.last = owner;
        let streams = self.clients.get_mut(&owner).expect("a client that waits");
        streams.pop_front();
        if streams.is_empty() {
            self.clients.remove(&owner);
        }
    }
}
