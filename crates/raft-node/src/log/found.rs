//! The recovered log of a member, and its consistency with the machine and the cluster.
//!
//! Checks before anything runs, and the result of a mismatch:
//!
//! | found | result |
//! |---|---|
//! | the machine stops before the log starts, its store is complete | entries are missing: error |
//! | the same, its store lost | the leader is requested to send the state; see [`crate::StoreState`] |
//! | the machine or the commit index is beyond the log's end | acknowledged entries are lost: error |
//! | the log has another entry at the machine's position | log and store contradict each other: error |
//! | the log's membership differs from a fixed configuration | another cluster's log: error |
//! | the same, if the machine stores the membership | the machine's, or the log's if its store is lost |
//! | a log without state and with entries | not written by this crate: error |
//! | the commit index is lower than the machine's | valid: it is a hint |

use wal::{Fs, Reader, Recovery, Wal};

use super::durable_state::DurableState;
use crate::{Fatal, LogIndex, LogPosition, Membership, NodeId, StoreState};

/// A recovered log.
pub struct RecoveredLog<F: Fs> {
    pub reader: Reader<F>,
    /// The last state, if any.
    pub state: Option<Vec<u8>>,
    pub start: LogPosition,
    pub last: LogPosition,
}

impl<F: Fs> RecoveredLog<F> {
    /// Returns a new, empty log.
    pub fn created(wal: &Wal<F>) -> Self {
        let last = wal.last();
        RecoveredLog { reader: wal.reader(), state: None, start: last, last }
    }

    /// Returns a reopened log.
    pub fn opened(wal: &Wal<F>, recovery: Recovery) -> Self {
        let Recovery { state, start, last, .. } = recovery;
        RecoveredLog { reader: wal.reader(), state, start, last }
    }
}

/// Returns the initial durable state: the log's, or that of a new member.
///
/// `membership` is the machine's, or the given one of a member without a store; see [`crate::Config`].
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
