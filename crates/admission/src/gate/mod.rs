//! A gate: a weighted semaphore for one resource, shared fairly between clients.
//!
//! ```text
//!   enter ──fits, and is next──▶ Pass ──dropped──▶ next waiter
//!      └──else──▶ queue of this client ──clients round-robin──▶ Pass
//! ```
//!
//! * A pass has a weight; the weights of all passes never exceed the capacity.
//! * A client that holds passes is limited by the rule of [`base::Shares`], together with all connections
//!   of its caller. Each caller may always hold one pass.
//! * Passes above [`Bounds::light_max`] are heavy. They leave [`Bounds::reserve`] free for light ones.
//!   Larger weights are clamped to the maximum of a heavy pass.
//! * Light and heavy passes have separate shares and separate lanes. In a lane, callers are served
//!   round-robin, one pass each, and so are the clients of a caller. The passes of a client are served in
//!   the order of arrival.
//! * A light pass that does not fit delays the light ones after it. A heavy one that does not fit *drains*
//!   the gate: other heavy passes wait, and light ones get only the reserve. A drain lasts `DRAIN_MAX` at
//!   most, since a client that does not read may hold a pass. After it, other passes may overtake for
//!   `REST_FACTOR` times as long.
//! * The number, the weight and the time of waiting calls are bounded, and one client may use three
//!   quarters of the bounds. When all clients together reach a bound, the latest waiter of the client with
//!   the most waiting weight is rejected. That may be the new caller.
//! * A cancelled call leaves its queue immediately.
//! * Weights may be bytes of memory. Then the [`MemoryLimit`] has to grant a pass as well. While it grants
//!   no more, clients that already hold or wait for a pass are rejected.
//!
//! Entering without waiting costs one uncontended lock. The cost of releasing a pass does not depend on the
//! number of waiters.

use std::sync::Arc;
use std::time::Duration;

use base::ClientId;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

mod turns; // the order of waiters
mod used; // held weights, and the requirements of one more pass
mod waiting; // waiters, and their rejection

use super::memory::MemoryLimit;
pub use used::Bounds;
use used::GateUse;
use waiting::WaitingCallers;

/// Maximum time of an uninterrupted drain: long enough for reads in progress.
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// Minimum rest after a drain, as a multiple of its length: heavy passes delay other calls a fifth of the
/// time at most.
const REST_FACTOR: u32 = 4;
/// Interval at which waiters check whether a drain is too long.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A bound on waiting was reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GateFull;

/// A weighted semaphore with fair queues. See the module documentation.
pub struct Gate {
    bounds: Bounds,
    /// Grants weights that are bytes of memory.
    memory: Option<Arc<MemoryLimit>>,
    state: Mutex<GateState>,
}

#[derive(Default)]
struct GateState {
    used: GateUse,
    waiting: WaitingCallers<Pass>,
    drain: Drain,
}

#[derive(Clone, Copy, Default)]
enum Drain {
    #[default]
    Idle,
    Since(Instant),
    /// No drain starts before this time.
    RestUntil(Instant),
}

/// A permit to use the resource. Dropping it admits the next waiter.
#[derive(Debug)]
pub struct Pass {
    gate: Arc<Gate>,
    client: ClientId,
    weight: u64,
}

/// Removes the waiter from its queue if its call is cancelled before it was served.
struct InLine<'a> {
    gate: &'a Arc<Gate>,
    client: ClientId,
    ticket: u64,
}

impl Gate {
    pub fn new(bounds: Bounds) -> Arc<Gate> {
        assert!(bounds.reserve < bounds.capacity, "a reserve is part of the capacity");
        assert!(bounds.light_max <= bounds.weight_max(), "a light pass is no heavier than a heavy one");
        Arc::new(Gate { bounds, memory: None, state: Mutex::default() })
    }

    /// Returns a gate for weights in bytes of memory, granted by `limit`.
    pub fn of_memory(bounds: Bounds, limit: &Arc<MemoryLimit>) -> Arc<Gate> {
        let memory = limit.is_on().then(|| Arc::clone(limit));
        Arc::new(Gate { memory, ..Arc::into_inner(Gate::new(bounds)).expect("no other owner has it") })
    }

    /// Returns the weight of the heaviest pass.
    pub fn weight_max(&self) -> u64 {
        self.bounds.weight_max()
    }

    /// Returns the total weight of all passes, and the number of waiting calls.
    pub fn gauges(&self) -> (u64, usize) {
        let state = self.state.lock();
        (state.used.total(), state.waiting.len())
    }

    /// Waits for a pass of this weight.
    pub async fn enter(self: &Arc<Self>, client: ClientId, weight: u64) -> Result<Pass, GateFull> {
        let weight = weight.clamp(1, self.bounds.weight_max());
        let (_in_line, mut pass) = {
            let mut state = self.state.lock();
            let may_pass = state.passes_now(&self.bounds, client, weight);
            if may_pass && self.grants(weight) {
                state.used.add(&self.bounds, client, weight);
                return Ok(Pass { gate: Arc::clone(self), client, weight });
            }
            let is_short = self.is_short();
            if may_pass || is_short {
                self.note_refused();
            }
            if (is_short && state.has(client)) || !state.waiting.make_room(&self.bounds, client, weight) {
                return Err(GateFull);
            }
            let (to, pass) = oneshot::channel();
            let ticket = state.waiting.queue(&self.bounds, client, weight, to);
            // Updates the lanes, and starts a drain if this waiter needs one.
            let gone = self.admit(&mut state);
            drop(state);
            drop(gone);
            (InLine { gate: self, client, ticket }, pass)
        };
        let end = Instant::now() + self.bounds.wait_max;
        let step = if self.bounds.reserve > 0 { LOOK_AGAIN } else { self.bounds.wait_max };
        loop {
            let look_again = end.min(Instant::now() + step);
            match timeout_at(look_again, &mut pass).await {
                Ok(pass) => return pass.map_err(|_| GateFull),
                Err(_) if look_again == end => return Err(GateFull),
                Err(_) => self.end_late_drain(),
            }
        }
    }

    /// Returns a pass if it is available immediately.
    pub fn try_enter(self: &Arc<Self>, client: ClientId, weight: u64) -> Option<Pass> {
        let mut state = self.state.lock();
        if weight > self.bounds.weight_max()
            || !state.passes_now(&self.bounds, client, weight)
            || !self.grants(weight)
        {
            return None;
        }
        state.used.add(&self.bounds, client, weight);
        Some(Pass { gate: Arc::clone(self), client, weight })
    }

    fn grants(&self, weight: u64) -> bool {
        self.memory.as_ref().is_none_or(|memory| memory.grant(weight))
    }

    fn note_refused(&self) {
        if let Some(memory) = &self.memory {
            memory.note_refused();
        }
    }

    fn is_short(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_short())
    }

    /// Serves waiters for memory, if there is some now.
    pub fn look_again(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let gone = self.admit(&mut state);
        drop(state);
        drop(gone);
    }

    /// Serves the next waiters. Returns passes for cancelled calls, which must be dropped after the lock.
    fn admit(self: &Arc<Self>, state: &mut GateState) -> Vec<Pass> {
        let mut gone = Vec::new();
        if state.is_calm() {
            return gone;
        }
        let now = Instant::now();
        if state.drain.is_late(now) {
            state.drain.end(now);
            // Let the next drain be for another client.
            if let Some((client, _)) = state.next(&self.bounds, false) {
                state.waiting.heavy.postpone(client);
            }
        }
        self.admit_heavy(state, now, &mut gone);
        self.admit_light(state, &mut gone);
        gone
    }

    fn admit_heavy(self: &Arc<Self>, state: &mut GateState, now: Instant, gone: &mut Vec<Pass>) {
        let mut is_blocked = false;
        while let Some((mut client, mut weight)) = state.next(&self.bounds, false) {
            if !state.fits(&self.bounds, client, weight) {
                is_blocked = true;
                if state.drain.begin(now) {
                    break;
                }
                let fits = |client, weight| state.fits(&self.bounds, client, weight);
                let Some(overtaking) = state.waiting.heavy.overtaking(fits) else { break };
                (client, weight) = overtaking;
            }
            if !self.grants(weight) {
                is_blocked = true; // Releasing other passes of this gate would not help.
                break;
            }
            gone.extend(self.serve(state, client, weight));
        }
        state.waiting.heavy.is_blocked = is_blocked;
        if !is_blocked {
            state.drain.end(now);
        }
    }

    fn admit_light(self: &Arc<Self>, state: &mut GateState, gone: &mut Vec<Pass>) {
        state.waiting.light.is_blocked = false;
        while let Some((client, weight)) = state.next(&self.bounds, true) {
            if !state.fits(&self.bounds, client, weight) || !self.grants(weight) {
                state.waiting.light.is_blocked = true;
                break;
            }
            gone.extend(self.serve(state, client, weight));
        }
    }

    /// Grants a pass to the first waiter of a client. Returns the pass if the call was cancelled.
    fn serve(self: &Arc<Self>, state: &mut GateState, client: ClientId, weight: u64) -> Option<Pass> {
        let waiter = state.waiting.take(self.bounds.is_light(weight), client);
        state.used.add(&self.bounds, client, weight);
        waiter.to.send(Pass { gate: Arc::clone(self), client, weight }).err()
    }

    /// Lets heavy passes overtake again if the gate has been drained for too long.
    fn end_late_drain(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.drain.is_late(Instant::now()) {
            let gone = self.admit(&mut state);
            drop(state);
            drop(gone);
        }
    }
}

impl GateState {
    /// Reports whether the client holds or waits for a pass.
    fn has(&self, client: ClientId) -> bool {
        self.used.light.held(client) + self.used.heavy.held(client) > 0 || self.waiting.has(client)
    }

    /// Reports whether there is no waiter and no state to reset.
    fn is_calm(&self) -> bool {
        let is_blocked = self.waiting.light.is_blocked || self.waiting.heavy.is_blocked;
        self.waiting.len() == 0 && !is_blocked && matches!(self.drain, Drain::Idle)
    }

    /// Reports whether a new call may skip the queues.
    fn passes_now(&self, bounds: &Bounds, client: ClientId, weight: u64) -> bool {
        let lane = if bounds.is_light(weight) { &self.waiting.light } else { &self.waiting.heavy };
        let comes_later = lane.is_blocked && (bounds.is_light(weight) || self.drain.is_on());
        !comes_later && !lane.has(client) && self.fits(bounds, client, weight)
    }

    fn fits(&self, bounds: &Bounds, client: ClientId, weight: u64) -> bool {
        self.used.fits(bounds, client, weight, self.drain.is_on())
    }

    /// Returns the next client of a lane that waits for capacity, and the weight of its pass.
    fn next(&mut self, bounds: &Bounds, is_light: bool) -> Option<(ClientId, u64)> {
        let GateState { used, waiting, .. } = self;
        let needs = |client, weight| used.needs(bounds, client, weight);
        waiting.lane(is_light).next(used.free(bounds, is_light), needs)
    }
}

impl Drain {
    fn is_on(&self) -> bool {
        matches!(self, Drain::Since(_))
    }

    fn is_late(&self, now: Instant) -> bool {
        matches!(self, Drain::Since(since) if now >= *since + DRAIN_MAX)
    }

    /// Starts a drain. Returns true if the gate is drained now, newly or still.
    fn begin(&mut self, now: Instant) -> bool {
        match self {
            Drain::Since(_) => true,
            Drain::RestUntil(end) if now < *end => false,
            Drain::Idle | Drain::RestUntil(_) => {
                *self = Drain::Since(now);
                true
            }
        }
    }

    fn end(&mut self, now: Instant) {
        match self {
            Drain::Since(since) => {
                let lasted = now.duration_since(*since).min(DRAIN_MAX);
                *self = Drain::RestUntil(now + REST_FACTOR * lasted);
            }
            Drain::RestUntil(end) if now >= *end => *self = Drain::Idle,
            Drain::Idle | Drain::RestUntil(_) => {}
        }
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.state.lock();
        if !state.waiting.leave(self.client, self.ticket) {
            return;
        }
        // The removed waiter may have blocked the ones after it.
        let gone = self.gate.admit(&mut state);
        drop(state);
        drop(gone);
    }
}

impl Pass {
    pub fn weight(&self) -> u64 {
        self.weight
    }

    /// Reports whether calls of other clients wait for the pass, or calls of the same caller that exceed
    /// its share.
    pub fn is_wanted(&self) -> bool {
        let WaitingCallers { light, heavy, .. } = &self.gate.state.lock().waiting;
        light.is_blocked || heavy.is_blocked || light.has_of(self.client) || heavy.has_of(self.client)
    }

    /// Reports whether the caller should release its unused part because more callers arrived.
    pub fn is_over_share(&self) -> bool {
        let bounds = &self.gate.bounds;
        self.gate.state.lock().used.is_over(bounds, self.client, bounds.is_light(self.weight))
    }

    /// Releases the weight that exceeds `weight`.
    pub fn shrink_to(&mut self, weight: u64) {
        let weight = weight.max(1);
        if weight < self.weight {
            let before = std::mem::replace(&mut self.weight, weight);
            self.release(before, Some(weight));
        }
    }

    /// Adds weight without waiting, if there is capacity. This may delay waiters, but for no longer than
    /// the pass is held.
    pub fn try_grow(&mut self, more: u64) -> bool {
        let mut state = self.gate.state.lock();
        let (bounds, weight) = (&self.gate.bounds, self.weight + more);
        state.used.remove(bounds, self.client, self.weight);
        let fits = state.fits(bounds, self.client, weight) && self.gate.grants(more);
        if fits {
            self.weight = weight;
        }
        state.used.add(bounds, self.client, self.weight);
        fits
    }

    /// Changes the weight without waiting, if there is capacity. Clamps it like `enter`.
    pub fn try_resize(&mut self, weight: u64) -> bool {
        let weight = weight.clamp(1, self.gate.bounds.weight_max());
        if weight > self.weight {
            return self.try_grow(weight - self.weight);
        }
        self.shrink_to(weight);
        true
    }

    fn release(&self, before: u64, kept: Option<u64>) {
        let bounds = &self.gate.bounds;
        let mut state = self.gate.state.lock();
        state.used.remove(bounds, self.client, before);
        if let Some(kept) = kept {
            state.used.add(bounds, self.client, kept);
        }
        state.waiting.wake(self.client);
        let gone = self.gate.admit(&mut state);
        drop(state);
        drop(gone);
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.release(self.weight, None);
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Gate").field("bounds", &self.bounds).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
