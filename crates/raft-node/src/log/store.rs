//! The log as read by raft-rs: the tail in memory, the rest from the log files.
//!
//! ```text
//!   start ───────── archive (synced, committed) ───────▶│◀───────────── cache ──────────────▶ last
//!                       ▲                         first_cached         every entry not yet committed is here
//!                  checkpoint: what a follower gets that needs an entry from before the start
//! ```
//!
//! * The cache is a contiguous range of entries up to the last one.
//! * An entry is evicted from the cache only when it is committed and synced here. Such an entry never
//!   changes, so the archive is correct even if the log thread has not caught up.
//! * The start moves when the log is truncated, always in memory first: entries that the log thread removes
//!   afterwards are not requested any more. It never passes the checkpoint, so truncated entries are
//!   available as a snapshot.
//! * A Raft snapshot in here is a position and a membership. The process has the state.
//!
//! Sources for queries of raft-rs:
//!
//! | query | source |
//! |---|---|
//! | term of an entry | cache, else the archive's runs of terms: never the disk |
//! | entries for a follower, or to apply | cache, else one read of the files, up to the first cached entry |
//! | entries before the start | "compacted": raft-rs then requests a snapshot |
//! | a snapshot | the checkpoint, by position; "not now" while it does not reach the log |
//!
//! "Not now" because of the disk is fatal for the member, but raft-rs has no such error: the cause is stored
//! for the core.
//!
//! `entries` clones reference counts, not payloads, while it stays in the cache.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use bytes::Bytes;
use raft::eraftpb::{Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use super::durable_state::DurableState;
use crate::wire::entry_type;
use crate::{Fatal, LogIndex, LogPosition, Term};

/// Synced entries. The log's reader in production.
///
/// A trait for tests: a list of entries that fails, or returns wrong entries, on demand.
pub(crate) trait Archive: Send {
    /// Returns entries from `from` on: at least one if available, no more than fit in `bytes_max`.
    fn read(&self, from: LogIndex, bytes_max: usize) -> Result<Vec<wal::OwnedEntry>, wal::Error>;
    fn term(&self, index: LogIndex) -> Option<Term>;
    /// Returns the start of the log after truncating some of the entries up to `index`: at most as many as
    /// may be removed in one step.
    fn release_point(&self, index: LogIndex) -> LogPosition;
    /// Returns the oldest entry within about the last `bytes` of the log up to `index`.
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

// The cache's limit counts actual memory, so that a log of tiny entries does not take ten times as much.

/// Memory of an entry in addition to its payload: the struct and its queue slot, rounded up.
const ENTRY_OVERHEAD: usize = 160;

/// Segments removed per step. A removal takes a disk some milliseconds, in which the log thread cannot sync:
/// after a long stream, or the first checkpoint in a while, there may be hundreds.
const SEGMENTS_PER_RELEASE: usize = 1;

/// Bytes of a read from the archive without a caller's limit.
const ARCHIVE_READ_BYTES: usize = 4 << 20;

pub(crate) struct LogStore {
    /// State that the next job will make durable, if it needs it; raft-rs reads it back only at the start.
    pub state: DurableState,
    /// All entries from `first_cached` to the end of the log.
    cache: VecDeque<Entry>,
    /// Memory that the cache takes, by [`cost`].
    cache_bytes: usize,
    /// Exceeded only by entries that are not stable yet: they are not available elsewhere.
    cache_bytes_max: usize,
    /// Index of the first cached entry; last entry plus one if the cache is empty.
    first_cached: LogIndex,
    /// Position before the first retained entry.
    start: LogPosition,
    /// The last entry, synced or not; the start if there is none.
    last: LogPosition,
    /// The machine's latest durable state, used for snapshots.
    pub checkpoint: LogPosition,
    /// Index of a requested snapshot that no checkpoint can serve yet.
    wanted: Cell<Option<LogIndex>>,
    archive: Box<dyn Archive>,
    /// Cause of a "not now" error, which raft-rs cannot transport, for the Core.
    failure: RefCell<Option<Fatal>>,
}

impl LogStore {
    /// Opens the store over a log with entries between `start` and `last`, and caches the latest ones.
    /// `checkpoint` is the machine's durable position.
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

    /// Caches the uncommitted entries, which may still be replaced: at most the uncommitted bytes of a
    /// leader. Committed entries stay on disk until they are requested, so a restart does not read the log
    /// twice.
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

    /// Returns the index after the last cached entry.
    fn end_of_cache(&self) -> LogIndex {
        self.first_cached + self.cache.len() as u64
    }

    pub fn start(&self) -> LogPosition {
        self.start
    }

    /// Returns the start of the log after truncating entries up to `index`: the next segment boundary.
    pub fn release_point(&self, index: LogIndex) -> LogPosition {
        self.archive.release_point(index)
    }

    /// Returns the oldest entry within about the last `bytes` of the log up to `index`.
    pub fn back_by(&self, index: LogIndex, bytes: u64) -> LogIndex {
        self.archive.back_by(index, bytes)
    }

    /// Drops the entries up to `start`, before the log thread removes them.
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

    /// Restarts after a snapshot. The log thread does the same later; until then the entries after `at` are
    /// here.
    pub fn restore(&mut self, at: LogPosition) {
        assert!(at.index > self.start.index, "a snapshot at {}, from before the log", at.index);
        self.cache.clear();
        self.cache_bytes = 0;
        (self.start, self.last) = (at, at);
        self.first_cached = at.index + 1;
    }

    /// Returns the checkpoint in the representation of raft-rs.
    pub fn newest_snapshot(&self) -> Snapshot {
        assert!(self.checkpoint.index > LogIndex::ZERO, "a snapshot of nothing");
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (self.checkpoint.index.0, self.checkpoint.term.0);
        metadata.set_conf_state(self.state.conf.clone());
        snapshot
    }

    /// Returns and clears the index for which a checkpoint was missing.
    pub fn take_wanted(&self) -> Option<LogIndex> {
        self.wanted.take()
    }

    /// Returns the last entry, synced or not.
    pub fn last(&self) -> LogPosition {
        self.last
    }

    /// Appends entries of raft-rs; entries at and after the first one's index are replaced.
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

    /// Evicts the oldest entries while the cache exceeds its limit. `stable` is the last index that is
    /// committed and synced here.
    ///
    /// Unapplied entries are evicted too: the machine may lag by more than the cache holds, and reads the
    /// files then.
    pub fn evict(&mut self, stable: LogIndex) {
        assert!(stable <= self.last.index, "stable beyond the log's end");
        while self.cache_bytes > self.cache_bytes_max && self.first_cached <= stable {
            let Some(evicted) = self.cache.pop_front() else { break };
            assert_eq!(LogIndex(evicted.index), self.first_cached, "the cache is one gapless run");
            self.cache_bytes -= cost(&evicted);
            self.first_cached += 1;
        }
    }

    /// Reads entries of `low..high` up to `bytes_max`, at least one.
    ///
    /// A range that starts before the cache is returned up to the start of the cache, and the caller
    /// retries: a read uses either memory or disk, never both. Reading the disk here blocks the driver for
    /// the time of one read of at most [`crate::RaftLimits::MESSAGE_BYTES_MAX`]; only a follower that lags
    /// by more than the cache holds causes it.
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

    /// Reads entries of `low..high` from the files, up to `bytes_max`. The result is verified: the log
    /// thread writes these files concurrently, and an entry at the wrong position would be applied.
    fn archived(&self, low: LogIndex, high: LogIndex, bytes_max: usize) -> Result<Vec<Entry>, Fatal> {
        let read = self
            .archive
            .read(low, bytes_max)
            .map_err(|error| Fatal::caused(format!("read log entries from {low}"), error))?;
        let mut entries = Vec::with_capacity(read.len());
        for (expected, entry) in (low.0..high.0).zip(read) {
            let kind = entry_type(entry.kind)
                .map_err(|_| Fatal::new(format!("log entry {expected} has an unknown type")))?;
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

    /// Returns the memory of cached entries.
    #[cfg(test)]
    pub fn cached_bytes(&self) -> usize {
        self.cache_bytes
    }

    /// Returns and clears the cause of the last "not now", if it was the disk.
    pub fn take_failure(&self) -> Option<Fatal> {
        self.failure.borrow_mut().take()
    }
}

impl Storage for LogStore {
    /// Called once, when the core is built.
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
        // Without a limit raft-rs searches unapplied entries for membership changes, and considers a first
        // part to be complete, which may also exceed the memory. The core searches part by part instead.
        let bytes_max = max_size.into().unwrap_or(ARCHIVE_READ_BYTES as u64);
        self.read(LogIndex(low), LogIndex(high), usize::try_from(bytes_max).unwrap_or(usize::MAX)).map_err(
            |fatal| {
                // Logged immediately: for committed entries raft-rs panics on "not now", with a message that
                // names no file.
                tracing::error!(error = base::causes(&fatal), "log segment cannot be read");
                self.failure.borrow_mut().get_or_insert(fatal);
                StorageError::LogTemporarilyUnavailable.into()
            },
        )
    }

    /// Returns the term of an entry. Never reads the disk: the log has the terms of its entries in memory.
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

    /// Returns the snapshot for a follower that needs an entry before `first_index`. "Not now" if the
    /// checkpoint does not reach the log: this member has just restarted its log after a snapshot that its
    /// machine is still installing.
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

/// Returns the hard state that a member may start from: applied entries are committed, even if the synced
/// commit index is lower.
pub(crate) fn restarted(mut hard: HardState, applied: LogIndex) -> HardState {
    hard.commit = hard.commit.max(applied.0);
    hard
}

#[cfg(test)]
mod tests;
