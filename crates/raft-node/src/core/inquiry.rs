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
//! - or no answer has any term, and a majority of all members, this one included, have empty logs: a first
//!   start.
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

/// The answers of the other members so far. A later answer of the same member replaces its earlier one.
#[derive(Clone, Debug)]
pub struct Inquiry {
    /// Voters, and the member that asks.
    members: usize,
    voters: BTreeSet<NodeId>,
    answers: BTreeMap<NodeId, PeerState>,
}

impl Inquiry {
    /// An inquiry of member `asker` in a cluster with these voters. A learner is none of them.
    pub fn new(asker: NodeId, voters: &[NodeId]) -> Inquiry {
        let voters: BTreeSet<NodeId> = voters.iter().copied().collect();
        let members = voters.len() + usize::from(!voters.contains(&asker));
        assert!(members > 1, "a lone member has no one to ask");
        Inquiry { members, voters, answers: BTreeMap::new() }
    }

    /// Notes an answer. It must have been given after this member started. One with a term that no cluster
    /// reaches is ignored.
    pub fn note(&mut self, peer: NodeId, answer: PeerState) {
        if answer.term < Term(NUMBER_MAX) {
            self.answers.insert(peer, answer);
        }
    }

    /// Members that have answered.
    pub fn answers(&self) -> usize {
        self.answers.len()
    }

    /// Answers by another list of voters, or by one that is about to change.
    pub fn mismatches(&self) -> usize {
        self.answers.len() - self.counted().count()
    }

    fn counted(&self) -> impl Iterator<Item = &PeerState> {
        self.answers
            .values()
            .filter(|answer| answer.voters.iter().copied().collect::<BTreeSet<_>>() == self.voters)
    }

    /// What the answers so far amount to, if they suffice.
    pub fn confirmation(&self) -> Option<Confirmation> {
        let majority_of = |count: usize| count / 2 + 1;
        if self.answers.values().all(|answer| answer.term == Term(0)) {
            let empty = 1 + self.counted().count();
            return (empty >= majority_of(self.members)).then_some(Confirmation::New);
        }
        let voting = || self.counted().filter(|answer| !answer.is_held);
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
            let mut inquiry = Inquiry::new(1, &voters);
            for (answer, peer) in answers.iter().zip(2..) {
                inquiry.note(peer, PeerState { voters: voters.clone(), ..answer.clone() });
            }
            assert_eq!(inquiry.confirmation(), *wanted, "{name}");
        }
    }

    #[test]
    fn a_later_answer_replaces_an_earlier_one() {
        let mut inquiry = Inquiry::new(1, &[1, 2, 3, 4, 5]);
        let of_five = |answer| PeerState { voters: vec![1, 2, 3, 4, 5], ..answer };
        inquiry.note(2, of_five(empty(true)));
        inquiry.note(2, of_five(empty(true)));
        assert_eq!(inquiry.confirmation(), None, "one member answered twice");
        inquiry.note(2, of_five(leader(3, 9)));
        inquiry.note(3, of_five(follower(3, 9)));
        inquiry.note(4, of_five(empty(true)));
        assert_eq!(inquiry.confirmation(), None);
        inquiry.note(4, of_five(follower(3, 1)));
        assert_eq!(inquiry.confirmation(), catch_up(3, 9));
        inquiry.note(5, of_five(leader(u64::MAX, 9)));
        assert_eq!(inquiry.confirmation(), catch_up(3, 9), "a forged term");
    }

    #[test]
    fn answers_by_another_list_of_voters_confirm_nothing() {
        let by = |voters: &[u64], answer| PeerState { voters: voters.to_vec(), ..answer };
        // Voter 3 was added, and has acknowledged entries with member 1, whose list is that of before.
        let mut inquiry = Inquiry::new(1, &[1, 2]);
        inquiry.note(2, by(&[1, 2, 3], follower(7, 5)));
        assert_eq!((inquiry.confirmation(), inquiry.mismatches()), (None, 1));
        inquiry.note(2, by(&[], follower(7, 5)));
        assert_eq!(inquiry.confirmation(), None, "it holds a change that it has not applied");
        inquiry.note(2, by(&[2, 1], follower(7, 5)));
        assert_eq!((inquiry.confirmation(), inquiry.mismatches()), (catch_up(7, 5), 0));
        // Of three, the leader must be one of those that count.
        let mut inquiry = Inquiry::new(1, &[1, 2, 3]);
        inquiry.note(2, by(&[1, 2, 3], follower(7, 5)));
        inquiry.note(3, by(&[1, 2, 3, 4], leader(7, 9)));
        assert_eq!(inquiry.confirmation(), None);
        // Nor are two empty logs of three a first start, if their lists differ.
        let mut inquiry = Inquiry::new(1, &[1, 2, 3]);
        inquiry.note(2, by(&[1, 2, 3, 4], empty(true)));
        assert_eq!(inquiry.confirmation(), None);
    }
}
