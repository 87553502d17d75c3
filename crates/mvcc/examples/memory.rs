//! Measures memory per key: `cargo run --release -p mvcc --example memory -- KIND [KEYS]`, with kind
//! `ascending`, `random`, `overwritten`, `compacted` or `superseded`.
//!
//! Puts keys of 16 bytes with values of 8 bytes, persists, and prints the growth of the process per
//! key, without the key itself. The default is ten million keys. The block cache is 1 MiB, so nearly
//! all of the growth is the index.
//!
//! `overwritten` puts each key a second time. `compacted` does the same and then compacts the first
//! versions; it also prints the peak of the compaction. `superseded` puts a hundredth of the keys a
//! hundred times and compacts.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measuring tool talks to its user and may die"
)]

use mvcc::{CompactProgress, LogPosition, Maintainer, Pressure, SledBackend, StoreOptions, Writer};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KEY_BYTES: f64 = 16.0;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let kind = arguments.get(1).map_or("ascending", String::as_str);
    let keys: u64 = arguments.get(2).map_or(10_000_000, |keys| keys.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { cache_bytes: 1 << 20, ..StoreOptions::default() };
    let backend = Box::new(SledBackend::open(dir.path()).unwrap());
    let (mut writer, store, mut maintainer) = mvcc::open(backend, options).unwrap();
    let before = kib("VmRSS:");

    let mut index = 0;
    let (keys, rounds) = if kind == "superseded" { (keys / 100, 100) } else { (keys, 1) };
    for _ in 0..rounds {
        put_all(&mut writer, &mut maintainer, &mut index, keys, kind);
    }
    if kind == "overwritten" || kind == "compacted" {
        put_all(&mut writer, &mut maintainer, &mut index, keys, kind);
    }
    let grown = |field: &str| (kib(field) - before) as f64 * 1024.0 / keys as f64 - KEY_BYTES;
    println!("{kind}: {keys} keys, {:.1} B per key above the key", grown("VmRSS:"));
    println!("  {:?}", store.size());
    if kind == "compacted" || kind == "superseded" {
        let full = kib("VmRSS:");
        reset_peak();
        writer.compact(store.revision()).unwrap();
        writer.end_entry(LogPosition::new(index + 1, 1)).unwrap();
        while maintainer.compact_step(1000).unwrap() == CompactProgress::More {}
        let peak_mib = (kib("VmHWM:") - full) >> 10;
        println!("  compaction: {peak_mib} MiB more at its peak, then {:.1} B per key", grown("VmRSS:"));
        println!("  {:?}", store.size());
    }
}

fn put_all(writer: &mut Writer, maintainer: &mut Maintainer, index: &mut u64, keys: u64, kind: &str) {
    for number in 0..keys {
        // An odd factor permutes the 64-bit numbers.
        let number = if kind == "random" { number.wrapping_mul(0x9e37_79b9_7f4a_7c15) } else { number };
        let mut key = *b"registry00000000";
        key[8..].copy_from_slice(&number.to_be_bytes());
        writer.begin().put(&key, &number.to_le_bytes(), 0);
        *index += 1;
        if index.is_multiple_of(100)
            && writer.end_entry(LogPosition::new(*index, 1)).unwrap() != Pressure::Calm
        {
            maintainer.persist().unwrap();
        }
    }
    writer.end_entry(LogPosition::new(*index, 1)).unwrap();
    maintainer.persist().unwrap();
}

/// Resets the measured peak.
fn reset_peak() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

fn kib(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
