//! Hold of a member whose log was empty or imported at its start. It does not take part in Raft until it is
//! confirmed, and votes once its log holds all entries that it may have acknowledged before. See
//! [`crate::Inquiry`].
//!
//! | state | messages of peers | votes and candidacies |
//! |---|---|---|
//! | unconfirmed | dropped as if lost | none |
//! | catching up | handled, except orders to campaign and most requests for votes | few (1) |
//! | neither | handled | as usual |
//!
//! (1) It never campaigns. It grants its vote to a candidate whose log reaches the position that this member
//! catches up to, and to the only other voter.
//!
//! A member with an imported store is unconfirmed at each start until its log holds an entry after the store,
//! even if it has voted: it may have to drop its store. A member with an empty log that has voted keeps its
//! promises, and is not unconfirmed again. The position that a member catches up to is durable with its term.

use raft::eraftpb::{Message, MessageType};

use super::Core;
use super::inquiry::{Confirmation, PeerState, Start};
use super::state::position;
use crate::log::NO_PART_TAKEN;
use crate::types::NUMBER_MAX;
use crate::{LogIndex, LogPosition, NodeId, Role, StoreState, Term};

/// Hint in a vote request: sender and receiver are the only voters, by the sender's settled membership. The
/// receiver may have an older membership, in which it is a learner. Earlier versions ignore the hint.
pub(super) const OTHER_OF_TWO: u64 = 1;

impl Core {
    /// Reports whether this member must not campaign, and votes only as in [`Core::holds_back`].
    pub fn is_held(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        let lacks_entries =
            |until: LogPosition| log.last_term() <= until.term.0 && log.last_index() < until.index.0;
        self.is_unconfirmed || self.raw.store().state.catch_up.is_some_and(lacks_entries)
    }

    /// Reports whether this member waits for [`crate::Event::Confirmed`].
    pub fn is_unconfirmed(&self) -> bool {
        self.is_unconfirmed
    }

    /// Returns the response to the unconfirmed member `asker`; see [`crate::Inquiry`]. None if this leader
    /// cannot respond yet: `asker` retries.
    pub fn answer_member(&mut self, asker: NodeId) -> Option<PeerState> {
        let is_leader = self.role() == Role::Leader;
        if is_leader && !self.forget_progress(asker) {
            return None;
        }
        let start = self.start();
        // The term of a log created together with a store does not stem from an election.
        let term = if start.has_term { self.term() } else { Term(0) };
        let last_index = self.last_index();
        let voters = self.settled_voters();
        let is_held = self.is_held();
        Some(PeerState {
            term,
            last_index,
            is_leader,
            is_held,
            voters,
            uncommitted: self.uncommitted(),
            is_founder: start.is_founder,
        })
    }

    /// Returns the facts that this member has about its start.
    pub fn start(&self) -> Start {
        let state = &self.raw.store().state;
        let term_of_store = if self.has_started() { Term(0) } else { self.raw.store().start().term };
        let is_founder = !state.came_late() && self.snapshots.store == StoreState::Whole;
        Start { is_founder, has_term: self.term() > term_of_store }
    }

    /// Returns the durable end of the log, if this member has no known committed entry after the start of
    /// the log.
    fn uncommitted(&self) -> Option<LogPosition> {
        let log = &self.raw.raft.raft_log;
        let start = self.raw.store().start().index;
        if self.raw.store().state.came_late() || start > LogIndex(1) || self.commit() > start {
            return None;
        }
        let index = LogIndex(log.persisted.min(log.last_index())).max(start);
        Some(LogPosition { index, term: self.term_at(index).unwrap_or_default() })
    }

    /// Resets the acknowledged index of `peer` at this leader: raft-rs would otherwise ignore that its log is
    /// empty. Until its next acknowledgement `peer` counts for no commit. Any program that poses as `peer`
    /// can cause that, so it happens at most once per election timeout. Returns false if it is too early.
    ///
    /// An unconfirmed member acknowledges no entries. So each of its queries gets a response, unless it
    /// accepted entries and lost its log again within an election timeout.
    fn forget_progress(&mut self, peer: NodeId) -> bool {
        let this = self.raw.raft.id;
        let progress = self.raw.raft.mut_prs().get_mut(peer);
        let Some(progress) = progress.filter(|progress| peer != this && progress.matched > 0) else {
            return true;
        };
        if self.forgotten.contains_key(&peer) {
            return false;
        }
        self.reports.retain(|member| member != peer);
        progress.matched = 0;
        progress.become_probe();
        self.forgotten.insert(peer, self.election_ticks);
        true
    }

    /// Advances the time of [`Core::answer_member`] by one tick.
    pub(super) fn tick_forgotten(&mut self) {
        self.forgotten.retain(|_, ticks_left| {
            *ticks_left -= 1;
            *ticks_left > 0
        });
    }

    /// Reports whether the log has held an entry since it was created together with a store.
    pub(super) fn has_started(&self) -> bool {
        self.raw.store().state.catch_up != Some(NO_PART_TAKEN)
    }

    /// Records an entry after the imported store. The following job makes that durable, and later starts do
    /// not query the peers.
    pub(super) fn note_started(&mut self) {
        if !self.has_started() {
            self.raw.mut_store().state.catch_up = None;
            self.state_due = true;
        }
    }

    pub(super) fn confirm(&mut self, confirmation: Confirmation) {
        if !self.is_unconfirmed {
            return;
        }
        match confirmation {
            Confirmation::New => {}
            Confirmation::CatchUp { term, .. } if term.0 == 0 || term.0 >= NUMBER_MAX => {
                tracing::warn!(term = term.0, "confirmation rejected: implausible term");
                return;
            }
            Confirmation::CatchUp { term, until, is_alike } => {
                if let Some(until) = until.filter(|until| until.index > LogIndex::ZERO) {
                    if !self.has_started() && !is_alike {
                        tracing::warn!(
                            "cluster started with a different state; replacing the state of this member"
                        );
                        self.give_state_up();
                    }
                    self.raw.mut_store().state.catch_up = Some(until);
                }
                let raft = &mut self.raw.raft;
                if term.0 > raft.term {
                    raft.become_follower(term.0, raft::INVALID_ID);
                    // A lost disk may have held a vote in this term; a vote for itself prevents a vote for
                    // any candidate.
                    raft.vote = raft.id;
                }
            }
        }
        self.is_unconfirmed = false;
        tracing::info!(?confirmation, "membership confirmed by peers");
    }

    /// Reports whether the vote is requested by the only other voter. It holds all committed entries, and
    /// leads only with this vote. This member may lack the entry that made it a voter: then the hint of the
    /// request counts.
    fn is_asked_by_the_other_of_two(&self, message: &Message) -> bool {
        let voters = self.raw.raft.prs().conf().voters();
        let are_two =
            voters.ids().len() == 2 && voters.contains(self.raw.raft.id) && voters.contains(message.from);
        are_two || message.reject_hint == OTHER_OF_TWO
    }

    /// Reports whether a candidate's log reaches the position that this member catches up to, and so holds all
    /// entries that this member may have acknowledged.
    fn is_asked_by_a_log_that_reaches(&self, message: &Message) -> bool {
        let log = (message.log_term, message.index);
        self.raw
            .store()
            .state
            .catch_up
            .is_some_and(|until| log >= (until.term.0, until.index.0) || base::mutant("held-member-votes"))
    }

    /// Marks vote requests to the only other voter, unless the log may hold a membership change: then this
    /// member may lack entries that others have committed.
    pub(super) fn mark_requests_to_the_other_of_two(&mut self, messages: &mut [Message]) {
        use MessageType::{MsgRequestPreVote, MsgRequestVote};
        let requests = messages
            .iter_mut()
            .filter(|message| matches!(message.msg_type, MsgRequestVote | MsgRequestPreVote));
        for message in requests {
            let mut voters = self.settled_voters();
            voters.retain(|voter| *voter != message.from);
            if voters == [message.to] && self.voters().len() == 2 {
                message.reject_hint = OTHER_OF_TWO;
            }
        }
    }

    /// Reports whether a held member drops the message. A dropped snapshot is released.
    pub(super) fn holds_back(&mut self, message: &Message) -> bool {
        use MessageType::{MsgRequestPreVote, MsgRequestVote, MsgTimeoutNow};
        let is_withheld = match message.msg_type {
            MsgTimeoutNow => self.is_held(),
            MsgRequestVote | MsgRequestPreVote => {
                let gets_it = self.is_asked_by_the_other_of_two(message)
                    || self.is_asked_by_a_log_that_reaches(message);
                self.is_held() && !gets_it
            }
            _ => false,
        };
        let drops = self.is_unconfirmed || is_withheld;
        if let Some(snapshot) = message.snapshot.as_ref().filter(|_| drops) {
            self.ignore_snapshot(position(snapshot));
        }
        drops
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EmptyLog;
    use crate::core::event::{CoreSetup, Event};
    use crate::core::tests::{CoreBench, bench_of};

    fn unconfirmed(voters: &[u64]) -> CoreBench {
        bench_of(voters, &CoreSetup { empty_log: EmptyLog::Unconfirmed, ..CoreSetup::of_tests() }, 1 << 20)
    }

    #[test]
    fn a_forged_term_confirms_nothing() {
        let mut bench = unconfirmed(&[1, 2, 3]);
        for term in [0, 1 << 62, u64::MAX] {
            let until = Some(LogPosition::new(4, term));
            let confirmation = Confirmation::CatchUp { term: Term(term), until, is_alike: false };
            bench.core.handle(Event::Confirmed(confirmation)).unwrap();
            assert!(bench.core.is_unconfirmed(), "{term}");
        }
    }

    #[test]
    fn a_lone_voter_is_never_held() {
        assert!(!unconfirmed(&[1]).core.is_held());
    }
}
