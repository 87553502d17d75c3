//! The durable Raft state next to the entries: vote, known commit index, and membership.
//!
//! ```text
//!   version 1 │ term │ vote │ commit │ voters │ learners │ voters outgoing │ learners next │ auto leave
//!     1 byte    numbers as in `codec`; a list is its length, then its node ids               1 byte
//!   version 2: as 1, then │ catch-up term │ catch-up index
//! ```
//!
//! * A member writes version 2 if it once started with an empty log in a cluster that had started before:
//!   see [`crate::Inquiry`]. Position 0@0 marks a log that was created together with a store, by a member
//!   that has not taken part yet.
//!
//! * Term and vote must never be lost: a member that voted twice in a term could elect two leaders. They are
//!   synced before a vote is sent.
//! * Written completely each time: the last one in the log is valid.
//! * `commit` is a hint that shortens a restart. It may be lower than the actual commit index; it never
//!   exceeds the log.
//! * The membership fields are those of joint consensus, so that later membership changes need no new
//!   layout.

use bytes::Bytes;
use raft::eraftpb::{ConfState, HardState};

use crate::wire::{ByteReader, MalformedBytes, conf, put_conf, put_number};
use crate::{LogPosition, NodeId};

const VERSION: u8 = 1;
/// Includes the position that votes wait for.
const VERSION_CATCH_UP: u8 = 2;

/// Raft's hard state and membership in the log.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct DurableState {
    pub hard: HardState,
    pub conf: ConfState,
    /// The member votes once its log reaches this index, or has an entry of a later term.
    pub catch_up: Option<LogPosition>,
}

/// Placeholder position: the member has not taken part since its log was created together with a store.
pub(crate) const NO_PART_TAKEN: LogPosition = LogPosition::new(0, 0);

impl DurableState {
    /// Reports whether the member was confirmed in a cluster that had started before.
    pub fn came_late(&self) -> bool {
        self.catch_up.is_some_and(|until| until != NO_PART_TAKEN)
    }

    pub fn encode(&self) -> Vec<u8> {
        assert!(!self.conf.voters.is_empty() && !self.conf.voters.contains(&0), "a cluster without voters");
        assert!(self.hard.vote == 0 || self.hard.term > 0, "a vote in no term");
        let mut out = vec![if self.catch_up.is_some() { VERSION_CATCH_UP } else { VERSION }];
        let vote = if base::mutant("forgotten-vote") { 0 } else { self.hard.vote };
        [self.hard.term, vote, self.hard.commit].into_iter().for_each(|n| put_number(&mut out, n));
        put_conf(&mut out, &self.conf);
        if let Some(until) = self.catch_up {
            [until.term.0, until.index.0].into_iter().for_each(|n| put_number(&mut out, n));
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<DurableState, MalformedBytes> {
        let mut cursor = ByteReader::new(Bytes::copy_from_slice(bytes));
        let version = cursor.byte("state version")?;
        if ![VERSION, VERSION_CATCH_UP].contains(&version) {
            return Err(MalformedBytes("state version"));
        }
        let mut state = DurableState::default();
        state.hard.term = cursor.number("term")?;
        state.hard.vote = cursor.number("vote")?;
        state.hard.commit = cursor.number("commit")?;
        state.conf = conf(&mut cursor)?;
        if version == VERSION_CATCH_UP {
            let (term, index) = (cursor.number("catch-up term")?, cursor.number("catch-up index")?);
            state.catch_up = Some(LogPosition::new(index, term));
        }
        cursor.end("state tail")?;
        Ok(state)
    }
}

/// Returns the state of a member whose log starts after `start`. All voters have committed that position:
/// they receive the same store. The member has not voted, and queries its peers whether they have started.
pub fn state_after(start: LogPosition, voters: &[NodeId]) -> Vec<u8> {
    let hard = HardState { term: start.term.0, vote: 0, commit: start.index.0, ..HardState::default() };
    let mut conf = ConfState { voters: voters.to_vec(), ..ConfState::default() };
    conf.voters.sort_unstable();
    DurableState { hard, conf, catch_up: Some(NO_PART_TAKEN) }.encode()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> DurableState {
        let hard = HardState { term: 300, vote: 2, commit: 7, ..HardState::default() };
        let conf = ConfState {
            voters: vec![1, 2, 3],
            learners: vec![200],
            auto_leave: true,
            ..ConfState::default()
        };
        DurableState { hard, conf, catch_up: None }
    }

    #[test]
    fn the_layout_is_frozen() {
        assert_eq!(sample().encode(), [1, 0xac, 2, 2, 7, 3, 1, 2, 3, 1, 0xc8, 1, 0, 0, 1]);
    }

    #[test]
    fn a_log_that_begins_after_a_store_has_a_state() {
        let state = DurableState::decode(&state_after(LogPosition::new(7, 3), &[9, 2])).unwrap();
        assert_eq!((state.hard.term, state.hard.vote, state.hard.commit), (3, 0, 7));
        assert_eq!((state.conf.voters, state.catch_up), (vec![2, 9], Some(NO_PART_TAKEN)));
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let lone = ConfState { voters: vec![u64::MAX], ..ConfState::default() };
        let lagging = DurableState { catch_up: Some(LogPosition::new(300, 5)), ..sample() };
        assert_eq!(lagging.encode()[..1], [2]);
        assert_eq!(lagging.encode()[15..], [5, 0xac, 2]);
        for state in [sample(), lagging, DurableState { conf: lone, ..DurableState::default() }] {
            assert_eq!(DurableState::decode(&state.encode()), Ok(state));
        }
    }

    #[test]
    fn damaged_states_are_refused() {
        let good = sample().encode();
        for length in 0..good.len() {
            assert!(DurableState::decode(&good[..length]).is_err(), "cut at {length}");
        }
        for (at, byte) in [(0, 2), (0, 3), (good.len() - 1, 2), (5, 200)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(DurableState::decode(&bad).is_err(), "byte {at}");
        }
        assert!(DurableState::decode(&[&good[..], &[0]].concat()).is_err());
    }
}
