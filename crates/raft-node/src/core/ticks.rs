//! Ticks: when this member stands for election, and when it gives leadership up.
//!
//! ```text
//!   a job waits for the disk ──election timeout──▶ hand leadership over ──half of one more──▶ step down
//! ```
//!
//! * A leader whose disk stands still keeps its followers in line by its heartbeats, while nothing that
//!   clients wait for can be synced here. Another member serves them better; it is asked first, since a
//!   transfer costs no election.
//! * A member that waits for its disk, for its state, or to be confirmed does not stand for election. It
//!   hears and votes, and its trust in a silent leader ends as that of others does, or they could not win its
//!   vote.
//! * Nor does one with a change of the membership ahead: it would count votes by members of the past.
//! * A member whose store is lost stands in the end, if no other member is elected: it may be the only one
//!   with entries that are committed. It leads to replicate them and hands over to a member that has its
//!   state.
//! * The oldest job counts, since jobs become durable in order: as long as it waits, so do all.
//! * Counted in ticks of a job's own waiting: a busy disk that finishes one job after another is no stalled
//!   disk.

use raft::{CAMPAIGN_PRE_ELECTION, INVALID_ID, Progress, ProgressState, StateRole};

/// A member whose store is lost stands for election when it has known no leader for this many election
/// timeouts. A member that has its state is elected within three; if none was, the entries that this one
/// acknowledged are missing elsewhere.
const STORELESS_STANDS_AFTER: u32 = 5;

use super::Core;
use crate::{LogIndex, NodeId, Role};

impl Core {
    /// One tick for raft-rs, for the disk, and for snapshots.
    pub(super) fn tick(&mut self) {
        let waited = self.disk.tick(self.unsynced.front().copied());
        self.tick_snapshots();
        self.tick_forgotten();
        self.reports.tick();
        self.refusals.tick();
        self.term_budget.tick();
        if self.role() == Role::Leader {
            self.give_up_if_stalled(waited);
        }
        match self.leader() {
            Some(_) => self.leaderless_ticks = 0,
            None => self.leaderless_ticks = self.leaderless_ticks.saturating_add(1),
        }
        match self.role() {
            Role::Leader => {
                self.marking_notices(|core| {
                    core.raw.tick();
                });
                self.hand_over_if_storeless();
                self.end_office_of_a_stranger();
            }
            Role::Follower | Role::Candidate if self.may_tick() => {
                if self.waits_for_a_store() {
                    self.tick_without_a_store();
                } else {
                    self.raw.tick();
                }
            }
            Role::Follower | Role::Candidate => self.tick_quietly(),
        }
    }

    /// Whether this tick may end in a candidacy, or is too early for one.
    fn may_tick(&mut self) -> bool {
        if self.would_lead_before_a_sync() || !self.could_lead() && !self.must_stand() {
            return false;
        }
        // No timeout is shorter than `election_ticks`. What is committed is looked at from half of that on,
        // one part per tick, and never while a leader is heard.
        let silent = self.raw.raft.election_elapsed + 1;
        let election = self.election_ticks as usize;
        let is_ahead = silent >= election / 2 && self.change_is_ahead();
        silent < election || !is_ahead
    }

    /// raft-rs does not stand while its log has a committed change that was not applied, and a member without
    /// its store applies none. That those of this log may be passed over is for `may_tick` to say.
    fn tick_without_a_store(&mut self) {
        let raft = &mut self.raw.raft;
        raft.election_elapsed += 1;
        if raft.pass_election_timeout() && raft.promotable() {
            raft.election_elapsed = 0;
            raft.campaign(CAMPAIGN_PRE_ELECTION);
        }
    }

    /// Whether this member stands although its store is lost: the others seem to lack what only its log has.
    /// It leads to replicate that, and hands over.
    fn must_stand(&self) -> bool {
        self.disk.ticks < self.election_ticks
            && !self.is_held()
            && self.waits_for_a_store()
            && self.leaderless_ticks >= STORELESS_STANDS_AFTER * self.election_ticks
    }

    /// A leader without its store serves no client here. It hands over to the first member that has its state
    /// and all entries; raft-rs gives a transfer up after an election timeout, and then the next one begins.
    fn hand_over_if_storeless(&mut self) {
        if !self.waits_for_a_store() || self.raw.raft.lead_transferee.is_some() {
            return;
        }
        let last = self.last_index();
        let is_ready = |id: &NodeId| {
            let progress = self.raw.raft.prs().get(*id);
            progress.is_some_and(|progress| progress.recent_active && LogIndex(progress.matched) == last)
        };
        if let Some(heir) = self.most_caught_up().filter(is_ready) {
            tracing::info!(to = heir, "this leader's store is lost: it hands over");
            self.raw.transfer_leader(heir);
        }
    }

    /// Whether this member may stand for election now.
    pub(super) fn may_campaign(&mut self) -> bool {
        self.could_lead() && !self.would_lead_before_a_sync() && !self.change_is_ahead()
    }

    /// Whether this member could serve as leader now.
    fn could_lead(&self) -> bool {
        self.has_its_state() && !self.is_held() && self.disk.ticks < self.election_ticks
    }

    /// A lone voter leads as soon as it stands, and raft-rs panics if its log has entries then that are not
    /// durable. A change can leave it alone while the last entries of the leader before are being synced.
    fn would_lead_before_a_sync(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        self.voters() == [self.raw.raft.id] && log.persisted < log.last_index()
    }

    /// What a leader does whose disk has kept it waiting. A lone voter keeps leadership: no other member
    /// could lead.
    fn give_up_if_stalled(&mut self, waited: u32) {
        if self.voters().len() == 1 || waited < self.election_ticks {
            return;
        }
        if waited == self.election_ticks {
            let heir = self
                .most_caught_up()
                .filter(|heir| self.raw.raft.prs().get(*heir).is_some_and(|progress| progress.recent_active));
            tracing::warn!(waited_ticks = waited, ?heir, "the disk stands still: leadership is given up");
            if let Some(heir) = heir {
                self.raw.transfer_leader(heir);
            }
        }
        // A transfer that has not succeeded by now needs this disk, or its successor is gone.
        if waited >= self.election_ticks + self.election_ticks.div_ceil(2) {
            let term = self.raw.raft.term;
            self.raw.raft.become_follower(term, INVALID_ID);
        }
    }

    /// The other voter whose log is furthest, as far as this leader knows. None that asked for the state
    /// lately: it would not take over. One to which messages were lost is the last choice: it was active
    /// lately, and is perhaps gone.
    pub fn most_caught_up(&self) -> Option<NodeId> {
        let this = self.raw.raft.id;
        let may_lead = |id: &NodeId| *id != this && self.voters().contains(id) && !self.lacks_its_store(*id);
        let progress = self.raw.raft.prs().iter().filter(|(id, _)| may_lead(id));
        // Of equals the lowest id, so that the choice does not depend on the order of a hash map.
        let is_reached = |p: &Progress| p.recent_active && p.state == ProgressState::Replicate;
        progress
            .max_by_key(|(id, p)| (is_reached(p), p.recent_active, p.matched, std::cmp::Reverse(**id)))
            .map(|(id, _)| *id)
    }

    /// A follower's tick without the election at its end.
    ///
    /// raft-rs refuses its vote to others while it has heard its leader within an election timeout, and it
    /// measures that by ticks: a member whose ticks stopped would refuse for ever. So the time goes on, and
    /// when a follower that may stand would have stood for certain, this one just stops believing in its
    /// leader.
    fn tick_quietly(&mut self) {
        let raft = &mut self.raw.raft;
        raft.election_elapsed += 1;
        let trusted = raft.leader_id != INVALID_ID || raft.state != StateRole::Follower;
        if trusted && raft.election_elapsed >= 2 * self.election_ticks as usize {
            let term = raft.term;
            raft.become_follower(term, INVALID_ID);
        }
    }
}
