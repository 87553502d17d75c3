//! Read points: what a quorum must confirm before a linearizable read.
//!
//! ```text
//!   ask ──▶ waiting ──begin──▶ round { context } ──confirm──▶ index to wait for
//!                               ▲  │      │
//!     no answer in retry_ticks: └──┘      └── another leader ──▶ LeaderChanged
//!     asked again
//! ```
//!
//! * All reads that wait when the loop turns share one round: one heartbeat to each peer confirms them all.
//! * A read joins only a round that begins after it was asked; so an index confirmed for the round covers
//!   every write that was acknowledged before the read.
//! * A context names member, run and round. An answer to a round that is no more is ignored.
//! * A round belongs to one leader in one term. When either changes its answer is worthless, whenever it
//!   comes.
//! * A follower's round travels to the leader, which confirms it as its own; the index comes back with the
//!   context. So linearizable reads cost the leader heartbeats, not data.
//! * raft-rs drops a round in silence (no leader, nothing committed in the term, a lost message). It is asked
//!   for again under its name: its readers asked before either time, so a late answer to the first serves
//!   them, also where every answer takes longer than `retry_ticks`. The leader counts both times apart, see
//!   `core/read_names`.
//!
//! `R` is what answers a reader; this file never looks into it.

use std::collections::VecDeque;

use bytes::Bytes;

use super::proposals::Ticks;
use crate::{NodeId, Term};

/// Rounds under way at once. Two: while one is being confirmed, those who came meanwhile need not wait for
/// its answer; more would cost heartbeats and make no reader faster.
const ROUNDS_MAX: usize = 2;

/// One who wants to read, and since when.
struct PendingRead<R> {
    reply: R,
    since: Ticks,
}

/// Readers that one confirmation will serve.
struct Round<R> {
    number: u64,
    /// Last.
    asked: Ticks,
    readers: VecDeque<PendingRead<R>>,
}

/// Who leads, as far as this member knows: the leader, if any, and the term.
pub(super) type LeaderTerm = (Option<NodeId>, Term);

pub(super) struct Reads<R> {
    // The name of this run's rounds but for the number.
    id: NodeId,
    nonce: u64,
    next_number: u64,
    /// After this long without an answer a round is asked for again.
    retry_ticks: Ticks,
    /// The leader and term that the rounds under way were begun in.
    leader_term: LeaderTerm,
    /// In the order of arrival; in no round yet.
    waiting: VecDeque<PendingRead<R>>,
    /// Begun and not confirmed, oldest first; at most [`ROUNDS_MAX`].
    rounds: VecDeque<Round<R>>,
    /// Readers whose round died with its leader, until another one is known.
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

    /// Queues a reader; it joins the next round that begins.
    pub fn ask(&mut self, reply: R, now: Ticks) {
        match self.rounds.back_mut() {
            Some(round) if base::mutant("late-readers") => {
                round.readers.push_back(PendingRead { reply, since: now });
            }
            _ => self.waiting.push_back(PendingRead { reply, since: now }),
        }
    }

    /// Whether there is cause and room for a round.
    pub fn may_begin(&self) -> bool {
        !self.waiting.is_empty() && self.rounds.len() < ROUNDS_MAX
    }

    /// Begins a round for all readers that wait and returns its context, if there is cause and room.
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

    /// The contexts of rounds that were not answered in time: their questions or answers may be lost.
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

    /// The name of a round: member, run, number. No two rounds ever share one.
    fn context(&self, number: u64) -> Bytes {
        Bytes::from([self.id.to_le_bytes(), self.nonce.to_le_bytes(), number.to_le_bytes()].concat())
    }

    /// The readers whose round was confirmed. Rounds before it are confirmed with it: they began earlier, and
    /// the leader's commit index never goes back.
    ///
    /// An answer may come late, twice, or for a round whose readers gave up: only a round under way is
    /// confirmed.
    pub fn confirm(&mut self, context: &[u8]) -> Vec<R> {
        let Some(at) = self.rounds.iter().position(|round| self.context(round.number) == context) else {
            return Vec::new();
        };
        let readers = self.rounds.drain(..=at).flat_map(|round| round.readers);
        readers.map(|reader| reader.reply).collect()
    }

    /// Notes who leads now. Readers whose round another leader, or another term, was to answer fail as soon
    /// as a leader is known again, and are returned; those not yet in a round just wait for it.
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

    /// Takes out every reader that asked before `deadline`, and rounds without readers.
    pub fn expire(&mut self, deadline: Ticks) -> Vec<R> {
        let rounds = self.rounds.iter_mut().map(|round| &mut round.readers);
        let mut expired = Vec::new();
        for queue in rounds.chain([&mut self.orphans, &mut self.waiting]) {
            // In the order of arrival.
            let late = queue.iter().take_while(|reader| reader.since < deadline).count();
            expired.extend(queue.drain(..late).map(|reader| reader.reply));
        }
        self.rounds.retain(|round| !round.readers.is_empty());
        expired
    }

    /// Takes out all readers that still wait, to be answered that the member stops.
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
        // (leader and term before, after, whether the readers fail at once)
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

    /// One thing that can happen to readers.
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
        /// Each reader is answered once, and never by a round that began before it asked or under another
        /// leader.
        #[test]
        fn every_reader_is_answered_once_and_by_a_later_round(
            steps in prop::collection::vec(step(), 1..120),
        ) {
            let mut reads: Reads<usize> = Reads::new(1, 1, RETRY);
            reads.note_leader_term((Some(1), Term(1)));
            let (mut now, mut term, mut asked, mut answered) = (0, 1, 0, Vec::new());
            // Contexts with the number of readers that had asked before, and the term they began in.
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
