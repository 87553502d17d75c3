//! Streams that wait for room, clients in turn.

use std::collections::{BTreeMap, HashMap, VecDeque};

use base::ClientId;

use crate::types::StreamId;

/// Streams that wait, by client. A client comes after all that wait when its first stream begins to wait, and
/// after each of its turns: clients that come later, in any number, overtake none.
#[derive(Default)]
pub(crate) struct HeldBack {
    /// In the order of their turns.
    clients: BTreeMap<u64, (ClientId, VecDeque<WaitingStream>)>,
    /// The place of each client.
    places: HashMap<ClientId, u64>,
    next_place: u64,
}

/// A stream that waits, and the bytes of its next response.
#[derive(Clone, Copy)]
pub(crate) struct WaitingStream {
    pub stream: StreamId,
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

    /// The first stream of each client, in the order of their turns: place, client and stream.
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

    /// Forgets a stream that waits.
    pub fn remove(&mut self, owner: ClientId, stream: StreamId) {
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

    /// A place after all that wait, also for what waits elsewhere.
    pub fn take_place(&mut self) -> u64 {
        self.next_place += 1;
        self.next_place
    }
}
