//! Gauges that are read when /metrics is read: the store, Raft, and what never changes.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use api::etcdserverpb::AlarmType;
use state_machine::LeaseTable;

use super::handle::Member;
use api::version;
use config::FeatureGate;
use telemetry::metrics::show;
use transport::tls::ShownAddress;

/// One figure: name, help, value.
type Reading = (&'static str, &'static str, i64);

/// Gauges of a member, computed when metrics are collected.
#[derive(Debug)]
pub struct Gauges {
    leases: LeaseTable,
    features: Vec<FeatureGate>,
    member: GaugedMember,
}

impl Gauges {
    pub fn new(
        member: Arc<Member>,
        leases: LeaseTable,
        features: Vec<FeatureGate>,
        certificates: ShownAddress,
    ) -> Gauges {
        Gauges { leases, features, member: GaugedMember(member, certificates) }
    }
}

/// A member with its certificates; its Debug output is empty.
struct GaugedMember(Arc<Member>, ShownAddress);

impl std::fmt::Debug for GaugedMember {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Member")
    }
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        for (name, help, value) in self.figures() {
            show(&mut encoder, name, help, &ConstGauge::new(value))?;
        }
        let (granted, revoked) = self.leases.totals();
        let events = self.member.0.watching.stats().events;
        let memory = &self.member.0.admission.memory;
        let mut counters = vec![
            ("etcd_debugging_mvcc_events", "Events delivered, once for each watcher", events),
            ("etcd_debugging_lease_granted", "Leases granted, as applied here", granted),
            ("etcd_debugging_lease_revoked", "Leases revoked, as applied here", revoked),
        ];
        let of_v2 = ["etcd_debugging_store_expires", "etcd_debugging_store_watch_requests"];
        counters.extend(of_v2.map(|name| (name, "0: there is no v2 store", 0)));
        if memory.left().is_some() {
            counters.push((
                "kv_server_memory_short",
                "Requests that waited or failed for memory",
                memory.refused(),
            ));
        }
        for (name, help, count) in counters {
            show(&mut encoder, name, help, &ConstCounter::new(count))?;
        }
        if let Some(usage) = &self.member.0.usage {
            usage.encode(&mut encoder)?;
        }
        self.encode_features(&mut encoder)?;
        self.encode_certificates(&mut encoder)?;
        self.encode_alarms(&mut encoder)?;
        let member = format!("{:x}", self.member.0.ids.member);
        let labels = [
            ("etcd_server_id", "Id of this member, as a label", "server_id", member.as_str()),
            ("etcd_server_version", "Version of etcd's API, as a label", "server_version", version::ETCD),
            ("etcd_server_go_version", "There is no Go in this server", "server_go_version", "none"),
            (
                "etcd_cluster_version",
                "Version of the cluster, as a label",
                "cluster_version",
                version::CLUSTER_SHORT,
            ),
        ];
        for (name, help, label, value) in labels {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(1i64).encode(family.encode_family(&[(label, value)])?)?;
        }
        Ok(())
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Gauges {
    fn encode_features(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let (name, help) = ("etcd_server_feature_enabled", "1 if --feature-gates or the default has it on");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for gate in &self.features {
            let labels = [("name", gate.name), ("stage", gate.stage)];
            ConstGauge::new(i64::from(gate.is_on)).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn encode_certificates(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let ends = self.member.1.ends();
        if ends.is_empty() {
            return Ok(());
        }
        let name = "kv_server_certificate_not_after_timestamp_seconds";
        let help = "When the first certificate that a port shows expires";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (port, end) in ends {
            ConstGauge::new(end).encode(family.encode_family(&[("port", port)])?)?;
        }
        Ok(())
    }

    fn encode_alarms(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let alarms = self.member.0.alarms().unwrap_or_default();
        if alarms.is_empty() {
            return Ok(());
        }
        let (name, help) = ("etcd_debugging_server_alarms", "1 for each active alarm");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for alarm in alarms {
            let (member, kind) = (format!("{:x}", alarm.member_id), alarm.alarm);
            let kind = AlarmType::try_from(kind).map_or("UNKNOWN", |kind| kind.as_str_name());
            let labels = [("server_id", member.as_str()), ("alarm_type", kind)];
            ConstGauge::new(1i64).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn raft(&self) -> Vec<Reading> {
        let status = self.member.0.status();
        let leads = status.leader == Some(status.id);
        vec![
            ("etcd_server_has_leader", "1 if a leader is known", i64::from(status.leader.is_some())),
            ("etcd_server_is_leader", "1 if this member leads", i64::from(leads)),
            (
                "etcd_server_is_learner",
                "1 if this member has no vote",
                i64::from(self.member.0.roster.is_learner()),
            ),
            ("etcd_server_proposals_committed_total", "Last committed index", signed(status.commit.0)),
            ("etcd_server_proposals_applied_total", "Last applied index", signed(status.applied.0)),
            (
                "etcd_server_proposals_pending",
                "Proposals without an answer yet",
                signed(status.proposals_pending as u64),
            ),
            (
                "kv_server_command_level",
                "Level of commands that all members understand",
                i64::from(self.member.0.level.get().0),
            ),
            ("etcd_network_known_peers", "Other members", signed(self.member.0.roster.others().len() as u64)),
        ]
    }

    fn figures(&self) -> impl Iterator<Item = Reading> {
        let figures = self.raft().into_iter().chain(self.store()).chain(self.admission());
        figures.chain(self.watch()).chain(self.leases())
    }

    fn leases(&self) -> Vec<Reading> {
        vec![
            ("kv_server_leases", "Leases that exist", signed(self.leases.len() as u64)),
            ("etcd_debugging_store_watchers", "0: there is no v2 store", 0),
        ]
    }

    fn watch(&self) -> Vec<Reading> {
        let stats = self.member.0.watching.stats();
        let figures = [
            ("etcd_debugging_mvcc_watch_stream_total", "Open watch streams", stats.streams),
            ("etcd_debugging_mvcc_watcher_total", "Watchers", stats.watchers),
            ("etcd_debugging_mvcc_slow_watcher_total", "Watchers that read history", stats.lagging),
            ("etcd_debugging_mvcc_pending_events_total", "Watch responses not yet sent", stats.pending),
            ("kv_server_watch_ranges", "Distinct ranges of watchers", stats.ranges),
            ("kv_server_watch_key_bytes", "Bytes of the keys of watchers", stats.key_bytes),
            ("kv_server_watch_body_bytes", "Encoded events that wait for streams", stats.body_bytes),
        ];
        figures.map(|(name, help, value)| (name, help, signed(value as u64))).into()
    }

    fn admission(&self) -> Vec<Reading> {
        let admission = &self.member.0.admission;
        let [answers, places, commands] =
            [&admission.answers, &admission.places, &admission.commands].map(|gate| gate.gauges());
        let [turns, hashes] = [&admission.turns, &admission.hashes].map(|gate| gate.gauges());
        let reads_waiting = answers.1 + places.1 + turns.1 + hashes.1;
        let open = turns.0 + hashes.0 + self.member.0.metrics.keys.large_ranges.get().unsigned_abs();
        let mut figures = vec![
            ("etcd_mvcc_db_open_read_transactions", "Reads on threads, and large ranges", signed(open)),
            ("kv_server_answer_bytes", "Memory admitted for answers held whole", signed(answers.0)),
            ("kv_server_large_range_bytes", "Memory admitted for large ranges", signed(places.0)),
            ("kv_server_large_command_bytes", "Large commands proposed and unanswered", signed(commands.0)),
            ("kv_server_large_commands_waiting", "Large commands in line", signed(commands.1 as u64)),
            ("kv_server_reads_running", "Reads on blocking threads", signed(turns.0 + hashes.0)),
            ("kv_server_reads_waiting", "Reads in line", signed(reads_waiting as u64)),
        ];
        if let Some(bytes) = admission.memory.left() {
            figures.push(("kv_server_memory_left_bytes", "What --memory-limit leaves", signed(bytes)));
        }
        figures
    }

    fn store(&self) -> Vec<Reading> {
        let member = &self.member.0;
        let size = member.store.size();
        vec![
            (
                "etcd_mvcc_db_total_size_in_bytes",
                "Bytes that the store takes, on the disk or in memory, whichever is more",
                signed(size.allocated),
            ),
            (
                "kv_server_store_memory_bytes",
                "Bytes of memory that keys and their histories are counted with against the quota",
                signed(size.memory),
            ),
            (
                "kv_server_removed_file_bytes",
                "Bytes of deleted block files that large ranges and sent snapshots keep open",
                signed(member.store.removed_bytes()),
            ),
            ("etcd_mvcc_db_total_size_in_use_in_bytes", "Bytes that live records need", signed(size.in_use)),
            (
                "etcd_server_quota_backend_bytes",
                "Size at which writes are refused",
                member.limits.quota_bytes,
            ),
            ("etcd_debugging_auth_revision", "Auth revision", signed(member.auth.table.revision())),
            ("etcd_debugging_mvcc_keys_total", "Live keys", member.live_keys()),
            ("etcd_debugging_mvcc_current_revision", "Newest revision", member.store.revision()),
            (
                "etcd_debugging_mvcc_compact_revision",
                "Newest compacted revision",
                member.store.compact_revision(),
            ),
        ]
    }
}
