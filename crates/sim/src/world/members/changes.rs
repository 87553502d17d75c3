//! Membership changes: proposed at any member, sometimes while another is in flight.
//!
//! As in the process, a change is checked before it is proposed: enough voters must be in sync, and
//! so must a learner to be promoted. The simulated operator also considers changes without a
//! response, which may be applied later; the process, like etcd, checks only the current
//! membership.

use raft_node::{Event, LogPosition, Membership, RequestOrigin};
use state_machine::command::{self, Change, Kind, MemberAdd, MemberChange, MemberUpdate};
use state_machine::{Outcome, ROOT, Response};

use super::super::event::{FaultPhase, WorldEvent};
use super::super::state::World;
use crate::chance::{Chance, fold};
use crate::count::Statistic;
use crate::member::{BootClock, CommandRoute, MemberError, SimMember, StartKnowledge, peer_url};
use crate::oracle::{Breach, Truth, summary_of};
use crate::plan::MILLISECOND;
use crate::requests::{CHANGES, ProposedChange, RequestId, numbered};

/// Maximum number of added members per run: each costs a store and a log.
const JOINERS_MAX: u64 = 6;
/// Maximum voters and learners in a cluster.
const MEMBERS_MAX: usize = 7;
const LEARNERS_MAX: u64 = 2;
/// Probability, per thousand, that a change is proposed while another is in flight.
const CONCURRENT_CHANGES_PER_MILLE: u64 = 400;
/// Probability, per thousand attempts, that an operator stops trying to promote a learner as soon
/// as it is in sync.
const EAGERNESS_LOST: u64 = 30;

impl World {
    pub(crate) fn changes_members(&self) -> bool {
        self.schedules.iter().any(|schedule| schedule.kind == crate::plan::FaultKind::Members)
    }

    /// Returns the number of changes that may still be applied. A lost one always counts, since a
    /// run cannot detect that.
    pub(crate) fn changes_under_way(&self) -> usize {
        self.open_changes().count()
    }

    fn open_changes(&self) -> impl Iterator<Item = &ProposedChange> {
        let truth = self.truth.get();
        self.changes.proposed.values().filter(move |proposed| !truth.has_applied(proposed.digest))
    }

    pub(crate) fn change_members(&mut self, chance: &mut Chance) -> Result<(), MemberError> {
        if self.must_repair() {
            return Ok(());
        }
        let waits = self.changes.proposed.values().any(|proposed| !proposed.is_over);
        if !waits || chance.per_mille(CONCURRENT_CHANGES_PER_MILLE) {
            self.change_one(chance)?;
        }
        if chance.per_mille(CONCURRENT_CHANGES_PER_MILLE) { self.change_one(chance) } else { Ok(()) }
    }

    /// Reports whether a voter must be repaired before changes. Learners without a state are
    /// handled by the cluster.
    fn must_repair(&self) -> bool {
        let voters = self.voters();
        let is_damaged = |id: &u64| self.see(*id).lacks_data() && !self.see(*id).is_fresh;
        voters.iter().any(is_damaged) || voters.is_empty()
    }

    /// Promotes a newly started learner as soon as possible.
    pub(crate) fn promote_eagerly(&mut self, id: u64) -> Result<(), MemberError> {
        let is_learner = self.truth.get().model.members.membership().learners.contains(&id);
        if self.phase != FaultPhase::Faults || !is_learner || self.chances.changes.per_mille(EAGERNESS_LOST) {
            return Ok(());
        }
        match self.leader().filter(|_| !self.must_repair() && self.is_in_sync(id)) {
            Some(leader) => self.propose_member_change(leader, Change::Promote(id)),
            None => {
                let later = self.chances.changes.within(MILLISECOND, 100 * MILLISECOND);
                self.after(later, WorldEvent::Promote { to: id });
                Ok(())
            }
        }
    }

    fn change_one(&mut self, chance: &mut Chance) -> Result<(), MemberError> {
        let up: Vec<u64> = self.ids().into_iter().filter(|id| self.see(*id).up.is_some()).collect();
        let leader = self.leader().filter(|_| chance.per_mille(600));
        let Some(proposer) = leader.or_else(|| (!up.is_empty()).then(|| *chance.pick(&up))) else {
            return Ok(());
        };
        let members = self.truth.get().model.members.membership();
        let Some(change) = self.draw_change(&members, chance) else { return Ok(()) };
        let hands_over = change == Change::Remove(proposer) && chance.per_mille(500);
        if hands_over && self.see(proposer).leads() {
            let heir = self.see(proposer).up.as_ref().and_then(|up| up.node.most_caught_up());
            if let Some(to) = heir {
                self.site(proposer).handle(Event::TransferLeader { to })?;
                self.turn(proposer)?;
            }
        }
        self.propose_member_change(proposer, change)
    }

    fn propose_member_change(&mut self, member: u64, change: Change) -> Result<(), MemberError> {
        if self.changes.proposed.values().any(|proposed| !proposed.is_over) {
            self.count(Statistic::ChangesAtOnce);
        }
        self.tell(|| format!("member {member} proposes {change:?}"));
        let request = CHANGES + self.changes.proposed.len() as u64;
        let kind = Kind::MemberChange(MemberChange { change: Some(change.clone()), is_strict: false });
        let caller = self.access(member).caller(ROOT);
        let command = numbered(command::encode_for(kind, caller), request);
        let digest = fold(0, &command);
        let up = self.site(member).up.as_mut().expect("a running member proposes");
        if !up.propose(RequestOrigin::Client, command, request, CommandRoute::AsChange) {
            self.count(Statistic::NotLetIn);
            return Ok(());
        }
        self.changes.proposed.insert(request, ProposedChange { member, digest, change, is_over: false });
        self.turn(member)
    }

    fn draw_change(&mut self, members: &Membership, chance: &mut Chance) -> Option<Change> {
        let count = members.voters.len() + members.learners.len();
        let may_add = count < MEMBERS_MAX && self.sites.len() as u64 <= self.plan.members + JOINERS_MAX;
        let all: Vec<u64> = members.ids().collect();
        let (unstarted, removed) = self.may_follow();
        let is_started = |id: &&u64| self.is_in_sync(**id) && !removed.contains(id);
        let started = |voters: &[u64]| voters.iter().filter(is_started).count();
        let quorum = |count: usize| (count + unstarted) / 2 + 1;
        // Only the second voter may be essential for a quorum.
        let is_second = members.voters.len() + unstarted == 1;
        let to_add = if is_second { 1 } else { quorum(members.voters.len() + 1) };
        match chance.within(0, 10) {
            0..3 if may_add && started(&members.voters) >= to_add => Some(self.add(false)),
            3..5 if may_add => Some(self.add(true)),
            5..7 => {
                let in_sync = members.learners.iter().copied().filter(|id| self.is_in_sync(*id));
                let in_sync: Vec<u64> = in_sync.collect();
                (!in_sync.is_empty()).then(|| Change::Promote(*chance.pick(&in_sync)))
            }
            7..9 => {
                let leader = self.leader().filter(|leader| all.contains(leader) && chance.per_mille(400));
                let id = leader.unwrap_or_else(|| *chance.pick(&all));
                let rest: Vec<u64> = members.voters.iter().copied().filter(|voter| *voter != id).collect();
                let is_wise = members.learners.contains(&id) || started(&rest) >= quorum(rest.len());
                is_wise.then_some(Change::Remove(id))
            }
            _ => {
                let id = *chance.pick(&all);
                let version = self.changes.proposed.len() as u64 + 1;
                Some(Change::Update(MemberUpdate { id, peer_urls: vec![peer_url(id, version)] }))
            }
        }
    }

    /// Returns the voters that may still be added, and the members that may still be removed, by
    /// changes without a response.
    fn may_follow(&self) -> (usize, Vec<u64>) {
        let (mut unstarted, mut removed) = (0, Vec::new());
        for proposed in self.open_changes() {
            match &proposed.change {
                Change::Add(add) if !add.is_learner => unstarted += 1,
                Change::Remove(id) => removed.push(*id),
                _ => {}
            }
        }
        (unstarted, removed)
    }

    /// Creates a member with a new id, and the change that adds it.
    fn add(&mut self, is_learner: bool) -> Change {
        let id = self.sites.len() as u64 + 1;
        let level = self.first_level();
        self.sites.push(SimMember::new(id, self.plan.known_bug, &self.config, StartKnowledge::Joined(None)));
        let now = self.now;
        self.site(id).be_of_level(level, now);
        let mut chance = Chance::stream(self.plan.seed, &format!("boot clock {id}"));
        self.boot_clocks.push(BootClock::new(&mut chance));
        let peer_urls = vec![peer_url(id, 0)];
        Change::Add(MemberAdd { id, peer_urls, is_learner, learners_max: LEARNERS_MAX })
    }

    /// Reports whether a member is in sync according to the leader.
    fn is_in_sync(&self, member: u64) -> bool {
        let leader = self.leader().and_then(|leader| self.see(leader).up.as_ref());
        leader.and_then(|up| up.node.progress_of(member)).is_some_and(|progress| progress.is_in_sync())
    }

    pub(crate) fn change_answered(
        &mut self,
        request: RequestId,
        outcome: &Outcome,
        at: LogPosition,
        truth: &Truth,
    ) -> Result<(), MemberError> {
        let proposed = self.changes.proposed.get_mut(&request).expect("a member proposed it");
        if std::mem::replace(&mut proposed.is_over, true) {
            return Err(Breach("a change was answered twice".into()).into());
        }
        truth.answers(at.index, proposed.digest, &summary_of(outcome))?;
        match (&proposed.change, outcome) {
            (Change::Update(_), Ok(Response::Members(_))) => self.count(Statistic::Moves),
            (_, Ok(_)) => {}
            (_, Err(_)) => self.count(Statistic::ChangesRefused),
        }
        self.tell(|| format!("change {} is answered {outcome:?}", request - CHANGES));
        Ok(())
    }

    pub(crate) fn change_gone(&mut self, request: RequestId) {
        self.changes.proposed.get_mut(&request).expect("a member proposed it").is_over = true;
    }

    pub(super) fn count_changes(&mut self, before: &Membership, after: &Membership) {
        let added = |list: &[u64], id: &u64| !list.contains(id);
        for id in after.voters.iter().filter(|id| added(&before.voters, id)) {
            let is_promoted = before.learners.contains(id);
            self.count(if is_promoted { Statistic::Promotions } else { Statistic::VotersAdded });
        }
        let learners = after.learners.iter().filter(|id| added(&before.learners, id)).count();
        (0..learners).for_each(|_| self.count(Statistic::LearnersAdded));
    }
}
