//! Counters, and the metrics of keys, Raft, peers and health checks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::calls::CallMetrics;
use super::declare::{From, PeerLink, Reason, To, disk_histogram, network_histogram};
use super::disk::DiskMetrics;
use crate::traces::Traces;

/// All counters, and the tracer of calls. Cheap to share, safe on any thread.
#[derive(Debug, Default)]
pub struct Metrics {
    pub keys: KeyMetrics,
    pub disk: DiskMetrics,
    pub raft: RaftMetrics,
    pub peers: PeerMetrics,
    pub snapshots: SnapshotMetrics,
    pub calls: CallMetrics,
    pub health: HealthMetrics,
    pub promotions: PromotionMetrics,
    pub leases: LeaseMetrics,
    pub audit: AuditMetrics,
    pub traces: Traces,
    /// The slowest sync of the log since this was last read, in microseconds.
    pub sync_slowest_us: AtomicU64,
    /// Number of syncs of the log, and their total duration in microseconds.
    pub syncs: AtomicU64,
    pub syncs_us: AtomicU64,
    /// The last round trip to each linked member.
    pub round_trips: Mutex<HashMap<u64, Duration>>,
}

impl Metrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        self.keys.register(registry);
        self.disk.register(registry);
        self.raft.register(registry);
        self.peers.register(registry);
        self.snapshots.register(registry);
        self.leases.register(registry);
        self.audit.register(registry);
        self.health.register(registry);
        self.promotions.register(registry);
        // Raft's snapshot is a checkpoint: it is persisted once, and counted under both names of etcd.
        let (name, help) =
            ("etcd_snap_fsync_duration_seconds", "Time to make a checkpoint of the store durable");
        registry.register(name, help, self.disk.backend_commit_seconds.clone());
    }
}

crate::declare_metrics! {
    /// Operations on the key space, counted where they are carried out.
    pub struct KeyMetrics {
        puts: Counter => "etcd_mvcc_put", "Puts seen by this member";
        deletes: Counter => "etcd_mvcc_delete", "Deletes seen by this member";
        ranges: Counter => "etcd_mvcc_range", "Ranges seen by this member";
        /// Transactions with more than one operation.
        txns: Counter => "etcd_mvcc_txn", "Txns of several operations seen by this member";
        /// Large ranges that were found and not sent to their end yet.
        large_ranges: Gauge => "kv_server_large_ranges_open", "Large ranges under way";
        /// Large ranges that were reset because their clients did not read.
        large_ranges_unread: Counter
            => "kv_server_large_ranges_unread", "Large ranges reset because their clients did not read";
    }
}

/// Returns buckets for batch sizes: entries per round of Raft, or per sync.
fn sizes() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 13))
}

crate::declare_metrics! {
    pub struct RaftMetrics {
        leader_changes: Counter => "etcd_server_leader_changes_seen", "Leader changes seen";
        proposals_failed: Counter => "etcd_server_proposals_failed", "Proposals that were not applied";
        read_indexes_failed: Counter => "etcd_server_read_indexes_failed", "Read points that were not found";
        read_indexes_slow: Counter => "etcd_server_slow_read_indexes", "Read points that timed out";
        heartbeats_late: Counter => "etcd_server_heartbeat_send_failures", "Heartbeats sent late";
        entries_slow: Counter
            => "etcd_server_slow_apply", "Entries that took longer than --warning-apply-duration to apply";
        /// One observation per entry, which may have many commands.
        apply_seconds: Family<Applied, Histogram, fn() -> Histogram>
            = Family::new_with_constructor(apply_histogram)
            => "etcd_server_apply_duration_seconds", "Time to apply one entry of the log";
        batch_commands: Histogram = sizes()
            => "kv_server_batch_commands", "Commands that this member proposed as one entry";
        sync_entries: Histogram = sizes()
            => "kv_server_log_sync_entries", "Entries of the log that shared a sync";
    }
}

/// Labels of the time of an apply.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Applied {
    pub op: &'static str,
    pub success: &'static str,
    pub version: &'static str,
}

/// etcd's buckets of an apply: 0.1 ms to 52 s.
fn apply_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 20))
}

crate::declare_metrics! {
    pub struct PeerMetrics {
        active: Family<PeerLink, Gauge<i64, AtomicI64>> => "etcd_network_active_peers", "Live links to peers";
        disconnected: Family<PeerLink, Counter> => "etcd_network_disconnected_peers", "Links lost";
        sent_bytes: Family<To, Counter> => "etcd_network_peer_sent_bytes", "Bytes sent to a peer";
        send_failures: Family<To, Counter>
            => "etcd_network_peer_sent_failures", "Messages to a peer that were lost before they left";
        received_bytes: Family<From, Counter>
            => "etcd_network_peer_received_bytes", "Bytes received from a peer";
        receive_failures: Family<From, Counter>
            => "etcd_network_peer_received_failures", "Streams of a peer that broke";
        round_trip_seconds: Family<To, Histogram, fn() -> Histogram>
            = Family::new_with_constructor(network_histogram)
            => "etcd_network_peer_round_trip_time_seconds", "Round trip to a peer and back, by probing";
    }
}

crate::declare_metrics! {
    /// Operations on leases.
    pub struct LeaseMetrics {
        /// Renewals that this member has served for its clients.
        renewed: Counter => "etcd_debugging_lease_renewed", "Renewals answered";
        /// Leases that this member has expired as the leader.
        expired: Counter => "etcd_debugging_server_lease_expired", "Leases expired";
        /// TTLs of the leases granted to clients of this member, from a second to about six months, with
        /// etcd's buckets.
        ttl_seconds: Histogram = Histogram::new(exponential_buckets(1.0, 2.0, 24))
            => "etcd_debugging_lease_ttl_total", "TTLs granted";
    }
}

crate::declare_metrics! {
    /// Lines of the audit log.
    #[derive(Clone)]
    pub struct AuditMetrics {
        lines: Counter => "kv_server_audit_log_lines", "Lines of the audit log";
        /// Lines that were dropped because the queue was full, or could not be written.
        lost: Counter => "kv_server_audit_log_lost_lines", "Lines that are missing in the audit log";
    }
}

crate::declare_metrics! {
    pub struct HealthMetrics {
        successes: Counter => "etcd_server_health_success", "Successful health checks";
        failures: Counter => "etcd_server_health_failures", "Failed health checks";
        /// 1 if the check passed the last time.
        last: Family<[(&'static str, &'static str); 2], Gauge>
            => "etcd_server_healthcheck", "Last result of each check";
        results: Family<[(&'static str, &'static str); 3], Counter>
            => "etcd_server_healthchecks", "Results of each check";
    }
}

impl HealthMetrics {
    /// Records the result of a check of `kind`, which is `livez` or `readyz`.
    pub fn checked(&self, kind: &'static str, name: &'static str, has_passed: bool) {
        let status = if has_passed { "success" } else { "error" };
        self.last.get_or_create(&[("type", kind), ("name", name)]).set(i64::from(has_passed));
        self.results.get_or_create(&[("type", kind), ("name", name), ("status", status)]).inc();
    }
}

crate::declare_metrics! {
    /// Promotions of learners to voters, counted by the member that received the request.
    pub struct PromotionMetrics {
        successes: Counter => "etcd_server_learner_promote_successes", "Learners promoted";
        /// By the text of the error.
        failures: Family<Reason, Counter>
            => "etcd_server_learner_promote_failures", "Learners that were not promoted, by reason";
    }
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Returns etcd's buckets for transfers of a database: 0.1 s to 51 s.
fn transfer_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.1, 2.0, 10))
}

crate::declare_metrics! {
    /// Snapshots of Raft on their way from member to member, under the names etcd gives to its database
    /// transfers.
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
