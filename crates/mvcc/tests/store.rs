//! The store's promises one by one, each told as a short story.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{Oracle, everything, range, tiny_options};
use mvcc::{
    Applied, CompactProgress, Error, Fetch, KeyRange, Maintainer, MemoryBackend, Options, Pressure, Previous,
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
    writer.end_entry(Applied { index, term: 1 }).unwrap()
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
            CompactProgress::More => {}
            done => return done,
        }
    }
}

#[test]
fn an_empty_store_is_at_revision_1_and_occupies_something() {
    let (_writer, store, mut maintainer) = fresh();
    assert_eq!((store.revision(), store.compact_revision()), (1, -1));
    assert_eq!(show(&store, &KeyRange::all(), 0), "");
    assert_eq!(show(&store, &KeyRange::all(), 1), "");
    assert!(store.size().allocated > 0);
    assert_eq!(maintainer.persist().unwrap().blocks, 0);
    assert_eq!(maintainer.compact_step(10).unwrap(), CompactProgress::Idle);
}

#[test]
fn the_first_write_gets_revision_2_and_a_request_without_changes_none() {
    let (mut writer, store, _maintainer) = fresh();
    assert_eq!(put(&mut writer, "a", "1"), 2);
    let mut request = writer.begin();
    assert_eq!(request.delete_range(&range("x", "z"), Previous::Return).unwrap().count, 0);
    assert_eq!((request.revision(), request.finish()), (2, 2));
    assert_eq!(put(&mut writer, "a", "1"), 3, "an equal value is a change");
    assert_eq!(show(&store, &KeyRange::all(), 0), "a=1@3.2");
}

#[test]
fn a_request_sees_its_own_changes_and_nobody_else_does_before_its_end() {
    let (mut writer, store, _maintainer) = fresh();
    put(&mut writer, "a", "old");
    let mut request = writer.begin();
    request.put(b"a", b"new", 9);
    request.put(b"b", b"more", 0);
    assert_eq!(request.revision(), 3);
    assert_eq!(request.get(b"a").unwrap().unwrap().value, "new");
    let seen = request.range(&KeyRange::all(), 0, &everything()).unwrap();
    assert_eq!((seen.kvs.len(), seen.count, seen.revision), (2, 2, 3));
    let before = request.range(&KeyRange::all(), 2, &everything()).unwrap();
    assert_eq!((before.kvs.len(), before.at), (1, 2));
    let deleted = request.delete_range(&range("a", "z"), Previous::Return).unwrap();
    assert_eq!(deleted.previous[0].value, "new");
    request.put(b"a", b"again", 0);
    assert_eq!(request.finish(), 3);
    assert_eq!(show(&store, &KeyRange::all(), 0), "a=again@3.1");
    assert_eq!(show(&store, &KeyRange::all(), 2), "a=old@2.1");
}

#[test]
fn a_request_that_is_dropped_is_published_as_far_as_it_got() {
    let (mut writer, store, _maintainer) = fresh();
    writer.begin().put(b"a", b"1", 0);
    assert_eq!((store.revision(), show(&store, &KeyRange::all(), 0)), (2, "a=1@2.1".into()));
}

#[test]
fn revisions_out_of_reach_are_refused_with_their_bounds() {
    let (mut writer, store, _maintainer) = fresh();
    for number in 0..5 {
        put(&mut writer, "a", &number.to_string());
    }
    writer.compact(4).unwrap();
    let read = |at| store.range(&KeyRange::all(), at, &everything());
    assert!(matches!(read(3), Err(Error::Compacted { requested: 3, compacted: 4 })));
    assert!(matches!(read(7), Err(Error::FutureRevision { requested: 7, current: 6 })));
    assert_eq!(show(&store, &KeyRange::all(), 4), "a=2@4.3", "equal to the compact revision is fine");
    assert_eq!(read(-5).unwrap().at, 6, "negative means the newest");
    assert!(matches!(store.hash_kv(3), Err(Error::Compacted { .. })));
    assert!(matches!(store.hash_kv(9), Err(Error::FutureRevision { .. })));
}

#[test]
fn compacting_is_refused_backward_and_into_the_future() {
    let (mut writer, store, _maintainer) = fresh();
    put(&mut writer, "a", "1");
    assert!(matches!(writer.compact(3), Err(Error::FutureRevision { requested: 3, current: 2 })));
    writer.compact(0).unwrap();
    assert!(matches!(writer.compact(0), Err(Error::Compacted { .. })));
    writer.compact(2).unwrap();
    assert!(matches!(writer.compact(1), Err(Error::Compacted { requested: 1, compacted: 2 })));
    assert_eq!(store.compact_revision(), 2);
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
    assert_eq!(maintainer.persist().unwrap().applied.index, 60);
    assert!(store.has_room(1000));
    put(&mut writer, "k", "v");
    assert_eq!(end(&mut writer, 61), Pressure::Calm);
}

#[test]
fn inside_an_entry_the_last_border_is_persisted_and_the_next_is_offered() {
    let backend = MemoryBackend::new();
    let (mut writer, _store, mut maintainer) = open(&backend, tiny_options());
    put(&mut writer, "a", "1");
    end(&mut writer, 1);
    maintainer.persist().unwrap();
    put(&mut writer, "b", "half of entry 2");
    assert_eq!(maintainer.persist().unwrap().applied.index, 1, "half an entry is no state");
    put(&mut writer, "c", "other half");
    assert_eq!(end(&mut writer, 2), Pressure::Due, "somebody asked in vain");
    assert_eq!(maintainer.persist().unwrap().applied.index, 2);

    let (_, store, _) = open(&backend.fork(), tiny_options());
    assert_eq!(store.applied().index, 2);
    assert_eq!(show(&store, &KeyRange::all(), 0), "a=1@2.1 b=half of entry 2@3.1 c=other half@4.1");
}

#[test]
fn an_entry_without_changes_still_moves_the_applied_index() {
    let backend = MemoryBackend::new();
    let (mut writer, _store, mut maintainer) = open(&backend, tiny_options());
    end(&mut writer, 41);
    assert_eq!(maintainer.persist().unwrap().applied.index, 41);
    assert_eq!(open(&backend.fork(), tiny_options()).1.applied().index, 41);
}

#[test]
fn items_are_set_listed_removed_and_survive_a_restart() {
    let backend = MemoryBackend::new();
    let (mut writer, store, mut maintainer) = open(&backend, tiny_options());
    for (key, value) in [("member/1", "a"), ("member/2", "b"), ("alarm", "c"), ("member0", "d")] {
        writer.set_item(key.as_bytes(), Some(value.as_bytes()));
    }
    end(&mut writer, 1);
    maintainer.persist().unwrap();
    writer.set_item(b"member/1", None);
    writer.set_item(b"alarm", Some(b"changed"));
    end(&mut writer, 2);
    maintainer.persist().unwrap();
    writer.set_item(b"never persisted", Some(b"x"));
    let listed = |store: &Store| store.items(b"member/").into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    assert_eq!(listed(&store), ["member/2"]);
    let (_, store, _) = open(&backend.fork(), tiny_options());
    assert_eq!(listed(&store), ["member/2"]);
    assert_eq!(store.item(b"alarm").unwrap(), "changed");
    assert_eq!((store.item(b"member/1"), store.item(b"never persisted")), (None, None));
    assert_eq!(store.revision(), 1, "items have no revisions");
}

#[test]
fn compaction_gives_the_space_back_file_by_file() {
    let backend = MemoryBackend::new();
    let (mut writer, store, mut maintainer) = open(&backend, tiny_options());
    let mut oracle = Oracle::default();
    for index in 1..=400u64 {
        let (key, value) = (format!("k{}", index % 10), format!("{index}-").repeat(30));
        oracle.request(|request| request.put(&key, &value, 0));
        put(&mut writer, &key, &value);
        oracle.applied = Applied { index, term: 1 };
        end(&mut writer, index);
        if index % 50 == 0 {
            maintainer.persist().unwrap();
        }
    }
    let before = store.size();
    oracle.compact_revision = oracle.revision();
    writer.compact(oracle.compact_revision).unwrap();
    oracle.applied.index = 401;
    end(&mut writer, 401);
    assert_eq!(compact_fully(&mut maintainer), CompactProgress::Finished { revision: 401 });
    // Files with holes are emptied after that.
    assert_eq!(compact_fully(&mut maintainer), CompactProgress::Idle);
    assert_eq!(maintainer.compact_step(5).unwrap(), CompactProgress::Idle);
    let after = store.size();
    assert!(after.allocated * 10 < before.allocated, "{before:?} became {after:?}");
    oracle.check_all(&store);
    oracle.check_all(&open(&backend.fork(), tiny_options()).1);
}

#[test]
fn a_deleted_key_stays_deleted_when_only_its_tombstone_was_rewritten() {
    let backend = MemoryBackend::new();
    let (mut writer, store, mut maintainer) = open(&backend, tiny_options());
    // The put lies in a block that stays mostly alive; the tombstone in one that dies.
    put(&mut writer, "doomed", "x");
    for number in 0..6 {
        put(&mut writer, &format!("alive{number}"), &"v".repeat(30));
    }
    for round in 0..30 {
        put(&mut writer, "busy", &format!("{round}").repeat(20));
        if round == 15 {
            writer.begin().delete_range(&range("doomed", ""), Previous::Skip).unwrap();
        }
    }
    writer.compact(store.revision()).unwrap();
    end(&mut writer, 1);
    compact_fully(&mut maintainer);
    for store in [store, open(&backend.fork(), tiny_options()).1] {
        let found = store.range(&range("doomed", ""), 0, &everything()).unwrap();
        assert_eq!(found.count, 0, "the dead came back");
        assert_eq!(store.range(&KeyRange::all(), 0, &everything()).unwrap().count, 7);
    }
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
fn pairs_stay_what_they_were_while_the_store_moves_on() {
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
