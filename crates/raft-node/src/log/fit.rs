//! Selects the state that a member continues from: the store next to its log, or a received store. Pure
//! decisions, shared by the process and the simulator.
//!
//! | store | log starts | decision |
//! |---|---|---|
//! | reaches the log's start | anywhere | [`StoreChoice::Present`] |
//! | stops before the log's start S | S | [`StoreChoice::Received`], if a complete received store matches |
//! | corrupt, or stops before S | at 0 | [`StoreChoice::FromLog`]: the log is complete |
//! | corrupt, or stops before S | later | [`StoreChoice::FromLeader`], or [`StoreChoice::Refused`] if alone |
//!
//! * A log matches a state if it contains the last entry of the state: the same index and the same term. The
//!   index is not sufficient: the log of a deposed leader may have another entry at that index, and would
//!   continue from a state it never led to.
//! * A received store is used only with a log that matches it: restarting the log is the commit point of an
//!   install, so a crash before it leaves the old state, one after it the new.

use crate::{LogIndex, LogPosition, NodeId, Term};

/// The range of the log, for matching a store.
#[derive(Clone, Copy)]
pub struct LogSpan<'t> {
    /// Index before the first retained entry; 0 if the log is complete.
    pub start: LogIndex,
    pub last: LogIndex,
    /// Returns the term of an entry from `start` to `last`.
    pub term: &'t dyn Fn(LogIndex) -> Option<Term>,
}

impl LogSpan<'_> {
    /// Reports whether the log continues from the state at this position.
    #[must_use]
    pub fn holds(&self, at: LogPosition) -> bool {
        let inside = (self.start..=self.last).contains(&at.index);
        inside && (base::mutant("staged-by-index") || (self.term)(at.index) == Some(at.term))
    }
}

/// The store next to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFound {
    /// Complete up to this position.
    Whole(LogPosition),
    /// Unreadable or missing: corruption, or an interrupted replacement.
    Unusable,
}

/// The state that a member starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreChoice {
    /// The existing store. A received one is discarded.
    Present,
    /// The received store replaces the existing one.
    Received,
    /// An empty store; the log is applied from its start.
    FromLog,
    /// An empty store until the leader has sent a snapshot.
    FromLeader,
    /// No state is available.
    Refused,
}

/// Chooses the store that belongs to a log. `received` is a completely received store, if any; `others` is
/// the number of other members.
#[must_use]
pub fn choose_store(
    log: LogSpan<'_>,
    found: StoreFound,
    received: Option<LogPosition>,
    others: usize,
) -> StoreChoice {
    match found {
        StoreFound::Whole(at) if at.index >= log.start => StoreChoice::Present,
        StoreFound::Whole(_) | StoreFound::Unusable => match received {
            Some(at) if log.holds(at) => StoreChoice::Received,
            Some(_) | None if log.start == LogIndex::ZERO => StoreChoice::FromLog,
            Some(_) | None if others > 0 => StoreChoice::FromLeader,
            Some(_) | None => StoreChoice::Refused,
        },
    }
}

/// A member's slot for a received store.
///
/// ```text
///            begin            finish             take
///   empty ───────▶ partial ────────▶ received ───────▶ empty
///     ▲               │ end
///     └───────────────┘
/// ```
///
/// * A stream is accepted only from the leader known to Raft: its heartbeats precede its stores. So the
///   current stream is either an earlier one of the same leader, or from an earlier leader, and a new one
///   replaces it.
/// * There is one store at a time. A stream cannot replace a store that waits for Raft's decision.
/// * A store is identified by index and term.
///
/// `P` is a handle to abort a replaced stream, `R` a received store.
#[derive(Debug)]
pub struct ReceiveSlot<P, R> {
    content: SlotContent<P, R>,
    streams: u64,
}

#[derive(Debug)]
enum SlotContent<P, R> {
    Empty,
    Partial(StreamNumber, P),
    Received(LogPosition, R),
}

/// Identifies a stream of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamNumber(u64);

impl<P, R> Default for ReceiveSlot<P, R> {
    fn default() -> Self {
        ReceiveSlot { content: SlotContent::Empty, streams: 0 }
    }
}

impl<P, R> ReceiveSlot<P, R> {
    /// Starts a stream of member `from`, if it is the leader known to Raft. Returns its number and the
    /// replaced stream; None if a complete store occupies the slot, or another member leads.
    pub fn begin(
        &mut self,
        from: NodeId,
        leader: Option<NodeId>,
        stream: P,
    ) -> Option<(StreamNumber, Option<P>)> {
        let is_leader = leader == Some(from) || base::mutant("store-of-any-member");
        if !is_leader || matches!(self.content, SlotContent::Received(..)) {
            return None;
        }
        self.streams += 1;
        let number = StreamNumber(self.streams);
        match std::mem::replace(&mut self.content, SlotContent::Partial(number, stream)) {
            SlotContent::Partial(_, replaced) => Some((number, Some(replaced))),
            SlotContent::Empty | SlotContent::Received(..) => Some((number, None)),
        }
    }

    /// Reports whether the stream still occupies the slot.
    pub fn is_current(&self, stream: StreamNumber) -> bool {
        matches!(&self.content, SlotContent::Partial(number, ..) if *number == stream)
    }

    /// Releases the slot of a failed stream. Has no effect if another stream occupies it.
    pub fn end(&mut self, stream: StreamNumber) {
        if self.is_current(stream) {
            self.content = SlotContent::Empty;
        }
    }

    /// Completes a stream with a store that reaches `at`. Returns the store if another stream occupies the
    /// slot.
    pub fn finish(&mut self, stream: StreamNumber, at: LogPosition, store: R) -> Result<(), R> {
        if !self.is_current(stream) {
            return Err(store);
        }
        self.content = SlotContent::Received(at, store);
        Ok(())
    }

    /// Reports whether the slot contains the store at this position.
    pub fn holds(&self, wanted: LogPosition) -> bool {
        matches!(&self.content, SlotContent::Received(at, _) if *at == wanted)
    }

    /// Takes the store at this position out, to install or to remove it.
    pub fn take(&mut self, wanted: LogPosition) -> Option<R> {
        if !self.holds(wanted) {
            return None;
        }
        match std::mem::replace(&mut self.content, SlotContent::Empty) {
            SlotContent::Received(_, store) => Some(store),
            SlotContent::Empty | SlotContent::Partial(..) => unreachable!("it holds a store"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(index: u64, term: u64) -> LogPosition {
        LogPosition::new(index, term)
    }

    #[test]
    fn the_store_is_chosen_by_index_and_term() {
        use StoreChoice::{FromLeader, FromLog, Present, Received, Refused};
        let whole = |index| StoreFound::Whole(at(index, 1));
        let damaged = StoreFound::Unusable;
        // The log has entries of term 1 up to 7 and of term 2 from 8 on.
        let term = |index| Some(Term(if index < LogIndex(8) { 1 } else { 2 }));
        for (start, last, found, received, others, wanted) in [
            (3, 9, whole(5), Some(at(9, 2)), 2, Present),
            (0, 9, whole(0), None, 0, Present),
            (9, 9, whole(5), Some(at(9, 2)), 2, Received),
            (6, 9, whole(5), Some(at(7, 1)), 0, Received),
            (6, 9, damaged, Some(at(8, 2)), 2, Received),
            (6, 9, whole(5), Some(at(8, 1)), 2, FromLeader), // another entry than the log's
            (6, 9, whole(5), Some(at(9, 3)), 0, Refused),
            (6, 9, whole(5), Some(at(10, 2)), 2, FromLeader), // beyond the log's end
            (6, 9, whole(5), Some(at(5, 1)), 2, FromLeader),  // before its start
            (6, 9, damaged, None, 2, FromLeader),
            (6, 9, damaged, None, 0, Refused),
            (0, 9, damaged, None, 2, FromLog),
            (0, 9, damaged, Some(at(9, 1)), 0, FromLog),
        ] {
            let log = LogSpan { start: LogIndex(start), last: LogIndex(last), term: &term };
            let chosen = choose_store(log, found, received, others);
            assert_eq!(chosen, wanted, "log {start}..={last}, {found:?}, {received:?}, {others} others");
        }
    }

    #[test]
    fn a_slot_holds_one_store_and_finds_it_by_index_and_term() {
        let mut slot = ReceiveSlot::default();
        assert!(slot.begin(1, None, "early").is_none(), "no leader is known");
        let (one, replaced) = slot.begin(1, Some(1), "one").unwrap();
        assert_eq!(replaced, None);
        let (again, replaced) = slot.begin(1, Some(1), "again").unwrap();
        assert_eq!(replaced, Some("one"));
        assert!(slot.begin(3, Some(1), "stranger").is_none() && slot.is_current(again));
        let (two, replaced) = slot.begin(2, Some(2), "two").unwrap();
        assert_eq!(replaced, Some("again"), "of an earlier leader");
        assert!(slot.begin(1, Some(2), "stale").is_none(), "a leader before keeps no later one from its end");
        slot.end(one); // too late to matter
        assert_eq!(slot.finish(one, at(9, 2), "old"), Err("old"));
        assert_eq!(slot.finish(two, at(9, 2), "store"), Ok(()));
        assert!(slot.begin(2, Some(2), "three").is_none(), "a whole store keeps its place");
        assert!(slot.take(at(9, 1)).is_none() && slot.take(at(8, 2)).is_none());
        assert_eq!(slot.take(at(9, 2)), Some("store"));
        let (four, _) = slot.begin(2, Some(2), "four").unwrap();
        slot.end(four);
        assert!(slot.begin(1, Some(1), "five").unwrap().1.is_none());
    }
}
