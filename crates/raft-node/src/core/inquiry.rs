//! Decides when a member with an empty or imported log may vote.
//!
//! Such a log belongs to a new member, or to one that lost its disk. The latter may have voted, and may
//! have acknowledged entries that are committed, so it must not take part like a new member. It queries its
//! peers:
//!
//! ```text
//!   empty log ──▶ unconfirmed ──replies──┬──▶ New      votes immediately
//!                                        └──▶ CatchUp  takes entries, votes once its log reaches a position
//! ```
//!
//! An unconfirmed member processes no Raft messages: it neither votes nor acknowledges entries. An
//! acknowledgement is as dangerous as a vote: with it, a leader of an earlier term could commit an entry at
//! an index where the same member has acknowledged a different entry before.
//!
//! The responses confirm a member when:
//!
//! - a majority of the other members responded, none of them held itself. Each leader that this member had
//!   voted for, and each entry committed with its acknowledgement, is known to one of them. The highest
//!   term of the responses is the first in which this member takes part, and it does not vote in that term.
//! - with three members or more, the leader of that term is among them. Its log holds every entry that was
//!   committed with this member's acknowledgement, so votes wait until the log here reaches the end of the
//!   leader's. An even number is no exception: a candidate without the latest membership change counts a
//!   different number of members, and its majority may share only this member with the majority of a
//!   committed entry.
//! - of two members the peer responded, and there may be no leader without this one's vote. The peer holds
//!   all committed entries, so it gets that vote immediately; no candidate gets it otherwise before the log
//!   here reaches the end of the peer's. A vote request carries that hint: a learner that was promoted
//!   while it was offline does not yet have the membership of two.
//! - or a majority of all members, this one included, have the same first state (all empty logs, or all one
//!   imported store) and no response has a term. Any two majorities overlap, so no two first states start a
//!   cluster, provided that a member retains the state that it responded with. So the response of a member
//!   without a known committed entry counts in its round only. An empty log waits while a peer has a store.
//! - or all other voters responded, all without a known committed entry: a first start was interrupted
//!   after votes, or after entries that no majority has. The member starts in the highest term of the
//!   responses, without a vote in it. If a log has durable entries, the member votes once its own log, or
//!   the candidate's, reaches the longest of them.
//! - or this member kept its promises (an imported store, and a term that is durable here) and a majority
//!   of all members have its first state, whether they have started or not. If they have a different one,
//!   the rules above apply and it discards its state.
//!
//! Founders with different first states never exchange Raft messages; see `greet` of the peer server.
//!
//! A response counts only if its voters equal this member's list. A member responds without voters while
//! its log holds a change that Raft does not count by yet. So an outdated list confirms no member: the
//! entry of the change is on a majority of the voters before it, and one of the counted members would hold
//! it.
//!
//! The proofs and what remains possible are in docs/decisions/0034.

use std::collections::{BTreeMap, BTreeSet};

use crate::types::{LogIndex, LogPosition, NUMBER_MAX, NodeId, Term};

/// Response of a member to an unconfirmed one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerState {
    /// Current term. Zero if the member has neither voted nor received an entry.
    pub term: Term,
    pub last_index: LogIndex,
    /// True if the member leads in `term`.
    pub is_leader: bool,
    /// True if the member does not vote: its log was empty, and it is unconfirmed or not caught up.
    pub is_held: bool,
    /// Voters that the member counts by. Empty while its log holds a pending change of voters.
    pub voters: Vec<NodeId>,
    /// Durable end of the log, if no entry after its start is known to be committed.
    pub uncommitted: Option<LogPosition>,
    /// True if the state descends from the member's own first state, not from a leader's snapshot.
    pub is_founder: bool,
}

/// Start state of a member, as recorded in its log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Start {
    /// True if the state descends from the member's own first state, not from a leader's snapshot.
    pub is_founder: bool,
    /// True if the member has voted or received an entry, which is durable or being persisted.
    pub has_term: bool,
}

/// Result of an inquiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Confirmation {
    /// The member has never taken part, or kept all its promises.
    New,
    /// The member may have taken part in terms up to `term`, and votes in later ones.
    CatchUp {
        term: Term,
        /// Position that its log must reach before it votes, or an entry of a later term; the peer of a
        /// two-member cluster gets its vote earlier. None if no entry can have been committed.
        until: Option<LogPosition>,
        /// True if the member that reported `until` has the same first state: an imported store is retained.
        is_alike: bool,
    },
}

/// State of a member that has not started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstState {
    /// A log without entries.
    Empty,
    /// A store that was imported, and its digest; 0 if it was imported by a version that made none.
    Imported(u64),
}

impl FirstState {
    /// Returns the first state. `last_index`: last index of the log, which starts after an imported store.
    /// `imported`: digest of the store, or 0.
    pub fn of(last_index: LogIndex, imported: u64) -> FirstState {
        match last_index {
            LogIndex::ZERO => FirstState::Empty,
            _ => FirstState::Imported(imported),
        }
    }

    /// Returns the index at which the log starts.
    fn log_start(self) -> LogIndex {
        match self {
            FirstState::Empty => LogIndex::ZERO,
            FirstState::Imported(_) => LogIndex(1),
        }
    }
}

/// Responses of the other members. A later response of the same member replaces its earlier one.
#[derive(Clone, Debug)]
pub struct Inquiry {
    /// Number of voters, plus this member if it is a learner.
    members: usize,
    voters: BTreeSet<NodeId>,
    answers: BTreeMap<NodeId, PeerState>,
    /// First state of this member.
    own: FirstState,
    /// True if this member has an imported store, and its promises since then are durable.
    keeps_promises: bool,
    /// First states of the members that responded.
    others: BTreeMap<NodeId, FirstState>,
}

impl Inquiry {
    /// Creates an inquiry of member `asker` in a cluster with these voters, which do not include a learner.
    /// `own`: first state of `asker`.
    pub fn new(asker: NodeId, voters: &[NodeId], own: FirstState) -> Inquiry {
        let voters: BTreeSet<NodeId> = voters.iter().copied().collect();
        let members = voters.len() + usize::from(!voters.contains(&asker));
        assert!(members > 1, "a lone member has no one to ask");
        let (answers, others) = (BTreeMap::new(), BTreeMap::new());
        Inquiry { members, voters, answers, own, keeps_promises: false, others }
    }

    /// Sets whether the log has a term although it holds no entry after its start.
    pub fn with_term(self, has_term: bool) -> Inquiry {
        Inquiry { keeps_promises: has_term, ..self }
    }

    /// Records a response, which must have been sent after this member started. Ignores a response with a
    /// term beyond any reachable one. `imported`: digest of the peer's imported store, or 0.
    pub fn note(&mut self, peer: NodeId, answer: PeerState, imported: u64) {
        if answer.term < Term(NUMBER_MAX) {
            let log = if answer.term == Term(0) { answer.last_index } else { LogIndex(imported.min(1)) };
            self.others.insert(peer, FirstState::of(log, imported));
            self.answers.insert(peer, answer);
        }
    }

    /// Starts a round: forgets the members without a known committed entry. Their directories may have been
    /// removed or replaced since.
    pub fn ask_again(&mut self) {
        if base::mutant("first-states-last") {
            return;
        }
        self.answers.retain(|_, answer| answer.uncommitted.is_none());
        self.others.retain(|peer, _| self.answers.contains_key(peer));
    }

    /// Returns the number of members that responded.
    pub fn answers(&self) -> usize {
        self.answers.len()
    }

    /// Returns the number of responses with different voters, or with voters that are about to change.
    pub fn mismatches(&self) -> usize {
        self.answers.len() - self.counted().count()
    }

    fn counted(&self) -> impl Iterator<Item = (&NodeId, &PeerState)> {
        self.answers
            .iter()
            .filter(|(_, answer)| answer.voters.iter().copied().collect::<BTreeSet<_>>() == self.voters)
    }

    /// Returns a member that has not started either, and has a different first state.
    pub fn unlike(&self) -> Option<NodeId> {
        let has_begun = |peer: &NodeId| self.answers[peer].term > Term(0);
        self.others.keys().copied().find(|peer| !has_begun(peer) && !self.begins_alike(*peer))
    }

    /// Reports whether `peer` has the first state of this member. After its start a member reports its
    /// first state only if it is a founder, and a store without a digest is comparable before the start
    /// only.
    fn begins_alike(&self, peer: NodeId) -> bool {
        let answer = &self.answers[&peer];
        let is_known = answer.term == Term(0) || (answer.is_founder && self.own != FirstState::Imported(0));
        (is_known && self.others[&peer] == self.own) || base::mutant("unlike-stores-begin")
    }

    /// Number of members with the first state of this one, itself included.
    fn alike(&self) -> usize {
        1 + self.counted().filter(|(peer, _)| self.begins_alike(**peer)).count()
    }

    /// Reports whether a majority of all members have the first state of this one. An empty log waits for a
    /// peer's store.
    fn majority_begins_alike(&self) -> bool {
        let has_store = |first: &FirstState| *first != FirstState::Empty;
        let gives_way = !has_store(&self.own) && self.others.values().any(has_store);
        self.alike() >= majority_of(self.members) && !gives_way
    }

    /// Returns the confirmation, if the responses suffice for one.
    pub fn confirmation(&self) -> Option<Confirmation> {
        if self.answers.values().all(|answer| answer.term == Term(0)) {
            return self.majority_begins_alike().then_some(Confirmation::New);
        }
        if self.keeps_promises && self.majority_begins_alike() {
            return Some(Confirmation::New);
        }
        self.of_interrupted_start().or_else(|| self.of_leader())
    }

    /// Confirms an interrupted first start, if all other voters responded and no committed entry is known.
    /// An entry that was committed with this member's acknowledgement is durable in a peer's log, and a
    /// leader that responds has reset this member's acknowledged index.
    fn of_interrupted_start(&self) -> Option<Confirmation> {
        let are_all = self.counted().count() == self.members - 1;
        let ends: Option<Vec<(LogPosition, NodeId)>> =
            self.counted().map(|(peer, answer)| answer.uncommitted.map(|end| (end, *peer))).collect();
        let ends = ends.filter(|_| are_all && !base::mutant("interrupted-start-waits"))?;
        let term = self.answers.values().map(|answer| answer.term).max()?;
        let has_entries = |(end, peer): &&(LogPosition, NodeId)| end.index > self.others[peer].log_start();
        let longest = ends.iter().filter(has_entries).max_by_key(|(end, _)| (end.term, end.index));
        let Some((end, peer)) = longest else {
            let confirmation = Confirmation::CatchUp { term, until: None, is_alike: true };
            return self.majority_begins_alike().then_some(confirmation);
        };
        Some(Confirmation::CatchUp { term, until: Some(*end), is_alike: self.begins_alike(*peer) })
    }

    /// Confirms by the leader's log, if a majority of the other members responded, the leader of the
    /// highest term among them.
    fn of_leader(&self) -> Option<Confirmation> {
        let voting = || self.counted().filter(|(_, answer)| !answer.is_held);
        if voting().count() < majority_of(self.members - 1) {
            return None;
        }
        let term = voting().map(|(_, answer)| answer.term).max()?;
        let has_all = |answer: &PeerState| self.members == 2 || (answer.is_leader && answer.term == term);
        let (peer, answer) = voting().find(|(_, answer)| has_all(answer))?;
        let until = LogPosition { index: answer.last_index, term };
        Some(Confirmation::CatchUp { term, until: Some(until), is_alike: self.begins_alike(*peer) })
    }
}

fn majority_of(count: usize) -> usize {
    count / 2 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty(is_held: bool) -> PeerState {
        PeerState {
            term: Term(0),
            last_index: LogIndex::ZERO,
            is_leader: false,
            is_held,
            voters: Vec::new(),
            uncommitted: Some(LogPosition::default()),
            is_founder: true,
        }
    }

    fn follower(term: u64, last_index: u64) -> PeerState {
        PeerState {
            term: Term(term),
            last_index: LogIndex(last_index),
            uncommitted: None,
            is_founder: false,
            ..empty(false)
        }
    }

    /// A founder that voted in `term`, and whose log ends at `end`; no entry is known to be committed.
    fn voted(term: u64, end: LogPosition) -> PeerState {
        let uncommitted = Some(end);
        PeerState { uncommitted, is_founder: true, is_held: true, ..follower(term, end.index.0) }
    }

    fn leader(term: u64, last_index: u64) -> PeerState {
        PeerState { is_leader: true, ..follower(term, last_index) }
    }

    fn held(term: u64, last_index: u64) -> PeerState {
        PeerState { is_held: true, ..follower(term, last_index) }
    }

    fn catch_up(term: u64, index: u64) -> Option<Confirmation> {
        let until = Some(LogPosition::new(index, term));
        Some(Confirmation::CatchUp { term: Term(term), until, is_alike: false })
    }

    #[test]
    fn answers_confirm_a_member_or_leave_it_held() {
        let new = Some(Confirmation::New);
        let cases: &[(u64, &[PeerState], Option<Confirmation>, &str)] = &[
            (3, &[], None, "no answer"),
            (3, &[empty(true)], new, "two empty logs of three"),
            (5, &[empty(true)], None, "two empty logs of five"),
            (5, &[empty(true), empty(false)], new, "three empty logs of five"),
            (2, &[], None, "alone of two"),
            (2, &[empty(true)], new, "both of two"),
            (4, &[empty(true)], None, "two empty logs of four"),
            (3, &[leader(1, 5)], None, "the leader alone"),
            (3, &[follower(1, 5)], None, "one follower alone"),
            (3, &[follower(1, 5), empty(true)], None, "a held member has no memory"),
            (3, &[leader(1, 5), held(1, 5)], None, "nor has one that is not caught up"),
            (3, &[follower(1, 5), follower(1, 4)], None, "no leader: its log is not known"),
            (3, &[leader(1, 5), follower(2, 4)], None, "the leader of an earlier term"),
            (3, &[leader(2, 5), follower(1, 9)], catch_up(2, 5), "the leader's log counts"),
            (3, &[leader(2, 5), empty(false)], catch_up(2, 5), "a confirmed member with an empty log"),
            (5, &[leader(2, 5), follower(2, 5)], None, "two of four others"),
            (5, &[leader(2, 5), follower(2, 5), follower(1, 1)], catch_up(2, 5), "three of four others"),
            (2, &[follower(7, 5)], catch_up(7, 5), "the other of two"),
            (4, &[leader(7, 5), follower(6, 9)], catch_up(7, 5), "two of three others"),
            (4, &[follower(7, 5), follower(7, 9), follower(6, 9)], None, "no leader of four"),
            (4, &[leader(7, 5)], None, "one of three others"),
        ];
        for (members, answers, wanted, name) in cases {
            let voters: Vec<u64> = (1..=*members).collect();
            let mut inquiry = Inquiry::new(1, &voters, FirstState::Empty);
            for (answer, peer) in answers.iter().zip(2..) {
                inquiry.note(peer, PeerState { voters: voters.clone(), ..answer.clone() }, 0);
            }
            assert_eq!(inquiry.confirmation(), *wanted, "{name}");
        }
    }

    #[test]
    fn members_begin_with_one_state() {
        const EMPTY: FirstState = FirstState::Empty;
        const OLD: FirstState = FirstState::Imported(0);
        const A: FirstState = FirstState::Imported(7);
        const B: FirstState = FirstState::Imported(8);
        // The first state of this member, then those in the responses.
        let cases: &[(u64, FirstState, &[FirstState], bool)] = &[
            (2, A, &[A], true),
            (2, A, &[B], false),
            (2, A, &[EMPTY], false),
            (2, EMPTY, &[A], false),
            (2, OLD, &[OLD], true),
            (2, A, &[OLD], false),
            (3, A, &[A], true),
            (3, A, &[B, A], true),
            (3, A, &[B, B], false),
            // The two start without it, or wait for it.
            (3, A, &[EMPTY, EMPTY], false),
            (3, EMPTY, &[EMPTY], true),
            (3, EMPTY, &[EMPTY, A], false),
            // These get the state of the majority.
            (3, EMPTY, &[A, A], false),
            (3, OLD, &[A, A], false),
            (3, A, &[OLD, OLD], false),
            (3, OLD, &[OLD], true),
            (4, A, &[A, B], false),
            (4, A, &[A, A], true),
            (5, A, &[A, B, B, EMPTY], false),
            (5, EMPTY, &[EMPTY, EMPTY, A], false),
        ];
        for (members, asker, answers, wanted) in cases {
            let voters: Vec<u64> = (1..=*members).collect();
            let mut inquiry = Inquiry::new(1, &voters, *asker);
            for (first, peer) in answers.iter().zip(2..) {
                let (last_index, imported) = match first {
                    FirstState::Empty => (LogIndex::ZERO, 0),
                    FirstState::Imported(digest) => (LogIndex(1), *digest),
                };
                let answer = PeerState { voters: voters.clone(), last_index, ..empty(true) };
                inquiry.note(peer, answer, imported);
            }
            let found = inquiry.confirmation();
            assert_eq!(found, wanted.then_some(Confirmation::New), "{asker:?} of {members} with {answers:?}");
            assert_eq!(inquiry.unlike().is_some(), answers.iter().any(|first| first != asker), "{answers:?}");
        }
        // Once the cluster has started, its state counts, and no imported one.
        let mut inquiry = Inquiry::new(1, &[1, 2, 3], A);
        for (peer, answer) in [(2, leader(2, 5)), (3, follower(2, 5))] {
            inquiry.note(peer, PeerState { voters: vec![1, 2, 3], ..answer }, 8);
        }
        assert_eq!((inquiry.confirmation(), inquiry.unlike()), (catch_up(2, 5), None));
    }

    /// All were killed in a first start: after votes, or after entries that no majority has.
    #[test]
    fn an_interrupted_first_start_continues_when_all_have_responded() {
        const A: FirstState = FirstState::Imported(7);
        const EMPTY: FirstState = FirstState::Empty;
        let store = LogPosition::new(1, 1);
        let entry = |index, term| LogPosition::new(index, term);
        let fresh = |own: FirstState| PeerState { last_index: own.log_start(), ..empty(true) };
        let starts = |term| Some(Confirmation::CatchUp { term: Term(term), until: None, is_alike: true });
        let until = |term, end, is_alike| {
            Some(Confirmation::CatchUp { term: Term(term), until: Some(end), is_alike })
        };
        let committed = |index| PeerState { uncommitted: None, ..voted(3, entry(index, 3)) };
        for (own, has_term, answers, wanted, name) in [
            (A, false, vec![(fresh(A), 7), (voted(2, store), 7)], starts(2), "one has voted"),
            (A, false, vec![(voted(2, store), 7)], None, "one of two others, which has voted"),
            (A, false, vec![(fresh(A), 8), (voted(2, store), 8)], None, "two with another state"),
            (A, false, vec![(fresh(A), 8), (voted(2, store), 7)], starts(2), "one with another state"),
            (
                A,
                false,
                vec![(fresh(A), 7), (voted(2, entry(2, 2)), 7)],
                until(2, entry(2, 2), true),
                "an entry",
            ),
            (
                A,
                false,
                vec![(voted(3, entry(2, 3)), 8), (voted(2, entry(4, 2)), 8)],
                until(3, entry(2, 3), false),
                "entries of another state: the later term is the longest log",
            ),
            (
                A,
                false,
                vec![(fresh(A), 7), (committed(5), 7)],
                None,
                "a committed entry: the leader must respond",
            ),
            (A, true, vec![(committed(5), 7)], Some(Confirmation::New), "it kept its promises"),
            (A, true, vec![(committed(5), 8)], None, "the cluster has another state"),
            (EMPTY, false, vec![(fresh(EMPTY), 0), (voted(1, entry(0, 0)), 0)], starts(1), "empty logs"),
            (
                EMPTY,
                false,
                vec![(fresh(EMPTY), 0), (voted(1, entry(1, 1)), 0)],
                until(1, entry(1, 1), true),
                "an entry in an empty log",
            ),
        ] {
            let voters = vec![1, 2, 3];
            let mut inquiry = Inquiry::new(1, &voters, own).with_term(has_term);
            for ((answer, imported), peer) in answers.into_iter().zip(2..) {
                inquiry.note(peer, PeerState { voters: voters.clone(), ..answer }, imported);
            }
            assert_eq!(inquiry.confirmation(), wanted, "{name}");
        }
    }

    #[test]
    fn a_later_answer_replaces_an_earlier_one() {
        let mut inquiry = Inquiry::new(1, &[1, 2, 3, 4, 5], FirstState::Empty);
        let of_five = |answer| PeerState { voters: vec![1, 2, 3, 4, 5], ..answer };
        inquiry.note(2, of_five(empty(true)), 0);
        inquiry.note(2, of_five(empty(true)), 0);
        assert_eq!(inquiry.confirmation(), None, "one member answered twice");
        inquiry.note(2, of_five(leader(3, 9)), 0);
        inquiry.note(3, of_five(follower(3, 9)), 0);
        inquiry.note(4, of_five(empty(true)), 0);
        assert_eq!(inquiry.confirmation(), None);
        inquiry.note(4, of_five(follower(3, 1)), 0);
        assert_eq!(inquiry.confirmation(), catch_up(3, 9));
        inquiry.note(5, of_five(leader(u64::MAX, 9)), 0);
        assert_eq!(inquiry.confirmation(), catch_up(3, 9), "a forged term");
    }

    #[test]
    fn what_a_member_begins_with_counts_in_its_round_alone() {
        let of_five = |answer| PeerState { voters: vec![1, 2, 3, 4, 5], ..answer };
        let store = || of_five(PeerState { last_index: LogIndex(1), ..empty(true) });
        let mut inquiry = Inquiry::new(1, &[1, 2, 3, 4, 5], FirstState::Imported(7));
        inquiry.note(2, store(), 7);
        inquiry.ask_again();
        inquiry.note(3, store(), 7);
        assert_eq!((inquiry.confirmation(), inquiry.answers()), (None, 1));
        inquiry.note(4, store(), 8);
        inquiry.note(2, store(), 7);
        assert_eq!((inquiry.confirmation(), inquiry.unlike()), (Some(Confirmation::New), Some(4)));
        // A store that is gone keeps no empty logs waiting.
        let mut inquiry = Inquiry::new(1, &[1, 2, 3, 4, 5], FirstState::Empty);
        inquiry.note(2, store(), 7);
        (3..5).for_each(|peer| inquiry.note(peer, of_five(empty(true)), 0));
        assert_eq!(inquiry.confirmation(), None);
        inquiry.ask_again();
        (3..5).for_each(|peer| inquiry.note(peer, of_five(empty(true)), 0));
        assert_eq!(inquiry.confirmation(), Some(Confirmation::New));
        // What has begun stays so.
        inquiry.note(2, of_five(leader(3, 9)), 0);
        inquiry.note(3, of_five(follower(3, 9)), 0);
        inquiry.ask_again();
        inquiry.note(4, of_five(follower(3, 1)), 0);
        assert_eq!(inquiry.confirmation(), catch_up(3, 9));
    }

    #[test]
    fn answers_by_another_list_of_voters_confirm_nothing() {
        let by = |voters: &[u64], answer| PeerState { voters: voters.to_vec(), ..answer };
        // Voter 3 was added, and has acknowledged entries with member 1, whose list is that of before.
        let mut inquiry = Inquiry::new(1, &[1, 2], FirstState::Empty);
        inquiry.note(2, by(&[1, 2, 3], follower(7, 5)), 0);
        assert_eq!((inquiry.confirmation(), inquiry.mismatches()), (None, 1));
        inquiry.note(2, by(&[], follower(7, 5)), 0);
        assert_eq!(inquiry.confirmation(), None, "it holds a change that it has not applied");
        inquiry.note(2, by(&[2, 1], follower(7, 5)), 0);
        assert_eq!((inquiry.confirmation(), inquiry.mismatches()), (catch_up(7, 5), 0));
        // Of three, the leader must be one of those that count.
        let mut inquiry = Inquiry::new(1, &[1, 2, 3], FirstState::Empty);
        inquiry.note(2, by(&[1, 2, 3], follower(7, 5)), 0);
        inquiry.note(3, by(&[1, 2, 3, 4], leader(7, 9)), 0);
        assert_eq!(inquiry.confirmation(), None);
        // Nor are two empty logs of three a first start, if their lists differ.
        let mut inquiry = Inquiry::new(1, &[1, 2, 3], FirstState::Empty);
        inquiry.note(2, by(&[1, 2, 3, 4], empty(true)), 0);
        assert_eq!(inquiry.confirmation(), None);
    }
}
