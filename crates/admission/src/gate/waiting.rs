//! Callers that wait at a gate: two lanes, a ring of clients in each, and the bounds on both together.

use std::collections::{HashMap, VecDeque};

use tokio::sync::oneshot;

use super::bounds::{Bounds, ClientId};

/// One client may use all of a bound on waiting but the fourth part: it can use most while it is alone, and
/// the first callers of other clients find some left.
const LEFT_TO_OTHERS: u64 = 4;

/// One caller, who waits for a `P`.
pub(super) struct Waiter<P> {
    ticket: u64,
    weight: u64,
    pub to: oneshot::Sender<P>,
}

/// Callers whose passes are alike: light, or heavy.
pub(super) struct Lane<P> {
    lines: HashMap<ClientId, VecDeque<Waiter<P>>>,
    /// Every client with a line, once.
    ring: VecDeque<ClientId>,
    /// A caller waits for others to give something back, and not only for its own client.
    pub is_blocked: bool,
}

/// Callers, counted.
#[derive(Clone, Copy, Default)]
struct Count {
    number: usize,
    weight: u64,
}

/// All who wait.
pub(super) struct Waiting<P> {
    pub light: Lane<P>,
    pub heavy: Lane<P>,
    all: Count,
    by_client: HashMap<ClientId, Count>,
    next_ticket: u64,
}

impl<P> Default for Lane<P> {
    fn default() -> Self {
        Lane { lines: HashMap::new(), ring: VecDeque::new(), is_blocked: false }
    }
}

impl<P> Default for Waiting<P> {
    fn default() -> Self {
        let (light, heavy) = (Lane::default(), Lane::default());
        Waiting { light, heavy, all: Count::default(), by_client: HashMap::new(), next_ticket: 0 }
    }
}

impl<P> Waiting<P> {
    pub fn len(&self) -> usize {
        self.all.number
    }

    /// Whether the client waits for something.
    pub fn has(&self, client: ClientId) -> bool {
        self.by_client.contains_key(&client)
    }

    fn lane(&mut self, is_light: bool) -> &mut Lane<P> {
        if is_light { &mut self.light } else { &mut self.heavy }
    }

    /// Whether one more of this weight may wait. For it, others may be refused: the newest of the client that
    /// waits for most first, as long as that client waits for more than this one.
    pub fn make_room(&mut self, bounds: &Bounds, client: ClientId, weight: u64) -> bool {
        let mut own = self.by_client.get(&client).copied().unwrap_or_default();
        own.add(weight);
        let number_max = bounds.waiting_max - bounds.waiting_max / LEFT_TO_OTHERS as usize;
        let weight_max = bounds.waiting_weight_max - bounds.waiting_weight_max / LEFT_TO_OTHERS;
        // One that is heavier than the bound waits if it is the only one.
        if own.number > number_max || (own.number > 1 && own.weight > weight_max) {
            return false;
        }
        let too_many = self.all.number >= bounds.waiting_max;
        let too_heavy = (self.all.weight + weight).saturating_sub(bounds.waiting_weight_max);
        if self.all.number == 0 || (!too_many && too_heavy == 0) {
            return true;
        }
        let above = |count: &Count| count.weight.saturating_sub(own.weight);
        if too_heavy > self.by_client.values().map(above).sum() {
            return false;
        }
        if too_many {
            let most = self.by_client.iter().max_by_key(|(client, count)| (count.number, client.0));
            let Some((&most, _)) = most.filter(|(_, count)| count.number > own.number) else { return false };
            self.refuse_newest(most);
        }
        while self.all.weight + weight > bounds.waiting_weight_max {
            let most = self.by_client.iter().max_by_key(|(client, count)| (count.weight, client.0));
            let (&most, _) = most.expect("what is too heavy was counted for clients");
            self.refuse_newest(most);
        }
        true
    }

    /// Dropping the sender refuses the caller.
    fn refuse_newest(&mut self, client: ClientId) {
        let newest =
            |lane: &Lane<P>| lane.lines.get(&client).and_then(|line| line.back()).map(|waiter| waiter.ticket);
        let ticket = newest(&self.light).max(newest(&self.heavy)).expect("a client that is counted waits");
        self.leave(client, ticket);
    }

    pub fn queue(&mut self, bounds: &Bounds, client: ClientId, weight: u64, to: oneshot::Sender<P>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let lane = self.lane(bounds.is_light(weight));
        let line = lane.lines.entry(client).or_default();
        if line.is_empty() {
            lane.ring.push_back(client);
        }
        line.push_back(Waiter { ticket, weight, to });
        self.all.add(weight);
        self.by_client.entry(client).or_default().add(weight);
        ticket
    }

    /// Takes the first waiter of the client at this place of the ring, which then goes to the end of it.
    pub fn take(&mut self, is_light: bool, place: usize) -> (ClientId, Waiter<P>) {
        let lane = self.lane(is_light);
        let client = lane.ring.remove(place).expect("a place in the ring");
        let line = lane.lines.get_mut(&client).expect("a client in the ring has a line");
        let waiter = line.pop_front().expect("a line in the ring is not empty");
        if line.is_empty() {
            lane.lines.remove(&client);
        } else {
            lane.ring.push_back(client);
        }
        self.uncount(client, waiter.weight);
        (client, waiter)
    }

    /// Takes one waiter out. False if it is not there any more.
    pub fn leave(&mut self, client: ClientId, ticket: u64) -> bool {
        let left = self.light.leave(client, ticket).or_else(|| self.heavy.leave(client, ticket));
        if let Some(waiter) = &left {
            self.uncount(client, waiter.weight);
        }
        left.is_some()
    }

    fn uncount(&mut self, client: ClientId, weight: u64) {
        self.all.subtract(weight);
        let count = self.by_client.get_mut(&client).expect("a client that waits is counted");
        count.subtract(weight);
        if count.number == 0 {
            self.by_client.remove(&client);
        }
    }
}

impl<P> Lane<P> {
    pub fn has(&self, client: ClientId) -> bool {
        self.lines.contains_key(&client)
    }

    /// The client at this place of the ring, and the weight that it waits for first.
    pub fn first_at(&self, place: usize) -> Option<(ClientId, u64)> {
        let client = *self.ring.get(place)?;
        let first = self.lines[&client].front().expect("a line in the ring is not empty");
        Some((client, first.weight))
    }

    /// Moves the first client of this kind to the end of the ring.
    pub fn postpone(&mut self, is_first: impl Fn(ClientId, u64) -> bool) {
        let mut places = 0..self.ring.len();
        let found = places
            .find(|place| self.first_at(*place).is_some_and(|(client, weight)| is_first(client, weight)));
        if let Some(client) = found.and_then(|place| self.ring.remove(place)) {
            self.ring.push_back(client);
        }
    }

    fn leave(&mut self, client: ClientId, ticket: u64) -> Option<Waiter<P>> {
        let line = self.lines.get_mut(&client)?;
        // Tickets ascend within a line.
        let place = line.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()?;
        let waiter = line.remove(place);
        if line.is_empty() {
            self.lines.remove(&client);
            self.ring.retain(|other| *other != client);
        }
        waiter
    }
}

impl Count {
    fn add(&mut self, weight: u64) {
        self.number += 1;
        self.weight += weight;
    }

    fn subtract(&mut self, weight: u64) {
        self.number -= 1;
        self.weight -= weight;
    }
}
