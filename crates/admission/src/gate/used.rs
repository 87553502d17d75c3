//! What the passes of a gate weigh, and what has to be free for one more.
//!
//! * All that a caller holds leaves enough of the capacity, and its heavy passes of what heavy ones may take.
//! * Its light passes always have a share of the reserve, and with no more of them it may have one heavy pass
//!   of any weight. So a heavy pass that is most of the capacity keeps out no light ones of its caller.

use std::time::Duration;

use base::{ClientId, ShareUse, Shares};

/// A pass above this part of the capacity is large.
const LARGE_PART: u64 = 4;

/// Weight of the passes that are out.
#[derive(Default)]
pub(super) struct GateUse {
    pub light: Shares,
    pub heavy: Shares,
}

/// What has to be free so that a client, and its caller, leave enough.
#[derive(Clone, Copy)]
pub(super) struct Needs {
    pub connection: u64,
    pub caller: u64,
}

impl Needs {
    /// With `weight` more: nothing for who holds nothing.
    fn of(held: ShareUse, weight: u64) -> Needs {
        let of = |held: ShareUse| if held.caller == weight { 0 } else { held.needs() + weight };
        Needs {
            connection: of(ShareUse { caller: held.connection, ..held }),
            caller: of(ShareUse { connection: 0, ..held }),
        }
    }

    fn are_met(self, free: u64) -> bool {
        self.connection.max(self.caller) <= free
    }
}

impl GateUse {
    pub fn total(&self) -> u64 {
        self.light.total() + self.heavy.total()
    }

    fn of(&mut self, bounds: &Bounds, weight: u64) -> &mut Shares {
        if bounds.is_light(weight) { &mut self.light } else { &mut self.heavy }
    }

    /// What is free of that in which passes have shares: the capacity, or what heavy ones may take of it.
    pub fn free(&self, bounds: &Bounds, is_light: bool) -> u64 {
        match is_light {
            true => bounds.capacity - self.total(),
            false => bounds.weight_max() - self.heavy.total(),
        }
    }

    /// Of all that a client holds.
    fn all_needs(&self, client: ClientId, weight: u64) -> Needs {
        let (light, heavy) = (self.light.with(client, weight), self.heavy.with(client, 0));
        let [total, caller, connection] =
            [light.total + heavy.total, light.caller + heavy.caller, light.connection + heavy.connection];
        Needs::of(ShareUse { total, caller, connection }, weight)
    }

    /// Whether a client leaves enough of the reserve with so much more of light passes.
    fn fits_reserve(&self, bounds: &Bounds, client: ClientId, weight: u64) -> bool {
        let free = bounds.reserve.saturating_sub(self.light.total());
        weight <= free && Needs::of(self.light.with(client, weight), weight).are_met(free)
    }

    /// What has to be [free](Self::free) before a pass waits for room, as those of all do, and no longer for
    /// what its caller holds. A large one would wait until that is nothing.
    pub fn needs(&self, bounds: &Bounds, client: ClientId, weight: u64) -> Needs {
        #[cfg(test)]
        LOOKS.set(LOOKS.get() + 1);
        if !bounds.is_light(weight) {
            let counted = if weight > bounds.capacity / LARGE_PART { 0 } else { weight };
            let Needs { caller, .. } = Needs::of(self.heavy.with(client, counted), counted);
            return Needs { caller, ..Needs::of(self.heavy.with(client, weight), weight) };
        }
        let free = bounds.reserve.saturating_sub(self.light.total());
        let of_reserve = Needs::of(self.light.with(client, weight), weight);
        let of_all = self.all_needs(client, weight);
        let either = |of_reserve, of_all| if of_reserve <= free { 0 } else { of_all };
        Needs {
            connection: either(of_reserve.connection, of_all.connection),
            caller: either(of_reserve.caller, of_all.caller),
        }
    }

    /// Whether a pass has its share, and there is room for it.
    pub fn fits(&self, bounds: &Bounds, client: ClientId, weight: u64, is_drained: bool) -> bool {
        if self.total() + weight > bounds.capacity {
            return false;
        }
        let is_light = bounds.is_light(weight);
        let free = self.free(bounds, is_light);
        if is_light {
            return self.needs(bounds, client, weight).are_met(free)
                && (!is_drained || self.fits_reserve(bounds, client, weight));
        }
        let is_only = self.heavy.with(client, 0).caller == 0 && self.fits_reserve(bounds, client, 0);
        let leaves_enough = || self.all_needs(client, weight).are_met(bounds.capacity - self.total());
        weight <= free
            && Needs::of(self.heavy.with(client, weight), weight).are_met(free)
            && (is_only || leaves_enough())
    }

    /// Whether a caller should give back what it does not use.
    pub fn is_over(&self, bounds: &Bounds, client: ClientId, is_light: bool) -> bool {
        let shares = if is_light { &self.light } else { &self.heavy };
        let bound = shares.total() + self.free(bounds, is_light);
        shares.with(client, 0).is_over(bound, shares.callers())
    }

    pub fn add(&mut self, bounds: &Bounds, client: ClientId, weight: u64) {
        self.of(bounds, weight).add(client, weight);
    }

    pub fn remove(&mut self, bounds: &Bounds, client: ClientId, weight: u64) {
        self.of(bounds, weight).remove(client, weight);
    }
}

#[cfg(test)]
thread_local! {
    /// Times that it was asked what one of those that wait needs.
    pub static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// What a gate allows.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Weight of all passes together.
    pub capacity: u64,
    /// The part of it that heavy passes leave free.
    pub reserve: u64,
    /// Weight of the heaviest light pass. At the capacity, no pass is heavy.
    pub light_max: u64,
    /// Passes waited for by all clients.
    pub waiting_max: usize,
    /// Weight waited for by all clients: it may be memory already held.
    pub waiting_weight_max: u64,
    /// Time to wait for one pass.
    pub wait_max: Duration,
}

impl Bounds {
    /// The weight of the heaviest pass.
    pub(super) fn weight_max(&self) -> u64 {
        self.capacity - self.reserve
    }

    pub(super) fn is_light(&self, weight: u64) -> bool {
        weight <= self.light_max
    }
}
