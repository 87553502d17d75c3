//! Figures for whoever watches, under etcd's names.
//!
//! * Counting on a hot path is one relaxed atomic addition; everything else happens when somebody asks.
//! * A name that exists here has etcd's meaning, type and buckets. Where etcd has a figure and we have no such
//!   thing, the name is absent rather than zero.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

/// Everything that is counted as it happens. Cheap to share, safe on any thread.
#[derive(Debug, Default)]
pub struct Metrics {
    /// What clients asked of the key space.
    pub keys: KeyMetrics,
}

/// Operations on the key space, counted where they are carried out.
#[derive(Debug, Default)]
pub struct KeyMetrics {
    pub puts: Counter,
    pub deletes: Counter,
    pub ranges: Counter,
    /// Transactions with more than one operation.
    pub txns: Counter,
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        let keys = &self.keys;
        registry.register("etcd_mvcc_put", "Total number of puts seen by this member", keys.puts.clone());
        registry.register(
            "etcd_mvcc_delete",
            "Total number of deletes seen by this member",
            keys.deletes.clone(),
        );
        registry.register(
            "etcd_mvcc_range",
            "Total number of ranges seen by this member",
            keys.ranges.clone(),
        );
        registry.register("etcd_mvcc_txn", "Total number of txns seen by this member", keys.txns.clone());
    }
}
