//! Measures the full cost of a put: `cargo run --release -p mvcc --example load -- noise|text|counter
//! [memory]`.
//!
//! One million puts of 8-byte keys and 256-byte values through index, blocks and checkpoints. Prints
//! processor time, memory and bytes on disk per step, then the same for a restart and a compaction.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measuring tool talks to its user and may die"
)]
#![allow(clippy::disallowed_methods, reason = "the clock is what it measures with; the store never sees it")]

use std::path::Path;
use std::time::Instant;

use mvcc::{
    Backend, CompactProgress, Fetch, KeyRange, LogPosition, MemoryBackend, Pressure, RangeOptions,
    SledBackend, StoreOptions,
};

const PUTS: u64 = 1_000_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let kind = arguments.get(1).map_or("noise", String::as_str);
    let dir = tempfile::tempdir().unwrap();
    let memory = MemoryBackend::new();
    let backend = || -> Box<dyn Backend> {
        if arguments.get(2).is_some_and(|argument| argument == "memory") {
            Box::new(memory.clone())
        } else {
            Box::new(SledBackend::open(dir.path()).unwrap())
        }
    };
    let (mut writer, store, mut maintainer) = mvcc::open(backend(), StoreOptions::default()).unwrap();

    let mut step = Step::begin();
    let mut written = 0;
    for number in 0..PUTS {
        writer.begin().put(&number.to_be_bytes(), &value(kind, number), 0);
        // Entries of a hundred requests, like under load.
        if number % 100 == 99 && writer.end_entry(LogPosition::new(number, 1)).unwrap() != Pressure::Calm {
            written += maintainer.persist().unwrap().bytes_written;
        }
    }
    written += maintainer.persist().unwrap().bytes_written;
    step.end("put, persist", PUTS);
    println!(
        "  blocks written {} MB, on disk {} MB, {:?}",
        written >> 20,
        on_disk(dir.path()) >> 20,
        store.size()
    );

    let count = RangeOptions { limit: 0, fetch: Fetch::CountOnly };
    assert_eq!(store.range(&KeyRange::all(), 0, &count).unwrap().count, PUTS as i64);
    step.end("count all", 1);
    assert_eq!(store.range(&KeyRange::all(), 0, &RangeOptions::default()).unwrap().kvs.len() as u64, PUTS);
    step.end("range all", PUTS);

    drop((writer, store, maintainer));
    step = Step::begin();
    let (mut writer, store, mut maintainer) = mvcc::open(backend(), StoreOptions::default()).unwrap();
    step.end("restart", PUTS);

    for number in 0..PUTS {
        writer.begin().put(&number.to_be_bytes(), &value(kind, number + 7), 0);
        if number % 100 == 99
            && writer.end_entry(LogPosition::new(PUTS + number, 1)).unwrap() != Pressure::Calm
        {
            maintainer.persist().unwrap();
        }
    }
    step.end("overwrite, persist", PUTS);
    writer.compact(store.revision()).unwrap();
    writer.end_entry(LogPosition::new(2 * PUTS, 1)).unwrap();
    while maintainer.compact_step(1000).unwrap() == CompactProgress::More {}
    step.end("compact", PUTS);
    println!("  on disk {} MB, {:?}", on_disk(dir.path()) >> 20, store.size());
}

/// Returns 256 bytes that do not compress, that compress well, or that are nearly all equal.
fn value(kind: &str, number: u64) -> [u8; 256] {
    let mut value = [b'0'; 256];
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in value.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        match kind {
            "noise" => chunk.copy_from_slice(&state.to_le_bytes()),
            "text" => chunk.copy_from_slice(
                [*b"{\"name\":", *b"\"pod-123", *b"ready\",\"", *b"running\""][state as usize % 4].as_slice(),
            ),
            _ => {}
        }
    }
    value[..8].copy_from_slice(&number.to_be_bytes());
    value
}

struct Step {
    wall: Instant,
    cpu: u64,
}

impl Step {
    fn begin() -> Self {
        Step { wall: Instant::now(), cpu: cpu_ms() }
    }

    fn end(&mut self, name: &str, operations: u64) {
        let (wall, cpu) = (self.wall.elapsed().as_secs_f64(), (cpu_ms() - self.cpu) as f64 / 1e3);
        let each = cpu * 1e6 / operations as f64;
        println!("{name}: {wall:.2} s, cpu {cpu:.2} s, {each:.2} µs each, RSS {} MB", rss_mb());
        *self = Step::begin();
    }
}

/// Returns the user and system time of the process; the kernel's ticks are 10 ms.
fn cpu_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10
}

fn rss_mb() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() / 256
}

fn on_disk(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .map(
            |entry| {
                if entry.path().is_dir() { on_disk(&entry.path()) } else { entry.metadata().unwrap().len() }
            },
        )
        .sum()
}
