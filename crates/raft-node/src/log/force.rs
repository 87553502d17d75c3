//! Forces a new single-member cluster from the log of a lost cluster, by appending an entry.
//!
//! * The entry is an ordinary membership change, applied by the machine, which decides the remaining
//!   members.
//! * All entries of the log count as committed. The commit index in the durable state is a hint that may be
//!   lower than the acknowledged index, so the log is not truncated.
//! * The entry has a term that no member of the lost cluster has reached: none of their logs ever has
//!   another entry with the same term and index.
//! * The term, the entry and the state that counts it as committed are synced together, in this order. A
//!   crash leaves a prefix of them: an ordinary log that can be forced again.

use wal::{Entry, Fs, Recovery, Wal};

use super::durable_state::DurableState;
use crate::wire::{BatchBuilder, BatchId, change_payload};
use crate::{Membership, NodeId, Term};

/// Terms between the last known one and that of the entry. An election takes at least a tenth of a second,
/// so the other members would have to elect without a pause for a day.
const TERMS_SKIPPED: u64 = 1 << 20;
/// Kind of a membership change entry.
const CHANGE: u8 = 1;

/// Error of forcing a cluster.
#[derive(Debug, thiserror::Error)]
pub enum ForceError {
    #[error("the log holds no Raft state: its member has not joined a cluster yet")]
    Blank,
    #[error("the Raft state in the log cannot be read: {0}")]
    State(String),
    #[error("write the log")]
    Log(#[from] wal::Error),
}

/// Appends a membership change to the log, as committed; `member` is the remaining one. The log must be
/// reopened after that. `nonce` is a [`crate::Config::boot_nonce`].
pub fn force_change<F: Fs>(
    log: &mut Wal<F>,
    recovery: &Recovery,
    member: NodeId,
    nonce: u64,
    command: &[u8],
) -> Result<(), ForceError> {
    let bytes = recovery.state.as_deref().ok_or(ForceError::Blank)?;
    let mut state = DurableState::decode(bytes).map_err(|error| ForceError::State(error.to_string()))?;
    let term = state.hard.term.max(recovery.last.term.0) + TERMS_SKIPPED;
    let index = recovery.last.index.next();
    let payload =
        change_payload(&BatchBuilder::change(BatchId { proposer: member, nonce, sequence: 0 }, command));
    // The vote of that term is its own: no other member can be elected in it. Written first, since a log
    // must not have an entry of a term that its member has not reached.
    (state.hard.term, state.hard.vote) = (term, member);
    log.put_state(&state.encode());
    log.append(Entry { index, term: Term(term), kind: CHANGE, payload: &payload });
    state.hard.commit = index.0;
    state.conf = Membership { voters: vec![member], ..Membership::default() }.to_conf();
    state.catch_up = None;
    log.put_state(&state.encode());
    log.sync()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use wal::testing::{Crash, Fault, SimFs};
    use wal::{LogIndex, LogPosition, WalOptions};

    use super::*;
    use crate::inspect::{EntrySeen, read_entry, read_state};

    const OPTIONS: WalOptions = WalOptions { segment_bytes: 1 << 16, salt: [7; 16] };

    /// Creates a log of three entries, the last of which is not known to be committed.
    fn log(fs: &SimFs) {
        let mut log =
            Wal::create(fs.clone(), Path::new("/log"), b"", LogPosition::default(), OPTIONS).unwrap();
        for index in 1..=3 {
            log.append(Entry { index: LogIndex(index), term: Term(2), kind: 0, payload: b"" });
        }
        let mut state = DurableState::default();
        (state.hard.term, state.hard.vote, state.hard.commit) = (5, 2, 2);
        (state.conf.voters, state.catch_up) = (vec![1, 2, 3], Some(LogPosition::new(9, 9)));
        log.put_state(&state.encode());
        log.sync().unwrap();
    }

    fn force(fs: &SimFs) -> Result<(), ForceError> {
        let (mut log, recovery) = Wal::open(fs.clone(), Path::new("/log"), OPTIONS)?;
        force_change(&mut log, &recovery, 1, 4, b"only 1")
    }

    #[test]
    fn the_log_ends_with_a_change_that_is_committed() {
        let fs = SimFs::new();
        log(&fs);
        for time in 1..=2 {
            force(&fs).unwrap();
            let (log, recovery) = Wal::open(fs.clone(), Path::new("/log"), OPTIONS).unwrap();
            let (index, term) = (3 + time, 5 + time * TERMS_SKIPPED);
            assert_eq!(recovery.last, LogPosition::new(index, term));
            let state = read_state(&recovery.state.unwrap()).unwrap();
            assert_eq!((state.term, state.vote, state.commit), (Term(term), 1, LogIndex(index)));
            assert_eq!((state.voters, state.learners), (vec![1], vec![]));
            let entries = log.reader().read(LogIndex(1), 1 << 20).unwrap();
            assert_eq!(entries.len() as u64, index, "nothing is cut off");
            let last = entries.last().unwrap();
            match read_entry(last.kind, last.payload.clone().into()).unwrap() {
                EntrySeen::Membership(batch) => assert_eq!(batch.commands, ["only 1"]),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn wherever_it_stops_the_next_attempt_finds_the_log_and_ends_it() {
        let mut stopped = 0;
        for call in 0.. {
            let fs = SimFs::new();
            log(&fs);
            fs.fail_at(fs.calls() + call, Fault::Stop);
            let forced = force(&fs);
            for crash in Crash::ALL {
                let mut asked = 0;
                let mut chance = || {
                    asked += 1;
                    asked % 2 == 0
                };
                let after = fs.crashed(crash, &mut chance);
                let (_, recovery) = Wal::open(after.clone(), Path::new("/log"), OPTIONS).unwrap();
                let state = read_state(&recovery.state.unwrap()).unwrap();
                assert!(state.term >= recovery.last.term && state.commit <= recovery.last.index);
                force(&after).unwrap();
                let (log, recovery) = Wal::open(after, Path::new("/log"), OPTIONS).unwrap();
                assert!(log.reader().read(LogIndex(1), 1 << 20).unwrap().len() >= 4);
                assert_eq!(read_state(&recovery.state.unwrap()).unwrap().voters, [1]);
            }
            if forced.is_ok() {
                break;
            }
            stopped += 1;
        }
        assert!(stopped > 3, "stopped {stopped} times");
    }

    #[test]
    fn a_member_that_took_part_in_no_cluster_is_refused() {
        let fs = SimFs::new();
        drop(Wal::create(fs.clone(), Path::new("/log"), b"", LogPosition::default(), OPTIONS).unwrap());
        assert!(matches!(force(&fs), Err(ForceError::Blank)));
    }
}
