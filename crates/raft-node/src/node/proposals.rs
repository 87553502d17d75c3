//! Proposals of this member from arrival to outcome.
//!
//! ```text
//!   offer ──▶ waiting ──batch──▶ prepared ──sent──▶ in flight ──take──▶ completed by the apply step
//!                │                   │                   │
//!                └───────────────────┴── expire ─────────┘
//! ```
//!
//! * A poll combines all waiting commands into a batch, up to `batch_bytes_max`.
//! * A batch rejected by Raft stays prepared, with the same id, and is sent first next time.
//! * A batch is sent once. If it is lost on the way to the leader, its proposals expire.
//! * Two batches of a member may commit in reverse order, or only the later one, if the earlier was lost: so
//!   a batch is looked up by id, never by order.
//! * An entry may arrive after all its proposers have timed out. It is applied without an outcome.
//! * Expiry costs one check per batch and tick, because arrival order is time order.
//!
//! `P` receives the outcome of a proposal; this file does not inspect it. Limits on count and bytes are
//! enforced at admission (see [`crate::Handle`]), before a command is queued.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::types::{NodeId, Travel};
use crate::wire::{Batch, BatchBuilder, BatchId, COMMAND_OVERHEAD};

/// Ticks since the member started.
pub(super) type Ticks = u64;

/// A command that is not in a batch yet.
struct QueuedCommand<P> {
    command: Bytes,
    travel: Travel,
    reply: P,
    since: Ticks,
}

/// A batch in flight: the proposers of its commands, in order.
struct Flight<P> {
    /// None for proposers that timed out.
    replies: Vec<Option<P>>,
    since: Vec<Ticks>,
    /// Replies before this one have expired.
    expired: usize,
    /// Tick of sending; see [`Proposals::sent_within`].
    sent: Ticks,
}

/// A batch that Raft has not accepted yet: it has an id, but no other member has seen it.
struct PreparedBatch<P> {
    id: BatchId,
    bytes: Bytes,
    flight: Flight<P>,
}

/// A timed out proposal.
pub(super) struct ExpiredProposal<P> {
    pub reply: P,
    pub since: Ticks,
    /// False if the command never left this member: then it will never be applied.
    pub sent: bool,
}

pub(super) struct Proposals<P> {
    // Id prefix of this run's batches, without the sequence.
    id: NodeId,
    nonce: u64,
    /// Unique in a run: a rejected batch keeps its number.
    next_sequence: u64,
    batch_bytes_max: usize,
    /// In arrival order.
    waiting: VecDeque<QueuedCommand<P>>,
    /// At most one: the next batch is built only after this one was sent, so that it can include more.
    prepared: Option<PreparedBatch<P>>,
    /// By sequence; usually a few, since a leader has a single batch on its disk at a time. Entries commit
    /// in this order on a leader, but a batch may be lost without the next.
    in_flight: BTreeMap<u64, Flight<P>>,
}

impl<P> Proposals<P> {
    pub fn new(id: NodeId, nonce: u64, batch_bytes_max: usize) -> Self {
        Proposals {
            id,
            nonce,
            next_sequence: 1,
            batch_bytes_max,
            waiting: VecDeque::new(),
            prepared: None,
            in_flight: BTreeMap::new(),
        }
    }

    /// Queues a command. `reply` completes its proposal, once.
    pub fn offer(&mut self, command: Bytes, travel: Travel, reply: P, now: Ticks) {
        debug_assert!(self.waiting.back().is_none_or(|last| last.since <= now), "time went back");
        self.waiting.push_back(QueuedCommand { command, travel, reply, since: now });
    }

    /// Drops unbatched commands of abandoned proposals: they will never be applied.
    pub fn withdraw(&mut self, is_gone: impl Fn(&P) -> bool) {
        self.waiting.retain(|waiting| !is_gone(&waiting.reply));
    }

    /// Reports whether a batch could be proposed.
    pub fn is_waiting(&self) -> bool {
        self.prepared.is_some() || !self.waiting.is_empty()
    }

    /// Returns the next batch, built if none is prepared. None without waiting commands.
    pub fn batch(&mut self) -> Option<Bytes> {
        if self.prepared.is_none() && !self.waiting.is_empty() {
            self.prepared = Some(self.prepare());
        }
        self.prepared.as_ref().map(|prepared| prepared.bytes.clone())
    }

    /// Copies the oldest waiting commands into a batch with a new id.
    fn prepare(&mut self) -> PreparedBatch<P> {
        let id = BatchId { proposer: self.id, nonce: self.nonce, sequence: self.next_sequence };
        self.next_sequence += 1;
        let (count, bytes) = self.fitting();
        let mut builder = BatchBuilder::new(id, bytes);
        let mut flight = Flight {
            replies: Vec::with_capacity(count),
            since: Vec::with_capacity(count),
            expired: 0,
            sent: 0,
        };
        let mut change = None;
        for waiting in self.waiting.drain(..count) {
            match waiting.travel {
                Travel::Batched => builder.push(&waiting.command),
                Travel::AsChange => change = Some(BatchBuilder::change(id, &waiting.command)),
            }
            flight.replies.push(Some(waiting.reply));
            flight.since.push(waiting.since);
        }
        let bytes = change.unwrap_or_else(|| builder.finish());
        PreparedBatch { id, bytes, flight }
    }

    /// Returns the number of waiting commands that fit into a batch, at least one, and their bytes. A
    /// membership change gets a separate batch.
    fn fitting(&self) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        for waiting in &self.waiting {
            let with_this = bytes + waiting.command.len() + COMMAND_OVERHEAD;
            let is_change = waiting.travel == Travel::AsChange;
            let is_full = with_this > self.batch_bytes_max || base::mutant("one-command-batches");
            if count > 0 && (is_full || is_change) {
                break;
            }
            (count, bytes) = (count + 1, with_this);
            if is_change {
                break;
            }
        }
        assert!(count > 0, "a batch holds at least one command");
        (count, bytes)
    }

    /// Records that Raft has accepted the prepared batch. Returns its number of commands and its bytes.
    pub fn sent(&mut self, now: Ticks) -> (usize, usize) {
        let mut prepared = self.prepared.take().expect("only a prepared batch can be sent");
        prepared.flight.sent = now;
        assert!(!prepared.flight.is_spent(), "a batch without waiting proposers");
        let size = (prepared.flight.replies.len(), prepared.bytes.len());
        let before = self.in_flight.insert(prepared.id.sequence, prepared.flight);
        assert!(before.is_none(), "a batch is sent once");
        size
    }

    /// Reports whether a batch sent during this tick is still in flight.
    pub fn sent_within(&self, now: Ticks) -> bool {
        self.in_flight.last_key_value().is_some_and(|(_, flight)| flight.sent == now)
    }

    /// Returns the proposers of a committed batch, in command order; None if it is not from this run of this
    /// member, or was completed before.
    ///
    /// A batch of an earlier run may arrive long after a restart: its id shows that, and no proposer is
    /// affected. A batch with this id and another number of commands was forged: the proposers continue to
    /// wait for theirs.
    pub fn take(&mut self, id: BatchId, commands: usize) -> Option<Vec<Option<P>>> {
        if (id.proposer, id.nonce) != (self.id, self.nonce) {
            return None;
        }
        self.in_flight.get(&id.sequence).filter(|flight| flight.replies.len() == commands)?;
        self.in_flight.remove(&id.sequence).map(|flight| flight.replies)
    }

    /// Removes every proposal that arrived before `deadline`.
    ///
    /// A proposal that never left this member is withdrawn for good; the proposer may safely retry. One that
    /// was sent may still be applied, and its proposer only gets a timeout.
    pub fn expire(&mut self, deadline: Ticks) -> Vec<ExpiredProposal<P>> {
        debug_assert!(
            self.waiting.iter().is_sorted_by_key(|waiting| waiting.since),
            "arrival order is time order"
        );
        let mut expired = Vec::new();
        while self.waiting.front().is_some_and(|first| first.since < deadline) {
            let QueuedCommand { reply, since, .. } = self.waiting.pop_front().expect("looked at just now");
            expired.push(ExpiredProposal { reply, since, sent: false });
        }
        self.prepared =
            self.prepared.take().and_then(|prepared| prepared.without_expired(deadline, &mut expired));
        for flight in self.in_flight.values_mut() {
            flight.expire(deadline, true, &mut expired);
        }
        self.in_flight.retain(|_, flight| !flight.is_spent());
        expired
    }

    /// Removes all waiting proposers, because the member stops.
    pub fn drain(&mut self) -> impl Iterator<Item = P> {
        let waiting = std::mem::take(&mut self.waiting).into_iter().map(|waiting| waiting.reply);
        let prepared = self.prepared.take().into_iter().map(|prepared| prepared.flight);
        let in_flight = std::mem::take(&mut self.in_flight).into_values();
        waiting.chain(prepared.chain(in_flight).flat_map(|flight| flight.replies.into_iter().flatten()))
    }
}

impl<P> PreparedBatch<P> {
    /// Drops the expired commands: their proposers are notified that they never left this member, so they
    /// must not be sent. No other member has seen the batch yet, so it keeps its id. None if the batch is
    /// empty.
    fn without_expired(mut self, deadline: Ticks, expired: &mut Vec<ExpiredProposal<P>>) -> Option<Self> {
        self.flight.expire(deadline, false, expired);
        let gone = std::mem::take(&mut self.flight.expired);
        if gone == 0 {
            return Some(self);
        }
        self.flight.replies.drain(..gone);
        self.flight.since.drain(..gone);
        if self.flight.replies.is_empty() {
            return None; // Always for a change, which has a single command.
        }
        let batch = Batch::parse(&self.bytes).and_then(|batch| batch.commands());
        let commands = batch.expect("this member built it");
        let mut builder = BatchBuilder::new(self.id, self.bytes.len());
        commands.iter().skip(gone).for_each(|command| builder.push(&command));
        self.bytes = builder.finish();
        Some(self)
    }
}

impl<P> Flight<P> {
    /// Removes the replies that arrived before `deadline`; they are the first ones.
    fn expire(&mut self, deadline: Ticks, sent: bool, expired: &mut Vec<ExpiredProposal<P>>) {
        while self.since.get(self.expired).is_some_and(|since| *since < deadline) {
            let reply = self.replies[self.expired].take().expect("each reply expires once");
            expired.push(ExpiredProposal { reply, since: self.since[self.expired], sent });
            self.expired += 1;
        }
    }

    /// Reports whether all proposers of this batch have timed out. It may still be applied.
    fn is_spent(&self) -> bool {
        assert!(
            self.expired <= self.replies.len() && self.since.len() == self.replies.len(),
            "replies went missing"
        );
        self.expired == self.replies.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MEMBER: u64 = 7;
    const NONCE: u64 = 99;

    fn proposals(batch_bytes_max: usize) -> Proposals<&'static str> {
        Proposals::new(MEMBER, NONCE, batch_bytes_max)
    }

    fn offer(proposals: &mut Proposals<&'static str>, names: &[&'static str], now: Ticks) {
        names.iter().for_each(|name| {
            proposals.offer(Bytes::from_static(name.as_bytes()), Travel::Batched, name, now)
        });
    }

    fn commands(bytes: &Bytes) -> (BatchId, Vec<String>) {
        let batch = crate::wire::Batch::parse(bytes).unwrap();
        (batch.id, batch.commands().unwrap().iter().map(|c| String::from_utf8(c.to_vec()).unwrap()).collect())
    }

    #[test]
    fn all_that_wait_become_one_batch() {
        let mut p = proposals(1 << 20);
        assert_eq!(p.batch(), None);
        offer(&mut p, &["a", "b", "c"], 0);
        let (id, names) = commands(&p.batch().unwrap());
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(id, BatchId { proposer: MEMBER, nonce: NONCE, sequence: 1 });
        assert_eq!(p.sent(0).0, 3);
        assert_eq!(p.batch(), None);
        assert_eq!(p.take(id, 2), None, "another batch of this name");
        assert_eq!(p.take(id, 3), Some(vec![Some("a"), Some("b"), Some("c")]));
        assert_eq!(p.take(id, 3), None, "answered once");
    }

    #[test]
    fn a_batch_is_bounded_but_a_long_command_travels_alone() {
        let mut p = proposals(10);
        offer(&mut p, &["aa", "bb", "a long command", "cc"], 0);
        let mut sizes = Vec::new();
        while let Some(bytes) = p.batch() {
            sizes.push(commands(&bytes).1.len());
            p.sent(0);
        }
        assert_eq!(sizes, [1, 1, 1, 1]);
        let mut p = proposals(12);
        offer(&mut p, &["aa", "bb", "a long command", "cc"], 0);
        assert_eq!(commands(&p.batch().unwrap()).1, ["aa", "bb"]);
    }

    #[test]
    fn a_refused_batch_keeps_its_name_and_goes_first() {
        let mut p = proposals(1 << 20);
        offer(&mut p, &["a"], 0);
        let first = p.batch().unwrap();
        offer(&mut p, &["b"], 0);
        assert_eq!(p.batch().unwrap(), first);
        p.sent(0);
        assert_eq!(
            commands(&p.batch().unwrap()),
            (BatchId { proposer: MEMBER, nonce: NONCE, sequence: 2 }, vec!["b".into()])
        );
    }

    #[test]
    fn a_batch_of_another_member_or_an_earlier_run_answers_nobody() {
        let mut p = proposals(1 << 20);
        offer(&mut p, &["a"], 0);
        let (id, _) = commands(&p.batch().unwrap());
        p.sent(0);
        for other in
            [BatchId { proposer: 8, ..id }, BatchId { nonce: 98, ..id }, BatchId { sequence: 2, ..id }]
        {
            assert_eq!(p.take(other, 1), None, "{other:?}");
        }
        assert!(p.take(id, 1).is_some());
    }

    #[test]
    fn proposals_expire_in_order_wherever_they_are() {
        let mut p = proposals(1 << 20);
        offer(&mut p, &["flying"], 0);
        p.batch().unwrap();
        p.sent(0);
        offer(&mut p, &["young"], 5);
        offer(&mut p, &["younger"], 6);
        let mut expire = |deadline| -> Vec<(&str, bool)> {
            p.expire(deadline).into_iter().map(|e| (e.reply, e.sent)).collect()
        };
        assert_eq!(expire(0), []);
        assert_eq!(expire(1), [("flying", true)]);
        assert_eq!(expire(6), [("young", false)]);
        assert_eq!(expire(6), []);
        assert_eq!(expire(7), [("younger", false)]);
    }

    #[test]
    fn a_partly_expired_batch_still_answers_the_others() {
        let mut p = proposals(1 << 20);
        offer(&mut p, &["old"], 0);
        offer(&mut p, &["new"], 9);
        let (id, _) = commands(&p.batch().unwrap());
        p.sent(9);
        let expired = p.expire(5);
        assert_eq!(expired.len(), 1);
        assert_eq!((expired[0].reply, expired[0].since), ("old", 0));
        assert_eq!(p.take(id, 2), Some(vec![None, Some("new")]));
    }

    #[test]
    fn a_command_whose_proposer_has_gone_is_not_proposed() {
        let mut p = proposals(1 << 20);
        offer(&mut p, &["a", "gone", "b"], 0);
        p.withdraw(|reply| *reply == "gone");
        assert_eq!(commands(&p.batch().unwrap()).1, ["a", "b"]);
        p.sent(0);
        offer(&mut p, &["gone"], 0);
        p.withdraw(|reply| *reply == "gone");
        assert_eq!(p.batch(), None);
    }

    #[test]
    fn a_prepared_batch_that_nobody_waits_for_is_never_sent() {
        let mut p = proposals(1 << 20);
        offer(&mut p, &["a"], 0);
        p.batch().unwrap();
        let expired = p.expire(1);
        assert!(!expired[0].sent, "it never left, so it will never be applied");
        assert_eq!(p.batch(), None);
    }

    #[test]
    fn a_prepared_batch_leaves_without_those_whose_time_was_up() {
        let mut p = proposals(1 << 20);
        offer(&mut p, &["old"], 0);
        offer(&mut p, &["new"], 9);
        let before = commands(&p.batch().unwrap()).0;
        assert!(!p.expire(5)[0].sent, "answered that it never left");
        let (id, names) = commands(&p.batch().unwrap());
        assert_eq!((id, names), (before, vec!["new".to_owned()]));
        p.sent(9);
        assert_eq!(p.take(id, 1), Some(vec![Some("new")]));
    }

    #[test]
    fn everybody_is_found_when_the_member_stops() {
        let mut p = proposals(5);
        offer(&mut p, &["a", "b", "c"], 0);
        p.batch().unwrap();
        p.sent(0);
        p.batch().unwrap();
        let mut left: Vec<_> = p.drain().collect();
        left.sort_unstable();
        assert_eq!(left, ["a", "b", "c"]);
        assert_eq!(p.batch(), None);
    }

    /// A step of a random sequence.
    #[derive(Clone, Debug)]
    enum Step {
        Offer(usize),
        Prepare,
        Send,
        Commit(usize),
        Tick,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            5 => (0usize..30).prop_map(Step::Offer),
            2 => Just(Step::Prepare),
            3 => Just(Step::Send),
            3 => (0usize..4).prop_map(Step::Commit),
            2 => Just(Step::Tick),
        ]
    }

    const PATIENCE: Ticks = 6;

    proptest! {
        /// Each proposal is completed once, commands leave in arrival order, each at most once, and `sent:
        /// false` is only reported for a command that was never sent and never will be.
        #[test]
        fn every_proposer_is_told_once(steps in prop::collection::vec(step(), 1..150)) {
            let mut proposals: Proposals<u32> = Proposals::new(MEMBER, NONCE, 60);
            let (mut now, mut offered) = (0, 0);
            let (mut answered, mut left, mut never_left) = (Vec::new(), Vec::new(), Vec::new());
            let mut under_way: Vec<(BatchId, Vec<u32>)> = Vec::new();
            for step in steps {
                match step {
                    Step::Offer(length) => {
                        let mut command = offered.to_string().into_bytes();
                        command.resize(command.len() + length, b' ');
                        proposals.offer(command.into(), Travel::Batched, offered, now);
                        offered += 1;
                    }
                    Step::Prepare => drop(proposals.batch()),
                    Step::Send => {
                        let Some(bytes) = proposals.batch() else { continue };
                        let (id, names) = commands(&bytes);
                        let names = names.iter().map(|name| name.trim_end().parse::<u32>().unwrap());
                        let names: Vec<_> = names.collect();
                        prop_assert_eq!(proposals.sent(now).0, names.len());
                        left.extend(names.iter().copied());
                        under_way.push((id, names));
                    }
                    Step::Commit(at) if at < under_way.len() => {
                        let (id, names) = under_way.remove(at);
                        let replies = proposals.take(id, names.len()).unwrap_or_default();
                        prop_assert!(replies.is_empty() || replies.len() == names.len());
                        for (reply, name) in replies.into_iter().zip(names) {
                            prop_assert!(reply.is_none_or(|reply| reply == name), "another's outcome");
                            answered.extend(reply);
                        }
                    }
                    Step::Commit(_) => {}
                    Step::Tick => {
                        now += 1;
                        for expired in proposals.expire(now.saturating_sub(PATIENCE)) {
                            if !expired.sent {
                                never_left.push(expired.reply);
                            }
                            answered.push(expired.reply);
                        }
                    }
                }
            }
            answered.extend(proposals.drain());
            answered.sort_unstable();
            prop_assert_eq!(answered, (0..offered).collect::<Vec<_>>());
            prop_assert!(left.is_sorted_by(|a, b| a < b), "order of arrival, each once: {:?}", left);
            prop_assert!(never_left.iter().all(|name| !left.contains(name)), "{never_left:?} left");
        }
    }
}
