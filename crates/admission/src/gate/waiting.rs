//! Waiters at a gate: two lanes, fair queues of callers in each, and the bounds on both together.
//!
//! Scheduling is round-robin over callers, and over the connections of a caller, so a caller with many
//! connections delays another by one pass. A connection limited by its own passes delays no other one; a
//! connection limited by its caller's passes delays only that caller.

use std::collections::{HashMap, VecDeque};

use base::ClientId;
use tokio::sync::oneshot;

use super::turns::Turns;
use super::used::{Bounds, Needs};

/// One of `LEFT_TO_OTHERS` parts of a bound on waiting is not available to a single client, so that the
/// first calls of other clients always find capacity.
const LEFT_TO_OTHERS: u64 = 4;

/// A call waiting for a `P`.
pub(super) struct Waiter<P> {
    ticket: u64,
    weight: u64,
    pub to: oneshot::Sender<P>,
}

/// Number of a caller's connections checked for a pass that can overtake the first one.
const LOOK_AHEAD: usize = 8;

/// The queues for one kind of passes: light or heavy.
pub(super) struct Lane<P> {
    lines: HashMap<u64, CallerLine<P>>,
    turns: Turns,
    /// A caller waits for capacity held by other callers, and not only for its own share.
    pub is_blocked: bool,
}

/// The connections of a caller in round-robin order, and their waiters in the order of arrival.
struct CallerLine<P> {
    turns: Turns,
    waiters: HashMap<u64, VecDeque<Waiter<P>>>,
}

#[derive(Clone, Copy, Default)]
struct Count {
    number: usize,
    weight: u64,
}

pub(super) struct WaitingCallers<P> {
    pub light: Lane<P>,
    pub heavy: Lane<P>,
    all: Count,
    by_client: HashMap<ClientId, Count>,
    by_caller: HashMap<u64, Count>,
    next_ticket: u64,
}

impl<P> Default for Lane<P> {
    fn default() -> Self {
        Lane { lines: HashMap::new(), turns: Turns::default(), is_blocked: false }
    }
}

impl<P> Default for CallerLine<P> {
    fn default() -> Self {
        CallerLine { turns: Turns::default(), waiters: HashMap::new() }
    }
}

impl<P> Default for WaitingCallers<P> {
    fn default() -> Self {
        let (light, heavy) = (Lane::default(), Lane::default());
        let (by_client, by_caller) = (HashMap::new(), HashMap::new());
        WaitingCallers { light, heavy, all: Count::default(), by_client, by_caller, next_ticket: 0 }
    }
}

impl<P> WaitingCallers<P> {
    pub fn len(&self) -> usize {
        self.all.number
    }

    /// Reports whether the client waits for a pass.
    pub fn has(&self, client: ClientId) -> bool {
        self.by_client.contains_key(&client)
    }

    pub fn lane(&mut self, is_light: bool) -> &mut Lane<P> {
        if is_light { &mut self.light } else { &mut self.heavy }
    }

    /// Reports whether a waiter of this weight may be added. It may reject waiters to make space: the
    /// latest of the client with the most waiting weight first, as long as that exceeds the new client's.
    /// Callers are compared first.
    pub fn make_room(&mut self, bounds: &Bounds, client: ClientId, weight: u64) -> bool {
        let mut own = self.by_client.get(&client).copied().unwrap_or_default();
        own.add(weight);
        let number_max = bounds.waiting_max - bounds.waiting_max / LEFT_TO_OTHERS as usize;
        let weight_max = bounds.waiting_weight_max - bounds.waiting_weight_max / LEFT_TO_OTHERS;
        // A waiter above the weight bound may wait if it is the only one.
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

    /// Returns the client with the most waiting weight, and the weights of its caller and of itself.
    fn most(&self, measure: impl Fn(&Count) -> u64) -> Option<(ClientId, u64, u64)> {
        let counts = self.by_client.iter().map(|(client, count)| {
            let caller = measure(&self.by_caller[&client.caller]);
            (*client, caller, measure(count))
        });
        counts.max_by_key(|(client, caller, count)| (*caller, *count, client.connection))
    }

    /// Rejects the latest waiter of a client by dropping its sender.
    fn refuse_newest(&mut self, client: ClientId) {
        let newest =
            |lane: &Lane<P>| lane.waiters(client).and_then(VecDeque::back).map(|waiter| waiter.ticket);
        let ticket = newest(&self.light).max(newest(&self.heavy)).expect("a client that is counted waits");
        self.leave(client, ticket);
    }

    pub fn queue(&mut self, bounds: &Bounds, client: ClientId, weight: u64, to: oneshot::Sender<P>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.lane(bounds.is_light(weight)).queue(client, Waiter { ticket, weight, to });
        self.all.add(weight);
        self.by_client.entry(client).or_default().add(weight);
        self.by_caller.entry(client.caller).or_default().add(weight);
        ticket
    }

    /// Removes the first waiter of a client, and moves the client and its caller to the ends of their
    /// queues.
    pub fn take(&mut self, is_light: bool, client: ClientId) -> Waiter<P> {
        let waiter = self.lane(is_light).take(client);
        self.uncount(client, waiter.weight);
        waiter
    }

    /// Rechecks the waiters of a client and its caller after a release, which reduces their requirements.
    pub fn wake(&mut self, client: ClientId) {
        self.light.wake(client);
        self.heavy.wake(client);
    }

    /// Removes a waiter. Returns false if it is not queued.
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
    fn waiters(&self, client: ClientId) -> Option<&VecDeque<Waiter<P>>> {
        self.lines.get(&client.caller)?.waiters.get(&client.connection)
    }

    pub fn has(&self, client: ClientId) -> bool {
        self.waiters(client).is_some()
    }

    /// Reports whether any connection of the same caller waits.
    pub fn has_of(&self, client: ClientId) -> bool {
        self.lines.contains_key(&client.caller)
    }

    fn queue(&mut self, client: ClientId, waiter: Waiter<P>) {
        let line = self.lines.entry(client.caller).or_default();
        if line.waiters.is_empty() {
            self.turns.move_to_end(client.caller);
        }
        let waiters = line.waiters.entry(client.connection).or_default();
        waiters.push_back(waiter);
        if waiters.len() == 1 {
            line.turns.move_to_end(client.connection);
            self.turns.wake(client.caller); // All other connections of the caller may be parked.
        }
    }

    fn take(&mut self, client: ClientId) -> Waiter<P> {
        let line = self.lines.get_mut(&client.caller).expect("a caller with a turn has a line");
        let waiters = line.waiters.get_mut(&client.connection).expect("a client with a turn waits");
        let waiter = waiters.pop_front().expect("a client that waits is counted");
        self.postpone(client);
        self.forget_if_empty(client);
        waiter
    }

    /// Moves a client and its caller to the ends of their queues.
    pub fn postpone(&mut self, client: ClientId) {
        if let Some(line) = self.lines.get_mut(&client.caller) {
            line.turns.move_to_end(client.connection);
            self.turns.move_to_end(client.caller);
        }
    }

    fn forget_if_empty(&mut self, client: ClientId) {
        let Some(line) = self.lines.get_mut(&client.caller) else { return };
        if line.waiters.get(&client.connection).is_some_and(VecDeque::is_empty) {
            line.waiters.remove(&client.connection);
            line.turns.remove(client.connection);
        }
        if line.turns.is_empty() {
            self.lines.remove(&client.caller);
            self.turns.remove(client.caller);
        }
    }

    fn wake(&mut self, client: ClientId) {
        if let Some(line) = self.lines.get_mut(&client.caller) {
            line.turns.wake(client.connection);
            self.turns.wake(client.caller);
        }
    }

    /// Returns the next client that can be served with `free` weight, and the weight of its pass.
    pub fn next(
        &mut self,
        free: u64,
        needs: impl Fn(ClientId, u64) -> Needs + Copy,
    ) -> Option<(ClientId, u64)> {
        while let Some(caller) = self.turns.next(free) {
            let line = self.lines.get_mut(&caller).expect("a caller with a turn has a line");
            match line.next(caller, free, needs) {
                Ok(next) => return Some(next),
                Err(needed) => self.turns.park(caller, needed),
            }
        }
        None
    }

    /// Returns the first ready client that `fits`, checking a few connections per caller.
    pub fn overtaking(&self, fits: impl Fn(ClientId, u64) -> bool) -> Option<(ClientId, u64)> {
        let lines = self.turns.ready().map(|caller| (caller, &self.lines[&caller]));
        let mut clients = lines.flat_map(|(caller, line)| {
            line.turns.ready().take(LOOK_AHEAD).map(move |connection| line.first(caller, connection))
        });
        clients.find(|(client, weight)| fits(*client, *weight))
    }

    fn leave(&mut self, client: ClientId, ticket: u64) -> Option<Waiter<P>> {
        let waiters = self.lines.get_mut(&client.caller)?.waiters.get_mut(&client.connection)?;
        // Tickets ascend within a line.
        let place = waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()?;
        let waiter = waiters.remove(place);
        self.forget_if_empty(client);
        // The next waiter may need less.
        self.wake(client);
        waiter
    }
}

impl<P> CallerLine<P> {
    fn first(&self, caller: u64, connection: u64) -> (ClientId, u64) {
        let first = self.waiters[&connection].front().expect("a client with a turn waits");
        (ClientId { caller, connection }, first.weight)
    }

    /// Returns the next client and the weight of its pass, or the free weight that one needs.
    fn next(
        &mut self,
        caller: u64,
        free: u64,
        needs: impl Fn(ClientId, u64) -> Needs,
    ) -> Result<(ClientId, u64), u64> {
        while let Some(connection) = self.turns.next(free) {
            let (client, weight) = self.first(caller, connection);
            match needs(client, weight) {
                needs if needs.connection > free => self.turns.park(connection, needs.connection),
                needs if needs.caller > free => return Err(needs.caller),
                Needs { .. } => return Ok((client, weight)),
            }
        }
        Err(self.turns.needed().expect("a caller with a turn waits"))
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
