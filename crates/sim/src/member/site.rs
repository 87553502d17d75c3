//! A member and its environment: disks that survive it, and, while it is up, the production code.
//!
//! Failures after an injected disk error are not breaches: the member stops, like the process
//! would, and is restarted later. Any other failure is a finding.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use mvcc::{CompactProgress, Pressure, Staging, Store};
use raft_node::{
    Applier, ApplyJob, Entrance, Event, Fatal, Gauges, Inquiry, LogIndex, LogPosition, Membership, Node,
    NodeOutput, Permit, PersistJob, RequestOrigin, Role, StepResult, StreamNumber, SyncRelease, Term,
    persist,
};
use state_machine::level::RaiseInquiry;
use state_machine::{CommandLevel, Outcome};
use wal::testing::{Crash, Fault, SimFs};
use wal::{Reader, Wal};

use super::leasing::Leasing;
use super::machine::{Machine, SharedStoreOwner};
use super::roster::{Roster, peer_url};
use super::store_disk::StoreDisk;
use super::watching::MemberHub;
use crate::chance::Chance;
use crate::count::Statistic;
use crate::oracle::Breach;
use crate::panics::{lock, quietly};
use crate::plan::{KnownBug, RunConfig};
use crate::requests::RequestId;

pub(crate) type Job = ApplyJob<RequestId, RequestId>;
pub(super) type LocalNode = Node<RequestId, RequestId>;
pub(crate) type LocalTurn = NodeOutput<RequestId, RequestId>;
pub(crate) type LocalDone = StepResult<RequestId, RequestId, Outcome>;

#[derive(Debug)]
pub(crate) enum MemberError {
    /// An injected disk error: the member stops.
    Disk(u64),
    /// The log was corrupted, and the start was rejected.
    Damaged(u64),
    TooOld(u64),
    Breach(Breach),
}

impl<T: Into<Breach>> From<T> for MemberError {
    fn from(breach: T) -> MemberError {
        MemberError::Breach(breach.into())
    }
}

/// Speed of a member's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// Duration of a tick, in thousandths of the nominal one.
    pub stretch: u64,
    pub until: u64,
}

/// Additional latency of a member's log disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiskDelay {
    /// Maximum sync duration until `until`.
    pub sync_max: u64,
    pub until: u64,
    /// Time before which no sync completes.
    pub stalled_until: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberStage {
    Unborn,
    /// Running, or being restarted. Possibly removed without having learned of it.
    Present,
    /// Stopped for good after it learned of its removal.
    Stopped,
}

/// Members known to a member without a store.
#[derive(Clone, Debug)]
pub(crate) enum StartKnowledge {
    Founder(Membership),
    /// Added to a running cluster, or replaces a member that lost its disks. None before its first
    /// start.
    Joined(Option<Membership>),
}

pub(crate) struct SimMember {
    pub id: u64,
    /// Number of starts. Events of an earlier run are ignored.
    pub boots: u64,
    pub up: Option<RunningMember>,
    pub paused_until: u64,
    pub clock: Clock,
    pub disk_delay: DiskDelay,
    /// Last reported gauges in this run.
    pub seen: Option<Gauges>,
    pub disk: SimFs,
    pub store_disk: StoreDisk,
    pub config: RunConfig,
    /// Synced log, available even while the member is down.
    pub synced: Option<Reader<SimFs>>,
    /// Times until which the log's disk and the store's disk are full.
    pub log_full_until: u64,
    pub store_full_until: u64,
    /// Time until which the store's disk is stalled.
    pub store_stalled_until: u64,
    /// True if it was killed between two writes of the log: no group is torn.
    pub tail_is_whole: bool,
    /// True if it will crash as soon as it has data to write.
    pub doomed: bool,
    /// True if one of its disks is set to fail.
    pub armed: bool,
    /// True if its log was corrupted: it must not start from it.
    pub damaged: bool,
    /// True if its store was wiped and is not replaced yet.
    pub wiped: bool,
    pub listens_at: Vec<String>,
    /// Position in the life cycle, as far as the simulator knows.
    pub stage: MemberStage,
    /// Initial knowledge of the members.
    pub origin: StartKnowledge,
    /// True until it has received the complete log after being added.
    pub is_fresh: bool,
    pub term_seen: Term,
    /// Last index of the wiped log, until it has recovered the log up to there.
    pub lost_log: Option<LogIndex>,
    /// Wiped logs, whose entries had been acknowledged.
    wiped_logs: Vec<Reader<SimFs>>,
    pub level: CommandLevel,
    /// Time of the last version change.
    pub level_since: u64,
    /// True after a downgrade, until the next upgrade.
    pub went_back: bool,
    known_bug: KnownBug,
    /// State of the disk before its last sync, if it is going to lose that sync.
    forgetful: Option<SimFs>,
}

/// Inquiry of a member, and its current round.
pub(crate) struct InquiryRound {
    pub inquiry: Inquiry,
    pub number: u64,
}

pub(crate) struct RunningMember {
    pub node: LocalNode,
    pub store: Store,
    /// Jobs for the log disk.
    pub jobs: Vec<PersistJob>,
    /// Results of a sync, for an interrupted log thread.
    pub released: VecDeque<SyncRelease>,
    /// Jobs for the state machine.
    pub work: VecDeque<Job>,
    pub wal: Wal<SimFs>,
    pub applier: Applier<Machine, RequestId>,
    pub store_owner: SharedStoreOwner,
    /// A store being received, and the number of its stream.
    pub staging: Option<(u64, StreamNumber, Staging)>,
    /// Responses of other members, while this one needs their confirmation.
    pub inquiry: Option<InquiryRound>,
    /// Levels of other members, while this leader verifies them, and the start of its queries.
    pub raising: Option<(RaiseInquiry, u64)>,
    pub watching: MemberHub,
    pub leasing: Leasing,
    /// Last announced command level of each other member.
    pub announced: BTreeMap<u64, CommandLevel>,
    pub roster: Roster,
    /// Admission queue, as in the process.
    pub entrance: Entrance,
    pub permits: BTreeMap<RequestId, Permit>,
    /// Number of installs when it discarded its state.
    pub reseeded_at: Option<u64>,
}

/// Path of a command through the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandRoute {
    Batched,
    /// Proposed as a membership change.
    AsChange,
}

impl RunningMember {
    /// Proposes a command, unless admission rejects it.
    pub fn propose(
        &mut self,
        origin: RequestOrigin,
        command: Bytes,
        request: RequestId,
        travel: CommandRoute,
    ) -> bool {
        let unapplied = self.node.gauges().commit.entries_since(self.applier.applied().index);
        let Ok(permit) = self.entrance.propose(origin, command.len(), unapplied) else { return false };
        self.permits.insert(request, permit);
        match travel {
            CommandRoute::Batched => self.node.offer(command, request),
            CommandRoute::AsChange => self.node.offer_change(command, request),
        }
        true
    }

    /// Requests a read index, unless admission rejects it.
    pub fn ask(&mut self, origin: RequestOrigin, request: RequestId) -> bool {
        let Ok(permit) = self.entrance.read(origin) else { return false };
        self.permits.insert(request, permit);
        self.node.ask(request);
        true
    }
}

impl SimMember {
    pub fn new(id: u64, known_bug: KnownBug, config: &RunConfig, origin: StartKnowledge) -> SimMember {
        let joins = matches!(origin, StartKnowledge::Joined(_));
        SimMember {
            id,
            stage: if joins { MemberStage::Unborn } else { MemberStage::Present },
            origin,
            is_fresh: joins,
            term_seen: Term(0),
            boots: 0,
            up: None,
            paused_until: 0,
            clock: Clock { stretch: 1000, until: 0 },
            disk_delay: DiskDelay::default(),
            seen: None,
            disk: SimFs::new(),
            store_disk: StoreDisk::default(),
            config: config.clone(),
            synced: None,
            log_full_until: 0,
            store_full_until: 0,
            store_stalled_until: 0,
            tail_is_whole: false,
            doomed: false,
            armed: false,
            damaged: false,
            wiped: joins,
            listens_at: vec![peer_url(id, 0)],
            lost_log: joins.then_some(LogIndex::ZERO),
            wiped_logs: Vec::new(),
            level: CommandLevel::OWN,
            level_since: 0,
            went_back: false,
            known_bug,
            forgetful: None,
        }
    }

    pub fn be_of_level(&mut self, level: CommandLevel, now: u64) {
        if level != self.level {
            self.level_since = now;
        }
        (self.went_back, self.level) = (level < self.level && self.boots > 0, level);
    }

    /// Crashes the process or the machine, possibly during a write. Returns the kind of crash.
    pub fn crash(&mut self, chance: &mut Chance) -> Vec<Statistic> {
        let Some(mut up) = self.up.take() else { return Vec::new() };
        let mut counts = Vec::new();
        self.tail_is_whole = false;
        let is_writing = !up.jobs.is_empty();
        if !up.jobs.is_empty() && chance.per_mille(800) {
            self.disk.fail_at(self.disk.calls() + chance.within(0, 4), Fault::Stop);
            // It may have completed, but was not reported.
            let _ = persist(&mut up.wal, std::mem::take(&mut up.jobs));
            counts.push(Statistic::CrashesInWrite);
        }
        if chance.per_mille(300) {
            self.store_disk.fail_after(chance.within(0, 12), Fault::Stop);
            let maintainer = &mut lock(&up.store_owner).maintainer;
            let _ = maintainer.persist();
            let _ = maintainer.compact_step(4);
            counts.push(Statistic::CrashesInCheckpoint);
        }
        if let Some(before) = self.forgetful.take() {
            self.disk = before;
            return counts;
        }
        let crash = *chance.pick(&Crash::ALL);
        self.tail_is_whole = crash == Crash::Kill && !is_writing;
        // The two disks have separate write caches.
        let of_store = if crash == Crash::Kill { crash } else { *chance.pick(&Crash::ALL[1..]) };
        self.after_crash(crash, of_store, chance);
        counts.push(match crash {
            Crash::Kill => Statistic::Kills,
            Crash::Synced => Statistic::PowerCuts,
            Crash::Subset => Statistic::PowerCutsSubset,
            Crash::Torn => Statistic::PowerCutsTorn,
        });
        counts
    }

    /// Stops the process because its disk failed. The kernel continues.
    pub fn stop_failed(&mut self, chance: &mut Chance) {
        (self.up, self.tail_is_whole) = (None, false);
        self.after_crash(Crash::Kill, Crash::Kill, chance);
    }

    fn after_crash(&mut self, of_log: Crash, of_store: Crash, chance: &mut Chance) {
        self.disk = self.disk.crashed(of_log, &mut || chance.per_mille(500));
        self.store_disk = self.store_disk.crashed(of_store, &mut || chance.per_mille(500));
        (self.paused_until, self.armed) = (0, false);
    }

    /// Makes full disks reject writes, in this run of the member and in those that start while they
    /// are full.
    pub fn fill_disks(&mut self, now: u64) {
        if self.log_full_until > now {
            self.armed = true;
            self.disk.fail_from(self.disk.calls(), Fault::NoSpace);
        }
        if self.store_full_until > now {
            self.armed = true;
            self.store_disk.fill();
        }
    }

    pub fn disarm(&mut self) {
        self.armed = false;
        (self.log_full_until, self.store_full_until, self.store_stalled_until) = (0, 0, 0);
        self.disk.heal();
        self.disk.fail_at(u64::MAX, Fault::InputOutput);
        self.store_disk.disarm();
    }

    /// Reports whether the entry is durable on this member's disk: synced in the log, or trimmed
    /// after a checkpoint. A wiped log counts too, since it contained the entry when it was
    /// acknowledged.
    pub fn holds(&self, at: LogPosition) -> bool {
        self.synced
            .iter()
            .chain(&self.wiped_logs)
            .any(|synced| synced.start().index >= at.index || synced.term(at.index) == Some(at.term))
    }

    pub fn has_entries(&self) -> bool {
        self.synced.as_ref().is_some_and(|synced| synced.last().index > LogIndex::ZERO)
    }

    pub fn wipe(&mut self) {
        assert!(self.up.is_none(), "member {} is up", self.id);
        (self.disk, self.store_disk) = (SimFs::new(), StoreDisk::default());
        (self.wiped, self.damaged, self.tail_is_whole, self.is_fresh) = (false, false, false, false);
        if self.joins() {
            (self.wiped, self.origin) = (true, StartKnowledge::Joined(None));
        }
        if let Some(log) = self.synced.take() {
            self.lost_log = self.lost_log.max(Some(log.last().index));
            self.wiped_logs.push(log);
        }
    }

    /// Reports whether the state before its log is unknown to it.
    pub fn joins(&self) -> bool {
        matches!(self.origin, StartKnowledge::Joined(_))
    }

    /// Makes it start as a joining member from now.
    pub fn joins_anew(&mut self) {
        self.origin = StartKnowledge::Joined(None);
    }

    /// Reports whether it lacks acknowledged data, log or store, or has discarded its state.
    pub fn lacks_data(&self) -> bool {
        let given_up = |up: &RunningMember| up.reseeded_at == Some(up.applier.machine().installs);
        self.wiped || self.damaged || self.lost_log.is_some() || self.up.as_ref().is_some_and(given_up)
    }

    pub fn turn(&mut self) -> Result<LocalTurn, MemberError> {
        self.ask_node(|node| node.turn())
    }

    pub fn handle(&mut self, event: Event) -> Result<(), MemberError> {
        self.ask_node(|node| node.handle(event))
    }

    fn ask_node<T>(
        &mut self,
        ask: impl FnOnce(&mut LocalNode) -> Result<T, Fatal>,
    ) -> Result<T, MemberError> {
        let up = self.up.as_mut().expect("only a running member turns");
        run_step(self.id, self.armed, || ask(&mut up.node))
    }

    pub fn sync(&mut self) -> Result<(), MemberError> {
        let up = self.up.as_mut().expect("only a running member syncs");
        if self.known_bug == KnownBug::DisksForget {
            self.forgetful = Some(self.disk.crashed(Crash::Kill, &mut || true));
        }
        let jobs = std::mem::take(&mut up.jobs);
        let (receipt, _) = persist(&mut up.wal, jobs).map_err(|error| self.log_trouble("persist", &error))?;
        let up = self.up.as_mut().expect("it is up");
        receipt.release(|released| up.released.push_back(released));
        Ok(())
    }

    pub fn answered(&mut self, request: RequestId) {
        self.up.as_mut().and_then(|up| up.permits.remove(&request));
    }

    pub fn is_full(&self) -> bool {
        self.up.as_ref().is_some_and(|up| up.applier.machine().pressure == Pressure::Full)
    }

    pub fn apply_next(&mut self) -> Result<Option<LocalDone>, MemberError> {
        let up = self.up.as_mut().expect("only a running member applies");
        let Some(job) = up.work.pop_front() else { return Ok(None) };
        self.apply_job(job).map(Some)
    }

    pub fn apply_job(&mut self, job: Job) -> Result<LocalDone, MemberError> {
        let up = self.up.as_mut().expect("only a running member applies");
        up.applier.apply(job).map_err(|fatal| self.fatal(&fatal))
    }

    /// Writes a checkpoint and returns its position.
    pub fn checkpoint(&mut self) -> Result<LogPosition, MemberError> {
        let persisted = lock(self.store_owner()).maintainer.persist();
        let persisted = persisted.map_err(|error| self.store_trouble("checkpoint", &error))?;
        Ok(persisted.applied)
    }

    /// Runs a few steps of physical compaction; true if a compaction finished.
    pub fn sweep(&mut self) -> Result<bool, MemberError> {
        for _ in 0..4 {
            let step = lock(self.store_owner()).maintainer.compact_step(4);
            match step.map_err(|error| self.store_trouble("compact", &error))? {
                CompactProgress::More => {}
                CompactProgress::Idle | CompactProgress::Waiting => return Ok(false),
                CompactProgress::Finished { .. } => return Ok(true),
            }
        }
        Ok(false)
    }

    pub fn store_owner(&self) -> &SharedStoreOwner {
        &self.up.as_ref().expect("only a running member has its store open").store_owner
    }

    pub fn leads(&self) -> bool {
        self.up.as_ref().is_some_and(|up| up.node.gauges().role == Role::Leader)
    }

    pub fn applied(&self) -> LogIndex {
        self.up.as_ref().map_or(LogIndex::ZERO, |up| up.applier.applied().index)
    }

    pub fn fatal(&self, fatal: &Fatal) -> MemberError {
        trouble(self.id, "", fatal)
    }

    pub fn log_trouble(&self, attempt: &str, error: &wal::Error) -> MemberError {
        match error {
            wal::Error::Poisoned => MemberError::Disk(self.id),
            wal::Error::Corrupt { .. } if self.damaged => MemberError::Damaged(self.id),
            _ => trouble(self.id, attempt, error),
        }
    }

    pub fn store_trouble(&self, attempt: &str, error: &mvcc::Error) -> MemberError {
        match error {
            mvcc::Error::Poisoned => MemberError::Disk(self.id),
            _ => trouble(self.id, attempt, error),
        }
    }
}

/// Runs a step of a node.
///
/// raft-rs panics if the log cannot be read. In production that panic terminates the driver's
/// thread, and the member with it; so it does here, if one of its disks was set to fail.
pub(crate) fn run_step<T>(
    id: u64,
    armed: bool,
    step: impl FnOnce() -> Result<T, Fatal>,
) -> Result<T, MemberError> {
    if !armed {
        return step().map_err(|fatal| trouble(id, "", &fatal));
    }
    let is_disk = |said: &str| {
        said.contains("log is temporarily unavailable") || said.contains("LogTemporarilyUnavailable")
    };
    match quietly(step) {
        Ok(answer) => answer.map_err(|fatal| trouble(id, "", &fatal)),
        Err(said) if is_disk(&said) => Err(MemberError::Disk(id)),
        Err(said) => Err(format!("member {id} panicked: {said}").into()),
    }
}

/// Classifies an error. Only injected errors have the error numbers of a kernel.
fn trouble(id: u64, attempt: &str, error: &dyn std::error::Error) -> MemberError {
    let text = format!("member {id}: {attempt} {}", base::causes(error));
    if text.contains("(os error 5)") || text.contains("(os error 28)") {
        return MemberError::Disk(id);
    }
    if text.contains("this version is too old") {
        return MemberError::TooOld(id);
    }
    text.into()
}

impl SimMember {
    /// Discards the snapshot staged at `at`, which Raft does not need.
    pub fn discard(&mut self, at: LogPosition) {
        let disk = self.store_disk.clone();
        if lock(self.store_owner()).slot.take(at).is_some() {
            disk.discard_staged();
        }
    }

    /// Prepares to receive a stream from member `from`, replacing an older, incomplete one. Returns
    /// false if a complete store is staged, or this member knows a different leader.
    pub fn begin_receiving(&mut self, number: u64, from: u64) -> Result<bool, MemberError> {
        let leader = self.up.as_ref().and_then(|up| up.node.gauges().leader);
        let Some((slot, _)) = lock(self.store_owner()).slot.begin(from, leader, ()) else {
            return Ok(false);
        };
        let (disk, options) = (self.store_disk.clone(), self.store_options());
        let up = self.up.as_mut().expect("only a running member receives");
        up.staging = None;
        let staging = Staging::begin(Box::new(disk.incoming()), &options);
        let staging = staging.map_err(|error| self.store_trouble("receive a snapshot", &error))?;
        self.up.as_mut().expect("it is up").staging = Some((number, slot, staging));
        Ok(true)
    }

    /// Receives the next chunk of a stream. Returns false if another stream has replaced it.
    pub fn receive(&mut self, number: u64, chunk: &[u8]) -> Result<bool, MemberError> {
        let up = self.up.as_mut().expect("only a running member receives");
        let Some((_, slot, staging)) = up.staging.as_mut().filter(|staging| staging.0 == number) else {
            return Ok(false);
        };
        assert!(lock(&up.store_owner).slot.is_current(*slot), "the slot and the stream disagree");
        let added = staging.add(chunk);
        added.map_err(|error| self.store_trouble("receive a snapshot", &error))?;
        Ok(true)
    }

    /// Completes a stream: verifies the received store and makes it durable. Returns false if
    /// another stream has replaced it.
    pub fn stage(&mut self, number: u64) -> Result<bool, MemberError> {
        let up = self.up.as_mut().expect("only a running member receives");
        let Some((_, slot, staging)) = up.staging.take_if(|staging| staging.0 == number) else {
            return Ok(false);
        };
        let staged = staging.finish().map_err(|error| self.store_trouble("stage a snapshot", &error))?;
        Ok(lock(self.store_owner()).slot.finish(slot, staged.applied(), staged).is_ok())
    }
}
