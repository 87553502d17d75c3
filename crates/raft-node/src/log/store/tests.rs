use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;

/// An archive in the form of a list, with failures on demand.
#[derive(Clone, Default)]
struct Shelf {
    entries: Arc<Mutex<Vec<wal::OwnedEntry>>>,
    reads: Arc<Mutex<u64>>,
    broken: Arc<Mutex<bool>>,
}

impl Shelf {
    fn put(&self, entries: &[Entry]) {
        let mut shelf = self.entries.lock().unwrap();
        for entry in entries {
            shelf.truncate(entry.index as usize - 1);
            shelf.push(wal::OwnedEntry {
                index: LogIndex(entry.index),
                term: Term(entry.term),
                kind: 0,
                payload: entry.data.to_vec(),
            });
        }
    }
}

impl Archive for Shelf {
    fn read(&self, from: LogIndex, bytes_max: usize) -> Result<Vec<wal::OwnedEntry>, wal::Error> {
        *self.reads.lock().unwrap() += 1;
        if *self.broken.lock().unwrap() {
            return Err(wal::Error::Poisoned);
        }
        let shelf = self.entries.lock().unwrap();
        let mut bytes = 0;
        let fits = |entry: &&wal::OwnedEntry| {
            bytes += entry.payload.len();
            bytes <= bytes_max
        };
        let wanted = shelf.iter().skip(from.0 as usize - 1);
        let count = wanted.clone().take_while(fits).count().max(1);
        Ok(wanted.take(count).cloned().collect())
    }

    fn term(&self, index: LogIndex) -> Option<Term> {
        self.entries.lock().unwrap().get(index.0 as usize - 1).map(|entry| entry.term)
    }

    /// Segments of ten entries.
    fn release_point(&self, index: LogIndex) -> LogPosition {
        let index = LogIndex(index.0 / 10 * 10);
        let term = if index == LogIndex::ZERO { Term::default() } else { self.term(index).unwrap() };
        LogPosition { index, term }
    }

    fn back_by(&self, index: LogIndex, bytes: u64) -> LogIndex {
        LogIndex(index.0.saturating_sub(bytes / PAYLOAD as u64))
    }
}

const PAYLOAD: usize = 100;

fn entries(range: std::ops::RangeInclusive<u64>, term: u64) -> Vec<Entry> {
    range
        .map(|index| Entry { index, term, data: vec![index as u8; PAYLOAD].into(), ..Entry::default() })
        .collect()
}

/// Returns a store that caches `cached` entries of this size.
fn store(shelf: &Shelf, cached: usize, commit: u64) -> LogStore {
    let last = shelf.entries.lock().unwrap().last().map(|e| LogPosition { index: e.index, term: e.term });
    let mut state = DurableState::default();
    state.hard.commit = commit;
    let bytes_max = cached * (PAYLOAD + ENTRY_OVERHEAD);
    let (start, last) = (LogPosition::default(), last.unwrap_or_default());
    LogStore::open(Box::new(shelf.clone()), state, start, last, start, bytes_max).unwrap()
}

/// Reads entries by bare numbers.
fn read(store: &LogStore, low: u64, high: u64, bytes_max: usize) -> Result<Vec<Entry>, Fatal> {
    store.read(LogIndex(low), LogIndex(high), bytes_max)
}

fn indexes(entries: &[Entry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.index).collect()
}

#[test]
fn an_empty_log_begins_at_one() {
    let store = store(&Shelf::default(), 4, 0);
    assert_eq!((store.first_index(), store.last_index()), (Ok(1), Ok(0)));
    assert_eq!(store.term(0), Ok(0));
    assert!(store.term(1).is_err());
}

#[test]
fn entries_are_read_as_they_were_appended() {
    let mut store = store(&Shelf::default(), 4, 0);
    store.append(&entries(1..=3, 1));
    assert_eq!(read(&store, 1, 4, usize::MAX).unwrap(), entries(1..=3, 1));
    assert_eq!(indexes(&read(&store, 2, 3, usize::MAX).unwrap()), [2]);
    assert_eq!((store.last_index(), store.term(3)), (Ok(3), Ok(1)));
}

#[test]
fn an_append_replaces_what_conflicts() {
    let mut store = store(&Shelf::default(), 4, 0);
    store.append(&entries(1..=4, 1));
    store.append(&entries(3..=3, 2));
    assert_eq!(store.last_index(), Ok(3));
    assert_eq!((store.term(2), store.term(3)), (Ok(1), Ok(2)));
    assert!(store.term(4).is_err());
    assert_eq!(indexes(&read(&store, 1, 4, usize::MAX).unwrap()), [1, 2, 3]);
}

#[test]
fn the_cache_lets_go_of_stable_entries_only() {
    let shelf = Shelf::default();
    let mut store = store(&shelf, 2, 0);
    store.append(&entries(1..=6, 1));
    store.evict(LogIndex(0));
    assert_eq!(store.cache.len(), 6, "entries that are not stable are kept beyond the bound");
    shelf.put(&entries(1..=3, 1));
    store.evict(LogIndex(3));
    assert_eq!(store.first_cached, LogIndex(4));
    store.evict(LogIndex(6));
    assert_eq!(store.first_cached, LogIndex(5), "two fit");
    assert_eq!(store.cache_bytes, 2 * (PAYLOAD + ENTRY_OVERHEAD));
}

#[test]
fn what_left_the_cache_comes_from_the_archive() {
    let shelf = Shelf::default();
    let mut store = store(&shelf, 2, 0);
    store.append(&entries(1..=6, 1));
    shelf.put(&entries(1..=6, 1));
    store.evict(LogIndex(6));
    assert_eq!(
        indexes(&read(&store, 1, 7, usize::MAX).unwrap()),
        [1, 2, 3, 4],
        "up to where the cache begins"
    );
    assert_eq!(store.term(2), Ok(1));
    let reads = *shelf.reads.lock().unwrap();
    read(&store, 5, 7, usize::MAX).unwrap();
    assert_eq!(*shelf.reads.lock().unwrap(), reads, "the cache needs no archive");
}

#[test]
fn a_limit_bounds_the_bytes_but_one_entry_always_comes() {
    let shelf = Shelf::default();
    shelf.put(&entries(1..=3, 1));
    let mut store = store(&shelf, 1, 3);
    store.append(&entries(4..=8, 1));
    for from in [1, 4] {
        assert_eq!(read(&store, from, from + 3, 0).unwrap().len(), 1, "from {from}");
        let limited = store.entries(
            from,
            from + 3,
            2 * (PAYLOAD + ENTRY_OVERHEAD) as u64,
            GetEntriesContext::empty(false),
        );
        assert!((2..=3).contains(&limited.unwrap().len()), "from {from}");
    }
}

#[test]
fn what_is_not_committed_is_in_memory_after_a_restart() {
    let shelf = Shelf::default();
    shelf.put(&entries(1..=6, 3));
    let mut store = store(&shelf, 1, 2);
    assert_eq!(store.first_cached, LogIndex(3));
    store.append(&entries(4..=4, 4));
    assert_eq!((store.last_index(), store.term(4), store.term(1)), (Ok(4), Ok(4), Ok(3)));
}

#[test]
fn a_failing_disk_is_not_now_for_raft_and_fatal_for_the_member() {
    let shelf = Shelf::default();
    shelf.put(&entries(1..=3, 1));
    let store = store(&shelf, 1, 3);
    *shelf.broken.lock().unwrap() = true;
    let refused = store.entries(1, 3, None, GetEntriesContext::empty(false)).unwrap_err();
    assert_eq!(refused, StorageError::LogTemporarilyUnavailable.into());
    assert!(store.take_failure().unwrap().what.starts_with("read log entries from 1"));
    assert!(store.take_failure().is_none());
}

#[test]
fn an_archive_that_gives_the_wrong_entry_is_not_believed() {
    for spoil in [
        (|e: &mut Vec<wal::OwnedEntry>| e.remove(0).kind = 0) as fn(&mut Vec<wal::OwnedEntry>),
        |e| e[0].kind = 9,
        |e| e.clear(),
    ] {
        let shelf = Shelf::default();
        shelf.put(&entries(1..=3, 1));
        let store = store(&shelf, 1, 3);
        spoil(&mut shelf.entries.lock().unwrap());
        assert!(read(&store, 1, 3, usize::MAX).is_err());
    }
}

#[test]
fn every_index_behind_the_start_is_there_and_every_one_before_it_can_be_had_as_a_snapshot() {
    let shelf = Shelf::default();
    let mut store = store(&shelf, 1, 0);
    for index in 1..=50 {
        store.append(&entries(index..=index, 1));
        shelf.put(&entries(index..=index, 1));
        store.evict(LogIndex(index));
        store.checkpoint = LogPosition::new(index, 1);
        let start = store.release_point(LogIndex(index.saturating_sub(5)));
        if start.index > store.start().index {
            store.trim(start);
        }
        let first = store.first_index().unwrap();
        assert_eq!(first, index.saturating_sub(5) / 10 * 10 + 1);
        for asked in 1..=index {
            let read = store.entries(asked, index + 1, 1, GetEntriesContext::empty(false));
            assert_eq!(read.is_ok(), asked >= first, "{asked} of {first}..={index}");
            assert_eq!(store.term(asked).is_ok(), asked + 1 >= first);
        }
        let snapshot = store.snapshot(0, 2).unwrap();
        assert!(snapshot.get_metadata().index + 1 >= first, "it joins what is kept");
    }
    assert!(store.take_failure().is_none(), "what was trimmed is no failure of the disk");
}

#[test]
fn a_trim_reaches_into_the_cache() {
    let shelf = Shelf::default();
    let mut store = store(&shelf, 100, 0);
    store.append(&entries(1..=25, 1));
    shelf.put(&entries(1..=25, 1));
    store.trim(LogPosition::new(20, 1));
    assert_eq!((store.first_cached, store.cache.len()), (LogIndex(21), 5));
    assert_eq!(store.cache_bytes, 5 * (PAYLOAD + ENTRY_OVERHEAD));
    assert_eq!((store.term(20), store.term(19)), (Ok(1), Err(StorageError::Compacted.into())));
    assert_eq!(indexes(&read(&store, 21, 26, usize::MAX).unwrap()), [21, 22, 23, 24, 25]);
}

#[test]
fn a_log_restarts_behind_a_snapshot() {
    let shelf = Shelf::default();
    let mut store = store(&shelf, 100, 0);
    store.append(&entries(1..=9, 1));
    store.restore(LogPosition::new(40, 3));
    assert_eq!((store.first_index(), store.last_index()), (Ok(41), Ok(40)));
    assert_eq!((store.term(40), store.cache_bytes), (Ok(3), 0));
    store.append(&entries(41..=43, 3));
    store.evict(LogIndex(5)); // what the machine still applies is older than the log
    assert_eq!(indexes(&read(&store, 41, 44, usize::MAX).unwrap()), [41, 42, 43]);
    let reads = *shelf.reads.lock().unwrap();
    assert_eq!(reads, 0, "the files are still those of the old log");
}

#[test]
fn a_checkpoint_that_does_not_reach_the_log_is_no_snapshot_and_a_newer_one_is_wanted() {
    let mut store = store(&Shelf::default(), 100, 0);
    let not_now = Err(StorageError::SnapshotTemporarilyUnavailable.into());
    assert_eq!(store.snapshot(0, 2), not_now);
    assert_eq!((store.take_wanted(), store.take_wanted()), (Some(LogIndex(1)), None));
    store.restore(LogPosition::new(40, 3));
    store.checkpoint = LogPosition::new(39, 3);
    assert_eq!(store.snapshot(7, 2), not_now);
    assert_eq!(store.snapshot(50, 3), not_now);
    assert_eq!(store.take_wanted(), Some(LogIndex(50)), "the newest wish");
    store.checkpoint = LogPosition::new(40, 3);
    let metadata = store.snapshot(7, 2).unwrap().take_metadata();
    assert_eq!((metadata.index, metadata.term), (40, 3));
}

#[test]
fn a_read_without_a_limit_is_bounded_all_the_same() {
    let shelf = Shelf::default();
    let long = |index| Entry { index, term: 1, data: vec![0; 1 << 20].into(), ..Entry::default() };
    let long: Vec<Entry> = (1..=12).map(long).collect();
    shelf.put(&long);
    let mut on_disk = store(&shelf, 1, 12);
    let mut in_memory = store(&Shelf::default(), 1, 0);
    in_memory.append(&long);
    for store in [&mut on_disk, &mut in_memory] {
        let read = store.entries(1, 13, None, GetEntriesContext::empty(false)).unwrap();
        let bytes: usize = read.iter().map(|entry| entry.data.len()).sum();
        assert!(!read.is_empty() && bytes <= ARCHIVE_READ_BYTES, "{bytes}");
    }
}

#[test]
#[should_panic(expected = "entry 3 was trimmed")]
fn a_read_of_what_was_trimmed_is_a_bug() {
    let shelf = Shelf::default();
    shelf.put(&entries(1..=15, 1));
    let mut store = store(&shelf, 1, 15);
    store.trim(LogPosition::new(10, 1));
    let _ = read(&store, 3, 5, usize::MAX);
}

#[test]
#[should_panic(expected = "a gap before index 3")]
fn a_gap_is_a_bug() {
    store(&Shelf::default(), 1, 0).append(&entries(3..=3, 1));
}

#[test]
#[should_panic(expected = "is committed and cannot be replaced")]
fn replacing_what_is_committed_is_a_bug() {
    let shelf = Shelf::default();
    shelf.put(&entries(1..=3, 1));
    store(&shelf, 1, 3).append(&entries(2..=2, 2));
}

#[test]
fn a_machine_may_be_ahead_of_the_remembered_commit_index() {
    let hard = HardState { term: 4, vote: 2, commit: 10, ..HardState::default() };
    assert_eq!(restarted(hard.clone(), LogIndex(12)).commit, 12);
    assert_eq!(restarted(hard, LogIndex(9)).commit, 10);
}

/// A step of a random sequence.
#[derive(Clone, Debug)]
enum LogStep {
    /// Appends entries, the first of them this far before the last.
    Append {
        back: u64,
        count: u64,
    },
    /// All except this many of the last entries become committed and synced.
    Stable {
        but: u64,
    },
    Evict,
    Read {
        from: u64,
        to: u64,
        bytes_max: usize,
    },
}

fn step() -> impl Strategy<Value = LogStep> {
    prop_oneof![
        3 => (0u64..4, 1u64..5).prop_map(|(back, count)| LogStep::Append { back, count }),
        2 => (0u64..4).prop_map(|but| LogStep::Stable { but }),
        2 => Just(LogStep::Evict),
        4 => (0u64..40, 0u64..10, 0usize..2_000)
            .prop_map(|(from, more, bytes_max)| LogStep::Read { from, to: from + more, bytes_max }),
    ]
}

proptest! {
    /// After any appends, replacements and evictions the store reads like a plain list of entries.
    #[test]
    fn the_store_reads_like_a_list(steps in prop::collection::vec(step(), 1..80)) {
        let shelf = Shelf::default();
        let mut store = store(&shelf, 3, 0);
        let mut list: Vec<Entry> = Vec::new();
        let (mut stable, mut term) = (0, 1);
        for step in steps {
            match step {
                LogStep::Append { back, count } => {
                    let first = (list.len() as u64 + 1).saturating_sub(back).max(stable + 1);
                    term += u64::from(first <= list.len() as u64);
                    let new = entries(first..=first + count - 1, term);
                    list.truncate(first as usize - 1);
                    list.extend(new.iter().cloned());
                    store.append(&new);
                }
                LogStep::Stable { but } => {
                    stable = stable.max((list.len() as u64).saturating_sub(but));
                    shelf.put(&list[..stable as usize]);
                }
                LogStep::Evict => store.evict(LogIndex(stable)),
                LogStep::Read { from, to, bytes_max } => {
                    let low = from.clamp(1, list.len() as u64 + 1);
                    let high = to.min(list.len() as u64 + 1);
                    if low >= high {
                        continue;
                    }
                    let read = read(&store, low, high, bytes_max).unwrap();
                    prop_assert!(!read.is_empty());
                    prop_assert_eq!(&read[..], &list[low as usize - 1..low as usize - 1 + read.len()]);
                }
            }
            prop_assert_eq!(store.last_index(), Ok(list.len() as u64));
            for entry in &list {
                prop_assert_eq!(store.term(entry.index), Ok(entry.term));
            }
        }
    }
}
