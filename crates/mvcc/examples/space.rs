//! How fast and how far space comes back: a history of a million revisions over a hundred thousand keys is compacted away but
//! for its last tenth, in the steps and pauses of the process, while reads and writes go on.
//!
//!   cargo run --release -p mvcc --example space [revisions] [value bytes]
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a measurement needs a clock and threads")]
#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mvcc::{
    Applied, CompactProgress, KeyRange, Maintainer, Options, Pressure, RangeOptions, SledBackend, Store,
    Writer,
};

/// As the process does it.
const KEYS_PER_STEP: usize = 1000;
const PAUSE: Duration = Duration::from_millis(10);

fn main() {
    let argument = |number: usize, default: u64| {
        std::env::args().nth(number).map_or(default, |argument| argument.parse().unwrap())
    };
    let (revisions, value_bytes) = (argument(1, 1_000_000), argument(2, 256) as usize);
    let keys = revisions / 10;
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("store");
    let backend = Box::new(SledBackend::open(&home).unwrap());
    let (mut writer, store, mut maintainer) = mvcc::open(backend, Options::default()).unwrap();
    for number in 0..revisions {
        put(&mut writer, &mut maintainer, number, keys, value_bytes);
    }
    maintainer.persist().unwrap();
    println!("{revisions} revisions of {keys} keys, {value_bytes} B values: {}", sizes(&home));
    println!("  {:?}", maintainer.written());

    writer.compact(store.revision()).unwrap();
    writer.end_entry(Applied { index: revisions + 1, term: 1 }).unwrap();
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
                writer.end_entry(Applied { index, term: 1 }).unwrap();
                slowest_write.fetch_max(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
                index += 1;
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let begun = Instant::now();
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
}

fn put(writer: &mut Writer, maintainer: &mut Maintainer, number: u64, keys: u64, value_bytes: usize) {
    // Every key in turn, in an order that is none.
    let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % keys;
    writer.begin().put(&key.to_be_bytes(), &noise(number, value_bytes), 0);
    if number % 100 == 99 && writer.end_entry(Applied { index: number, term: 1 }).unwrap() != Pressure::Calm {
        maintainer.persist().unwrap();
    }
}

fn read(store: &Store, key: u64) {
    let range = KeyRange::one(key.to_be_bytes().to_vec().into());
    store.range(&range, 0, &RangeOptions::default()).unwrap();
}

/// Bytes that do not compress, so that sizes are those of the data.
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

/// Keys and values of everything that is alive.
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
