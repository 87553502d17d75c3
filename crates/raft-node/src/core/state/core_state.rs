//! The state of a core, its read-only queries, and the configuration of raft-rs.

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

/// The core of a member. Its owner feeds it with [`Core::handle`] and executes the effects of
/// [`Core::turn`].
pub(crate) struct Core {
    pub(crate) raw: RawNode<LogStore>,
    /// Numbers of the jobs in flight, which are not yet durable.
    pub(crate) unsynced: VecDeque<u64>,
    /// Jobs in flight that replace entries, with the first index of each.
    pub(crate) replacing: VecDeque<(u64, LogIndex)>,
    /// Number of the latest ready, with or without a job.
    pub(crate) newest: u64,
    /// The latest job with a new term or vote, while it is not durable.
    pub(crate) vote_unsynced: Option<u64>,
    /// Hard state or membership changed since the last job.
    pub(crate) state_due: bool,
    /// Committed membership changes, with the job that makes the commit index durable.
    pub(crate) uncertain: VecDeque<(LogIndex, u64)>,
    /// Batches forwarded by followers, waiting for the disk.
    pub(crate) forwarded: Vec<Bytes>,
    pub(crate) forwarded_bytes: usize,
    /// The leader, if messages to it were lost and none has arrived from it since.
    pub(crate) lost_leader: Option<NodeId>,
    /// Queued membership changes.
    pub(crate) changes: VecDeque<Bytes>,
    /// Returns the member that a command removes.
    pub(crate) removed_by: fn(&[u8]) -> Option<NodeId>,
    /// Reports whether a change leaves the voters unchanged.
    pub(crate) keeps_voters: fn(&[u8], &[NodeId]) -> bool,
    /// Decides whether a change may be proposed now.
    pub(crate) change_check: ChangeCheck,
    /// A leadership transfer was attempted because the first queued change removes this leader.
    pub(crate) has_offered_office: bool,
    /// Indexes of changes that were output and are not yet applied.
    pub(crate) changing: VecDeque<LogIndex>,
    /// Last committed entry that was checked for membership changes.
    pub(crate) examined: LogIndex,
    /// The latest change found by the check.
    pub(crate) newest_change: LogIndex,
    /// The check compared with the given voters of a member without its store.
    pub(crate) examined_without_a_store: bool,
    /// A checkpoint with membership changes that are not yet reported as applied.
    pub(crate) checkpoint_due: Option<LogPosition>,
    /// The machine's last reported membership. Empty at first if the store is lost.
    pub(crate) listed: BTreeSet<NodeId>,
    /// Members removed since the start, one per applied removal.
    pub(crate) former: BTreeSet<NodeId>,
    /// The commit index when the voters last changed. The current ones have committed all later entries.
    pub(crate) committed_before: LogIndex,
    /// A change made this member the only voter while it was not the leader, and it has not campaigned
    /// since.
    pub(crate) is_left_alone: bool,
    /// The machine stores the membership, and changes it.
    pub(crate) follows_machine: bool,
    /// Names of the pending read rounds, while this member leads.
    pub(crate) read_names: ReadNames,
    /// Responses to ReadIndex requests of followers, sent by the next poll.
    pub(crate) answers: Vec<Message>,
    /// Last index that is committed and synced here.
    pub(crate) stable: LogIndex,
    /// Last output index.
    pub(crate) handed: LogIndex,
    /// Index and size of each output entry that is not yet applied.
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
    /// Progress reported by the other members, while this one leads.
    pub(crate) reports: Reports,
    /// Members with recently reset progress, with the ticks until the next reset is permitted.
    pub(crate) forgotten: BTreeMap<NodeId, u32>,
    /// The log was empty at the start, and the other members have not confirmed this one yet.
    pub(crate) is_unconfirmed: bool,
}

impl Core {
    /// Builds the core over a log; `applied` is the state machine's index. With a lost store, only entries
    /// before the start of the log count as applied.
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
        // The machine's state was committed, even if the commit index of that time was never synced. In a
        // log without state, the given membership must become durable with the first job.
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

    /// Returns the role in the current term; a pre-candidate counts as candidate.
    pub fn role(&self) -> Role {
        match self.raw.raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
        }
    }

    /// Returns the leader of [`Core::term`] known to this member: itself, another member, or none.
    pub fn leader(&self) -> Option<NodeId> {
        Some(self.raw.raft.leader_id).filter(|id| *id != raft::INVALID_ID)
    }

    pub fn term(&self) -> Term {
        Term(self.raw.raft.term)
    }

    /// Returns the known commit index. The local log may not be synced up to it: see `stable`.
    pub fn commit(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.committed)
    }

    pub fn last_index(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.last_index())
    }

    pub fn voters(&self) -> &[NodeId] {
        &self.raw.store().state.conf.voters
    }

    /// Returns the term of an entry in the log, for checks of the log's invariants.
    pub fn term_at(&self, index: LogIndex) -> Option<Term> {
        let log = &self.raw.raft.raft_log;
        let range = log.first_index().saturating_sub(1)..=log.last_index();
        // raft-rs returns 0 for indexes outside of the log.
        log.term(index.0).ok().filter(|_| range.contains(&index.0)).map(Term)
    }

    /// Passes a message to raft-rs. An error concerns that message only; requests that depend on it time
    /// out.
    pub(crate) fn step(&mut self, action: impl FnOnce(&mut RawNode<LogStore>) -> raft::Result<()>) {
        if let Err(error) = action(&mut self.raw) {
            tracing::debug!(target: "raft", %error, "message refused");
        }
    }
}

/// Reports whether a core starts unconfirmed. A lone voter has no peer to confirm it, and no peer depends on
/// it.
fn starts_unconfirmed(setup: &CoreSetup, has_started: bool, voters: &[NodeId]) -> bool {
    !base::mutant("wiped-member-votes")
        && setup.empty_log == EmptyLog::Unconfirmed
        && !has_started
        && voters != [setup.id]
}

/// Measures how long the oldest job has been waiting for the disk.
///
/// Counts ticks instead of time: a member that was itself suspended did not observe a disk failure. The
/// first tick only records the oldest job, so a job has waited for at least as many whole ticks as are
/// counted.
#[derive(Default)]
pub(crate) struct DiskStall {
    job: Option<u64>,
    pub ticks: u32,
}

impl DiskStall {
    /// Handles a tick; `oldest` is the oldest job without a sync.
    pub fn tick(&mut self, oldest: Option<u64>) -> u32 {
        match oldest {
            Some(job) if self.job == Some(job) => self.ticks = self.ticks.saturating_add(1),
            _ => (self.job, self.ticks) = (oldest, 0),
        }
        self.ticks
    }
}

/// A member's reported applied index.
struct AppliedReport {
    applied: LogIndex,
    ticks_left: u32,
}

/// Applied indexes reported to this leader by the other members.
///
/// Each acknowledgement and each heartbeat response contains a report. So a leader that knows a member's log
/// also has a report, unless the member's version does not support it. Reports expire: a member that was
/// silent for some time may have lost its disk.
#[derive(Default)]
pub(crate) struct Reports(BTreeMap<NodeId, AppliedReport>);

impl Reports {
    /// Records a report, valid for `ticks`. An `applied` of 0 means that the member has no state.
    pub fn note(&mut self, member: NodeId, applied: LogIndex, ticks: u32) {
        self.0.insert(member, AppliedReport { applied, ticks_left: ticks });
    }

    pub fn forget(&mut self, member: NodeId) {
        self.0.remove(&member);
    }

    /// Returns the member's applied index, 0 if its report has expired. None without a report.
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

/// Maximum increase of the term through messages between two ticks. Elections raise it by one each. With
/// ticks of 100 ms a forger needs 3.4 years to reach [`crate::types::NUMBER_MAX`]; a member that was absent
/// while a forger raised the term catches up at the same speed.
const TERM_LEAP_PER_TICK: u64 = 1 << 32;

/// Remaining budget for raising the term, see [`TERM_LEAP_PER_TICK`].
pub(crate) struct TermBudget {
    pub room: u64,
    /// True if a message with a term beyond the budget was rejected since the last tick.
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

    /// Refills the budget. The rest carries over only while this member lags, so the total never exceeds one
    /// leap per tick.
    pub fn tick(&mut self) {
        let kept = if std::mem::take(&mut self.is_behind) { self.room } else { 0 };
        self.room = kept.saturating_add(TERM_LEAP_PER_TICK);
    }
}

/// Logs rejections at a bounded rate.
#[derive(Default)]
pub(crate) struct RefusalLog {
    quiet_ticks: u32,
    unlogged: u64,
    /// All reasons, for golden scripts.
    #[cfg(test)]
    pub noted: Vec<String>,
}

impl RefusalLog {
    /// Records a rejection: the first per `quiet_ticks` is logged, with the number of suppressed ones before
    /// it.
    pub fn note(&mut self, peer: NodeId, reason: &str, quiet_ticks: u32) {
        #[cfg(test)]
        self.noted.push(reason.to_owned());
        if self.quiet_ticks > 0 {
            self.unlogged += 1;
            return;
        }
        let unlogged = std::mem::take(&mut self.unlogged);
        tracing::warn!(peer = format!("{peer:x}"), reason, unlogged, "rejected a message");
        self.quiet_ticks = quiet_ticks;
    }

    pub fn tick(&mut self) {
        self.quiet_ticks = self.quiet_ticks.saturating_sub(1);
    }
}

/// Bytes of entries in flight to a follower: enough for any link's delay, and a limit on the data held by
/// the transport and the follower's log thread ahead of its acknowledgements.
pub(crate) const INFLIGHT_BYTES_MAX: usize = 64 << 20;
/// raft-rs counts messages, so the limit is the number of maximum-size messages. With fewer than this, a
/// follower would wait for a round trip after each.
const INFLIGHT_MESSAGES_MIN: usize = 4;
/// Bytes of committed entries per poll: small enough not to delay heartbeats.
const COMMITTED_BYTES_PER_READY: u64 = 4 << 20;

/// Returns the configuration of raft-rs. Its defaults are unsuitable: one entry per message, no limits, no
/// pre-vote.
///
/// Worst-case memory on a leader: 64 MiB uncommitted and as much in flight to each follower, in shared
/// buffers as long as they are cached; on a follower: the data in flight from its leader.
///
/// * `pre_vote` and `check_quorum`: an isolated member does not depose a healthy leader when it returns, and
///   an isolated leader steps down.
/// * Each read is confirmed by a quorum (the default, "safe"): a lease would depend on every member's clock.
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

/// Returns the maximum number of messages in flight. A message contains at least one entry of any size, and
/// otherwise as many as fit its limit.
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
