//! A history is read completely while compactions wait, and fills another store that returns the same
//! results.

use mvcc::{
    Change, CompactProgress, Error, Fetch, HistoryReader, Import, ImportedState, KeyRange, KeyValueRef,
    LogPosition, Maintainer, MemoryBackend, Previous, REVISION_MAX, RangeOptions, Revision, Store,
    StoreOptions, Writer,
};

fn open() -> (Writer, Store, Maintainer) {
    let options = StoreOptions { block_bytes: 700, ..StoreOptions::default() };
    mvcc::open(Box::new(MemoryBackend::new()), options).unwrap()
}

/// Puts, overwrites, deletes and re-creates 20 keys, some with a lease, in requests of several changes.
fn change(writer: &mut Writer, requests: std::ops::Range<u64>) {
    for number in requests {
        let key = |step: u64| format!("key{:02}", (number * 7 + step * 3) % 20).into_bytes();
        let mut request = writer.begin();
        match number % 5 {
            0 => drop(request.delete_range(&KeyRange::one(key(0).into()), Previous::Skip).unwrap()),
            1 => (0..4)
                .for_each(|step| assert!(request.put(&key(step), &[number as u8; 90], number as i64) > 1)),
            _ => assert!(request.put(&key(0), format!("value{number}").as_bytes(), 0) > 1),
        }
        request.finish();
        writer.end_entry(LogPosition::new(number + 1, 1)).unwrap();
    }
}

/// Formats a line per change.
fn lines(history: &HistoryReader) -> Vec<String> {
    let (mut lines, mut next) = (Vec::new(), HistoryReader::START);
    while let Some(part) = history.part_from(next).unwrap() {
        lines.extend(part.changes().map(|change| format!("{change:?}")));
        next = part.next();
    }
    lines
}

fn imported(history: &HistoryReader) -> (Writer, Store, Maintainer) {
    let backend = MemoryBackend::new();
    let options = StoreOptions { block_bytes: 500, ..StoreOptions::default() };
    let mut import = Import::begin(Box::new(backend.clone()), &options).unwrap();
    history.items().iter().for_each(|(key, value)| import.item(key, value).unwrap());
    let mut next = HistoryReader::START;
    while let Some(part) = history.part_from(next).unwrap() {
        part.changes().for_each(|change| import.change(change).unwrap());
        next = part.next();
    }
    let (revision, compact_revision) = (history.revision(), history.compact_revision());
    let applied = LogPosition::new(5, 2);
    import.finish(ImportedState { applied, revision, compact_revision }).unwrap();
    mvcc::open(Box::new(backend), options).unwrap()
}

fn compact_physically(maintainer: &mut Maintainer) {
    maintainer.persist().unwrap();
    while maintainer.compact_step(3).unwrap() != CompactProgress::Idle {}
}

#[test]
fn an_imported_history_answers_as_its_store_at_every_revision() {
    for compacted_at in [None, Some(40), Some(101)] {
        let (mut writer, store, mut maintainer) = open();
        change(&mut writer, 0..100);
        writer.set_item(b"item", Some(b"value"));
        if let Some(revision) = compacted_at {
            writer.compact(revision.min(store.revision())).unwrap();
        }
        writer.end_entry(LogPosition::new(200, 1)).unwrap();
        let before_sweep = lines(&store.pin_history());
        compact_physically(&mut maintainer);
        let history = store.pin_history();
        assert_eq!(lines(&history), before_sweep, "the history does not depend on the sweep");
        let (_writer, copy, mut copy_maintainer) = imported(&history);
        assert_eq!(copy.applied(), LogPosition::new(5, 2));
        assert_eq!(copy.item(b"item").as_deref(), Some(&b"value"[..]));
        for sweep in [false, true] {
            if sweep {
                compact_physically(&mut copy_maintainer);
            }
            for at in store.compact_revision().max(1)..=store.revision() {
                let options = RangeOptions { limit: 0, fetch: Fetch::Full };
                let both = [&store, &copy].map(|store| store.range(&KeyRange::all(), at, &options).unwrap());
                assert_eq!(both[0], both[1], "compacted at {compacted_at:?}, revision {at}");
                let hashes = [&store, &copy].map(|store| store.hash_kv(at).unwrap().hash);
                // The hash of a finished compaction reflects the state before it, and is not imported.
                assert!(hashes[0] == hashes[1] || at == store.compact_revision(), "revision {at}");
            }
        }
    }
}

#[test]
fn changes_that_no_store_has_are_refused() {
    let put = |main, create, version, key: &'static [u8]| {
        let kv =
            KeyValueRef { key, value: b"", create_revision: create, mod_revision: main, version, lease: 0 };
        Change::Put { revision: Revision { main, sub: 0 }, kv }
    };
    for (change, reason) in [
        (put(5, 5, 1, b"a"), "revisions do not ascend"),
        (put(7, 8, 1, b"a"), "a put is older than its key"),
        (put(7, 7, 0, b"a"), "a put is older than its key"),
        (put(7, 5, 8, b"b"), "more versions than revisions"),
        (put(i64::MAX, 5, 2, b"a"), "out of range"),
        (put(7, 7, 1, b""), "an empty key"),
        (Change::Delete { revision: Revision { main: 7, sub: -1 }, key: b"a" }, "out of range"),
        (Change::Delete { revision: Revision { main: 7, sub: 1 << 40 }, key: b"a" }, "out of range"),
    ] {
        let mut import = Import::begin(Box::new(MemoryBackend::new()), &StoreOptions::default()).unwrap();
        import.change(put(5, 5, 1, b"a")).unwrap();
        let error = import.change(change).unwrap_err();
        let is_right = matches!(&error, Error::Refused { reason: found, .. } if found.contains(reason));
        assert!(is_right, "{change:?}: {error}");
    }
}

#[test]
fn a_store_that_begins_beyond_the_last_revision_is_refused() {
    for (revision, compact_revision, is_taken) in [
        (REVISION_MAX, REVISION_MAX, true),
        (i64::MAX, -1, false),
        (i64::MIN, -1, false),
        (REVISION_MAX, i64::MAX, false),
    ] {
        let import = Import::begin(Box::new(MemoryBackend::new()), &StoreOptions::default()).unwrap();
        let applied = LogPosition::new(1, 1);
        let finished = import.finish(ImportedState { applied, revision, compact_revision });
        assert_eq!(finished.is_ok(), is_taken, "{revision}, compacted {compact_revision}");
    }
}

#[test]
fn a_store_at_the_last_revision_is_followed_compacted_and_opened_again() {
    let backend = MemoryBackend::new();
    let import = Import::begin(Box::new(backend.clone()), &StoreOptions::default()).unwrap();
    let begun = ImportedState {
        applied: LogPosition::new(1, 1),
        revision: REVISION_MAX - 3,
        compact_revision: REVISION_MAX - 3,
    };
    import.finish(begun).unwrap();
    let (mut writer, store, mut maintainer) =
        mvcc::open(Box::new(backend.clone()), StoreOptions::default()).unwrap();
    let mut follower = store.follow();
    for (index, value) in [(2, "one"), (3, "two"), (4, "three")] {
        writer.begin().put(b"a", value.as_bytes(), 0);
        writer.end_entry(LogPosition::new(index, 1)).unwrap();
    }
    assert_eq!(store.revision(), REVISION_MAX);
    let read = follower.changes(1 << 20).unwrap();
    let seen: Vec<i64> = read.iter().map(|change| change.revision().main).collect();
    assert_eq!(seen, [REVISION_MAX - 2, REVISION_MAX - 1, REVISION_MAX]);
    follower.advance(read.through() + 1);
    assert_eq!(follower.changes(1 << 20).unwrap().iter().count(), 0);
    drop(follower);
    writer.compact(REVISION_MAX).unwrap();
    writer.end_entry(LogPosition::new(5, 1)).unwrap();
    maintainer.persist().unwrap();
    compact_physically(&mut maintainer);
    let newest = store.get(b"a", 0).unwrap();
    let hash = store.hash_kv(0).unwrap();
    drop((writer, store, maintainer));
    let (_writer, store, _maintainer) = mvcc::open(Box::new(backend), StoreOptions::default()).unwrap();
    assert_eq!((store.get(b"a", 0).unwrap(), store.revision()), (newest, REVISION_MAX));
    assert_eq!(store.hash_kv(0).unwrap().hash, hash.hash);
    assert_eq!(lines(&store.pin_history()).len(), 1);
}
