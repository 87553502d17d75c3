//! Makes jobs durable, and releases the promises that depend on it.
//!
//! ```text
//!   Core ──▶ PersistJob { entries, state, promises } ──persist──▶ Receipt ─release──▶ Durable ──▶ Core
//!                              one sync for all waiting jobs          └────▶ promises ──▶ Transport
//! ```
//!
//! * Promises (a vote, an acknowledgement of entries) can only be taken out of a receipt, and only a
//!   successful sync creates receipts. Sending one too early does not compile.
//! * The Core must be notified of the sync before any response to a promise can reach it: a candidate that
//!   receives votes first would lead with a log that it still considers unsynced. So: pass `Durable` to the
//!   Core, then send the promises.
//!
//! The order within a group, and the result of a crash between two steps:
//!
//! | step | a crash before it |
//! |---|---|
//! | restart of the log, after a snapshot | the old log, complete |
//! | entries and states of all jobs, one write, one sync | a prefix of them, without any promise sent |
//! | release of old segments | they are removed with the next release |
//! | receipt: promises may be sent | peers got no response; Raft retries |
//!
//! No prefix has a change without the commit index that came with it, or an entry of a term without the
//! term.
//!
//! A failed step stops the log, and with it the member.
//!
//! Independent of threads: the driver's log thread and the simulator call the same function.

use raft::eraftpb::Entry;
use wal::{Fs, Wal};

use crate::wire::{Outbound, entry_kind};
use crate::{LogIndex, LogPosition, Term};

/// The disk writes of a poll of the Core, and the messages that may be sent after them.
///
/// Entries include a state if the state changed: a vote is as much a promise as an entry. A job may contain
/// only promises; then it keeps its position in the queue, after the sync that those promises need.
#[derive(Debug)]
pub struct PersistJob {
    pub(crate) number: u64,
    /// Applied before the entries.
    pub(crate) restart: Option<Restart>,
    pub(crate) entries: Vec<Entry>,
    /// States before one of the entries, with the number of preceding entries: a crash must not leave an
    /// entry without its state.
    pub(crate) early_states: Vec<(usize, Vec<u8>)>,
    pub(crate) state: Option<Vec<u8>>,
    pub(crate) promises: Vec<Outbound>,
    /// Segments with only entries below this index may be removed, after all other steps.
    pub(crate) release: Option<LogIndex>,
}

impl PersistJob {
    pub(crate) fn empty(number: u64) -> Self {
        PersistJob {
            number,
            restart: None,
            entries: Vec::new(),
            early_states: Vec::new(),
            state: None,
            promises: Vec::new(),
            release: None,
        }
    }

    fn is_for_nothing(&self) -> bool {
        self.restart.is_none()
            && self.entries.is_empty()
            && self.state.is_none()
            && self.promises.is_empty()
            && self.release.is_none()
    }
}

/// A restart of the log after a snapshot. Its state is that of a log without entries: the job's own may have
/// a commit index that only the entries after it reach.
#[derive(Debug)]
pub(crate) struct Restart {
    pub at: LogPosition,
    pub state: Vec<u8>,
}

/// All jobs up to that of a poll are on disk. Only [`Receipt::release`] creates one.
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
    /// Returns both parts, for an owner that executes them in this order in one step.
    pub fn redeem(self) -> (Durable, Vec<Outbound>) {
        (self.durable, self.promises)
    }

    /// Passes the notification for the Core and the messages for the Transport to `carry_out`, in the
    /// required order.
    pub fn release(self, mut carry_out: impl FnMut(SyncRelease)) {
        let Receipt { durable, promises } = self;
        if base::mutant("late-durable") {
            promises.into_iter().for_each(|promise| carry_out(SyncRelease::Promise(promise)));
            return carry_out(SyncRelease::Durable(durable));
        }
        carry_out(SyncRelease::Durable(durable));
        promises.into_iter().for_each(|promise| carry_out(SyncRelease::Promise(promise)));
    }
}

/// An action released by a sync, see [`Receipt::release`].
#[derive(Debug)]
pub enum SyncRelease {
    /// For the Core, before any response to a promise.
    Durable(Durable),
    /// For the Transport.
    Promise(Outbound),
}

/// Cost of a group of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCost {
    /// Raft entries in the group.
    pub entries: usize,
    /// Bytes written to the log; 0 without a write.
    pub bytes: u64,
}

/// Appends all `jobs` and makes them durable with one sync. After an error the log is poisoned, and the
/// jobs' promises are dropped unsent.
pub fn persist<F: Fs>(wal: &mut Wal<F>, jobs: Vec<PersistJob>) -> Result<(Receipt, GroupCost), wal::Error> {
    let last = jobs.last().expect("a group is never empty");
    let mut receipt = Receipt { durable: Durable { number: last.number }, promises: Vec::new() };
    let mut persisted = GroupCost::default();
    let (mut number_before, mut release) = (0, None);
    let releases_first = base::mutant("release-before-sync");
    if releases_first {
        wal.sync()?;
    }
    for job in jobs {
        // A release-only job may come after the one of its poll.
        assert!(job.number >= number_before, "jobs are persisted in the order of their turns");
        number_before = job.number;
        assert!(!job.is_for_nothing(), "a job for nothing");
        if let Some(Restart { at, state }) = &job.restart {
            // Durable by itself. Earlier data of this group is older than the snapshot, and so is its
            // promise.
            wal.restart_at(*at, state)?;
            persisted.entries = 0;
        }
        persisted.entries += job.entries.len();
        if base::mutant("state-before-entries") {
            job.state.iter().for_each(|state| wal.put_state(state));
        }
        let mut early = job.early_states.iter().filter(|_| !base::mutant("late-states")).peekable();
        for (at, entry) in job.entries.iter().enumerate() {
            if let Some((_, state)) = early.next_if(|(before, _)| *before == at) {
                wal.put_state(state);
            }
            if base::mutant("kept-conflicts") && entry.index <= wal.last().index.0 {
                continue;
            }
            wal.append(wal::Entry {
                index: LogIndex(entry.index),
                term: Term(entry.term),
                kind: entry_kind(entry),
                payload: &entry.data,
            });
        }
        // After its entries: a state must never have a commit index that the preceding log does not reach.
        if let Some(state) = job.state.as_ref().filter(|_| !base::mutant("state-before-entries")) {
            wal.put_state(state);
        }
        receipt.promises.extend(job.promises);
        release = job.release.or(release);
        if base::mutant("sync-per-job") {
            persisted.bytes += wal.sync()?.bytes;
        }
    }
    persisted.bytes += if releases_first { 0 } else { wal.sync()?.bytes };
    let took_bytes = persisted.bytes > 0 || releases_first;
    assert!(took_bytes || persisted.entries == 0, "entries that took no bytes");
    assert_eq!(receipt.durable.number, number_before, "the receipt covers all jobs");
    if let Some(index) = release {
        // Last: segments are removed only when they are unused.
        wal.release_before(index)?;
    }
    Ok((receipt, persisted))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bytes::Bytes;
    use wal::WalOptions;
    use wal::testing::{Crash, Fault, SimFs};

    use super::*;
    use crate::Lane;

    const OPTIONS: WalOptions = WalOptions { segment_bytes: 1 << 20, salt: [7; 16] };

    fn log() -> (SimFs, Wal<SimFs>) {
        let disk = SimFs::new();
        let wal =
            Wal::create(disk.clone(), Path::new("/log"), b"", wal::LogPosition::default(), OPTIONS).unwrap();
        (disk, wal)
    }

    fn job(number: u64, indexes: std::ops::RangeInclusive<u64>, promise: Option<u64>) -> PersistJob {
        let entry =
            |index| Entry { index, term: 1, data: Bytes::from(vec![index as u8; 9]), ..Entry::default() };
        let outbound = |to| Outbound { to, lane: Lane::Bulk, bytes: Bytes::from_static(b"promise") };
        PersistJob {
            number,
            entries: indexes.map(entry).collect(),
            state: Some(format!("state {number}").into_bytes()),
            promises: promise.into_iter().map(outbound).collect(),
            ..PersistJob::empty(number)
        }
    }

    /// Returns the last index and the state after a power loss at this point.
    fn left_on(disk: &SimFs) -> (u64, Option<Vec<u8>>) {
        let disk = disk.crashed(Crash::Synced, &mut || false);
        let (_, recovery) = Wal::open(disk, Path::new("/log"), OPTIONS).unwrap();
        (recovery.last.index.0, recovery.state)
    }

    #[test]
    fn all_jobs_are_durable_when_the_receipt_is_there() {
        let (disk, mut wal) = log();
        let (receipt, persisted) =
            persist(&mut wal, vec![job(3, 1..=2, Some(8)), job(5, 3..=3, Some(9))]).unwrap();
        assert_eq!(left_on(&disk), (3, Some(b"state 5".to_vec())));
        assert_eq!(persisted.entries, 3);
        assert!(persisted.bytes > 27);
        let (durable, promises) = receipt.redeem();
        assert_eq!(durable, Durable { number: 5 }, "the newest job stands for all before it");
        assert_eq!(promises.iter().map(|promise| promise.to).collect::<Vec<_>>(), [8, 9]);
    }

    #[test]
    fn a_group_costs_one_sync_however_many_jobs_it_holds() {
        let calls = |jobs: Vec<PersistJob>| {
            let (disk, mut wal) = log();
            let before = disk.calls();
            drop(persist(&mut wal, jobs).unwrap().0);
            disk.calls() - before
        };
        let many = (1..=20).map(|number| job(number, number..=number, None)).collect();
        assert_eq!(calls(many), calls(vec![job(1, 1..=1, None)]));
    }

    #[test]
    fn promises_alone_need_no_disk() {
        let (disk, mut wal) = log();
        let before = disk.calls();
        let only_promises = PersistJob { state: None, entries: Vec::new(), ..job(1, 1..=1, Some(8)) };
        let (receipt, persisted) = persist(&mut wal, vec![only_promises]).unwrap();
        assert_eq!((disk.calls(), persisted), (before, GroupCost::default()));
        assert_eq!(receipt.redeem().1.len(), 1);
    }

    #[test]
    fn after_a_failed_sync_nothing_is_promised_ever_again() {
        let (disk, mut wal) = log();
        disk.fail_at(disk.calls(), Fault::InputOutput);
        assert!(persist(&mut wal, vec![job(1, 1..=1, Some(8))]).is_err());
        assert!(
            persist(&mut wal, vec![job(2, 2..=2, Some(8))]).is_err(),
            "the disk works again, the log does not"
        );
        assert_eq!(left_on(&disk), (0, None));
    }

    #[test]
    fn a_replaced_entry_is_replaced_on_disk() {
        let (disk, mut wal) = log();
        drop(persist(&mut wal, vec![job(1, 1..=5, None)]).unwrap().0);
        drop(persist(&mut wal, vec![job(2, 3..=3, None)]).unwrap().0);
        assert_eq!(left_on(&disk).0, 3);
    }

    #[test]
    fn the_core_hears_of_a_sync_before_its_promises_leave() {
        let (_, mut wal) = log();
        let mut released = Vec::new();
        let jobs = vec![job(1, 1..=1, Some(8)), job(2, 2..=2, Some(9))];
        persist(&mut wal, jobs).unwrap().0.release(|step| {
            released.push(match step {
                SyncRelease::Durable(durable) => ("durable", durable.number),
                SyncRelease::Promise(promise) => ("promise to", promise.to),
            });
        });
        assert_eq!(released, [("durable", 2), ("promise to", 8), ("promise to", 9)]);
    }

    /// Recovers from a crash that leaves the given number of sectors of a job.
    fn torn(job: PersistJob, kept: u32) -> wal::Recovery {
        let (disk, mut wal) = log();
        disk.fail_at(disk.calls() + 1, Fault::Stop); // The write goes through, its sync does not.
        assert!(persist(&mut wal, vec![job]).is_err());
        let mut sectors = 0;
        let disk = disk.crashed(Crash::Torn, &mut || {
            sectors += 1;
            sectors <= kept
        });
        Wal::open(disk, Path::new("/log"), OPTIONS).unwrap().1
    }

    #[test]
    fn a_torn_group_keeps_no_state_without_the_entries_before_it() {
        let mut states = 0;
        for kept in 0..12 {
            let recovery = torn(job(1, 1..=60, None), kept);
            let last = recovery.last.index.0;
            assert!(
                recovery.state.is_none() || last == 60,
                "{kept} sectors: a state, and entries up to {last}"
            );
            states += usize::from(recovery.state.is_some());
        }
        assert!(states > 0, "the last sectors hold the state");
    }

    #[test]
    fn a_torn_group_keeps_no_entry_without_the_state_before_it() {
        let mut changes = 0;
        for kept in 0..12 {
            let early_states = vec![(30, b"early".to_vec())];
            let recovery = torn(PersistJob { early_states, ..job(1, 1..=60, None) }, kept);
            let last = recovery.last.index.0;
            assert!(recovery.state.is_some() || last <= 30, "{kept} sectors: entries up to {last}");
            changes += usize::from(last > 30 && recovery.state == Some(b"early".to_vec()));
        }
        assert!(changes > 0, "a crash keeps the entry after it, and not the state at the end");
    }

    #[test]
    fn segments_are_released_after_the_sync_that_allows_it() {
        let disk = SimFs::new();
        let options = WalOptions { segment_bytes: 8 << 10, ..OPTIONS };
        let dir = Path::new("/log");
        let mut wal = Wal::create(disk.clone(), dir, b"", wal::LogPosition::default(), options).unwrap();
        for number in 1..=20 {
            drop(persist(&mut wal, vec![job(number, 20 * number - 19..=20 * number, None)]).unwrap().0);
        }
        let mut released = 0;
        // A failure invalidates `wal`, so each attempt reopens the log from the disk.
        drop(wal);
        for call in 0..12 {
            let disk = disk.crashed(Crash::Kill, &mut || true);
            let (mut wal, _) = Wal::open(disk.clone(), dir, options).unwrap();
            disk.fail_at(disk.calls() + call, Fault::Stop);
            let release = PersistJob { release: Some(LogIndex(300)), ..job(21, 401..=401, None) };
            drop(persist(&mut wal, vec![release]));
            let (_, left) = Wal::open(disk.crashed(Crash::Kill, &mut || true), dir, options).unwrap();
            assert!(left.start.index.0 == 0 || left.last.index.0 == 401, "stopped at call {call}: {left:?}");
            released += usize::from(left.start.index.0 > 0);
        }
        assert!(released > 0, "segments were released");
    }

    #[test]
    #[should_panic(expected = "in the order of their turns")]
    fn jobs_out_of_order_are_a_bug() {
        let _ = persist(&mut log().1, vec![job(2, 1..=1, None), job(1, 2..=2, None)]);
    }
}
