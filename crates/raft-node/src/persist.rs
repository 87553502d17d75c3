//! Making things durable, and the promises that depend on it.
//!
//! ```text
//!   Core ──▶ PersistJob { entries, state, promises } ──persist──▶ Receipt ──redeem──▶ Durable ──▶ back to the Core
//!                              one sync for all waiting jobs          └────▶ promises ──▶ Transport
//! ```
//!
//! * Promises (a vote, an acknowledgement of entries) can be taken out of a receipt only, and only a successful
//!   sync makes receipts. Sending one too early does not compile.
//! * The Core must hear of the sync before any answer to a promise can reach it: a candidate whose votes come in
//!   first would lead with a log that it still believes unsynced. So: hand `Durable` in, then send the promises.
//!
//! Knows nothing of threads: the driver's log thread and the simulator call the same function.

use raft::eraftpb::Entry;
use wal::{Fs, LogIndex, Term, Wal};

use crate::message::{Outbound, entry_kind};

/// What one turn of the Core wants on disk, and what may be said once it is there.
#[derive(Debug)]
pub struct PersistJob {
    pub(crate) number: u64,
    pub(crate) entries: Vec<Entry>,
    pub(crate) state: Option<Vec<u8>>,
    pub(crate) promises: Vec<Outbound>,
}

/// Everything up to one turn's job is on disk. Only [`Receipt::redeem`] makes one.
#[derive(Debug, PartialEq, Eq)]
pub struct Durable {
    pub(crate) number: u64,
}

/// Proof of a sync that covered some jobs.
#[derive(Debug)]
#[must_use = "a receipt holds messages that others wait for"]
pub struct Receipt {
    durable: Durable,
    promises: Vec<Outbound>,
}

impl Receipt {
    /// What the Core must hear, and then what the Transport must send: in this order.
    pub fn redeem(self) -> (Durable, Vec<Outbound>) {
        (self.durable, self.promises)
    }
}

/// What one group of jobs cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Persisted {
    pub entries: usize,
    pub bytes: u64,
}

/// Appends all `jobs` and makes them durable with one sync. After an error the log is poisoned, and the jobs'
/// promises are gone: nothing was promised.
pub fn persist<F: Fs>(wal: &mut Wal<F>, jobs: Vec<PersistJob>) -> Result<(Receipt, Persisted), wal::Error> {
    let last = jobs.last().expect("somebody waits, or nobody calls");
    let mut receipt = Receipt { durable: Durable { number: last.number }, promises: Vec::new() };
    let mut persisted = Persisted::default();
    let mut number_before = 0;
    for job in jobs {
        assert!(job.number > number_before, "jobs are persisted in the order of their turns");
        number_before = job.number;
        persisted.entries += job.entries.len();
        for entry in &job.entries {
            wal.append(wal::Entry {
                index: LogIndex(entry.index),
                term: Term(entry.term),
                kind: entry_kind(entry),
                payload: &entry.data,
            });
        }
        // After its entries: a state must never name a commit that the log before it does not hold.
        if let Some(state) = &job.state {
            wal.put_state(state);
        }
        receipt.promises.extend(job.promises);
    }
    persisted.bytes = wal.sync()?.bytes;
    Ok((receipt, persisted))
}
