//! The log as a member finds it at its start, and whether it goes with the machine and the cluster that it is
//! meant for.
//!
//! What is compared before anything runs, and what a difference means:
//!
//! | found | so |
//! |---|---|
//! | the machine ends before the log begins, its store whole | entries in between are gone: refused |
//! | the same, its store lost | the leader is asked for the state; see [`crate::StoreState`] |
//! | the machine or the commit index ends after the log's end | entries it acknowledged are lost: refused |
//! | the log holds another entry where the machine ends | log and store contradict each other: refused |
//! | another membership in the log than in a fixed configuration | another cluster's log: refused |
//! | the same, where the machine holds the membership | the machine's, or the log's if its store is lost |
//! | a log without state and with entries | not written by this crate: refused |
//! | the commit index is lower than the machine's | fine: it is a hint |

use wal::{Fs, Reader, Recovery, Wal};

use super::durable_state::DurableState;
use crate::{Fatal, LogIndex, LogPosition, Membership, NodeId, StoreState};

/// The log as a node finds it at its start.
pub struct RecoveredLog<F: Fs> {
    pub reader: Reader<F>,
    /// The bytes last put as state, if any were.
    pub state: Option<Vec<u8>>,
    pub start: LogPosition,
    pub last: LogPosition,
}

impl<F: Fs> RecoveredLog<F> {
    /// A log that was just created: nothing is in it yet.
    pub fn created(wal: &Wal<F>) -> Self {
        let last = wal.last();
        RecoveredLog { reader: wal.reader(), state: None, start: last, last }
    }

    /// A log that was opened again.
    pub fn opened(wal: &Wal<F>, recovery: Recovery) -> Self {
        let Recovery { state, start, last, .. } = recovery;
        RecoveredLog { reader: wal.reader(), state, start, last }
    }
}

/// The durable state to begin with: what the log holds, or a new member's first.
///
/// `membership` is what the machine holds, or what a member without a store was given; see [`crate::Config`].
pub(crate) fn durable_state<F: Fs>(
    voters: &[NodeId],
    membership: Option<&Membership>,
    found: &RecoveredLog<F>,
    applied: LogPosition,
    store: StoreState,
) -> Result<DurableState, Fatal> {
    // Replaying needs every entry after the applied one.
    let start = found.start.index;
    if applied.index < start && store == StoreState::Whole {
        return Err(Fatal::new(format!(
            "the log begins after entry {start}, but the state machine ends at {}",
            applied.index
        )));
    }
    let held = found.reader.term(applied.index);
    let is_in_log = applied.index > LogIndex::ZERO;
    if store == StoreState::Whole && is_in_log && held.is_some_and(|term| term != applied.term) {
        return Err(Fatal::new(format!(
            "the state machine ends with entry {} of term {}, but the log holds one of term {}",
            applied.index,
            applied.term,
            held.unwrap_or_default()
        )));
    }
    let fixed = || Membership { voters: voters.to_vec(), ..Membership::default() };
    let conf = membership.cloned().unwrap_or_else(fixed).to_conf();
    let Some(bytes) = &found.state else {
        if found.last.index != LogIndex::ZERO {
            return Err(Fatal::new(format!("the log ends at {} but holds no Raft state", found.last.index)));
        }
        return Ok(DurableState { conf, ..DurableState::default() });
    };
    let mut state = DurableState::decode(bytes).map_err(Fatal::of)?;
    if membership.is_some() {
        if store == StoreState::Whole {
            state.conf = conf;
        }
    } else if state.conf != conf {
        let (has, configured) = (&state.conf.voters, &conf.voters);
        return Err(Fatal::new(format!("the log belongs to a cluster of {has:?}, not of {configured:?}")));
    }
    let (commit, last) = (LogIndex(state.hard.commit), found.last.index);
    if commit > last || applied.index > last {
        let known = commit.max(applied.index);
        return Err(Fatal::new(format!(
            "entry {known} was committed, but the log ends at {last}: entries are lost"
        )));
    }
    Ok(state)
}

#[cfg(test)]
mod tests;
