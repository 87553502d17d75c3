//! Measures a DeleteRange of many keys without consensus: `cargo run --release -p mvcc --example
//! delete_range -- [keys] [rounds]`.
//!
//! Puts the keys in entries of a hundred, deletes all of them in one request, and compacts. Prints the
//! time of each step per key.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measuring tool talks to its user and may die"
)]
#![allow(clippy::disallowed_methods, reason = "the clock is what it measures with; the store never sees it")]

use std::time::Instant;

use mvcc::{CompactProgress, KeyRange, LogPosition, MemoryBackend, Previous, StoreOptions};

/// The server's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize, otherwise| arguments.get(at).map_or(otherwise, |text| text.parse().unwrap());
    let (keys, rounds) = (number(1, 1_000_000_u64), number(2, 5));
    let (mut writer, store, mut maintainer) =
        mvcc::open(Box::new(MemoryBackend::new()), StoreOptions::default()).unwrap();
    let mut index = 0;
    for _ in 0..rounds {
        let mut step = Instant::now();
        let mut report = |what: &str| {
            let nanoseconds = step.elapsed().as_nanos() as f64 / keys as f64;
            println!("{what:>12}: {nanoseconds:7.1} ns for each key");
            step = Instant::now();
        };
        for key in 0..keys {
            writer.begin().put(&(key * 7_919 % keys).to_be_bytes(), b"value", 0);
            if key % 100 == 99 {
                index += 1;
                writer.end_entry(LogPosition::new(index, 1)).unwrap();
            }
        }
        report("put");
        maintainer.persist().unwrap();
        report("checkpoint");
        let deleted = writer.begin().delete_range(&KeyRange::all(), Previous::Skip).unwrap();
        assert_eq!(deleted.count as u64, keys);
        index += 1;
        writer.end_entry(LogPosition::new(index, 1)).unwrap();
        report("delete");
        writer.compact(store.revision()).unwrap();
        index += 1;
        writer.end_entry(LogPosition::new(index, 1)).unwrap();
        maintainer.persist().unwrap();
        while maintainer.compact_step(1000).unwrap() == CompactProgress::More {}
        report("compaction");
    }
}
