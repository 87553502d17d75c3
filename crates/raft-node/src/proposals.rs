//! Proposals of this member from their arrival to their answer.
//!
//! ```text
//!   offer ──▶ waiting ──batch──▶ prepared ──sent──▶ in flight ──take──▶ answered by the apply step
//!                │                   │                   │
//!                └───────────────────┴── expire ─────────┘
//! ```
//!
//! * All that wait when the loop turns become one batch, up to `batch_bytes_max`.
//! * A batch that Raft refused stays prepared, with the same name, and goes first next time.
//! * A batch is sent once. If it is lost on the way to the leader, its proposals expire.
//! * Expiry costs one look per batch and tick: arrival order is time order.
//!
//! `P` is whatever answers a proposer; this file never looks into it. Bounds on count and bytes are the entrance's
//! (see [`crate::Handle`]), which must refuse before anything is queued.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::batch::{BatchBuilder, BatchId, COMMAND_OVERHEAD};

/// Ticks since the member started.
pub(crate) type Ticks = u64;

struct Waiting<P> {
    command: Bytes,
    reply: P,
    since: Ticks,
}

/// A batch under way: who asked for its commands, in their order.
struct Flight<P> {
    /// None where the proposer was told already that its time was up.
    replies: Vec<Option<P>>,
    since: Vec<Ticks>,
    /// Replies before this one have expired.
    expired: usize,
    sent: Ticks,
}

struct Prepared<P> {
    id: BatchId,
    bytes: Bytes,
    flight: Flight<P>,
}

/// A proposal whose time is up.
pub(crate) struct Expired<P> {
    pub reply: P,
    pub since: Ticks,
    /// False if the command never left this member: then it will never be applied.
    pub sent: bool,
}

pub(crate) struct Proposals<P> {
    id: u64,
    nonce: u64,
    next_sequence: u64,
    batch_bytes_max: usize,
    waiting: VecDeque<Waiting<P>>,
    prepared: Option<Prepared<P>>,
    in_flight: BTreeMap<u64, Flight<P>>,
}

impl<P> Proposals<P> {
    pub fn new(id: u64, nonce: u64, batch_bytes_max: usize) -> Self {
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

    pub fn offer(&mut self, command: Bytes, reply: P, now: Ticks) {
        debug_assert!(self.waiting.back().is_none_or(|last| last.since <= now), "time went back");
        self.waiting.push_back(Waiting { command, reply, since: now });
    }

    /// Whether a batch could be proposed.
    pub fn is_waiting(&self) -> bool {
        self.prepared.is_some() || !self.waiting.is_empty()
    }

    /// The batch to propose next, built if none is prepared. None when nobody waits.
    pub fn batch(&mut self) -> Option<Bytes> {
        if self.prepared.is_none() && !self.waiting.is_empty() {
            self.prepared = Some(self.prepare());
        }
        self.prepared.as_ref().map(|prepared| prepared.bytes.clone())
    }

    fn prepare(&mut self) -> Prepared<P> {
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
        for waiting in self.waiting.drain(..count) {
            builder.push(&waiting.command);
            flight.replies.push(Some(waiting.reply));
            flight.since.push(waiting.since);
        }
        Prepared { id, bytes: builder.finish(), flight }
    }

    /// How many of those who wait fit into one batch, at least one, and the bytes they take.
    fn fitting(&self) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        for waiting in &self.waiting {
            let with_this = bytes + waiting.command.len() + COMMAND_OVERHEAD;
            if count > 0 && with_this > self.batch_bytes_max {
                break;
            }
            (count, bytes) = (count + 1, with_this);
        }
        assert!(count > 0, "a batch holds at least one command");
        (count, bytes)
    }

    /// The prepared batch was taken by Raft. Returns how many commands it holds, and its bytes.
    pub fn sent(&mut self, now: Ticks) -> (usize, usize) {
        let mut prepared = self.prepared.take().expect("only a prepared batch can be sent");
        prepared.flight.sent = now;
        let size = (prepared.flight.replies.len(), prepared.bytes.len());
        let before = self.in_flight.insert(prepared.id.sequence, prepared.flight);
        assert!(before.is_none(), "a batch is sent once");
        size
    }

    /// Whether a batch that was sent during this tick is still under way.
    pub fn sent_within(&self, now: Ticks) -> bool {
        self.in_flight.last_key_value().is_some_and(|(_, flight)| flight.sent == now)
    }

    /// The proposers of a committed batch, in the order of its commands; None if it is not of this run of this
    /// member, or was answered before.
    pub fn take(&mut self, id: BatchId) -> Option<Vec<Option<P>>> {
        if (id.proposer, id.nonce) != (self.id, self.nonce) {
            return None;
        }
        self.in_flight.remove(&id.sequence).map(|flight| flight.replies)
    }

    /// Takes out every proposal that arrived before `deadline`.
    pub fn expire(&mut self, deadline: Ticks) -> Vec<Expired<P>> {
        let mut expired = Vec::new();
        while self.waiting.front().is_some_and(|first| first.since < deadline) {
            let Waiting { reply, since, .. } = self.waiting.pop_front().expect("looked at just now");
            expired.push(Expired { reply, since, sent: false });
        }
        if let Some(prepared) = &mut self.prepared {
            prepared.flight.expire(deadline, false, &mut expired);
            if prepared.flight.is_spent() {
                self.prepared = None; // Nobody waits for any of it, and nobody has seen it.
            }
        }
        for flight in self.in_flight.values_mut() {
            flight.expire(deadline, true, &mut expired);
        }
        self.in_flight.retain(|_, flight| !flight.is_spent());
        expired
    }

    /// Everybody who still waits, to be told that the member stops.
    pub fn drain(&mut self) -> impl Iterator<Item = P> {
        let waiting = std::mem::take(&mut self.waiting).into_iter().map(|waiting| waiting.reply);
        let prepared = self.prepared.take().into_iter().map(|prepared| prepared.flight);
        let in_flight = std::mem::take(&mut self.in_flight).into_values();
        waiting.chain(prepared.chain(in_flight).flat_map(|flight| flight.replies.into_iter().flatten()))
    }
}

impl<P> Flight<P> {
    fn expire(&mut self, deadline: Ticks, sent: bool, expired: &mut Vec<Expired<P>>) {
        while self.since.get(self.expired).is_some_and(|since| *since < deadline) {
            let reply = self.replies[self.expired].take().expect("each reply expires once");
            expired.push(Expired { reply, since: self.since[self.expired], sent });
            self.expired += 1;
        }
    }

    fn is_spent(&self) -> bool {
        self.expired == self.replies.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBER: u64 = 7;
    const NONCE: u64 = 99;

    fn proposals(batch_bytes_max: usize) -> Proposals<&'static str> {
        Proposals::new(MEMBER, NONCE, batch_bytes_max)
    }

    fn offer(proposals: &mut Proposals<&'static str>, names: &[&'static str], now: Ticks) {
        names.iter().for_each(|name| proposals.offer(Bytes::from_static(name.as_bytes()), name, now));
    }

    fn commands(bytes: &Bytes) -> (BatchId, Vec<String>) {
        let batch = crate::batch::Batch::parse(bytes).unwrap();
        (batch.id, batch.commands().map(|c| String::from_utf8(c.to_vec()).unwrap()).collect())
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
        assert_eq!(p.take(id), Some(vec![Some("a"), Some("b"), Some("c")]));
        assert_eq!(p.take(id), None, "answered once");
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
            assert_eq!(p.take(other), None, "{other:?}");
        }
        assert!(p.take(id).is_some());
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
        assert_eq!(p.take(id), Some(vec![None, Some("new")]));
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
}
