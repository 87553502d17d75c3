//! Callers that wait at a gate: two lanes, a ring of clients in each, and the bounds on both together.
//!
//! In a ring, callers have turns, and in those of a caller its connections: one caller with many connections
//! delays another by one pass.

use std::collections::{HashMap, VecDeque};

use base::ClientId;
use tokio::sync::oneshot;

use super::bounds::Bounds;

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
    /// Every client with a line, once, by its round: in each round, a caller has one turn.
    ring: VecDeque<(u64, ClientId)>,
    /// The round of the last turn.
    round: u64,
    callers: HashMap<u64, Lines>,
    /// A caller waits for others to give something back, and not only for its own client.
    pub is_blocked: bool,
}

/// The lines of a caller.
#[derive(Default)]
struct Lines {
    number: usize,
    /// After the last of its turns.
    next_round: u64,
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
    by_caller: HashMap<u64, Count>,
    next_ticket: u64,
}

impl<P> Default for Lane<P> {
    fn default() -> Self {
        Lane {
            lines: HashMap::new(),
            ring: VecDeque::new(),
            round: 0,
            callers: HashMap::new(),
            is_blocked: false,
        }
    }
}

impl<P> Default for Waiting<P> {
    fn default() -> Self {
        let (light, heavy) = (Lane::default(), Lane::default());
        let (by_client, by_caller) = (HashMap::new(), HashMap::new());
        Waiting { light, heavy, all: Count::default(), by_client, by_caller, next_ticket: 0 }
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
    /// waits for most first, as long as it waits for more than this one. Callers are compared first.
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
        let mut own_caller = self.by_caller.get(&client.caller).copied().unwrap_or_default();
        own_caller.add(weight);
        let above = |(other, count): (&ClientId, &Count)| match other.caller == client.caller {
            true => count.weight.saturating_sub(own.weight),
            false => self.by_caller[&other.caller].weight.saturating_sub(own_caller.weight).min(count.weight),
        };
        if too_heavy > self.by_client.iter().map(above).sum() {
            return false;
        }
        if too_many {
            let Some((most, caller, count)) = self.most(|count| count.number as u64) else { return false };
            let is_more = match most.caller == client.caller {
                true => count > own.number as u64,
                false => caller > own_caller.number as u64,
            };
            if !is_more {
                return false;
            }
            self.refuse_newest(most);
        }
        while self.all.weight + weight > bounds.waiting_weight_max {
            let (most, ..) =
                self.most(|count| count.weight).expect("what is too heavy was counted for clients");
            self.refuse_newest(most);
        }
        true
    }

    /// The client that waits for most, and how much its caller and it wait for.
    fn most(&self, measure: impl Fn(&Count) -> u64) -> Option<(ClientId, u64, u64)> {
        let counts = self.by_client.iter().map(|(client, count)| {
            let caller = measure(&self.by_caller[&client.caller]);
            (*client, caller, measure(count))
        });
        counts.max_by_key(|(client, caller, count)| (*caller, *count, client.connection))
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
        if !lane.has(client) {
            lane.callers.entry(client.caller).or_default().number += 1;
            lane.line_up(client);
        }
        lane.lines.entry(client).or_default().push_back(Waiter { ticket, weight, to });
        self.all.add(weight);
        self.by_client.entry(client).or_default().add(weight);
        self.by_caller.entry(client.caller).or_default().add(weight);
        ticket
    }

    /// Takes the first waiter of the client at this place of the ring, which then goes to the end of it.
    pub fn take(&mut self, is_light: bool, place: usize) -> (ClientId, Waiter<P>) {
        let lane = self.lane(is_light);
        let (round, client) = lane.ring.remove(place).expect("a place in the ring");
        lane.round = lane.round.max(round);
        let line = lane.lines.get_mut(&client).expect("a client in the ring has a line");
        let waiter = line.pop_front().expect("a line in the ring is not empty");
        if line.is_empty() {
            lane.remove_line(client);
        } else {
            lane.line_up(client);
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
        let count = self.by_caller.get_mut(&client.caller).expect("a caller that waits is counted");
        count.subtract(weight);
        if count.number == 0 {
            self.by_caller.remove(&client.caller);
        }
    }
}

impl<P> Lane<P> {
    pub fn has(&self, client: ClientId) -> bool {
        self.lines.contains_key(&client)
    }

    /// Whether any connection of the same caller waits.
    pub fn has_of(&self, client: ClientId) -> bool {
        self.callers.contains_key(&client.caller)
    }

    fn remove_line(&mut self, client: ClientId) {
        self.lines.remove(&client);
        let lines = self.callers.get_mut(&client.caller).expect("a caller with a line is counted");
        lines.number -= 1;
        if lines.number == 0 {
            self.callers.remove(&client.caller);
        }
    }

    /// Puts a client into the ring, after all that have a turn in the same round.
    fn line_up(&mut self, client: ClientId) {
        let lines = self.callers.get_mut(&client.caller).expect("a caller with a line is counted");
        let round = lines.next_round.max(self.round + 1);
        lines.next_round = round + 1;
        let place = self.ring.partition_point(|(other, _)| *other <= round);
        self.ring.insert(place, (round, client));
    }

    /// The client at this place of the ring, and the weight that it waits for first.
    pub fn first_at(&self, place: usize) -> Option<(ClientId, u64)> {
        let (_, client) = *self.ring.get(place)?;
        let first = self.lines[&client].front().expect("a line in the ring is not empty");
        Some((client, first.weight))
    }

    /// Moves the first client of this kind to the end of the ring.
    pub fn postpone(&mut self, is_first: impl Fn(ClientId, u64) -> bool) {
        let mut places = 0..self.ring.len();
        let found = places
            .find(|place| self.first_at(*place).is_some_and(|(client, weight)| is_first(client, weight)));
        if let Some((round, client)) = found.and_then(|place| self.ring.remove(place)) {
            let last = self.ring.back().map_or(round, |(last, _)| *last);
            self.ring.push_back((last, client));
        }
    }

    fn leave(&mut self, client: ClientId, ticket: u64) -> Option<Waiter<P>> {
        let line = self.lines.get_mut(&client)?;
        // Tickets ascend within a line.
        let place = line.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()?;
        let waiter = line.remove(place);
        if line.is_empty() {
            self.remove_line(client);
            self.ring.retain(|(_, other)| *other != client);
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
