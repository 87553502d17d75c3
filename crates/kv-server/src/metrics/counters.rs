//! What is counted as it happens, and the metrics of keys, Raft, peers and health checks.

use std::sync::atomic::AtomicI64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::buckets::network_histogram;
use super::calls::CallMetrics;
use super::disk::DiskMetrics;
use super::labels::{From, PeerLink, Reason, To};
use super::snapshots::SnapshotMetrics;
use crate::traces::Traces;

/// Everything that is counted as it happens, and what traces calls. Cheap to share, safe on any thread.
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
}

/// Lines of the audit log.
#[derive(Clone, Debug, Default)]
pub struct AuditMetrics {
    pub lines: Counter,
    /// Those that found no room in the queue, or could not be written.
    pub lost: Counter,
}

/// Operations on the key space, counted where they are carried out.
#[derive(Debug, Default)]
pub struct KeyMetrics {
    pub puts: Counter,
    pub deletes: Counter,
    pub ranges: Counter,
    /// Transactions with more than one operation.
    pub txns: Counter,
    /// Large ranges that were found and not sent to their end yet.
    pub large_ranges: Gauge,
    /// Block files that those keep from being deleted, counted for each range.
    pub large_range_files: Gauge,
    /// Large ranges that were reset because their clients did not read.
    pub large_ranges_unread: Counter,
}

#[derive(Debug, Default)]
pub struct RaftMetrics {
    pub leader_changes: Counter,
    pub proposals_failed: Counter,
    pub read_indexes_failed: Counter,
    pub read_indexes_slow: Counter,
    pub heartbeats_late: Counter,
    pub entries_slow: Counter,
    pub batches: BatchMetrics,
}

/// How much is carried at once: what shares a round of Raft, and what shares a sync.
#[derive(Debug)]
pub struct BatchMetrics {
    pub commands: Histogram,
    pub log_entries: Histogram,
}

impl Default for BatchMetrics {
    fn default() -> Self {
        let sizes = || Histogram::new(exponential_buckets(1.0, 2.0, 13));
        BatchMetrics { commands: sizes(), log_entries: sizes() }
    }
}

#[derive(Debug)]
pub struct PeerMetrics {
    pub active: Family<PeerLink, Gauge<i64, AtomicI64>>,
    pub disconnected: Family<PeerLink, Counter>,
    pub sent_bytes: Family<To, Counter>,
    pub send_failures: Family<To, Counter>,
    pub received_bytes: Family<From, Counter>,
    pub receive_failures: Family<From, Counter>,
    pub round_trip_seconds: Family<To, Histogram, fn() -> Histogram>,
}

#[derive(Debug, Default)]
pub struct HealthMetrics {
    pub successes: Counter,
    pub failures: Counter,
    /// 1 if the check passed when it was asked for last.
    last: Family<[(&'static str, &'static str); 2], Gauge>,
    results: Family<[(&'static str, &'static str); 3], Counter>,
}

impl HealthMetrics {
    /// A check of `kind`, which is `livez` or `readyz`, has passed or not.
    pub fn checked(&self, kind: &'static str, name: &'static str, has_passed: bool) {
        let status = if has_passed { "success" } else { "error" };
        self.last.get_or_create(&[("type", kind), ("name", name)]).set(i64::from(has_passed));
        self.results.get_or_create(&[("type", kind), ("name", name), ("status", status)]).inc();
    }
}

/// Learners that became voters, as the member that was asked for it saw it.
#[derive(Debug, Default)]
pub struct PromotionMetrics {
    pub successes: Counter,
    /// By the text of the refusal.
    pub failures: Family<Reason, Counter>,
}

/// Operations on leases.
#[derive(Debug)]
pub struct LeaseMetrics {
    /// Renewals that this member has answered for its clients.
    pub renewed: Counter,
    /// Leases that this member has expired as the leader.
    pub expired: Counter,
    /// TTLs of the leases that clients of this member were granted.
    pub ttl_seconds: Histogram,
}

impl Default for LeaseMetrics {
    fn default() -> Self {
        LeaseMetrics {
            renewed: Counter::default(),
            expired: Counter::default(),
            // From a second to some six months, as etcd has them.
            ttl_seconds: Histogram::new(exponential_buckets(1.0, 2.0, 24)),
        }
    }
}

impl Default for PeerMetrics {
    fn default() -> Self {
        PeerMetrics {
            active: Family::default(),
            disconnected: Family::default(),
            sent_bytes: Family::default(),
            send_failures: Family::default(),
            received_bytes: Family::default(),
            receive_failures: Family::default(),
            round_trip_seconds: Family::new_with_constructor(network_histogram),
        }
    }
}

impl Metrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        self.register_keys(registry);
        self.disk.register(registry);
        self.register_raft(registry);
        self.register_peers(registry);
        self.snapshots.register(registry);
        self.register_leases(registry);
        let audit = &self.audit;
        registry.register("kv_server_audit_log_lines", "Lines of the audit log", audit.lines.clone());
        registry.register(
            "kv_server_audit_log_lost_lines",
            "Lines that are missing in the audit log",
            audit.lost.clone(),
        );
        self.register_health(registry);
        let promotions = &self.promotions;
        registry.register(
            "etcd_server_learner_promote_successes",
            "Learners promoted",
            promotions.successes.clone(),
        );
        registry.register(
            "etcd_server_learner_promote_failures",
            "Learners that were not promoted, by reason",
            promotions.failures.clone(),
        );
    }

    fn register_health(&self, registry: &mut Registry) {
        let health = &self.health;
        registry.register("etcd_server_health_success", "Successful health checks", health.successes.clone());
        registry.register("etcd_server_health_failures", "Failed health checks", health.failures.clone());
        registry.register("etcd_server_healthcheck", "Last result of each check", health.last.clone());
        registry.register("etcd_server_healthchecks", "Results of each check", health.results.clone());
    }

    fn register_keys(&self, registry: &mut Registry) {
        let keys = &self.keys;
        registry.register("etcd_mvcc_put", "Puts seen by this member", keys.puts.clone());
        registry.register("etcd_mvcc_delete", "Deletes seen by this member", keys.deletes.clone());
        registry.register("etcd_mvcc_range", "Ranges seen by this member", keys.ranges.clone());
        registry.register(
            "etcd_mvcc_txn",
            "Txns of several operations seen by this member",
            keys.txns.clone(),
        );
        registry.register("kv_server_large_ranges_open", "Large ranges under way", keys.large_ranges.clone());
        registry.register(
            "kv_server_large_range_files",
            "Block files pinned by large ranges",
            keys.large_range_files.clone(),
        );
        registry.register(
            "kv_server_large_ranges_unread",
            "Large ranges reset because their clients did not read",
            keys.large_ranges_unread.clone(),
        );
    }

    fn register_leases(&self, registry: &mut Registry) {
        let leases = &self.leases;
        registry.register("etcd_debugging_lease_renewed", "Renewals answered", leases.renewed.clone());
        registry.register("etcd_debugging_server_lease_expired", "Leases expired", leases.expired.clone());
        registry.register("etcd_debugging_lease_ttl_total", "TTLs granted", leases.ttl_seconds.clone());
    }

    fn register_raft(&self, registry: &mut Registry) {
        let raft = &self.raft;
        let counters = [
            ("etcd_server_leader_changes_seen", "Leader changes seen", &raft.leader_changes),
            ("etcd_server_proposals_failed", "Proposals that were not applied", &raft.proposals_failed),
            ("etcd_server_read_indexes_failed", "Read points that were not found", &raft.read_indexes_failed),
            ("etcd_server_slow_read_indexes", "Read points that timed out", &raft.read_indexes_slow),
            ("etcd_server_heartbeat_send_failures", "Heartbeats sent late", &raft.heartbeats_late),
            (
                "etcd_server_slow_apply",
                "Entries that took longer than --warning-apply-duration to apply",
                &raft.entries_slow,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        registry.register(
            "kv_server_batch_commands",
            "Commands that this member proposed as one entry",
            raft.batches.commands.clone(),
        );
        registry.register(
            "kv_server_log_sync_entries",
            "Entries of the log that shared a sync",
            raft.batches.log_entries.clone(),
        );
    }

    fn register_peers(&self, registry: &mut Registry) {
        let peers = &self.peers;
        registry.register("etcd_network_active_peers", "Live links to peers", peers.active.clone());
        registry.register("etcd_network_disconnected_peers", "Links lost", peers.disconnected.clone());
        registry.register("etcd_network_peer_sent_bytes", "Bytes sent to a peer", peers.sent_bytes.clone());
        registry.register(
            "etcd_network_peer_sent_failures",
            "Messages to a peer that were lost before they left",
            peers.send_failures.clone(),
        );
        registry.register(
            "etcd_network_peer_received_bytes",
            "Bytes received from a peer",
            peers.received_bytes.clone(),
        );
        registry.register(
            "etcd_network_peer_received_failures",
            "Streams of a peer that broke",
            peers.receive_failures.clone(),
        );
        registry.register(
            "etcd_network_peer_round_trip_time_seconds",
            "Round trip to a peer and back, by probing",
            peers.round_trip_seconds.clone(),
        );
    }
}
