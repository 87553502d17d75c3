//! Where the log meets the store: raft-node's machine, played by state-machine.
//!
//! * A command that cannot be decoded is refused by the machine, on every member alike, and logged here. A
//!   store that breaks is fatal: going on would let this member drift from the others.
//! * Applying waits here, and only here, when the store has too much in memory.

use std::time::Duration;

use bytes::Bytes;
use mvcc::{Present, Store};
use raft_node::{Answer, Cost, Fatal, Host, LogIndex, LogPosition, LogSync, Membership, Observer};
use state_machine::{EtcdMachine, Outcome};
use std::sync::Arc;

use super::checkpointer::Checkpoints;
use super::fence::Fence;
use super::lease_clock::ClockAnchor;
use super::received_snapshot::ReceivePlace;
use data_dir::bootstrap::IMPORTED_AT;
use telemetry::metrics::Metrics;

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

    /// What Raft needs from the rest of the member. `on_members` is called when the machine's list of members
    /// may be another one.
    pub fn host(&self, on_members: Box<dyn Fn() + Send + Sync>) -> RaftHost {
        RaftHost { checkpoints: self.checkpoints.clone(), incoming: self.incoming.clone(), on_members }
    }

    /// Counts Raft's figures. An entry that takes longer than `apply_slow` is logged as well.
    pub fn observer(&self, apply_slow: Duration) -> RaftObserver {
        RaftObserver { metrics: Arc::clone(&self.metrics), member_id: self.member_id, apply_slow }
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
                "a command cannot be decoded and is refused"
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

    /// The log begins anew at `at`, durably, so this is carried out or the member ends; after a crash the
    /// next start does it.
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

/// What Raft needs from the rest of the member.
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
        tracing::info!(applied = at.index.0, "a received snapshot is not needed");
        self.incoming.discard_soon(at);
    }

    fn membership_applied(&self, _membership: &Membership) {
        (self.on_members)();
    }
}

/// Raft's figures, counted.
pub struct RaftObserver {
    metrics: Arc<Metrics>,
    member_id: u64,
    apply_slow: Duration,
}

impl Observer for RaftObserver {
    fn leader_changed(&self, leader: Option<u64>) {
        let member = format!("{:x}", self.member_id);
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
        if took > self.apply_slow {
            self.metrics.raft.entries_slow.inc();
            tracing::warn!(commands, took = ?took, expected_duration = ?self.apply_slow, "apply request took too long");
        }
    }

    fn read_points_failed(&self, count: usize) {
        self.metrics.raft.read_indexes_failed.inc_by(count as u64);
    }

    fn tick_late(&self, late: Duration) {
        self.metrics.raft.heartbeats_late.inc();
        tracing::debug!(late = ?late, "a tick came late");
    }
}
