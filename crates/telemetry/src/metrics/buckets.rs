//! Buckets of histograms.

use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// etcd's buckets for everything that touches a disk: 1 ms to 8 s.
pub(super) fn disk_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 14))
}

/// etcd's buckets for the network: 0.1 ms to 3 s.
pub(super) fn network_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 16))
}
