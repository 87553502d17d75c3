//! What a gate allows.

use std::time::Duration;

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
