//! Snapshots of Raft on their way from member to member, under the names etcd gives to its database
//! transfers.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::buckets::disk_histogram;
use super::labels::{From, To};

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// etcd's buckets for transfers of a database: 0.1 s to 51 s.
fn transfer_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.1, 2.0, 10))
}

crate::declare_metrics! {
    pub struct SnapshotMetrics {
        sending: Family<To, Gauge> => "etcd_network_snapshot_send_inflights_total", "Snapshots being sent";
        sent: Family<To, Counter> => "etcd_network_snapshot_send_success", "Snapshots sent";
        send_failures: Family<To, Counter>
            => "etcd_network_snapshot_send_failures", "Snapshots that did not arrive";
        send_seconds: Histograms<To> = Family::new_with_constructor(transfer_histogram)
            => "etcd_network_snapshot_send_total_duration_seconds", "Time to send a snapshot";
        receiving: Family<From, Gauge>
            => "etcd_network_snapshot_receive_inflights_total", "Snapshots being received";
        received: Family<From, Counter> => "etcd_network_snapshot_receive_success", "Snapshots received";
        receive_failures: Family<From, Counter>
            => "etcd_network_snapshot_receive_failures", "Snapshots that broke off or were damaged";
        receive_seconds: Histograms<From> = Family::new_with_constructor(transfer_histogram)
            => "etcd_network_snapshot_receive_total_duration_seconds", "Time to receive a snapshot";
        /// Making a received store durable, after its last byte.
        sync_seconds: Histogram = disk_histogram()
            => "etcd_snap_db_fsync_duration_seconds",
               "Time to make a received store durable after its last byte";
        /// From the first byte received to a durable staged store.
        save_seconds: Histogram = transfer_histogram()
            => "etcd_snap_db_save_total_duration_seconds", "Time to receive a store and make it durable";
        /// 1 while a received store takes the place of the present one.
        installing: Gauge
            => "etcd_server_snapshot_apply_in_progress_total",
               "1 while a received store is being installed";
    }
}
