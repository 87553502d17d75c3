//! The weights held at a gate, and the free weight that one more pass requires.
//!
//! * The passes of a caller leave enough of the capacity free, and its heavy passes enough of the heavy
//!   part.
//! * Its light passes always have a share of the reserve. With no more light passes than that, it may hold
//!   one heavy pass of any weight. So a heavy pass of most of the capacity does not block light passes of
//!   the same caller.

use std::time::Duration;

use base::{ClientId, ShareUse, Shares};

/// A pass above this part of the capacity is large.
const LARGE_PART: u64 = 4;

#[derive(Default)]
pub(super) struct GateUse {
    pub light: Shares,
    pub heavy: Shares,
}

/// Free weight required so that a client and its caller leave enough to all other ones.
#[derive(Clone, Copy)]
pub(super) struct Needs {
    pub connection: u64,
    pub caller: u64,
}

impl Needs {
    /// Returns the requirements for holding `held`, which includes `weight`: none for a caller's first
    /// pass.
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

    /// Returns the free part of the weight that shares refer to: the capacity for light passes, the heavy
    /// part for heavy ones.
    pub fn free(&self, bounds: &Bounds, is_light: bool) -> u64 {
        match is_light {
            true => bounds.capacity - self.total(),
            false => bounds.weight_max() - self.heavy.total(),
        }
    }

    fn all_needs(&self, client: ClientId, weight: u64) -> Needs {
        let (light, heavy) = (self.light.with(client, weight), self.heavy.with(client, 0));
        let [total, caller, connection] =
            [light.total + heavy.total, light.caller + heavy.caller, light.connection + heavy.connection];
        Needs::of(ShareUse { total, caller, connection }, weight)
    }

    /// Reports whether a client leaves enough of the reserve with `weight` more of light passes.
    fn fits_reserve(&self, bounds: &Bounds, client: ClientId, weight: u64) -> bool {
        let free = bounds.reserve.saturating_sub(self.light.total());
        weight <= free && Needs::of(self.light.with(client, weight), weight).are_met(free)
    }

    /// Returns how much has to be [free](Self::free) before a pass is limited only by total capacity, no
    /// longer by its caller's other passes. Large heavy passes do not count their own weight here, or they
    /// would wait until the caller holds none.
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

    /// Reports whether a pass fits its share and the free capacity.
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

    /// Reports whether a caller should release its unused part.
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
    /// Number of calls of `GateUse::needs`.
    pub static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The limits of a gate.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Total weight of all passes.
    pub capacity: u64,
    /// Part of the capacity that heavy passes leave free.
    pub reserve: u64,
    /// Weight of the heaviest light pass. If equal to the capacity, no pass is heavy.
    pub light_max: u64,
    /// Number of waiting calls of all clients.
    pub waiting_max: usize,
    /// Weight of waiting calls of all clients, which may hold that memory already.
    pub waiting_weight_max: u64,
    /// Time limit for waiting.
    pub wait_max: Duration,
}

impl Bounds {
    pub(super) fn weight_max(&self) -> u64 {
        self.capacity - self.reserve
    }

    pub(super) fn is_light(&self, weight: u64) -> bool {
        weight <= self.light_max
    }
}
