//! The log as raft-rs reads it: the tail in memory, the rest through the log's files.
//!
//! ```text
//!   start ───────── archive (synced, committed) ───────▶│◀───────────── cache ──────────────▶ last
//!                       ▲                         first_cached         every entry not yet committed is here
//!                  checkpoint: what a follower gets that needs an entry from before the start
//! ```
//!
//! * The cache is one gapless run of entries that ends at the last one.
//! * An entry leaves the cache only when it is committed and synced here. Such an entry never changes, so the
//!   archive's answer is right without asking whether the log thread has caught up.
//! * The start moves when the log is trimmed, always in memory first: what the log thread removes afterwards
//!   is no longer asked for. It never passes the checkpoint, so what is trimmed can be had as a snapshot.
//! * A Raft snapshot in here is a position and a membership. The process has the state.
//!
//! Where raft-rs' questions are answered:
//!
//! | question | answered by |
//! |---|---|
//! | term of an entry | cache, else the archive's runs of terms: never the disk |
//! | entries for a follower, or to apply | cache, else one read of the files, up to the first cached entry |
//! | entries before the start | "compacted": raft-rs then asks for a snapshot |
//! | a snapshot | the checkpoint, by position; "not now" while it does not reach the log |
//!
//! "Not now" because of the disk is fatal for the member, but raft-rs has no such answer: the cause is kept
//! for the core.
//!
//! Costs: `entries` clones reference counts, not payloads, while it stays in the cache.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use bytes::Bytes;
use raft::eraftpb::{Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use super::durable_state::DurableState;
use crate::wire::entry_type;
use crate::{Fatal, LogIndex, LogPosition, Term};

/// Synced entries, wherever they are kept. The log's reader in production.
///
/// A trait for tests: a list of entries that fails, or returns wrong entries, on demand.
pub(crate) trait Archive: Send {
    /// Entries from `from` on: at least one if it is there, no more than fit in `bytes_max`.
    fn read(&self, from: LogIndex, bytes_max: usize) -> Result<Vec<wal::OwnedEntry>, wal::Error>;
    fn term(&self, index: LogIndex) -> Option<Term>;
    /// The position that the log would start at if some of the entries up to `index` were let go: as many as
    /// may go at a time.
    fn release_point(&self, index: LogIndex) -> LogPosition;
    /// The oldest entry within about the last `bytes` of the log up to `index`.
    fn back_by(&self, index: LogIndex, bytes: u64) -> LogIndex;
}

impl<F: wal::Fs> Archive for wal::Reader<F> {
    fn read(&self, from: LogIndex, bytes_max: usize) -> Result<Vec<wal::OwnedEntry>, wal::Error> {
        wal::Reader::read(self, from, bytes_max)
    }

    fn term(&self, index: LogIndex) -> Option<Term> {
        wal::Reader::term(self, index)
    }

    fn release_point(&self, index: LogIndex) -> LogPosition {
        wal::Reader::release_point(self, index.next(), SEGMENTS_PER_RELEASE)
    }

    fn back_by(&self, index: LogIndex, bytes: u64) -> LogIndex {
        wal::Reader::back_by(self, index, bytes)
    }
}

// The cache's bound counts what an entry really takes, so that a log of tiny entries does not take ten times
// as much.

/// What an entry costs in memory in addition to its payload: the struct and its place in the queue, rounded
/// up.
const ENTRY_OVERHEAD: usize = 160;

/// Segments that go at a time. To remove one takes a disk some milliseconds, in which the log thread syncs
/// nothing: after a long stream, or the first checkpoint in a while, there may be hundreds.
const SEGMENTS_PER_RELEASE: usize = 1;

/// Read from the archive at once, when the caller names no limit.
const ARCHIVE_READ_BYTES: usize = 4 << 20;

pub(crate) struct LogStore {
    /// What the next job that needs it will make durable; raft-rs reads it back at the start only.
    pub state: DurableState,
    /// Everything from `first_cached` to the end of the log.
    cache: VecDeque<Entry>,
    /// Memory that the cache takes, by [`cost`].
    cache_bytes: usize,
    /// Passed only by entries that are not stable yet: those cannot be read anywhere else.
    cache_bytes_max: usize,
    /// Index of the first cached entry; one past the last entry when the cache is empty.
    first_cached: LogIndex,
    /// The place before the first entry kept.
    start: LogPosition,
    /// The newest entry, synced or not; the start when there is none.
    last: LogPosition,
    /// The machine's newest durable state: what a snapshot is made of.
    pub checkpoint: LogPosition,
    /// A snapshot was asked for that no checkpoint can serve yet.
    wanted: Cell<Option<LogIndex>>,
    archive: Box<dyn Archive>,
    /// raft-rs only has the answer "not now"; the cause is kept here for the Core.
    failure: RefCell<Option<Fatal>>,
}

impl LogStore {
    /// Opens the store over a log that holds what lies between `start` and `last`, with the newest entries
    /// already in memory. `checkpoint` is where the machine stands on its own disk.
    pub fn open(
        archive: Box<dyn Archive>,
        state: DurableState,
        start: LogPosition,
        last: LogPosition,
        checkpoint: LogPosition,
        cache_bytes_max: usize,
    ) -> Result<LogStore, Fatal> {
        assert!(LogIndex(state.hard.commit) <= last.index, "committed beyond the log's end");
        assert!(start.index <= last.index, "a log that ends before it starts");
        let mut store = LogStore {
            cache: VecDeque::new(),
            cache_bytes: 0,
            cache_bytes_max,
            first_cached: last.index + 1,
            start,
            last,
            checkpoint,
            wanted: Cell::new(None),
            archive,
            failure: RefCell::new(None),
            state,
        };
        store.warm()?;
        Ok(store)
    }

    /// Brings what is not committed into the cache; it may still be replaced.
    ///
    /// At most what a leader may hold uncommitted. What is committed stays on disk until it is asked for: a
    /// restart does not read the log twice.
    fn warm(&mut self) -> Result<(), Fatal> {
        let from = LogIndex(self.state.hard.commit).max(self.start.index) + 1;
        let mut next = from;
        while next <= self.last.index {
            let entries = self.archived(next, self.last.index + 1, ARCHIVE_READ_BYTES)?;
            next += entries.len() as u64;
            for entry in entries {
                self.cache_bytes += cost(&entry);
                self.cache.push_back(entry);
            }
        }
        self.first_cached = from.min(self.last.index + 1);
        assert_eq!(self.end_of_cache(), self.last.index + 1, "a gap in the cache");
        Ok(())
    }

    /// One past the last cached entry.
    fn end_of_cache(&self) -> LogIndex {
        self.first_cached + self.cache.len() as u64
    }

    pub fn start(&self) -> LogPosition {
        self.start
    }

    /// Where the log could start if entries up to `index` were let go: the next border between segments.
    pub fn release_point(&self, index: LogIndex) -> LogPosition {
        self.archive.release_point(index)
    }

    /// The oldest entry within about the last `bytes` of the log up to `index`.
    pub fn back_by(&self, index: LogIndex, bytes: u64) -> LogIndex {
        self.archive.back_by(index, bytes)
    }

    /// Forgets the entries up to `start`, before the log thread removes them.
    pub fn trim(&mut self, start: LogPosition) {
        assert!(
            start.index > self.start.index && start.index <= self.last.index,
            "a trim to {}",
            start.index
        );
        self.start = start;
        while self.first_cached <= start.index {
            let Some(trimmed) = self.cache.pop_front() else { break };
            assert_eq!(LogIndex(trimmed.index), self.first_cached, "the cache is one gapless run");
            self.cache_bytes -= cost(&trimmed);
            self.first_cached += 1;
        }
        assert!(self.first_cached > start.index, "the cache begins after the start");
    }

    /// Begins anew after a snapshot. The log thread does the same, later: until then the entries after `at`
    /// are here.
    pub fn restore(&mut self, at: LogPosition) {
        assert!(at.index > self.start.index, "a snapshot at {}, from before the log", at.index);
        self.cache.clear();
        self.cache_bytes = 0;
        (self.start, self.last) = (at, at);
        self.first_cached = at.index + 1;
    }

    /// The checkpoint as raft-rs knows snapshots.
    pub fn newest_snapshot(&self) -> Snapshot {
        assert!(self.checkpoint.index > LogIndex::ZERO, "a snapshot of nothing");
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (self.checkpoint.index.0, self.checkpoint.term.0);
        metadata.set_conf_state(self.state.conf.clone());
        snapshot
    }

    /// The index that a checkpoint was missing for since the last call.
    pub fn take_wanted(&self) -> Option<LogIndex> {
        self.wanted.take()
    }

    /// The last entry, synced or not.
    pub fn last(&self) -> LogPosition {
        self.last
    }

    /// Adds what raft-rs wants appended; entries at and after the first one's index are replaced.
    pub fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        let from = LogIndex(first.index);
        assert!(from <= self.last.index + 1, "a gap before index {from}");
        assert!(from >= self.first_cached, "index {from} is committed and cannot be replaced");
        while self.end_of_cache() > from {
            let dropped = self.cache.pop_back().expect("the cache reaches up to the last index");
            self.cache_bytes -= cost(&dropped);
        }
        for entry in entries {
            assert!(entry.term > 0, "an entry of no term");
            assert_eq!(LogIndex(entry.index), self.end_of_cache(), "a gap within an append");
            self.cache_bytes += cost(entry);
            self.cache.push_back(entry.clone());
        }
        let last = entries.last().expect("not empty");
        assert!(last.term >= first.term, "terms never go back along the log");
        self.last = LogPosition::new(last.index, last.term);
    }

    /// Lets go of the oldest entries while the cache is over its bound. `stable` is the last index that is
    /// committed and synced here.
    ///
    /// Applied or not does not matter: the machine may lag by more than the cache holds, and reads the files
    /// then.
    pub fn evict(&mut self, stable: LogIndex) {
        assert!(stable <= self.last.index, "stable beyond the log's end");
        while self.cache_bytes > self.cache_bytes_max && self.first_cached <= stable {
            let Some(evicted) = self.cache.pop_front() else { break };
            assert_eq!(LogIndex(evicted.index), self.first_cached, "the cache is one gapless run");
            self.cache_bytes -= cost(&evicted);
            self.first_cached += 1;
        }
    }

    /// Entries of `low..high` as far as `bytes_max` reaches, at least one.
    ///
    /// A range that begins before the cache is answered up to where the cache begins, and the caller asks
    /// again: one read is either memory or disk, never both. Reading the disk here keeps the driver from its
    /// other work for the time of one read of at most [`crate::RaftLimits::MESSAGE_BYTES_MAX`]; only a
    /// follower that lags by more than the cache holds causes it.
    pub fn read(&self, low: LogIndex, high: LogIndex, bytes_max: usize) -> Result<Vec<Entry>, Fatal> {
        assert!(low > self.start.index, "entry {low} was trimmed; the log starts after {}", self.start.index);
        assert!(low < high && high <= self.last.index + 1, "{low}..{high} is not in the log");
        if low < self.first_cached {
            return self.archived(low, high.min(self.first_cached), bytes_max);
        }
        let from = (low - self.first_cached) as usize;
        let mut bytes = 0;
        let within = |entry: &&Entry| {
            bytes += entry.data.len() + ENTRY_OVERHEAD;
            bytes <= bytes_max
        };
        let wanted = self.cache.range(from..from + (high - low) as usize);
        let count = wanted.clone().take_while(within).count().max(1);
        Ok(wanted.take(count).cloned().collect())
    }

    /// Entries of `low..high` from the files, as far as `bytes_max` reaches. What comes back is checked: the
    /// log thread writes these files at the same time, and an entry at the wrong place would be applied.
    fn archived(&self, low: LogIndex, high: LogIndex, bytes_max: usize) -> Result<Vec<Entry>, Fatal> {
        let read = self
            .archive
            .read(low, bytes_max)
            .map_err(|error| Fatal::caused(format!("read log entries from {low}"), error))?;
        let mut entries = Vec::with_capacity(read.len());
        for (expected, entry) in (low.0..high.0).zip(read) {
            let kind = entry_type(entry.kind)
                .map_err(|_| Fatal::new(format!("log entry {expected} is of no known kind")))?;
            if entry.index.0 != expected {
                return Err(Fatal::new(format!("the log gave entry {} for {expected}", entry.index)));
            }
            entries.push(Entry {
                entry_type: kind,
                term: entry.term.0,
                index: expected,
                data: Bytes::from(entry.payload),
                ..Entry::default()
            });
        }
        if entries.is_empty() {
            return Err(Fatal::new(format!(
                "log entry {low} is missing, though the log ends at {}",
                self.last.index
            )));
        }
        Ok(entries)
    }

    /// Memory that entries take here.
    #[cfg(test)]
    pub fn cached_bytes(&self) -> usize {
        self.cache_bytes
    }

    /// Why the last "not now" was said, if it was the disk.
    pub fn take_failure(&self) -> Option<Fatal> {
        self.failure.borrow_mut().take()
    }
}

impl Storage for LogStore {
    /// Asked once, when the core is built.
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.state.hard.clone(), self.state.conf.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if LogIndex(low) <= self.start.index {
            return Err(StorageError::Compacted.into());
        }
        // Without a limit raft-rs looks for changes of membership among what is not applied, and takes a
        // first part for all of it, which may be more than the memory holds. The core looks itself, part by
        // part.
        let bytes_max = max_size.into().unwrap_or(ARCHIVE_READ_BYTES as u64);
        self.read(LogIndex(low), LogIndex(high), usize::try_from(bytes_max).unwrap_or(usize::MAX)).map_err(
            |fatal| {
                // Said at once: for committed entries raft-rs panics at "not now", in words that name no file.
                tracing::error!(error = base::causes(&fatal), "the log cannot be read");
                self.failure.borrow_mut().get_or_insert(fatal);
                StorageError::LogTemporarilyUnavailable.into()
            },
        )
    }

    /// Never reads the disk: the log keeps the terms of its entries in memory.
    fn term(&self, index: u64) -> raft::Result<u64> {
        let index = LogIndex(index);
        if index < self.start.index {
            return Err(StorageError::Compacted.into());
        }
        if index == self.start.index {
            return Ok(self.start.term.0);
        }
        if index == self.last.index {
            return Ok(self.last.term.0);
        }
        if index > self.last.index {
            return Err(StorageError::Unavailable.into());
        }
        if index >= self.first_cached {
            return Ok(self.cache[(index - self.first_cached) as usize].term);
        }
        self.archive.term(index).map(|term| term.0).ok_or_else(|| StorageError::Unavailable.into())
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.start.index.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last.index.0)
    }

    /// What a follower gets that needs an entry before `first_index`. "Not now" if the checkpoint does not
    /// reach the log: this member has just restarted its log after a snapshot that its machine is still
    /// taking over.
    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        let needed = LogIndex(request_index).max(self.start.index).max(LogIndex(1));
        if self.checkpoint.index < needed {
            self.wanted.set(self.wanted.get().max(Some(needed)));
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        }
        Ok(self.newest_snapshot())
    }
}

fn cost(entry: &Entry) -> usize {
    entry.data.len() + ENTRY_OVERHEAD
}

/// The hard state that a member may start from: what it applied is committed, also if the synced commit index
/// is lower.
pub(crate) fn restarted(mut hard: HardState, applied: LogIndex) -> HardState {
    hard.commit = hard.commit.max(applied.0);
    hard
}

#[cfg(test)]
mod tests;
