//! Snapshots of Raft on their way from member to member, under the names etcd gives to its database
//! transfers.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::buckets::disk_histogram;
use super::labels::{From, To};

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

#[derive(Debug)]
pub struct SnapshotMetrics {
    pub sending: Family<To, Gauge>,
    pub sent: Family<To, Counter>,
    pub send_failures: Family<To, Counter>,
    pub send_seconds: Histograms<To>,
    pub receiving: Family<From, Gauge>,
    pub received: Family<From, Counter>,
    pub receive_failures: Family<From, Counter>,
    pub receive_seconds: Histograms<From>,
    /// Making a received store durable, after its last byte.
    pub sync_seconds: Histogram,
    /// From the first byte received to a durable staged store.
    pub save_seconds: Histogram,
    /// 1 while a received store takes the place of the present one.
    pub installing: Gauge,
}

/// etcd's buckets for transfers of a database: 0.1 s to 51 s.
fn transfer_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.1, 2.0, 10))
}

impl Default for SnapshotMetrics {
    fn default() -> Self {
        SnapshotMetrics {
            sending: Family::default(),
            sent: Family::default(),
            send_failures: Family::default(),
            send_seconds: Family::new_with_constructor(transfer_histogram),
            receiving: Family::default(),
            received: Family::default(),
            receive_failures: Family::default(),
            receive_seconds: Family::new_with_constructor(transfer_histogram),
            sync_seconds: disk_histogram(),
            save_seconds: transfer_histogram(),
            installing: Gauge::default(),
        }
    }
}

impl SnapshotMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "etcd_network_snapshot_send_inflights_total",
            "Snapshots being sent",
            self.sending.clone(),
        );
        registry.register("etcd_network_snapshot_send_success", "Snapshots sent", self.sent.clone());
        registry.register(
            "etcd_network_snapshot_send_failures",
            "Snapshots that did not arrive",
            self.send_failures.clone(),
        );
        registry.register(
            "etcd_network_snapshot_send_total_duration_seconds",
            "Time to send a snapshot",
            self.send_seconds.clone(),
        );
        registry.register(
            "etcd_network_snapshot_receive_inflights_total",
            "Snapshots being received",
            self.receiving.clone(),
        );
        registry.register(
            "etcd_network_snapshot_receive_success",
            "Snapshots received",
            self.received.clone(),
        );
        registry.register(
            "etcd_network_snapshot_receive_failures",
            "Snapshots that broke off or were damaged",
            self.receive_failures.clone(),
        );
        registry.register(
            "etcd_network_snapshot_receive_total_duration_seconds",
            "Time to receive a snapshot",
            self.receive_seconds.clone(),
        );
        registry.register(
            "etcd_snap_db_fsync_duration_seconds",
            "Time to make a received store durable after its last byte",
            self.sync_seconds.clone(),
        );
        registry.register(
            "etcd_snap_db_save_total_duration_seconds",
            "Time to receive a store and make it durable",
            self.save_seconds.clone(),
        );
        registry.register(
            "etcd_server_snapshot_apply_in_progress_total",
            "1 while a received store is being installed",
            self.installing.clone(),
        );
    }
}
