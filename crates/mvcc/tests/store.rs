//! Properties of the store that need more than a script (`scripts.rs`).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{Oracle, everything, range, tiny_options};
use mvcc::{
    CompactProgress, Fetch, KeyRange, LogPosition, Maintainer, MemoryBackend, Options, Pressure, Previous,
    RangeOptions, Store, Writer,
};

fn open(backend: &MemoryBackend, options: Options) -> (Writer, Store, Maintainer) {
    mvcc::open(Box::new(backend.clone()), options).unwrap()
}

fn fresh() -> (Writer, Store, Maintainer) {
    open(&MemoryBackend::new(), tiny_options())
}

fn put(writer: &mut Writer, key: &str, value: &str) -> i64 {
    let mut request = writer.begin();
    request.put(key.as_bytes(), value.as_bytes(), 0);
    request.finish()
}

fn end(writer: &mut Writer, index: u64) -> Pressure {
    writer.end_entry(LogPosition::new(index, 1)).unwrap()
}

/// `key=value@mod.version` of everything in the range.
fn show(store: &Store, range: &KeyRange, at: i64) -> String {
    let kvs = store.range(range, at, &everything()).unwrap().kvs;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let shown: Vec<_> = kvs
        .iter()
        .map(|kv| format!("{}={}@{}.{}", text(&kv.key), text(&kv.value), kv.mod_revision, kv.version))
        .collect();
    shown.join(" ")
}

fn compact_fully(maintainer: &mut Maintainer) -> CompactProgress {
    loop {
        match maintainer.compact_step(5).unwrap() {
            CompactProgress::More | CompactProgress::Waiting => {}
            done => return done,
        }
    }
}

#[test]
fn a_dropped_request_publishes_the_changes_so_far() {
    let (mut writer, store, _maintainer) = fresh();
    writer.begin().put(b"a", b"1", 0);
    assert_eq!((store.revision(), show(&store, &KeyRange::all(), 0)), (2, "a=1@2.1".into()));
}

#[test]
fn the_count_ignores_the_limit_at_every_revision() {
    let (mut writer, store, _maintainer) = fresh();
    for number in 0..3000 {
        put(&mut writer, &format!("k{number:04}"), "v");
    }
    // More keys than one hold of the lock visits, at the newest and at an older revision.
    for (at, count) in [(0, 3000), (2501, 2500), (2, 1)] {
        for fetch in [Fetch::Full, Fetch::KeysOnly, Fetch::CountOnly] {
            for limit in [0, 1, 1500] {
                let found = store.range(&KeyRange::all(), at, &RangeOptions { limit, fetch }).unwrap();
                assert_eq!(found.count, count, "at {at}, limit {limit}, {fetch:?}");
                let wanted = if limit == 0 { count } else { count.min(limit as i64) };
                let pairs = if fetch == Fetch::CountOnly { 0 } else { wanted };
                assert_eq!(found.kvs.len() as i64, pairs, "at {at}, limit {limit}, {fetch:?}");
                assert!(found.kvs.is_sorted_by(|left, right| left.key < right.key));
            }
        }
    }
}

#[test]
fn pressure_rises_with_what_is_not_persisted_and_falls_with_it() {
    let options = Options { checkpoint_due_bytes: 2000, checkpoint_full_bytes: 6000, ..tiny_options() };
    let (mut writer, store, mut maintainer) = open(&MemoryBackend::new(), options);
    let mut seen = Vec::new();
    for index in 1..=60 {
        let had_room = store.has_room(1000);
        put(&mut writer, &format!("k{index}"), &"v".repeat(100));
        seen.push(end(&mut writer, index));
        assert!(!had_room || seen.last() < Some(&Pressure::Full), "entry {index}");
    }
    assert!(!store.has_room(1000));
    assert!(seen.is_sorted() && seen[0] == Pressure::Calm && seen[59] == Pressure::Full);
    assert!(seen.contains(&Pressure::Due));
    assert_eq!(maintainer.persist().unwrap().applied.index.0, 60);
    assert!(store.has_room(1000));
    put(&mut writer, "k", "v");
    assert_eq!(end(&mut writer, 61), Pressure::Calm);
}

#[test]
fn compaction_frees_space_file_by_file() {
    let backend = MemoryBackend::new();
    let (mut writer, store, mut maintainer) = open(&backend, tiny_options());
    let mut oracle = Oracle::default();
    for index in 1..=400u64 {
        let (key, value) = (format!("k{}", index % 10), format!("{index}-").repeat(30));
        oracle.request(|request| request.put(&key, &value, 0));
        put(&mut writer, &key, &value);
        oracle.applied = LogPosition::new(index, 1);
        end(&mut writer, index);
        if index % 50 == 0 {
            maintainer.persist().unwrap();
        }
    }
    let before = store.size();
    oracle.compact_revision = oracle.revision();
    writer.compact(oracle.compact_revision).unwrap();
    oracle.applied.index.0 = 401;
    end(&mut writer, 401);
    assert_eq!(compact_fully(&mut maintainer), CompactProgress::Finished { revision: 401 });
    // Then files with holes are emptied.
    assert_eq!(compact_fully(&mut maintainer), CompactProgress::Idle);
    assert_eq!(maintainer.compact_step(5).unwrap(), CompactProgress::Idle);
    let after = store.size();
    assert!(after.allocated * 10 < before.allocated, "{before:?} became {after:?}");
    oracle.check_all(&store);
    oracle.check_all(&open(&backend.fork(), tiny_options()).1);
}

#[test]
fn a_tombstone_at_the_compact_revision_does_not_change_the_hash() {
    let (mut writer, store, mut maintainer) = fresh();
    let mut oracle = Oracle::default();
    oracle.request(|request| request.put("a", "1", 0));
    put(&mut writer, "a", "1");
    oracle.request(|request| request.put("b", "1", 0));
    put(&mut writer, "b", "1");
    oracle.request(|request| drop(request.delete(&range("a", ""))));
    writer.begin().delete_range(&range("a", ""), Previous::Skip).unwrap();
    let unchanged = store.hash_kv(4).unwrap();
    assert_eq!((unchanged.hash, unchanged.compact_revision), (oracle.hash(4), -1));

    writer.compact(4).unwrap();
    oracle.compact_revision = 4;
    end(&mut writer, 1);
    let logical = store.hash_kv(4).unwrap();
    assert_eq!((logical.hash, logical.compact_revision), (oracle.hash(4), 4));
    compact_fully(&mut maintainer);
    let remembered = store.hash_kv(4).unwrap();
    assert_eq!(remembered, unchanged, "what etcd remembers when a compaction finishes");
    assert_eq!(
        store.hash_kv(0).unwrap().hash,
        oracle.hash(4),
        "0 asks for the newest, not for what is remembered"
    );
}

#[test]
fn the_hash_of_a_known_history_is_the_known_value() {
    let (mut writer, store, _maintainer) = fresh();
    assert_eq!(store.hash_kv(0).unwrap().hash, common::crc_bitwise(b"key"));
    put(&mut writer, "foo", "bar");
    let stored = [
        b"key".as_slice(),
        b"\0\0\0\0\0\0\0\x02_\0\0\0\0\0\0\0\0",
        b"\x0a\x03foo\x10\x02\x18\x02\x20\x01\x2a\x03bar",
    ];
    assert_eq!(store.hash_kv(2).unwrap().hash, common::crc_bitwise(&stored.concat()));
}

#[test]
fn returned_pairs_do_not_change_later() {
    let (mut writer, store, mut maintainer) = fresh();
    put(&mut writer, "a", "first");
    let held = store.range(&KeyRange::all(), 0, &everything()).unwrap();
    for number in 0..200 {
        put(&mut writer, "a", &format!("later {number}"));
    }
    writer.compact(store.revision()).unwrap();
    end(&mut writer, 1);
    compact_fully(&mut maintainer);
    assert_eq!((held.kvs[0].value.as_ref(), held.kvs[0].mod_revision), (b"first".as_slice(), 2));
}

#[test]
fn a_value_of_a_mebibyte_and_an_empty_one_are_stored_alike() {
    let backend = MemoryBackend::new();
    let (mut writer, store, mut maintainer) = open(&backend, Options::default());
    let large = "x".repeat(1 << 20);
    for (key, value) in [("empty", ""), ("large", large.as_str()), ("small", "1")] {
        put(&mut writer, key, value);
    }
    end(&mut writer, 1);
    maintainer.persist().unwrap();
    for store in [store, open(&backend.fork(), Options::default()).1] {
        let kvs = store.range(&KeyRange::all(), 0, &everything()).unwrap().kvs;
        let lengths: Vec<_> = kvs.iter().map(|kv| kv.value.len()).collect();
        assert_eq!(lengths, [0, 1 << 20, 1]);
    }
}
