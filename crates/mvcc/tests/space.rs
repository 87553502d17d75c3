//! Space: compaction frees the space of dropped records in small steps, and its writes are counted.
#![allow(clippy::disallowed_methods, reason = "the measurement needs a clock, and concurrent threads")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Oracle, tiny_options};
use mvcc::{
    Backend, CompactProgress, KeyRange, LogPosition, Maintainer, MemoryBackend, Pressure, RangeOptions,
    SledBackend, Store, StoreOptions, Writer,
};

/// The server's step size.
const KEYS_PER_STEP: usize = 1000;
const PAUSE: Duration = Duration::from_millis(10);

/// Returns options with small blocks and files, so that there are many, but large enough to make
/// headers negligible.
fn small_options() -> StoreOptions {
    StoreOptions { block_bytes: 2048, block_file_bytes: 32 << 10, cache_bytes: 64 << 10, ..tiny_options() }
}

fn file_bytes(backend: &MemoryBackend) -> u64 {
    let mut backend = backend.clone();
    let numbers = backend.files().unwrap();
    numbers.into_iter().map(|number| backend.open_file(number).unwrap().bytes().unwrap()).sum()
}

/// A sequence of puts and deletes with a final compaction.
struct History {
    name: &'static str,
    puts: u64,
    key: fn(u64) -> u64,
    value_bytes: fn(u64) -> usize,
    /// Keys deleted at the end.
    doomed: fn(u64) -> bool,
}

const HISTORIES: [History; 6] = [
    History {
        name: "every key ten times in turn",
        puts: 4000,
        key: |number| number % 400,
        value_bytes: |_| 100,
        doomed: |_| false,
    },
    History {
        name: "half of the puts are the last of their key, scattered over all blocks",
        puts: 3000,
        key: |number| if number % 2 == 0 { number } else { 1 },
        value_bytes: |_| 100,
        doomed: |_| false,
    },
    History {
        name: "two thirds live in every block: too many for a block to be rewritten by itself",
        puts: 3000,
        key: |number| if number % 3 != 0 { number } else { 0 },
        value_bytes: |_| 100,
        doomed: |_| false,
    },
    History {
        name: "nearly everything deleted",
        puts: 3000,
        key: |number| number,
        value_bytes: |_| 100,
        doomed: |key| key % 50 != 7,
    },
    History {
        name: "large values among small ones, the large ones dead",
        puts: 1500,
        key: |number| number % 700,
        value_bytes: |number| if number < 700 && number % 10 == 0 { 9000 } else { 60 },
        doomed: |_| false,
    },
    History {
        name: "nothing is dead",
        puts: 2000,
        key: |number| number,
        value_bytes: |_| 90,
        doomed: |_| false,
    },
];

struct Subject {
    backend: MemoryBackend,
    writer: Writer,
    store: Store,
    maintainer: Maintainer,
    index: u64,
}

impl Subject {
    fn new() -> Self {
        let backend = MemoryBackend::new();
        let (writer, store, maintainer) = mvcc::open(Box::new(backend.clone()), small_options()).unwrap();
        Subject { backend, writer, store, maintainer, index: 0 }
    }

    fn live_through(&mut self, history: &History) {
        for number in 0..history.puts {
            let (key, bytes) = ((history.key)(number), (history.value_bytes)(number));
            self.writer.begin().put(&key.to_be_bytes(), &noise(number, bytes), 0);
            if number % 50 == 49 {
                self.end_entry();
            }
            if number % 500 == 499 {
                self.maintainer.persist().unwrap();
            }
        }
        for key in (0..history.puts).filter(|key| (history.doomed)(*key)) {
            let doomed = KeyRange::one(key.to_be_bytes().to_vec().into());
            self.writer.begin().delete_range(&doomed, mvcc::Previous::Skip).unwrap();
        }
        self.writer.compact(self.store.revision()).unwrap();
        self.end_entry();
    }

    fn end_entry(&mut self) {
        self.index += 1;
        self.writer.end_entry(LogPosition::new(self.index, 1)).unwrap();
    }
}

#[test]
fn after_a_compaction_files_take_at_most_half_more_than_live_data() {
    for history in HISTORIES {
        let mut subject = Subject::new();
        subject.live_through(&history);
        while subject.maintainer.compact_step(100).unwrap() != CompactProgress::Idle {}
        let (live, files) = (live_bytes(&subject.store), file_bytes(&subject.backend));
        assert!(files * 2 <= live * 3 + 4096, "{}: {files} bytes for {live} of live data", history.name);

        while subject.maintainer.reclaim_step(100).unwrap() != CompactProgress::Idle {}
        let files = file_bytes(&subject.backend);
        assert!(files * 5 <= live * 6 + 4096, "{}: {files} bytes for {live}, reclaimed", history.name);
        // Everything is durable, and memory is not needed.
        let (_, store, _) = mvcc::open(Box::new(subject.backend.fork()), small_options()).unwrap();
        assert_eq!(live_bytes(&store), live, "{}", history.name);
        assert_eq!(
            store.hash_kv(0).unwrap().hash,
            subject.store.hash_kv(0).unwrap().hash,
            "{}",
            history.name
        );
    }
}

#[test]
fn a_restart_frees_the_end_of_a_file_that_is_not_the_newest() {
    let mut subject = Subject::new();
    // Four files, and the end of the first one is deleted.
    for number in 0..1000u64 {
        subject.writer.begin().put(&number.to_be_bytes(), &noise(number, 100), 0);
    }
    subject.end_entry();
    subject.maintainer.persist().unwrap();
    let doomed = KeyRange::new(200u64.to_be_bytes().to_vec().into(), 270u64.to_be_bytes().to_vec().into());
    subject.writer.begin().delete_range(&doomed, mvcc::Previous::Skip).unwrap();
    subject.writer.compact(subject.store.revision()).unwrap();
    subject.end_entry();
    while subject.maintainer.compact_step(100).unwrap() != CompactProgress::Idle {}
    let backend = subject.backend.fork();
    let before = file_bytes(&backend);
    let (_, store, _) = mvcc::open(Box::new(backend.clone()), small_options()).unwrap();
    let after = file_bytes(&backend);
    assert!(before - after > 4000, "{before} bytes before, {after} after");
    assert!(after <= store.size().allocated, "bytes that are not counted");
    assert_eq!(store.hash_kv(0).unwrap().hash, subject.store.hash_kv(0).unwrap().hash);
}

#[test]
fn without_dead_records_nothing_is_moved() {
    let mut subject = Subject::new();
    subject.live_through(&HISTORIES[5]);
    while subject.maintainer.compact_step(100).unwrap() != CompactProgress::Idle {}
    assert_eq!(subject.maintainer.written().compaction, 0);
}

#[test]
fn moved_bytes_are_proportional_to_reclaimed_bytes() {
    for history in HISTORIES {
        let mut subject = Subject::new();
        subject.live_through(&history);
        subject.maintainer.persist().unwrap();
        let before = file_bytes(&subject.backend);
        while subject.maintainer.compact_step(100).unwrap() != CompactProgress::Idle {}
        let freed = before.saturating_sub(file_bytes(&subject.backend));
        let moved = subject.maintainer.written().compaction;
        assert!(moved <= 3 * freed + 4096, "{}: {moved} bytes moved for {freed}", history.name);
    }
}

/// Files of a few blocks, with a large share of headers that no pass can reduce.
#[test]
fn reclaiming_ends_for_files_of_any_size() {
    for seed in 0..500u64 {
        let backend = Box::new(MemoryBackend::new());
        let (mut writer, store, mut maintainer) = mvcc::open(backend, tiny_options()).unwrap();
        let mut random = noise(seed, 400).into_iter();
        for index in 1..=2 + seed % 30 {
            for _ in 0..4 {
                let [key, bytes] = [0, 1].map(|_| random.next().unwrap_or(0));
                writer.begin().put(&[key % 20], &noise(index, usize::from(bytes) / 2), 0);
            }
            writer.end_entry(LogPosition::new(index, 1)).unwrap();
            maintainer.persist().unwrap();
        }
        writer.compact((store.revision() * i64::from(random.next().unwrap_or(99)) / 255).max(1)).unwrap();
        writer.end_entry(LogPosition::new(100, 1)).unwrap();
        // Blocks of a hundred puts fit into a few dozen files, and each is emptied at most once.
        let steps = (0..1000).find(|_| maintainer.reclaim_step(100).unwrap() == CompactProgress::Idle);
        assert!(steps.is_some(), "seed {seed}: files are emptied without end");
    }
}

#[test]
fn every_byte_of_every_file_is_accounted_for() {
    let mut subject = Subject::new();
    subject.live_through(&HISTORIES[5]);
    subject.maintainer.persist().unwrap();
    let written = subject.maintainer.written();
    let headers = 24 * subject.backend.files().unwrap().len() as u64;
    assert_eq!(written.checkpoints + headers, file_bytes(&subject.backend));
    let values: u64 = 2000 * 90;
    assert!(written.records > values && written.records < values * 5 / 4, "{written:?}");
    assert!(written.catalogue > 0 && written.catalogue < values / 10, "{written:?}");
    assert_eq!((written.compaction, written.installed), (0, 0));
}

#[test]
fn reads_are_correct_between_any_two_steps() {
    let backend = MemoryBackend::new();
    let options = StoreOptions { block_bytes: 512, block_file_bytes: 4096, ..tiny_options() };
    let (mut writer, store, mut maintainer) = mvcc::open(Box::new(backend.clone()), options).unwrap();
    let mut oracle = Oracle::default();
    for number in 0..240u64 {
        let key = format!("k{:02}", if number % 3 == 0 { number % 40 } else { number % 4 });
        let value = String::from_utf8_lossy(&noise(number, 80)).into_owned();
        oracle.request(|request| request.put(&key, &value, 0));
        writer.begin().put(key.as_bytes(), value.as_bytes(), 0);
    }
    oracle.compact_revision = 200;
    writer.compact(200).unwrap();
    oracle.applied = LogPosition::new(1, 1);
    writer.end_entry(oracle.applied).unwrap();
    let mut steps = 0;
    while maintainer.reclaim_step(5).unwrap() != CompactProgress::Idle {
        steps += 1;
        if steps % 4 != 0 {
            continue;
        }
        for at in [200, 220, 241] {
            oracle.check_range(&store, &KeyRange::all(), at);
        }
        // A crash here: the next start finds the same and continues.
        let (_, again, mut resumed) = mvcc::open(Box::new(backend.fork()), options).unwrap();
        oracle.check_range(&again, &KeyRange::all(), 210);
        while resumed.reclaim_step(50).unwrap() != CompactProgress::Idle {}
        oracle.check_range(&again, &KeyRange::all(), 210);
    }
    assert!(steps > 8, "only {steps} steps");
    oracle.check_all(&store);
}

#[test]
fn a_read_in_progress_survives_the_removal_of_its_file() {
    let mut subject = Subject::new();
    subject.live_through(&HISTORIES[0]);
    let before = subject.store.range(&KeyRange::all(), 0, &RangeOptions::default()).unwrap();
    let export = subject.maintainer.export();
    while subject.maintainer.reclaim_step(100).unwrap() != CompactProgress::Idle {}
    let after = subject.store.range(&KeyRange::all(), 0, &RangeOptions::default()).unwrap();
    assert_eq!(before.kvs, after.kvs);
    drop(export);
}

/// Thousands of small checkpoints: the catalogue's file is a log and must not keep replaced entries.
#[test]
#[ignore = "slow: thousands of syncs"]
fn the_catalogue_does_not_grow_with_the_number_of_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("store");
    let backend = Box::new(SledBackend::open(&home).unwrap());
    let (mut writer, store, mut maintainer) = mvcc::open(backend, small_options()).unwrap();
    for index in 1..=8000u64 {
        writer.begin().put(&(index % 500).to_be_bytes(), &noise(index, 100), 0);
        writer.end_entry(LogPosition::new(index, 1)).unwrap();
        maintainer.persist().unwrap();
        if index.is_multiple_of(500) {
            writer.compact(store.revision()).unwrap();
            writer.end_entry(LogPosition::new(index, 1)).unwrap();
            while maintainer.compact_step(KEYS_PER_STEP).unwrap() != CompactProgress::Idle {}
            let bytes = on_disk(&home.join("catalogue"));
            println!("{index} checkpoints: {} KiB", bytes >> 10);
            // It grows to some 2.5 MiB and varies below that: sled reuses its segments of 512 KiB.
            assert!(bytes <= 4 << 20, "{bytes} bytes after {index} checkpoints");
        }
    }
}

/// A million revisions of a hundred thousand keys are compacted except for the last tenth, in the steps
/// and pauses of the server, during reads and writes.
#[test]
#[ignore = "slow, and meant for a release build: measures a million revisions"]
fn space_of_nine_tenths_of_a_million_revisions_is_freed_in_a_minute() {
    let (revisions, value_bytes) = (1_000_000, 256);
    let keys = revisions / 10;
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("store");
    let backend = Box::new(SledBackend::open(&home).unwrap());
    let (mut writer, store, mut maintainer) = mvcc::open(backend, StoreOptions::default()).unwrap();
    for number in 0..revisions {
        put(&mut writer, &mut maintainer, number, keys, value_bytes);
    }
    maintainer.persist().unwrap();
    println!("{revisions} revisions of {keys} keys, {value_bytes} B values: {}", sizes(&home));
    println!("  {:?}", maintainer.written());

    writer.compact(store.revision()).unwrap();
    writer.end_entry(LogPosition::new(revisions + 1, 1)).unwrap();
    let begun = Instant::now();
    let (is_over, slowest_read, slowest_write) =
        (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                number = (number * 7919 + 17) % keys;
                let begun = Instant::now();
                read(&store, number);
                slowest_read.fetch_max(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        scope.spawn(|| {
            let mut index = revisions + 2;
            while !is_over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                writer.begin().put(b"written meanwhile", b"value", 0);
                writer.end_entry(LogPosition::new(index, 1)).unwrap();
                slowest_write.fetch_max(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
                index += 1;
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let (mut steps, mut slowest_step) = (0, Duration::ZERO);
        loop {
            let step = Instant::now();
            let progress = maintainer.compact_step(KEYS_PER_STEP).unwrap();
            slowest_step = slowest_step.max(step.elapsed());
            steps += 1;
            if progress == CompactProgress::Idle {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        println!(
            "compacted in {:.1?}, {steps} steps, the slowest {slowest_step:.1?}: {}",
            begun.elapsed(),
            sizes(&home)
        );
        is_over.store(true, Ordering::Relaxed);
    });
    println!(
        "  meanwhile the slowest read took {} µs, the slowest write {} µs",
        slowest_read.into_inner(),
        slowest_write.into_inner()
    );
    println!("  {:?}, {:?}", store.size(), maintainer.written());

    let live = live_bytes(&store);
    println!("live data {} KiB, on disk {:.2}x of it", live >> 10, on_disk(&home) as f64 / live as f64);
    assert!(on_disk(&home) * 2 <= live * 3, "more than 1.5 times the live data is left");
    assert!(begun.elapsed() < Duration::from_secs(60));
}

fn put(writer: &mut Writer, maintainer: &mut Maintainer, number: u64, keys: u64, value_bytes: usize) {
    // Cycles through the keys in a scattered order.
    let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % keys;
    writer.begin().put(&key.to_be_bytes(), &noise(number, value_bytes), 0);
    if number % 100 == 99 && writer.end_entry(LogPosition::new(number, 1)).unwrap() != Pressure::Calm {
        maintainer.persist().unwrap();
    }
}

fn read(store: &Store, key: u64) {
    let range = KeyRange::one(key.to_be_bytes().to_vec().into());
    store.range(&range, 0, &RangeOptions::default()).unwrap();
}

/// Returns bytes that do not compress, so that sizes match the data.
fn noise(number: u64, bytes: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
    let step = |state: &mut u64| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        state.to_le_bytes()
    };
    let mut noise: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| step(&mut state)).collect();
    noise.truncate(bytes);
    noise
}

/// Returns the size of all live keys and values.
fn live_bytes(store: &Store) -> u64 {
    let all = store.range(&KeyRange::all(), 0, &RangeOptions::default()).unwrap();
    all.kvs.iter().map(|kv| (kv.key.len() + kv.value.len()) as u64).sum()
}

fn sizes(home: &Path) -> String {
    let of = |name: &str| on_disk(&home.join(name)) >> 10;
    format!("blocks {} KiB, catalogue {} KiB", of("blocks"), of("catalogue"))
}

fn on_disk(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.path().is_dir() {
        true => on_disk(&entry.path()),
        false => entry.metadata().map_or(0, |metadata| metadata.len()),
    };
    entries.map(|entry| size(entry.unwrap())).sum()
}

/// A block has a single value of one MiB. Checkpoints wait during a step.
#[test]
fn a_step_of_a_compaction_is_bounded_where_values_are_large() {
    const KEYS: u64 = 20;
    let options = StoreOptions { block_file_bytes: 64 << 20, ..StoreOptions::default() };
    let (mut writer, store, mut maintainer) = mvcc::open(Box::new(MemoryBackend::new()), options).unwrap();
    for number in 0..2 * KEYS {
        let mut state = number + 1;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        });
        let value: Vec<u8> = noise.take(1 << 20).collect();
        writer.begin().put(&(number % KEYS).to_be_bytes(), &value, 0);
        writer.end_entry(LogPosition::new(number + 1, 1)).unwrap();
        maintainer.persist().unwrap();
    }
    writer.compact(store.revision()).unwrap();
    writer.end_entry(LogPosition::new(2 * KEYS + 1, 1)).unwrap();
    let mut steps = 0;
    while !matches!(maintainer.compact_step(KEYS_PER_STEP).unwrap(), CompactProgress::Finished { .. }) {
        steps += 1;
    }
    // The hash and the sweep read 40 MiB each.
    assert!(steps >= 2 * 40 / 5, "{steps} steps");
}
