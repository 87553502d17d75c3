//! Streams waiting for capacity, scheduled round-robin by client.

use std::collections::{BTreeMap, HashMap, VecDeque};

use base::ClientId;

use crate::types::WatchStreamId;

/// Waiting streams, grouped by client. A client is queued when its first stream starts to wait, and
/// re-queued at the end after each grant. Clients that arrive later, in any number, never overtake
/// it.
#[derive(Default)]
pub(crate) struct HeldBack {
    /// Waiting clients by position in the queue.
    clients: BTreeMap<u64, (ClientId, VecDeque<WaitingStream>)>,
    places: HashMap<ClientId, u64>,
    next_place: u64,
}

#[derive(Clone, Copy)]
pub(crate) struct WaitingStream {
    pub stream: WatchStreamId,
    pub bytes: usize,
}

impl HeldBack {
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    pub fn push(&mut self, owner: ClientId, waiting: WaitingStream) {
        let streams = self.places.get(&owner).and_then(|place| self.clients.get_mut(place));
        match streams {
            Some((_, streams)) => streams.push_back(waiting),
            None => self.push_client(owner, VecDeque::from([waiting])),
        }
    }

    /// Returns the first stream of each client in queue order: position, client and stream.
    pub fn in_turn(&self) -> impl Iterator<Item = (u64, ClientId, WaitingStream)> + '_ {
        let clients = self.clients.iter();
        clients.filter_map(|(place, (owner, streams))| Some((*place, *owner, *streams.front()?)))
    }

    pub fn pop(&mut self, owner: ClientId) {
        let place = self.places.remove(&owner).expect("a client that waits");
        let (_, mut streams) = self.clients.remove(&place).expect("a client at its place");
        streams.pop_front();
        if !streams.is_empty() {
            self.push_client(owner, streams);
        }
    }

    pub fn remove(&mut self, owner: ClientId, stream: WatchStreamId) {
        let Some(place) = self.places.get(&owner).copied() else { return };
        let Some((_, streams)) = self.clients.get_mut(&place) else { return };
        streams.retain(|waiting| waiting.stream != stream);
        if streams.is_empty() {
            self.clients.remove(&place);
            self.places.remove(&owner);
        }
    }

    fn push_client(&mut self, owner: ClientId, streams: VecDeque<WaitingStream>) {
        let place = self.take_place();
        self.places.insert(owner, place);
        self.clients.insert(place, (owner, streams));
    }

    /// Returns a new position at the end of the queue, which is shared with other waiters.
    pub fn take_place(&mut self) -> u64 {
        self.next_place += 1;
        self.next_place
    }
}
