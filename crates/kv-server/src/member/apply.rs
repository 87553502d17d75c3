//! Applies the log to the store: the machine of raft-node, implemented by state-machine.
//!
//! * The machine rejects a command that cannot be decoded, on every member alike, and it is logged here. A
//!   store failure is fatal: continuing would let this member diverge from its peers.
//! * Applying blocks here, and only here, when the store has too much in memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use mvcc::{Present, Store};
use prometheus_client::metrics::histogram::Histogram;
use raft_node::{Answer, Cost, Fatal, Host, LogIndex, LogPosition, LogSync, Membership, Observer};
use state_machine::{EtcdMachine, Outcome};
use std::sync::Arc;

use super::checkpointer::Checkpoints;
use super::fence::Fence;
use super::lease_clock::ClockAnchor;
use super::received_snapshot::ReceivePlace;
use data_dir::bootstrap::IMPORTED_AT;
use telemetry::metrics::{Applied, Metrics};

/// The replicated state machine and the thread of its store.
pub struct Apply {
    machine: EtcdMachine,
    checkpoints: Checkpoints,
    incoming: ReceivePlace,
    metrics: Arc<Metrics>,
    /// Newest compaction that was reported to the store thread.
    compacted: i64,
    /// The lease clock, which the last entries may have moved.
    anchored: Arc<ClockAnchor>,
    lease_clock: i64,
    member_id: u64,
    fence: Arc<Fence>,
}

impl Apply {
    pub fn new(
        machine: EtcdMachine,
        checkpoints: Checkpoints,
        incoming: ReceivePlace,
        metrics: Arc<Metrics>,
        anchored: Arc<ClockAnchor>,
        member_id: u64,
        fence: Arc<Fence>,
    ) -> Apply {
        fence.set(machine.is_corrupt(member_id));
        let (compacted, lease_clock) = (machine.store().compact_revision(), machine.lease_clock());
        Apply { machine, checkpoints, incoming, metrics, compacted, anchored, lease_clock, member_id, fence }
    }

    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    pub fn store(&self) -> &Store {
        self.machine.store()
    }

    /// Returns the callbacks that Raft needs from the rest of the member. `on_members` is called when the
    /// machine's member list may have changed.
    pub fn host(&self, on_members: Box<dyn Fn() + Send + Sync>) -> RaftHost {
        RaftHost { checkpoints: self.checkpoints.clone(), incoming: self.incoming.clone(), on_members }
    }

    /// Returns an observer that counts Raft's metrics and logs entries that take longer than `apply_slow`.
    pub fn observer(&self, apply_slow: Duration) -> RaftObserver {
        let entry = Applied { op: "Entry", success: "true", version: "v3" };
        let apply_seconds = self.metrics.raft.apply_seconds.get_or_create(&entry).clone();
        RaftObserver {
            metrics: Arc::clone(&self.metrics),
            member_id: self.member_id,
            apply_slow,
            apply_seconds,
            leads: AtomicBool::new(false),
        }
    }

    /// Notes when a new lease clock was applied.
    fn note_lease_clock(&mut self) {
        let clock = self.machine.lease_clock();
        if clock != self.lease_clock {
            self.lease_clock = clock;
            self.anchored.set(clock);
        }
    }
}

impl raft_node::StateMachine for Apply {
    type Outcome = Outcome;

    fn applied(&self) -> LogPosition {
        self.machine.applied()
    }

    fn apply(&mut self, at: LogPosition, command: &Bytes, answer: Answer) -> Result<Option<Outcome>, Fatal> {
        self.metrics.disk.command_bytes.inc_by(command.len() as u64);
        let undecodable = self.machine.undecodable();
        let outcome = self.machine.apply(at, command, answer);
        if self.machine.undecodable() != undecodable {
            tracing::warn!(
                index = at.index.0,
                bytes = command.len(),
                "rejected a command that cannot be decoded"
            );
        }
        outcome.map_err(Fatal::of)
    }

    fn apply_change(
        &mut self,
        at: LogPosition,
        command: &Bytes,
        answer: Answer,
    ) -> Result<Option<Outcome>, Fatal> {
        self.metrics.disk.command_bytes.inc_by(command.len() as u64);
        let outcome = self.machine.apply_change(at, command, answer);
        outcome.map_err(Fatal::of)
    }

    fn membership(&self) -> Option<Membership> {
        // Each of them was read when the machine was opened or installed, or written by it since.
        let members = state_machine::members(self.machine.store()).ok()?;
        let ids = |is_learner| {
            let of_kind = members.iter().filter(move |member| member.is_learner == is_learner);
            of_kind.map(|member| member.id).collect()
        };
        Some(Membership { voters: ids(false), learners: ids(true) })
    }

    fn end_entry(&mut self, at: LogPosition) -> Result<(), Fatal> {
        let pressure = self.machine.end_entry(at).map_err(Fatal::of)?;
        let compacted = self.machine.store().compact_revision();
        if compacted != self.compacted {
            self.compacted = compacted;
            self.checkpoints.compaction_began();
        }
        self.note_lease_clock();
        self.fence.set(self.machine.is_corrupt(self.member_id));
        self.checkpoints.entry_ended(pressure, at.index)
    }

    fn cost(&mut self, command: &Bytes) -> Option<Cost> {
        self.machine.cost(command)
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.machine.store().has_room(bytes)
    }

    fn values_are_near(&self) -> bool {
        self.machine.store().fits_in_cache()
    }

    /// Restarts the log at `at`, durably: the install must complete or the member exits. After a crash the
    /// next start completes it.
    fn install(&mut self, at: LogPosition) -> Result<(), Fatal> {
        let lost = || Fatal::new(format!("install a snapshot: no received store reaches {at:?}"));
        let received = self.incoming.take(at).ok_or_else(lost)?;
        let (staged, key) = received.into_parts();
        // An imported state to which no entry was applied has served no client, and may be of any revision.
        let is_wrong = self.fence.is_up() || self.machine.applied() == IMPORTED_AT;
        let present = if is_wrong { Present::Wrong } else { Present::Right };
        self.checkpoints.install(staged, present)?;
        drop(key); // Only now may another store be received.
        self.machine.installed().map_err(Fatal::of)?;
        self.compacted = self.machine.store().compact_revision();
        self.note_lease_clock();
        self.fence.set(self.machine.is_corrupt(self.member_id));
        self.fence.note_installed(at.index);
        Ok(())
    }
}

/// Callbacks that Raft needs from the rest of the member.
pub struct RaftHost {
    checkpoints: Checkpoints,
    incoming: ReceivePlace,
    on_members: Box<dyn Fn() + Send + Sync>,
}

impl Host for RaftHost {
    fn checkpoint_wanted(&self, _index: LogIndex) {
        self.checkpoints.request_checkpoint();
    }

    fn snapshot_ignored(&self, at: LogPosition) {
        tracing::info!(applied = at.index.0, "received snapshot is not needed");
        self.incoming.discard_soon(at);
    }

    fn membership_applied(&self, _membership: &Membership) {
        (self.on_members)();
    }
}

/// Counts Raft's metrics.
pub struct RaftObserver {
    metrics: Arc<Metrics>,
    member_id: u64,
    apply_slow: Duration,
    apply_seconds: Histogram,
    /// True while this member leads.
    leads: AtomicBool,
}

impl Observer for RaftObserver {
    fn leader_changed(&self, leader: Option<u64>) {
        let member = format!("{:x}", self.member_id);
        self.leads.store(leader == Some(self.member_id), Ordering::Relaxed);
        match leader {
            Some(leader) => {
                self.metrics.raft.leader_changes.inc();
                tracing::info!(
                    local_member_id = member,
                    leader = format!("{leader:x}"),
                    "raft: elected leader"
                );
            }
            None => tracing::warn!(local_member_id = member, "raft: lost leader"),
        }
    }

    fn log_synced(&self, sync: LogSync) {
        if base::mutant("uncounted-syncs") {
            return;
        }
        let disk = &self.metrics.disk;
        disk.wal_bytes.inc_by(i64::try_from(sync.bytes).unwrap_or(i64::MAX));
        self.metrics.raft.sync_entries.observe(sync.entries as f64);
    }

    fn batch_proposed(&self, commands: usize, _bytes: usize) {
        self.metrics.raft.batch_commands.observe(commands as f64);
    }

    fn proposals_failed(&self, count: usize) {
        self.metrics.raft.proposals_failed.inc_by(count as u64);
    }

    fn entry_applied(&self, commands: usize, took: Duration) {
        self.apply_seconds.observe(took.as_secs_f64());
        if took > self.apply_slow {
            self.metrics.raft.entries_slow.inc();
            tracing::warn!(commands, took = ?took, expected_duration = ?self.apply_slow, "apply request took too long");
        }
    }

    fn read_points_failed(&self, count: usize) {
        self.metrics.raft.read_indexes_failed.inc_by(count as u64);
    }

    fn tick_late(&self, late: Duration) {
        if !self.leads.load(Ordering::Relaxed) {
            return;
        }
        self.metrics.raft.heartbeats_late.inc();
        tracing::warn!(
            exceeded_duration = ?late,
            "leader failed to send out heartbeat on time; took too long, leader is overloaded likely from slow disk"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::DescriptorEncoder;
    use telemetry::metrics::Exposition;
    use testkit::exposition::samples;

    #[derive(Debug)]
    struct NoOthers;

    impl Collector for NoOthers {
        fn encode(&self, _: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
            Ok(())
        }
    }

    /// The samples by name; of a metric with labels, the sum.
    fn counted(metrics: &Arc<Metrics>) -> impl Fn(&str) -> f64 {
        let samples = samples(&Exposition::new(metrics, Box::new(NoOthers)).text());
        move |name| samples.iter().filter(|sample| sample.name == name).map(|sample| sample.value).sum()
    }

    #[test]
    fn each_event_of_raft_is_counted_under_its_name() {
        let second = Duration::from_secs(1);
        let observer_of = |metrics: &Arc<Metrics>| {
            let entry = Applied { op: "Entry", success: "true", version: "v3" };
            let apply_seconds = metrics.raft.apply_seconds.get_or_create(&entry).clone();
            let (metrics, leads) = (Arc::clone(metrics), AtomicBool::new(false));
            RaftObserver { metrics, member_id: 1, apply_slow: second, apply_seconds, leads }
        };
        type Event = fn(&RaftObserver);
        let synced: Event =
            |raft| raft.log_synced(LogSync { entries: 3, bytes: 100, took: Duration::from_millis(1) });
        let applied: Event = |raft| raft.entry_applied(2, Duration::from_secs(2));
        let late: Event = |raft| {
            raft.leader_changed(Some(1));
            raft.tick_late(Duration::from_secs(1));
        };
        let cases: [(Event, &str, f64); 12] = [
            (synced, "etcd_disk_wal_write_bytes_total", 100.0),
            (synced, "kv_server_log_sync_entries_sum", 3.0),
            (|raft| raft.batch_proposed(5, 10), "kv_server_batch_commands_sum", 5.0),
            (|raft| raft.proposals_failed(2), "etcd_server_proposals_failed_total", 2.0),
            (applied, "etcd_server_slow_apply_total", 1.0),
            (applied, "etcd_server_apply_duration_seconds_sum", 2.0),
            (|raft| raft.entry_applied(1, Duration::ZERO), "etcd_server_slow_apply_total", 0.0),
            (|raft| raft.read_points_failed(4), "etcd_server_read_indexes_failed_total", 4.0),
            (|raft| raft.leader_changed(Some(2)), "etcd_server_leader_changes_seen_total", 1.0),
            (|raft| raft.leader_changed(None), "etcd_server_leader_changes_seen_total", 0.0),
            (late, "etcd_server_heartbeat_send_failures_total", 1.0),
            // A follower sends no heartbeats.
            (|raft| raft.tick_late(Duration::from_secs(1)), "etcd_server_heartbeat_send_failures_total", 0.0),
        ];
        for (number, (event, name, wanted)) in cases.into_iter().enumerate() {
            let metrics = Arc::new(Metrics::default());
            event(&observer_of(&metrics));
            assert_eq!(counted(&metrics)(name), wanted, "case {number}: {name}");
        }
    }
}
