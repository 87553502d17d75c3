//! Ticks: when this member campaigns, and when it gives up leadership.
//!
//! ```text
//!   a job waits for the disk ──election timeout──▶ transfer leadership ──half of one more──▶ step down
//! ```
//!
//! * The heartbeats of a leader with a stalled disk keep its followers from campaigning, while no client
//!   request can be synced here. Another member serves them better; a transfer is attempted first, since it
//!   costs no election.
//! * A member that waits for its disk, for its state, or for confirmation does not campaign. It receives
//!   messages and votes, and its trust in a silent leader expires as usual, so that the remaining members
//!   can win its vote.
//! * Nor does a member with a pending membership change: it would count votes of a past membership.
//! * A member without its store eventually campaigns if no other member is elected: it may be the only one
//!   with certain committed entries. It leads to replicate them and then transfers leadership to a member
//!   that has its state.
//! * The oldest job counts, since jobs become durable in order: as long as it waits, so do all.
//! * Only the waiting time of a single job counts: a busy disk that finishes one job after another is not
//!   stalled.

use raft::{CAMPAIGN_PRE_ELECTION, INVALID_ID, Progress, ProgressState, StateRole};

/// Election timeouts without a leader after which a member without its store campaigns. A member with its
/// state is elected within three; if none was, the entries acknowledged by this one are missing elsewhere.
const STORELESS_CAMPAIGN_DELAY: u32 = 5;

use super::Core;
use crate::{LogIndex, NodeId, Role};

impl Core {
    /// Handles a tick for raft-rs, for the disk, and for snapshots.
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

    /// Reports whether this tick may start a campaign, or is too early for one.
    fn may_tick(&mut self) -> bool {
        if self.would_lead_before_a_sync() || !self.could_lead() && !self.must_stand() {
            return false;
        }
        // Election timeouts are at least `election_ticks`. The committed entries are checked from half of
        // that on, a part per tick, and never while there is a leader.
        let silent = self.raw.raft.election_elapsed + 1;
        let election = self.election_ticks as usize;
        let is_ahead = silent >= election / 2 && self.change_is_ahead();
        silent < election || !is_ahead
    }

    /// Ticks a member without its store. raft-rs does not campaign while its log has a committed change that
    /// was not applied, and such a member applies none. `may_tick` decides whether the changes in this log
    /// may be skipped.
    fn tick_without_a_store(&mut self) {
        let raft = &mut self.raw.raft;
        raft.election_elapsed += 1;
        if raft.pass_election_timeout() && raft.promotable() {
            raft.election_elapsed = 0;
            raft.campaign(CAMPAIGN_PRE_ELECTION);
        }
    }

    /// Reports whether this member must campaign without its store: the remaining members seem to lack
    /// entries of its log. It leads to replicate them, and then transfers leadership.
    fn must_stand(&self) -> bool {
        self.disk.ticks < self.election_ticks
            && !self.is_held()
            && self.waits_for_a_store()
            && self.leaderless_ticks >= STORELESS_CAMPAIGN_DELAY * self.election_ticks
    }

    /// Transfers leadership of a leader without its store, which cannot serve clients, to the first member
    /// that has its state and all entries. raft-rs aborts a transfer after an election timeout, and then the
    /// next one starts.
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
            tracing::info!(to = heir, "leader lost its store; transferring leadership");
            self.raw.transfer_leader(heir);
        }
    }

    pub(super) fn may_campaign(&mut self) -> bool {
        self.could_lead() && !self.would_lead_before_a_sync() && !self.change_is_ahead()
    }

    /// Reports whether this member could serve as leader now.
    fn could_lead(&self) -> bool {
        self.has_its_state() && !self.is_held() && self.disk.ticks < self.election_ticks
    }

    /// Reports whether leading would precede a sync. A lone voter leads as soon as it campaigns, and raft-rs
    /// panics if its log has non-durable entries at that time. A change can leave it alone while the
    /// previous leader's last entries are being synced.
    fn would_lead_before_a_sync(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        self.voters() == [self.raw.raft.id] && log.persisted < log.last_index()
    }

    /// Gives up leadership if the disk has stalled. A lone voter keeps leadership: no other member could
    /// lead.
    fn give_up_if_stalled(&mut self, waited: u32) {
        if self.voters().len() == 1 || waited < self.election_ticks {
            return;
        }
        if waited == self.election_ticks {
            let heir = self
                .most_caught_up()
                .filter(|heir| self.raw.raft.prs().get(*heir).is_some_and(|progress| progress.recent_active));
            tracing::warn!(waited_ticks = waited, ?heir, "disk stalled; stepping down as leader");
            if let Some(heir) = heir {
                self.raw.transfer_leader(heir);
            }
        }
        // A transfer that has not succeeded by now depends on this disk, or its successor is down.
        if waited >= self.election_ticks + self.election_ticks.div_ceil(2) {
            let term = self.raw.raft.term;
            self.raw.raft.become_follower(term, INVALID_ID);
        }
    }

    /// Returns the other voter with the longest log known to this leader. Excludes voters that requested the
    /// state recently: they would not take over. A voter to which messages were lost is the last choice: it
    /// was active recently, but may be down.
    pub fn most_caught_up(&self) -> Option<NodeId> {
        let this = self.raw.raft.id;
        let may_lead = |id: &NodeId| *id != this && self.voters().contains(id) && !self.lacks_its_store(*id);
        let progress = self.raw.raft.prs().iter().filter(|(id, _)| may_lead(id));
        // Ties go to the lowest id, so that the choice does not depend on the order of a hash map.
        let is_reached = |p: &Progress| p.recent_active && p.state == ProgressState::Replicate;
        progress
            .max_by_key(|(id, p)| (is_reached(p), p.recent_active, p.matched, std::cmp::Reverse(**id)))
            .map(|(id, _)| *id)
    }

    /// Ticks a follower without a final election.
    ///
    /// raft-rs rejects vote requests of other members for an election timeout after a message of its leader,
    /// measured in ticks: a member without ticks would reject them forever. So time advances, and when an
    /// eligible follower would certainly have campaigned, this one only drops its leader.
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
