//! Memory at the quota: the store's accounting limits the memory of the process for all kinds of
//! writes.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed, and says what it measured"
)]

use mvcc::{
    Fetch, KeyRange, LogPosition, Maintainer, Pressure, Previous, RangeOptions, SledBackend, Store,
    StoreOptions, Writer,
};

/// Small enough for a test, and large enough to make the memory of the process itself negligible.
const QUOTA: u64 = 16 << 20;
/// Maximum of memory over quota. Deletes are never rejected: keys that are all deleted in one request
/// take three times their previous memory. ARCHITECTURE.md states this number.
const MULTIPLE: u64 = 4;
/// Fixed memory with the options of this test: a cache of 1 MiB, checkpoints of 4 MiB, sled's cache,
/// and memory retained by the allocator.
const CONSTANT: u64 = 16 << 20;

/// The server's allocator, with which the constants of the accounting were measured.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Location {
    writer: Writer,
    store: Store,
    maintainer: Maintainer,
    index: u64,
    _dir: tempfile::TempDir,
}

impl Location {
    fn new() -> Location {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions {
            cache_bytes: 1 << 20,
            checkpoint_due_bytes: 1 << 20,
            checkpoint_full_bytes: 4 << 20,
            ..StoreOptions::default()
        };
        let backend = Box::new(SledBackend::open(dir.path()).unwrap());
        let (writer, store, maintainer) = mvcc::open(backend, options).unwrap();
        Location { writer, store, maintainer, index: 0, _dir: dir }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.writer.begin().put(key, value, 0);
        self.end();
    }

    fn delete(&mut self, range: &KeyRange) {
        self.writer.begin().delete_range(range, Previous::Skip).unwrap();
        self.end();
    }

    /// Deletes all keys in slices, because the memory of a request is not measured here.
    fn delete_all(&mut self) {
        let slice = RangeOptions { limit: 1000, fetch: Fetch::KeysOnly };
        loop {
            let found = self.store.range(&KeyRange::all(), 0, &slice).unwrap();
            let Some(last) = found.kvs.last() else { return };
            let end = [&last.key[..], &[0]].concat();
            self.delete(&KeyRange::new("\0".into(), end.into()));
        }
    }

    fn end(&mut self) {
        self.index += 1;
        let pressure = self.writer.end_entry(LogPosition::new(self.index, 1)).unwrap();
        if pressure == Pressure::Full || self.index.is_multiple_of(1000) {
            self.maintainer.persist().unwrap();
        }
    }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
}

/// The n-th put of a client that takes much memory for little disk space.
type Attack = fn(&mut Location, u64);

const ATTACKS: [(&str, Attack); 7] = [
    ("keys of 1.4 MB of zeros", |home, number| {
        let mut key = vec![0; 1_400_000];
        key[1_399_992..].copy_from_slice(&number.to_be_bytes());
        home.put(&key, b"");
    }),
    ("keys of 3 KB and of one byte more, in turn", |home, number| {
        let mut key = vec![0; 3000];
        key[2992..].copy_from_slice(&(number / 2).to_be_bytes());
        key.extend(&[0][..number as usize % 2]);
        home.put(&key, b"");
    }),
    ("small keys in ascending order", |home, number| home.put(&number.to_be_bytes()[2..], b"")),
    ("small keys in random order", |home, number| {
        home.put(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), b"");
    }),
    ("one key, over and over", |home, _| home.put(b"k", b"")),
    ("one key, put and deleted in turn", |home, number| match number % 2 {
        0 => home.put(b"k", b""),
        _ => home.delete(&KeyRange::one("k".into())),
    }),
    ("values of zeros, a block each", |home, number| home.put(&[number as u8], &[0; 64 << 10])),
];

/// Runs an attack from an empty store to a full one, and then deletes all keys.
fn attack(name: &str) {
    let (_, request) = ATTACKS.iter().find(|(known, _)| *known == name).unwrap();
    let mut home = Location::new();
    let before = resident();
    let mut number = 0;
    // The check of the proposing side. Bounded, for puts that take neither disk nor memory.
    while home.store.size().allocated < QUOTA && number < 600_000 {
        request(&mut home, number);
        number += 1;
        // Reading it costs more than a put.
        if number.is_multiple_of(64) {
            let grown = resident().saturating_sub(before);
            assert!(grown < MULTIPLE * QUOTA + CONSTANT, "{grown} bytes after {number} requests");
        }
    }
    let full = resident().saturating_sub(before);
    home.delete_all();
    let deleted = resident().saturating_sub(before);
    let (full_mib, deleted_mib) = (full >> 20, deleted >> 20);
    println!("{name}: {number} requests, {full_mib} MiB, {deleted_mib} MiB with all deleted");
    assert!(full < 3 * QUOTA / 2 + CONSTANT, "{full} bytes at the quota");
    assert!(deleted < MULTIPLE * QUOTA + CONSTANT, "{deleted} bytes with all deleted");
}

/// Set in a process that runs a single attack. Measurements are meaningless when all ignored tests run
/// together in one process.
const ALONE: &str = "MVCC_QUOTA_ATTACK";

#[expect(clippy::disallowed_methods, reason = "set by the test that started this process")]
fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// Defines a test per attack, for separate processes: memory that one frees would hide the growth of
/// the next.
macro_rules! attacks {
    ($($test:ident: $name:expr,)*) => {
        $(
            #[test]
            #[ignore = "run by a_store_at_its_quota_takes_a_stated_multiple_of_it_in_memory, one per process"]
            fn $test() {
                if is_alone() {
                    attack($name);
                }
            }
        )*
        const TESTS: &[&str] = &[$(stringify!($test)),*];
    };
}

attacks! {
    long_keys: ATTACKS[0].0,
    keys_of_two_lengths: ATTACKS[1].0,
    ascending_keys: ATTACKS[2].0,
    random_keys: ATTACKS[3].0,
    one_key: ATTACKS[4].0,
    one_key_that_comes_and_goes: ATTACKS[5].0,
    large_values: ATTACKS[6].0,
}

#[test]
#[expect(clippy::disallowed_types, reason = "memory is a property of a process")]
fn a_store_at_its_quota_takes_a_stated_multiple_of_it_in_memory() {
    assert_eq!(TESTS.len(), ATTACKS.len());
    let run = |test: &'static &str| {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(ALONE, "1")
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        (test, child)
    };
    // Concurrently: half of their time they wait for the disk.
    let children: Vec<_> = TESTS.iter().map(run).collect();
    for (test, child) in children {
        let run = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&run.stdout);
        said.lines().filter(|line| line.contains("with all deleted")).for_each(|line| println!("{line}"));
        let said_of_failure = String::from_utf8_lossy(&run.stderr);
        let is_run = run.status.success() && said.contains("with all deleted");
        assert!(is_run && said.contains("1 passed"), "{test}: {said}{said_of_failure}");
    }
}
