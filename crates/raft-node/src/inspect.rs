//! Read-only inspection of a log: entries as batches of commands, states as numbers.
//!
//! Uses the same functions as a start, so that both always agree.

use bytes::Bytes;

use crate::log::DurableState;
use crate::types::{LogIndex, NodeId, Term};
use crate::wire::{Batch, change_batch};

/// The payload of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntrySeen {
    /// The first entry of a new leader.
    Empty,
    Batch(BatchSeen),
    /// A membership change: a batch with a single command.
    Membership(BatchSeen),
}

/// Commands that were proposed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSeen {
    /// Node id of the proposing member, the nonce of its run, and the batch's number in that run.
    pub proposer: NodeId,
    pub nonce: u64,
    pub sequence: u64,
    pub commands: Vec<Bytes>,
}

/// Raft's hard state and membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSeen {
    pub term: Term,
    /// Voted member; 0: none.
    pub vote: NodeId,
    /// Known commit index; may be lower than the actual one, and is never beyond the log.
    pub commit: LogIndex,
    pub voters: Vec<NodeId>,
    pub learners: Vec<NodeId>,
    /// True if the member started with an empty log, or with one created together with a store, in a cluster
    /// that had started before.
    pub came_late: bool,
}

/// Decodes the payload of an entry. The error describes the corruption.
pub fn read_entry(kind: u8, payload: Bytes) -> Result<EntrySeen, String> {
    match kind {
        0 if payload.is_empty() => Ok(EntrySeen::Empty),
        0 => read_batch(&payload).map(EntrySeen::Batch),
        1 => {
            let batch = change_batch(&payload).map_err(|error| error.to_string())?;
            read_batch(&batch).map(EntrySeen::Membership)
        }
        other => Err(format!("entries of kind {other} are not known")),
    }
}

fn read_batch(payload: &Bytes) -> Result<BatchSeen, String> {
    let batch = Batch::parse(payload).map_err(|error| error.to_string())?;
    let commands = batch.commands().map_err(|error| error.to_string())?;
    let commands: Vec<Bytes> = commands.iter().collect();
    assert_eq!(commands.len(), batch.count, "parsing has counted them");
    let (proposer, nonce, sequence) = (batch.id.proposer, batch.id.nonce, batch.id.sequence);
    Ok(BatchSeen { proposer, nonce, sequence, commands })
}

/// Decodes a state. The error describes the corruption.
pub fn read_state(bytes: &[u8]) -> Result<StateSeen, String> {
    let state = DurableState::decode(bytes).map_err(|error| error.to_string())?;
    let came_late = state.came_late();
    let DurableState { hard, conf, .. } = state;
    Ok(StateSeen {
        term: Term(hard.term),
        vote: hard.vote,
        commit: LogIndex(hard.commit),
        voters: conf.voters,
        learners: conf.learners,
        came_late,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{BatchBuilder, BatchId, change_payload};

    #[test]
    fn a_batch_shows_its_commands_and_who_made_it() {
        let mut builder = BatchBuilder::new(BatchId { proposer: 3, nonce: 4, sequence: 5 }, 0);
        builder.push(b"one");
        builder.push(b"");
        let payload = builder.finish();
        let commands = vec![Bytes::from_static(b"one"), Bytes::new()];
        let wanted = EntrySeen::Batch(BatchSeen { proposer: 3, nonce: 4, sequence: 5, commands });
        assert_eq!(read_entry(0, payload.clone()), Ok(wanted));
        assert_eq!(read_entry(0, Bytes::new()), Ok(EntrySeen::Empty));
        let id = BatchId { proposer: 3, nonce: 4, sequence: 5 };
        let change = change_payload(&BatchBuilder::change(id, b"one"));
        let commands = vec![Bytes::from_static(b"one")];
        let wanted = EntrySeen::Membership(BatchSeen { proposer: 3, nonce: 4, sequence: 5, commands });
        assert_eq!(read_entry(1, change.clone()), Ok(wanted));
        assert!(read_entry(1, change.slice(1..)).is_err());
        assert!(read_entry(0, payload.slice(..payload.len() - 1)).is_err());
        assert!(read_entry(9, payload).is_err());
    }

    #[test]
    fn a_state_shows_term_vote_and_members() {
        let mut state = DurableState::default();
        (state.hard.term, state.hard.vote, state.hard.commit) = (7, 2, 300);
        state.conf.voters = vec![1, 2, 3];
        let seen = StateSeen {
            term: Term(7),
            vote: 2,
            commit: LogIndex(300),
            voters: vec![1, 2, 3],
            learners: vec![],
            came_late: false,
        };
        assert_eq!(read_state(&state.encode()), Ok(seen));
        assert!(read_state(b"\x02").is_err());
        assert!(read_state(b"").is_err());
    }
}
