//! When a member with an empty log may vote.
//!
//! An empty log belongs to a new member, or to one that lost its disk. The latter may have voted, and may
//! have acknowledged entries that are committed, so it must not take part as if it were new. It asks the
//! other members:
//!
//! ```text
//!   empty log ──▶ unconfirmed ──answers──┬──▶ New      votes at once
//!                                        └──▶ CatchUp  takes entries, votes once its log reaches a position
//! ```
//!
//! A member that is unconfirmed handles no message of Raft: it neither votes nor acknowledges entries. An
//! acknowledgement is as dangerous as a vote: with it, a leader of an earlier term could commit an entry
//! where the same member has acknowledged another one before.
//!
//! The answers confirm a member when:
//!
//! - a majority of the other members answered, none of them held itself. Each leader that this member had
//!   voted for, and each entry committed with its acknowledgement, is known to one of them. The highest term
//!   of the answers is the first in which this member takes part, and it does not vote in that term.
//! - with three members or more, the leader of that term is among them. Its log holds every entry that was
//!   committed with this member's acknowledgement, so votes wait until the log here reaches the end of the
//!   leader's. An even number is no exception: a candidate that does not know the newest change of the
//!   members counts by another number, and its majority may share only this member with that of a committed
//!   entry.
//! - of two members the other one answered, and there may be no leader without this one's vote. The other one
//!   holds what was committed, so it gets that vote at once; no one else does before the log here reaches its
//!   end. A request for a vote says so itself: a learner that was promoted while it was away does not know
//!   that it is one of two.
//! - or no answer has any term, and a majority of all members, this one included, begin with one state: all
//!   with empty logs, or all with one imported store. Any two majorities overlap, so no two states begin a
//!   cluster, as long as a member keeps what it answered with. So answers without a term count in their round
//!   alone, and a member that was confirmed so takes no message of one that begins with another state. An
//!   empty log begins nothing if any other member has a store.
//!
//! Only answers by the asker's own list of voters count. A member answers without a list while its log holds
//! a change that Raft does not count by yet. So a list that is not the present one confirms nothing: the
//! entry of the change is with a majority of the voters before it, and one of those that count would hold it.
//!
//! The proofs and what remains possible are in docs/decisions/0034.

use std::collections::{BTreeMap, BTreeSet};

use crate::types::{LogIndex, LogPosition, NUMBER_MAX, NodeId, Term};

/// What a member answers to one whose log is empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerState {
    pub term: Term,
    pub last_index: LogIndex,
    /// It leads in `term`.
    pub is_leader: bool,
    /// It does not vote itself: its own log was empty, and is not confirmed or not caught up.
    pub is_held: bool,
    /// The voters by which it counts. None while its log holds a change of them.
    pub voters: Vec<NodeId>,
}

/// What the answers say of a member with an empty log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Confirmation {
    /// It has never taken part.
    New,
    /// It may have taken part in terms up to `until.term`. It votes in later terms, once its log reaches
    /// `until.index` or holds an entry of a later term; the other one of two members has its vote before.
    CatchUp { until: LogPosition },
}

/// What a member begins with that has taken no part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstState {
    /// A log without entries.
    Empty,
    /// A store that was imported, and its digest; 0 if it was imported by a version that made none.
    Imported(u64),
}

impl FirstState {
    /// `last_index`: of the log, which begins after an imported store. `imported`: digest of the store, or 0.
    pub fn of(last_index: LogIndex, imported: u64) -> FirstState {
        match last_index {
            LogIndex::ZERO => FirstState::Empty,
            _ => FirstState::Imported(imported),
        }
    }
}

/// The answers of the other members so far. A later answer of the same member replaces its earlier one.
#[derive(Clone, Debug)]
pub struct Inquiry {
    /// Voters, and the member that asks.
    members: usize,
    voters: BTreeSet<NodeId>,
    answers: BTreeMap<NodeId, PeerState>,
    /// What the asker and those that answered begin with, if they have not begun.
    own: FirstState,
    others: BTreeMap<NodeId, FirstState>,
}

impl Inquiry {
    /// An inquiry of member `asker` in a cluster with these voters. A learner is none of them. `own`: what
    /// the asker begins with.
    pub fn new(asker: NodeId, voters: &[NodeId], own: FirstState) -> Inquiry {
        let voters: BTreeSet<NodeId> = voters.iter().copied().collect();
        let members = voters.len() + usize::from(!voters.contains(&asker));
        assert!(members > 1, "a lone member has no one to ask");
        Inquiry { members, voters, answers: BTreeMap::new(), own, others: BTreeMap::new() }
    }

    /// Notes an answer. It must have been given after this member started. One with a term that no cluster
    /// reaches is ignored. `imported`: digest of the store that the peer was imported with, or 0.
    pub fn note(&mut self, peer: NodeId, answer: PeerState, imported: u64) {
        if answer.term < Term(NUMBER_MAX) {
            self.others.insert(peer, FirstState::of(answer.last_index, imported));
            self.answers.insert(peer, answer);
        }
    }

    /// Begins a round of questions: forgets those that have not begun. Their directories may be gone, or have
    /// another state.
    pub fn ask_again(&mut self) {
        if base::mutant("first-states-last") {
            return;
        }
        self.answers.retain(|_, answer| answer.term > Term(0));
        self.others.retain(|peer, _| self.answers.contains_key(peer));
    }

    /// Members that have answered.
    pub fn answers(&self) -> usize {
        self.answers.len()
    }

    /// Answers by another list of voters, or by one that is about to change.
    pub fn mismatches(&self) -> usize {
        self.answers.len() - self.counted().count()
    }

    fn counted(&self) -> impl Iterator<Item = (&NodeId, &PeerState)> {
        self.answers
            .iter()
            .filter(|(_, answer)| answer.voters.iter().copied().collect::<BTreeSet<_>>() == self.voters)
    }

    /// A member that has not begun either, and begins with another state than this one.
    pub fn unlike(&self) -> Option<NodeId> {
        let has_begun = |peer: &NodeId| self.answers[peer].term > Term(0);
        self.others.keys().copied().find(|peer| !has_begun(peer) && !self.begins_alike(*peer))
    }

    fn begins_alike(&self, peer: NodeId) -> bool {
        self.others[&peer] == self.own || base::mutant("unlike-stores-begin")
    }

    /// What the answers so far amount to, if they suffice.
    pub fn confirmation(&self) -> Option<Confirmation> {
        let majority_of = |count: usize| count / 2 + 1;
        if self.answers.values().all(|answer| answer.term == Term(0)) {
            let alike = 1 + self.counted().filter(|(peer, _)| self.begins_alike(**peer)).count();
            let has_store = |first: &FirstState| *first != FirstState::Empty;
            let gives_way = !has_store(&self.own) && self.others.values().any(has_store);
            return (alike >= majority_of(self.members) && !gives_way).then_some(Confirmation::New);
        }
        let voting = || self.counted().map(|(_, answer)| answer).filter(|answer| !answer.is_held);
        if voting().count() < majority_of(self.members - 1) {
            return None;
        }
        let term = voting().map(|answer| answer.term).max()?;
        let has_all = |answer: &&PeerState| self.members == 2 || (answer.is_leader && answer.term == term);
        let index = voting().find(has_all)?.last_index;
        Some(Confirmation::CatchUp { until: LogPosition { index, term } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty(is_held: bool) -> PeerState {
        PeerState { term: Term(0), last_index: LogIndex::ZERO, is_leader: false, is_held, voters: Vec::new() }
    }

    fn follower(term: u64, last_index: u64) -> PeerState {
        PeerState { term: Term(term), last_index: LogIndex(last_index), ..empty(false) }
    }

    fn leader(term: u64, last_index: u64) -> PeerState {
        PeerState { is_leader: true, ..follower(term, last_index) }
    }

    fn held(term: u64, last_index: u64) -> PeerState {
        PeerState { is_held: true, ..follower(term, last_index) }
    }

    fn catch_up(term: u64, index: u64) -> Option<Confirmation> {
        Some(Confirmation::CatchUp { until: LogPosition::new(index, term) })
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
        // What the asker begins with, then those that answered.
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
            // The two begin without it, or wait for it.
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
        // Once the cluster has begun, its state counts, and no imported one.
        let mut inquiry = Inquiry::new(1, &[1, 2, 3], A);
        for (peer, answer) in [(2, leader(2, 5)), (3, follower(2, 5))] {
            inquiry.note(peer, PeerState { voters: vec![1, 2, 3], ..answer }, 8);
        }
        assert_eq!((inquiry.confirmation(), inquiry.unlike()), (catch_up(2, 5), None));
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
