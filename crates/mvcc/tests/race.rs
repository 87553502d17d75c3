//! Readers, the writer and compaction at full speed on tiny blocks. A read returns an exact result or
//! `Compacted`.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::tiny_options;
use mvcc::{
    Backend, CompactProgress, Error, Fetch, KeyRange, LogPosition, MemoryBackend, RangeOptions, SledBackend,
    Staging, Store, StoreOptions, Writer,
};

const KEYS: i64 = 50;

/// Reports whether request `main` deletes key `main % KEYS` instead of putting it. An existing key
/// divisible by 10 is deleted every other time.
fn is_delete(main: i64) -> bool {
    main % 10 == 0 && main / KEYS % 2 == 1 && main > KEYS
}

fn key(main: i64) -> String {
    format!("key{:03}", main % KEYS)
}

/// Returns the state at revision `at`: for each key its last request ≤ `at`, unless that deleted it.
fn expected(at: i64) -> Vec<(String, i64)> {
    let newest = (2.max(at - KEYS + 1)..=at).filter(|main| !is_delete(*main));
    let mut pairs: Vec<_> = newest.map(|main| (key(main), main)).collect();
    pairs.sort();
    pairs
}

fn check_once(store: &Store, seed: i64) -> bool {
    let (low, high) = (store.compact_revision().max(1), store.revision());
    let at = if seed % 4 == 0 { 0 } else { low + seed % (high - low + 1) };
    let fetch = if seed % 3 == 0 { Fetch::KeysOnly } else { Fetch::Full };
    let found = match store.range(&KeyRange::all(), at, &RangeOptions { limit: 0, fetch }) {
        Ok(found) => found,
        Err(Error::Compacted { requested, compacted }) => {
            assert!(at > 0 && requested < compacted && store.compact_revision() >= compacted);
            return false;
        }
        Err(other) => panic!("{other}"),
    };
    let pairs: Vec<_> =
        found.kvs.iter().map(|kv| (String::from_utf8(kv.key.to_vec()).unwrap(), kv.mod_revision)).collect();
    assert_eq!(pairs, expected(found.at), "at {}", found.at);
    assert_eq!(found.count, pairs.len() as i64);
    for kv in found.kvs.iter().filter(|_| fetch == Fetch::Full) {
        assert!(kv.value.starts_with(kv.mod_revision.to_string().as_bytes()), "a value of another revision");
    }
    true
}

fn change(writer: &mut Writer, main: i64) {
    let mut request = writer.begin();
    if is_delete(main) {
        request.delete_range(&KeyRange::one(key(main).into()), mvcc::Previous::Skip).unwrap();
    } else {
        request.put(key(main).as_bytes(), main.to_string().repeat(8).as_bytes(), 0);
    }
    assert_eq!(request.finish(), main);
}

fn race(backend: Box<dyn Backend>, requests: i64) {
    let options = StoreOptions { checkpoint_due_bytes: 4096, ..tiny_options() };
    let (mut writer, store, mut maintainer) = mvcc::open(backend, options).unwrap();
    let is_over = AtomicBool::new(false);
    #[expect(clippy::disallowed_methods, reason = "concurrent readers need threads")]
    thread::scope(|scope| {
        for reader in 0..2 {
            let (store, is_over) = (store.clone(), &is_over);
            scope.spawn(move || {
                let (mut seed, mut right) = (reader, 0);
                while !is_over.load(Ordering::Relaxed) {
                    seed = (seed * 7_919 + 13) % 1_000_003;
                    right += usize::from(check_once(&store, seed));
                }
                // Seed 0 reads the current revision. A reader that got no processor time until now can read
                // only that.
                right += usize::from(check_once(&store, 0));
                assert!(right > 0, "reader {reader} never got an answer");
            });
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                maintainer.persist().unwrap();
                while maintainer.compact_step(7).unwrap() == CompactProgress::More {}
                thread::yield_now();
            }
        });
        for main in 2..requests {
            change(&mut writer, main);
            if main % 40 == 0 && main > 200 {
                writer.compact(main - 150).unwrap();
            }
            writer.end_entry(LogPosition::new(main as u64, 1)).unwrap();
            if main % 16 == 0 {
                thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for seed in 0..50 {
        check_once(&store, seed);
    }
}

/// Number of keys changed by a single request: several leaves of the index.
const WIDE: i64 = 700;

/// Reports whether request `main` deletes all keys instead of putting them.
fn is_wipe(main: i64) -> bool {
    main % 3 == 0
}

/// Checks that readers at `at` see exactly one whole request.
fn check_whole(store: &Store, seed: i64) {
    let (low, high) = (store.compact_revision().max(1), store.revision());
    let at = if seed % 4 == 0 { 0 } else { low + seed % (high - low + 1) };
    let limit = [0, 1, 500][(seed % 3) as usize];
    let fetch = [Fetch::Full, Fetch::KeysOnly, Fetch::CountOnly][(seed / 3 % 3) as usize];
    let found = match store.range(&KeyRange::all(), at, &RangeOptions { limit, fetch }) {
        Ok(found) => found,
        Err(Error::Compacted { .. }) if at > 0 => return,
        Err(other) => panic!("{other}"),
    };
    let keys = if found.at == 1 || is_wipe(found.at) { 0 } else { WIDE };
    assert_eq!(found.count, keys, "at {}, limit {limit}, {fetch:?}", found.at);
    let pairs = match (fetch, limit) {
        (Fetch::CountOnly, _) => 0,
        (_, 0) => keys,
        (_, limit) => keys.min(limit as i64),
    };
    assert_eq!(found.kvs.len() as i64, pairs, "at {}, limit {limit}, {fetch:?}", found.at);
    assert!(found.kvs.iter().all(|kv| kv.mod_revision == found.at), "a part of another request");
}

#[test]
fn no_reader_sees_a_partial_request() {
    let options = StoreOptions { changes_per_hold: 16, checkpoint_due_bytes: 64 << 10, ..tiny_options() };
    let (mut writer, store, mut maintainer) = mvcc::open(Box::new(MemoryBackend::new()), options).unwrap();
    let is_over = AtomicBool::new(false);
    let hashes = Mutex::new(BTreeMap::new());
    #[expect(clippy::disallowed_methods, reason = "concurrent readers need threads")]
    thread::scope(|scope| {
        for reader in 0..2 {
            let (store, is_over, hashes) = (store.clone(), &is_over, &hashes);
            scope.spawn(move || {
                let mut seed = reader;
                while !is_over.load(Ordering::Relaxed) {
                    seed = (seed * 7_919 + 13) % 1_000_003;
                    check_whole(&store, seed);
                    if seed % 16 == 0 {
                        let hash = store.hash_kv(0).unwrap();
                        let key = (hash.hash_revision, hash.compact_revision);
                        let first = *hashes.lock().unwrap().entry(key).or_insert(hash.hash);
                        assert_eq!(first, hash.hash, "two hashes of one state {key:?}");
                    }
                }
            });
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                maintainer.persist().unwrap();
                while maintainer.compact_step(100).unwrap() == CompactProgress::More {}
                thread::yield_now();
            }
        });
        for main in 2..200 {
            let mut request = writer.begin();
            if is_wipe(main) {
                let deleted = request.delete_range(&KeyRange::all(), mvcc::Previous::Skip).unwrap();
                assert_eq!(deleted.count, WIDE);
            } else {
                for key in 0..WIDE {
                    request.put(format!("key{key:03}").as_bytes(), b"value", 0);
                }
            }
            assert_eq!(request.finish(), main);
            if main % 8 == 0 {
                writer.compact(main - 5).unwrap();
            }
            writer.end_entry(LogPosition::new(main as u64, 1)).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    (0..100).for_each(|seed| check_whole(&store, seed));
}

/// Installs a leader's history repeatedly under a follower's readers.
fn race_with_installs(incoming: impl Fn() -> Box<dyn Backend>, home: Box<dyn Backend>, rounds: i64) {
    let options = StoreOptions { checkpoint_due_bytes: 4096, ..tiny_options() };
    let (mut writer, leader, mut maintainer) = mvcc::open(Box::new(MemoryBackend::new()), options).unwrap();
    let (_follower, store, mut installer) = mvcc::open(home, options).unwrap();
    let is_over = AtomicBool::new(false);
    // A hash of the same history against the same compaction is equal before and after an install.
    let hashes = Mutex::new(BTreeMap::new());
    #[expect(clippy::disallowed_methods, reason = "concurrent readers need threads")]
    thread::scope(|scope| {
        for reader in 0..2 {
            let (store, is_over, hashes) = (store.clone(), &is_over, &hashes);
            scope.spawn(move || {
                let (mut seed, mut newest) = (reader, 0);
                while !is_over.load(Ordering::Relaxed) {
                    seed = (seed * 7_919 + 13) % 1_000_003;
                    check_once(&store, seed);
                    assert!(store.revision() >= newest, "the revision went back");
                    newest = store.revision();
                    let hash = store.hash_kv(0).unwrap();
                    let key = (hash.hash_revision, hash.compact_revision);
                    let first = *hashes.lock().unwrap().entry(key).or_insert(hash.hash);
                    assert_eq!(first, hash.hash, "two hashes of one state {key:?}");
                }
            });
        }
        let mut main = 2;
        for round in 0..rounds {
            for _ in 0..100 + round * 7 % 60 {
                change(&mut writer, main);
                main += 1;
            }
            if main > 400 {
                writer.compact(main - 150).unwrap();
            }
            writer.end_entry(LogPosition::new(main as u64, 1)).unwrap();
            maintainer.persist().unwrap();
            while maintainer.compact_step(50).unwrap() != CompactProgress::Idle {}
            let mut export = maintainer.export();
            let mut staging = Staging::begin(incoming(), &options).unwrap();
            while let Some(chunk) = export.next(1000).unwrap() {
                staging.add(&chunk).unwrap();
            }
            installer.install(staging.finish().unwrap()).unwrap();
            assert_eq!(store.hash_kv(0).unwrap().hash, leader.hash_kv(0).unwrap().hash, "round {round}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!((store.revision(), store.applied()), (leader.revision(), leader.applied()));
}

#[test]
fn readers_race_with_installs_in_memory() {
    let disk = MemoryBackend::new();
    race_with_installs(|| Box::new(disk.incoming()), Box::new(disk.clone()), 40);
}

#[test]
fn readers_race_with_installs_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("store");
    let backend = Box::new(SledBackend::open(&home).unwrap());
    race_with_installs(|| Box::new(SledBackend::incoming(&home).unwrap()), backend, 6);
}

#[test]
fn readers_race_with_compaction_in_memory() {
    race(Box::new(MemoryBackend::new()), 20_000);
}

#[test]
fn readers_race_with_compaction_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    race(Box::new(SledBackend::open(dir.path()).unwrap()), 4_000);
}
