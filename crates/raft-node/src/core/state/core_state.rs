//! What the core of one member knows, queries that change nothing, and the configuration of raft-rs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use raft::eraftpb::{HardState, Message};
use raft::{RawNode, StateRole};

use super::logger::logger;
use super::snapshots::Snapshots;
use crate::config::RaftLimits;
use crate::core::event::CoreSetup;
use crate::core::read_names::ReadNames;
use crate::log::{LogStore, NO_PART_TAKEN};
use crate::types::{
    ChangeCheck, EmptyLog, Fatal, LogIndex, LogPosition, Membership, NodeId, Role, StoreState, Term,
};

/// The core of one member. Its owner feeds it with [`Core::handle`] and carries out what [`Core::turn`] asks
/// for.
pub(crate) struct Core {
    pub(crate) raw: RawNode<LogStore>,
    /// Numbers of the jobs handed out and not yet durable.
    pub(crate) unsynced: VecDeque<u64>,
    /// Of those, the ones that replace entries, and the first index of each.
    pub(crate) replacing: VecDeque<(u64, LogIndex)>,
    /// The newest ready's number, whether or not it needed a job.
    pub(crate) newest: u64,
    /// The newest job that carries a new term or vote, while it is not durable.
    pub(crate) vote_unsynced: Option<u64>,
    /// Hard state or membership changed since the last job.
    pub(crate) state_due: bool,
    /// Committed changes of the membership, and the job that makes the commit index durable.
    pub(crate) uncertain: VecDeque<(LogIndex, u64)>,
    /// Batches that followers sent to this leader, waiting for the disk.
    pub(crate) forwarded: Vec<Bytes>,
    pub(crate) forwarded_bytes: usize,
    /// The leader, if messages to it were lost and none has come from it since.
    pub(crate) lost_leader: Option<NodeId>,
    /// Changes of the membership that wait for the one before them.
    pub(crate) changes: VecDeque<Bytes>,
    /// The member that a command removes.
    pub(crate) removed_by: fn(&[u8]) -> Option<NodeId>,
    /// Whether a change leaves the voters as they are.
    pub(crate) keeps_voters: fn(&[u8], &[NodeId]) -> bool,
    /// Whether a change may be made now.
    pub(crate) change_check: ChangeCheck,
    /// Leadership was offered to another voter, since the first of the changes removes this leader.
    pub(crate) has_offered_office: bool,
    /// Indexes of changes that were handed out and are not yet applied.
    pub(crate) changing: VecDeque<LogIndex>,
    /// Committed entries up to here were looked at for changes of the membership.
    pub(crate) examined: LogIndex,
    /// The newest change that was found there.
    pub(crate) newest_change: LogIndex,
    /// They were compared with the voters that a member without its store was given.
    pub(crate) examined_without_a_store: bool,
    /// A checkpoint whose changes of the membership are not yet reported as applied.
    pub(crate) checkpoint_due: Option<LogPosition>,
    /// The members as the machine reported them last. None yet of a store that was lost.
    pub(crate) listed: BTreeSet<NodeId>,
    /// Members that were removed since the start, one for each removal that was applied.
    pub(crate) former: BTreeSet<NodeId>,
    /// The commit index when the voters changed last. Entries after it are committed by the present ones.
    pub(crate) committed_before: LogIndex,
    /// A change made this member the only voter while it did not lead, and it has not stood since.
    pub(crate) is_left_alone: bool,
    /// The machine holds the membership, and changes it.
    pub(crate) follows_machine: bool,
    /// Of the read rounds under way, while this member leads.
    pub(crate) read_names: ReadNames,
    /// To ReadIndex requests of followers, for the next turn to send.
    pub(crate) answers: Vec<Message>,
    /// Last index that is committed and synced here.
    pub(crate) stable: LogIndex,
    /// Last index handed out for applying.
    pub(crate) handed: LogIndex,
    /// (index, bytes) of what was handed out and is not yet applied.
    pub(crate) applying: VecDeque<(LogIndex, usize)>,
    pub(crate) applying_bytes: usize,
    pub(crate) apply_bytes_max: usize,
    pub(crate) election_ticks: u32,
    pub(crate) snapshots: Snapshots,
    pub(crate) disk: DiskStall,
    /// Ticks since this member last knew a leader.
    pub(crate) leaderless_ticks: u32,
    pub(crate) refusals: RefusalLog,
    pub(crate) term_budget: TermBudget,
    /// Of the other members' states, while this one leads.
    pub(crate) reports: Reports,
    /// Members whose progress was forgotten lately, with the ticks until it may be forgotten again.
    pub(crate) forgotten: BTreeMap<NodeId, u32>,
    /// The log was empty at the start, and the other members have not confirmed this one yet.
    pub(crate) is_unconfirmed: bool,
}

impl Core {
    /// Builds the core over a log; `applied` is where the state machine stands. A lost store
    /// counts as having applied nothing but what the log no longer holds.
    pub fn new(setup: &CoreSetup, mut store: LogStore, applied: LogIndex) -> Result<Core, Fatal> {
        assert!(setup.apply_bytes_max > 0, "nothing could ever be applied");
        assert!(
            setup.timeout_ticks.start >= setup.election_ticks,
            "an election before the leader's time is up"
        );
        let applied = match setup.store {
            StoreState::Whole => applied,
            StoreState::Lost => store.start().index,
        };
        assert!(applied >= store.start().index, "a machine at {applied}, before the log's first entry");
        // What the machine holds was committed, even if the commit index of that time was never synced.
        // A log without any state yet: the membership that it was given must become durable with the first
        // job.
        let fresh = store.state.hard == HardState::default();
        store.state.hard = crate::log::restarted(store.state.hard.clone(), applied);
        let voters = store.state.conf.voters.clone();
        if setup.store == StoreState::Lost && voters == [setup.id] {
            return Err(Fatal::new("no other member has the state that this member's store has lost"));
        }
        let was_imported =
            store.state.catch_up == Some(NO_PART_TAKEN) && !base::mutant("imported-member-votes");
        let has_started = !fresh && !was_imported;
        let is_unconfirmed = starts_unconfirmed(setup, has_started, &voters);
        let raw = RawNode::new(&raft_config(setup, applied), store, &logger())
            .map_err(|error| Fatal::caused("build the Raft core", error))?;
        let of_machine = setup.membership.iter().filter(|_| setup.store == StoreState::Whole);
        let mut core = Core {
            raw,
            unsynced: VecDeque::new(),
            replacing: VecDeque::new(),
            newest: 0,
            vote_unsynced: None,
            state_due: fresh,
            uncertain: VecDeque::new(),
            forwarded: Vec::new(),
            forwarded_bytes: 0,
            lost_leader: None,
            changes: VecDeque::new(),
            removed_by: setup.removed_by,
            keeps_voters: setup.keeps_voters,
            change_check: setup.change_check.clone(),
            has_offered_office: false,
            changing: VecDeque::new(),
            examined: applied,
            newest_change: LogIndex::ZERO,
            examined_without_a_store: false,
            checkpoint_due: None,
            listed: of_machine.flat_map(Membership::ids).collect(),
            former: BTreeSet::new(),
            committed_before: LogIndex::ZERO,
            is_left_alone: false,
            follows_machine: setup.membership.is_some(),
            read_names: ReadNames::default(),
            answers: Vec::new(),
            stable: applied,
            handed: applied,
            applying: VecDeque::new(),
            applying_bytes: 0,
            apply_bytes_max: setup.apply_bytes_max,
            election_ticks: setup.election_ticks,
            snapshots: Snapshots::new(setup.catch_up_entries, setup.store),
            disk: DiskStall::default(),
            leaderless_ticks: 0,
            refusals: RefusalLog::default(),
            term_budget: TermBudget::default(),
            reports: Reports::default(),
            forgotten: BTreeMap::new(),
            is_unconfirmed,
        };
        if voters == [setup.id] {
            core.campaign_alone();
        }
        core.raw.store().take_failure().map_or(Ok(core), Err)
    }

    /// What this member is in the current term; a pre-candidate, who only asks whether it should stand,
    /// counts as candidate.
    pub fn role(&self) -> Role {
        match self.raw.raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
        }
    }

    /// The leader of [`Core::term`] as far as this member knows: itself, another, or none yet.
    pub fn leader(&self) -> Option<NodeId> {
        Some(self.raw.raft.leader_id).filter(|id| *id != raft::INVALID_ID)
    }

    pub fn term(&self) -> Term {
        Term(self.raw.raft.term)
    }

    /// The commit index as this member knows it. Its own log may not be synced that far: see `stable`.
    pub fn commit(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.committed)
    }

    pub fn last_index(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.last_index())
    }

    pub fn voters(&self) -> &[NodeId] {
        &self.raw.store().state.conf.voters
    }

    /// Term of an entry that is in the log, for checks of the log's laws.
    pub fn term_at(&self, index: LogIndex) -> Option<Term> {
        let log = &self.raw.raft.raft_log;
        let range = log.first_index().saturating_sub(1)..=log.last_index();
        // raft-rs says 0 of what is outside.
        log.term(index.0).ok().filter(|_| range.contains(&index.0)).map(Term)
    }

    /// A refusal of raft-rs here concerns one message only; what waits for an effect of it has a timeout.
    pub(crate) fn step(&mut self, action: impl FnOnce(&mut RawNode<LogStore>) -> raft::Result<()>) {
        if let Err(error) = action(&mut self.raw) {
            tracing::debug!(target: "raft", %error, "message refused");
        }
    }
}

/// Reports whether a core starts unconfirmed. A lone voter has no one to ask, and no one else depends on it.
fn starts_unconfirmed(setup: &CoreSetup, has_started: bool, voters: &[NodeId]) -> bool {
    !base::mutant("wiped-member-votes")
        && setup.empty_log == EmptyLog::Unconfirmed
        && !has_started
        && voters != [setup.id]
}

/// How long the oldest job has been on its way to the disk.
///
/// Ticks and no clock: a member that was itself kept from running did not see its disk fail. The first tick
/// only notes which job is the oldest, so a job has waited for at least as many whole ticks as are counted.
#[derive(Default)]
pub(crate) struct DiskStall {
    job: Option<u64>,
    pub ticks: u32,
}

impl DiskStall {
    /// A tick passed while `oldest` was the oldest job without a sync.
    pub fn tick(&mut self, oldest: Option<u64>) -> u32 {
        match oldest {
            Some(job) if self.job == Some(job) => self.ticks = self.ticks.saturating_add(1),
            _ => (self.job, self.ticks) = (oldest, 0),
        }
        self.ticks
    }
}

/// What a member has reported to have applied.
struct AppliedReport {
    applied: LogIndex,
    ticks_left: u32,
}

/// What the other members have reported to this leader of their states.
///
/// A member reports with each acknowledgement and each answer to a heartbeat. So a leader that knows the log
/// of a member has a report as well, unless the member is of a version that makes none. A report becomes old:
/// a member that was not heard of for some time may have lost its disk.
#[derive(Default)]
pub(crate) struct Reports(BTreeMap<NodeId, AppliedReport>);

impl Reports {
    /// `applied`: 0 of a member without a state. It holds for so many ticks.
    pub fn note(&mut self, member: NodeId, applied: LogIndex, ticks: u32) {
        self.0.insert(member, AppliedReport { applied, ticks_left: ticks });
    }

    pub fn forget(&mut self, member: NodeId) {
        self.0.remove(&member);
    }

    /// What the member has applied, 0 if its report is old. None if it has made none.
    pub fn applied(&self, member: NodeId) -> Option<LogIndex> {
        let report = self.0.get(&member)?;
        Some(if report.ticks_left > 0 { report.applied } else { LogIndex::ZERO })
    }

    pub fn tick(&mut self) {
        self.0.values_mut().for_each(|report| report.ticks_left = report.ticks_left.saturating_sub(1));
    }

    pub fn retain(&mut self, keeps: impl Fn(NodeId) -> bool) {
        self.0.retain(|member, _| keeps(*member));
    }
}

/// By how much messages may raise the term between two ticks. Elections raise it by one each. With ticks of
/// 100 ms a forger needs 3.4 years to reach [`crate::types::NUMBER_MAX`]; a member that was away while a
/// forger raised the term catches up as fast as the forger was.
const TERM_LEAP_PER_TICK: u64 = 1 << 32;

/// By how much the term may be raised, see [`TERM_LEAP_PER_TICK`].
pub(crate) struct TermBudget {
    pub room: u64,
    /// A message was refused since the last tick whose term lies ahead.
    is_behind: bool,
}

impl Default for TermBudget {
    fn default() -> Self {
        TermBudget { room: TERM_LEAP_PER_TICK, is_behind: false }
    }
}

impl TermBudget {
    pub fn spend(&mut self, raised: u64) {
        self.room = self.room.saturating_sub(raised);
    }

    pub fn note_behind(&mut self) {
        self.is_behind = true;
    }

    /// What is left is kept only while this member lags, so the total never exceeds one leap per tick.
    pub fn tick(&mut self) {
        let kept = if std::mem::take(&mut self.is_behind) { self.room } else { 0 };
        self.room = kept.saturating_add(TERM_LEAP_PER_TICK);
    }
}

/// Logs refusals at a bounded rate.
#[derive(Default)]
pub(crate) struct RefusalLog {
    quiet_ticks: u32,
    unlogged: u64,
    /// All of them, for golden scripts.
    #[cfg(test)]
    pub noted: Vec<String>,
}

impl RefusalLog {
    /// A refusal: the first in `quiet_ticks` is logged, with the number of those before it that were not.
    pub fn note(&mut self, peer: NodeId, reason: &str, quiet_ticks: u32) {
        #[cfg(test)]
        self.noted.push(reason.to_owned());
        if self.quiet_ticks > 0 {
            self.unlogged += 1;
            return;
        }
        let unlogged = std::mem::take(&mut self.unlogged);
        tracing::warn!(peer = format!("{peer:x}"), reason, unlogged, "refused a message");
        self.quiet_ticks = quiet_ticks;
    }

    pub fn tick(&mut self) {
        self.quiet_ticks = self.quiet_ticks.saturating_sub(1);
    }
}

/// Entries on their way to one follower, in bytes: they fill any link's delay, and bound what the transport
/// and the follower's log thread may hold ahead of its acknowledgements.
pub(crate) const INFLIGHT_BYTES_MAX: usize = 64 << 20;
/// raft-rs counts messages, so the bound is that many of the longest possible. Fewer than this would make a
/// follower wait for a round trip after each.
const INFLIGHT_MESSAGES_MIN: usize = 4;
/// Committed entries in one turn: small enough that a turn never keeps heartbeats waiting.
const COMMITTED_BYTES_PER_READY: u64 = 4 << 20;

/// The configuration of raft-rs. Its defaults do not fit: one entry per message, no bounds, no pre-vote.
///
/// Memory, worst case, on a leader: 64 MiB uncommitted and as much on its way to each follower, of the same
/// buffers as long as they are cached; on a follower: what its leader has under way to it.
///
/// * `pre_vote` and `check_quorum`: a member that was cut off does not depose a healthy leader when it
///   returns, and a leader that was cut off stops believing that it leads.
/// * Reads are confirmed by a quorum each time (the default, "safe"): a lease would trust every member's
///   clock.
/// * `batch_append` stays off: it merges messages beyond any limit on their size.
pub(super) fn raft_config(setup: &CoreSetup, applied: LogIndex) -> raft::Config {
    raft::Config {
        id: setup.id,
        election_tick: setup.election_ticks as usize,
        heartbeat_tick: setup.heartbeat_ticks as usize,
        applied: applied.0,
        max_size_per_msg: RaftLimits::MESSAGE_BYTES_MAX,
        max_inflight_msgs: inflight_messages_max(setup.entry_bytes_max),
        check_quorum: true,
        pre_vote: true,
        min_election_tick: setup.timeout_ticks.start as usize,
        max_election_tick: setup.timeout_ticks.end as usize,
        max_uncommitted_size: RaftLimits::UNCOMMITTED_BYTES_MAX,
        max_committed_size_per_ready: COMMITTED_BYTES_PER_READY,
        read_only_option: if base::mutant("lease-reads") {
            raft::ReadOnlyOption::LeaseBased
        } else {
            raft::ReadOnlyOption::Safe
        },
        ..raft::Config::default()
    }
}

/// A message holds one entry at least, however long, and otherwise as many as its bound lets in.
pub(crate) fn inflight_messages_max(entry_bytes_max: usize) -> usize {
    let longest = entry_bytes_max.max(RaftLimits::MESSAGE_BYTES_MAX as usize);
    (INFLIGHT_BYTES_MAX / longest).max(INFLIGHT_MESSAGES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_job_that_stays_the_oldest_is_waited_for() {
        let mut stall = DiskStall::default();
        let waited: Vec<u32> = [None, Some(1), Some(1), Some(1), Some(2), Some(2), None, Some(2)]
            .into_iter()
            .map(|oldest| stall.tick(oldest))
            .collect();
        assert_eq!(waited, [0, 0, 1, 2, 0, 1, 0, 0]);
    }

    #[test]
    fn the_term_rises_by_one_leap_per_tick_and_a_member_that_is_behind_catches_up() {
        let mut budget = TermBudget::default();
        budget.spend(TERM_LEAP_PER_TICK);
        assert_eq!(budget.room, 0);
        (0..3).for_each(|_| budget.tick());
        assert_eq!(budget.room, TERM_LEAP_PER_TICK, "idle ticks are not saved up");
        for ticks in 2..5 {
            budget.note_behind();
            budget.tick();
            assert_eq!(budget.room, ticks * TERM_LEAP_PER_TICK);
        }
        budget.tick();
        assert_eq!(budget.room, TERM_LEAP_PER_TICK);
    }

    #[test]
    fn refusals_are_logged_once_in_a_while() {
        let mut refusals = RefusalLog::default();
        (0..1000).for_each(|_| refusals.note(2, "forged", 10));
        assert_eq!((refusals.quiet_ticks, refusals.unlogged), (10, 999));
        (0..10).for_each(|_| refusals.tick());
        refusals.note(2, "forged", 10);
        assert_eq!((refusals.quiet_ticks, refusals.unlogged), (10, 0));
    }
}
