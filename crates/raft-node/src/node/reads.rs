//! Read rounds: the quorum confirmation of linearizable reads.
//!
//! ```text
//!   ask ──▶ waiting ──begin──▶ round { context } ──confirm──▶ read index
//!                               ▲  │      │
//!   no response in retry_ticks: └──┘      └── another leader ──▶ LeaderChanged
//!   retry
//! ```
//!
//! * All reads that wait at a poll share a round: one heartbeat to each peer confirms them all.
//! * A read joins only a round that starts after its request; so an index confirmed for the round covers
//!   every write that was acknowledged before the read.
//! * A context identifies member, run and round. A response for an unknown round is ignored.
//! * A round belongs to one leader in one term. When either changes, late responses to it are invalid.
//! * A follower sends its round to the leader, which confirms it as its own and returns the index with the
//!   context. So linearizable reads cost the leader heartbeats, not data.
//! * raft-rs drops a round silently (no leader, no entry committed in the term, a lost message). It is
//!   retried under its name: its readers arrived before both attempts, so a late response to the first is
//!   valid for them, which matters if every response takes longer than `retry_ticks`. The leader
//!   distinguishes both attempts, see `core/read_names`.
//!
//! `R` receives the result of a read; this file does not inspect it.

use std::collections::VecDeque;

use bytes::Bytes;

use super::proposals::Ticks;
use crate::{NodeId, Term};

/// Maximum concurrent rounds. With two, reads that arrive while a round is being confirmed need not wait for
/// it; more would cost heartbeats without making reads faster.
const ROUNDS_MAX: usize = 2;

/// A reader and its arrival tick.
struct PendingRead<R> {
    reply: R,
    since: Ticks,
}

/// Readers that share a confirmation.
struct Round<R> {
    number: u64,
    /// Tick of the last attempt.
    asked: Ticks,
    readers: VecDeque<PendingRead<R>>,
}

/// The leader known to this member, if any, and the term.
pub(super) type LeaderTerm = (Option<NodeId>, Term);

pub(super) struct Reads<R> {
    // Prefix of this run's round names, without the number.
    id: NodeId,
    nonce: u64,
    next_number: u64,
    /// Ticks without a response before a round is retried.
    retry_ticks: Ticks,
    leader_term: LeaderTerm,
    /// Readers outside of rounds, in arrival order.
    waiting: VecDeque<PendingRead<R>>,
    /// Unconfirmed rounds, oldest first; at most [`ROUNDS_MAX`].
    rounds: VecDeque<Round<R>>,
    /// Readers of rounds that lost their leader, until another one is known.
    orphans: VecDeque<PendingRead<R>>,
}

impl<R> Reads<R> {
    pub fn new(id: NodeId, nonce: u64, retry_ticks: Ticks) -> Self {
        assert!(retry_ticks > 0, "a round needs time to be answered");
        Reads {
            id,
            nonce,
            next_number: 1,
            retry_ticks,
            leader_term: (None, Term(0)),
            waiting: VecDeque::new(),
            rounds: VecDeque::new(),
            orphans: VecDeque::new(),
        }
    }

    /// Queues a reader for the next round.
    pub fn ask(&mut self, reply: R, now: Ticks) {
        match self.rounds.back_mut() {
            Some(round) if base::mutant("late-readers") => {
                round.readers.push_back(PendingRead { reply, since: now });
            }
            _ => self.waiting.push_back(PendingRead { reply, since: now }),
        }
    }

    /// Reports whether a round is needed and permitted.
    pub fn may_begin(&self) -> bool {
        !self.waiting.is_empty() && self.rounds.len() < ROUNDS_MAX
    }

    /// Starts a round for all waiting readers and returns its context, if needed and permitted.
    pub fn begin(&mut self, now: Ticks) -> Option<Bytes> {
        if !self.may_begin() {
            return None;
        }
        let number = self.next_number;
        self.next_number += 1;
        let readers = std::mem::take(&mut self.waiting);
        assert!(self.leader_term.0.is_some(), "a round without a leader");
        assert!(self.rounds.back().is_none_or(|last| last.number < number), "rounds begin in order");
        self.rounds.push_back(Round { number, asked: now, readers });
        Some(self.context(number))
    }

    /// Returns the contexts of rounds without a timely response: their requests or responses may be lost.
    pub fn overdue(&mut self, now: Ticks) -> Vec<Bytes> {
        let mut overdue = Vec::new();
        for round in &mut self.rounds {
            if round.asked + self.retry_ticks <= now {
                round.asked = now;
                if base::mutant("renamed-rounds") {
                    round.number = self.next_number;
                    self.next_number += 1;
                }
                overdue.push(round.number);
            }
        }
        overdue.into_iter().map(|number| self.context(number)).collect()
    }

    /// Returns the unique name of a round: member, run, number.
    fn context(&self, number: u64) -> Bytes {
        Bytes::from([self.id.to_le_bytes(), self.nonce.to_le_bytes(), number.to_le_bytes()].concat())
    }

    /// Returns the readers of a confirmed round and of all earlier ones: those started earlier, and the
    /// leader's commit index never decreases.
    ///
    /// A response may arrive late, twice, or for a round with only expired readers: only a current round is
    /// confirmed.
    pub fn confirm(&mut self, context: &[u8]) -> Vec<R> {
        let Some(at) = self.rounds.iter().position(|round| self.context(round.number) == context) else {
            return Vec::new();
        };
        let readers = self.rounds.drain(..=at).flat_map(|round| round.readers);
        readers.map(|reader| reader.reply).collect()
    }

    /// Records the current leader. Readers of rounds with another leader, or another term, fail as soon as a
    /// leader is known again, and are returned; readers outside of rounds continue to wait.
    pub fn note_leader_term(&mut self, leader_term: LeaderTerm) -> Vec<R> {
        if leader_term == self.leader_term {
            return Vec::new();
        }
        self.leader_term = leader_term;
        self.orphans.extend(self.rounds.drain(..).flat_map(|round| round.readers));
        match leader_term.0 {
            Some(_) => self.orphans.drain(..).map(|reader| reader.reply).collect(),
            None => Vec::new(),
        }
    }

    /// Removes every reader that arrived before `deadline`, and rounds without readers.
    pub fn expire(&mut self, deadline: Ticks) -> Vec<R> {
        let rounds = self.rounds.iter_mut().map(|round| &mut round.readers);
        let mut expired = Vec::new();
        for queue in rounds.chain([&mut self.orphans, &mut self.waiting]) {
            // In arrival order.
            let late = queue.iter().take_while(|reader| reader.since < deadline).count();
            expired.extend(queue.drain(..late).map(|reader| reader.reply));
        }
        self.rounds.retain(|round| !round.readers.is_empty());
        expired
    }

    /// Removes all waiting readers, because the member stops.
    pub fn drain(&mut self) -> impl Iterator<Item = R> {
        let rounds = std::mem::take(&mut self.rounds).into_iter().flat_map(|round| round.readers);
        rounds
            .chain(std::mem::take(&mut self.orphans))
            .chain(std::mem::take(&mut self.waiting))
            .map(|reader| reader.reply)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RETRY: Ticks = 5;

    fn reads() -> Reads<&'static str> {
        let mut reads = Reads::new(1, 77, RETRY);
        assert!(reads.note_leader_term((Some(1), Term(1))).is_empty());
        reads
    }

    #[test]
    fn all_that_wait_share_a_round() {
        let mut r = reads();
        assert_eq!(r.begin(0), None);
        r.ask("a", 0);
        r.ask("b", 0);
        let context = r.begin(0).unwrap();
        assert_eq!(r.begin(0), None);
        assert_eq!(r.confirm(&context), ["a", "b"]);
        assert!(r.confirm(&context).is_empty(), "a context confirms once");
    }

    #[test]
    fn a_reader_that_comes_later_needs_a_later_round() {
        let mut r = reads();
        r.ask("a", 0);
        let first = r.begin(0).unwrap();
        r.ask("b", 0);
        assert_eq!(r.confirm(&first), ["a"]);
        let second = r.begin(0).unwrap();
        assert_ne!(first, second);
        assert_eq!(r.confirm(&second), ["b"]);
    }

    #[test]
    fn a_later_answer_confirms_earlier_rounds_but_not_the_other_way_round() {
        let mut r = reads();
        r.ask("a", 0);
        let first = r.begin(0).unwrap();
        r.ask("b", 0);
        let second = r.begin(0).unwrap();
        r.ask("c", 0);
        assert_eq!(r.begin(0), None, "two rounds at a time");
        assert_eq!(r.confirm(&second), ["a", "b"]);
        assert!(r.confirm(&first).is_empty());
    }

    #[test]
    fn an_unanswered_round_is_asked_for_again_and_a_late_answer_serves_it() {
        let mut r = reads();
        r.ask("a", 0);
        let context = r.begin(0).unwrap();
        for (now, overdue) in [(RETRY - 1, vec![]), (RETRY, vec![context.clone()]), (RETRY + 1, vec![])] {
            assert_eq!(r.overdue(now), overdue, "{now}");
        }
        assert_eq!(r.confirm(&context), ["a"]);
        assert!(r.overdue(3 * RETRY).is_empty());
    }

    #[test]
    fn readers_expire_in_rounds_and_while_waiting() {
        let mut r = reads();
        r.ask("a", 0);
        r.begin(0).unwrap();
        r.ask("b", 1);
        r.ask("c", 60);
        assert!(r.expire(0).is_empty());
        assert_eq!(r.expire(2), ["a", "b"]);
        assert_eq!(r.drain().collect::<Vec<_>>(), ["c"]);
    }

    #[test]
    fn a_round_does_not_outlive_its_leader() {
        // (leader and term before, after, whether the readers fail immediately)
        let cases = [
            ((Some(1), Term(1)), (Some(2), Term(2)), true),
            ((Some(1), Term(1)), (Some(1), Term(2)), true),
            ((Some(1), Term(1)), (None, Term(2)), false),
        ];
        for (before, after, fails) in cases {
            let mut r = Reads::new(1, 77, RETRY);
            r.note_leader_term(before);
            r.ask("a", 0);
            let context = r.begin(0).unwrap();
            assert_eq!(!r.note_leader_term(after).is_empty(), fails, "{before:?} to {after:?}");
            assert!(r.confirm(&context).is_empty(), "{before:?} to {after:?}");
            assert_eq!(r.begin(0), None, "{before:?} to {after:?}");
        }
    }

    #[test]
    fn readers_whose_leader_was_lost_hear_of_the_next_one_or_expire() {
        for (next, failing) in [(Some((Some(2), Term(3))), vec!["a"]), (None, vec![])] {
            let mut r = reads();
            r.ask("a", 0);
            r.begin(0).unwrap();
            r.note_leader_term((None, Term(2)));
            let failed = next.map(|next| r.note_leader_term(next)).unwrap_or_default();
            assert_eq!(failed, failing);
            assert_eq!(
                r.expire(1).len(),
                1 - failing.len(),
                "a reader that was not answered runs out of time"
            );
        }
    }

    #[test]
    fn a_reader_that_waits_for_a_leader_does_not_fail_when_one_comes() {
        let mut r = Reads::new(1, 77, RETRY);
        r.ask("a", 0);
        assert!(r.note_leader_term((Some(2), Term(4))).is_empty());
        let context = r.begin(0).unwrap();
        assert_eq!(r.confirm(&context), ["a"]);
    }

    #[test]
    fn contexts_of_members_and_runs_differ() {
        let context = |id, nonce| {
            let mut r = Reads::new(id, nonce, RETRY);
            r.note_leader_term((Some(1), Term(1)));
            r.ask("a", 0);
            r.begin(0).unwrap()
        };
        assert_ne!(context(1, 5), context(2, 5));
        assert_ne!(context(1, 5), context(1, 6));
    }

    /// A step of a random sequence.
    #[derive(Clone, Debug)]
    enum Step {
        Ask,
        Begin,
        Confirm(usize),
        LeaderTerm(Option<u64>),
        Tick,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Ask),
            3 => Just(Step::Begin),
            3 => (0usize..6).prop_map(Step::Confirm),
            1 => prop::option::of(1u64..3).prop_map(Step::LeaderTerm),
            2 => Just(Step::Tick),
        ]
    }

    proptest! {
        /// Each reader completes once, and never through a round that started before its arrival or under
        /// another leader.
        #[test]
        fn every_reader_is_answered_once_and_by_a_later_round(
            steps in prop::collection::vec(step(), 1..120),
        ) {
            let mut reads: Reads<usize> = Reads::new(1, 1, RETRY);
            reads.note_leader_term((Some(1), Term(1)));
            let (mut now, mut term, mut asked, mut answered) = (0, 1, 0, Vec::new());
            // Contexts with the number of earlier readers, and the term of their start.
            let mut contexts: Vec<(Bytes, usize, u64)> = Vec::new();
            for step in steps {
                match step {
                    Step::Ask => {
                        reads.ask(asked, now);
                        asked += 1;
                    }
                    Step::Begin if reads.leader_term.0.is_some() => {
                        contexts.extend(reads.begin(now).map(|context| (context, asked, term)));
                    }
                    Step::Begin => {}
                    Step::Confirm(back) => {
                        let Some(at) = contexts.len().checked_sub(back + 1) else { continue };
                        let (context, before, began) = contexts[at].clone();
                        let readers = reads.confirm(&context);
                        prop_assert!(readers.is_empty() || began == term, "an answer of another leader");
                        prop_assert!(readers.iter().all(|reader| *reader < before), "a later reader");
                        answered.extend(readers);
                    }
                    Step::LeaderTerm(leader) => {
                        term += 1;
                        answered.extend(reads.note_leader_term((leader, Term(term))));
                    }
                    Step::Tick => {
                        now += 1;
                        let rounds: Vec<_> = reads.rounds.iter().map(|it| reads.context(it.number)).collect();
                        prop_assert!(reads.overdue(now).iter().all(|context| rounds.contains(context)));
                        answered.extend(reads.expire(now.saturating_sub(20)));
                    }
                }
            }
            answered.extend(reads.drain());
            answered.sort_unstable();
            prop_assert_eq!(answered, (0..asked).collect::<Vec<_>>());
        }
    }
}
