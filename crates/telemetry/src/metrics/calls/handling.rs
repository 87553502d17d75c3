//! Durations of calls, in the buckets that etcd has with `--metrics=extensive`.
//!
//! A call counts when it completes, streams included. The buckets are Prometheus' defaults.

use std::time::Duration;

use api::Method;

use super::times::Times;

/// Upper bounds of the buckets in microseconds.
const ENDS_US: [u64; 11] =
    [5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000];

/// The calls of each method.
#[derive(Debug)]
pub(super) struct Handling {
    rows: Vec<Times>,
}

impl Default for Handling {
    fn default() -> Self {
        Handling { rows: Method::ALL.iter().map(|_| Times::new(&ENDS_US)).collect() }
    }
}

impl Handling {
    pub fn add(&self, method: Method, took: Duration) {
        self.rows[method.number()].add(took);
    }

    pub fn of(&self, method: Method) -> &Times {
        &self.rows[method.number()]
    }
}
