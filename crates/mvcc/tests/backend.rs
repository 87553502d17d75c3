//! Properties required of every backend. A new backend needs a kind of `Location`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;

use crate::common::location::Location;
use mvcc::{Backend, BlockFile, Error, LogPosition, Update};
use proptest::prelude::*;

fn all() -> [(&'static str, Location); 2] {
    let [memory, disk] = Location::both();
    [("memory", memory), ("disk", disk)]
}

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

fn update(puts: &[(&str, &str)], removals: &[&str]) -> Update {
    let bytes = |text: &&str| text.as_bytes().to_vec();
    Update {
        puts: puts.iter().map(|(key, value)| (bytes(key), bytes(value))).collect(),
        removals: removals.iter().map(bytes).collect(),
    }
}

fn entries(backend: &mut dyn Backend) -> Vec<(String, String)> {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let mut entries: Vec<_> =
        backend.catalogue().unwrap().into_iter().map(|(key, value)| (text(key), text(value))).collect();
    entries.sort();
    entries
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn content(file: &Arc<dyn BlockFile>) -> Vec<u8> {
    let mut bytes = vec![0; file.bytes().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_new_backend_is_empty() {
    for (name, place) in all() {
        let mut backend = place.backend();
        assert_eq!((entries(&mut *backend), backend.files().unwrap()), (Vec::new(), Vec::new()), "{name}");
        assert_eq!(place.staged(), None, "{name}");
    }
}

#[test]
fn an_update_changes_only_its_keys() {
    for (name, place) in all() {
        let mut backend = place.backend();
        backend.update(update(&[("a", "1"), ("b", "2"), ("c", "3")], &[])).unwrap();
        backend.update(update(&[("b", "two"), ("d", "4")], &["a", "never was"])).unwrap();
        backend.update(update(&[], &[])).unwrap();
        let expected = pairs(&[("b", "two"), ("c", "3"), ("d", "4")]);
        assert_eq!(entries(&mut *backend), expected, "{name}");
        drop(backend);
        assert_eq!(entries(&mut *place.backend()), expected, "{name}, come back to");
    }
}

#[test]
fn values_up_to_the_limit_of_an_item_are_kept_in_the_catalogue() {
    for (name, place) in all() {
        let mut backend = place.backend();
        let value = vec![0xa5; mvcc::ITEM_BYTES_MAX + 64];
        backend.update(Update { puts: vec![(b"large".to_vec(), value.clone())], removals: vec![] }).unwrap();
        drop(backend);
        assert_eq!(place.backend().catalogue().unwrap(), [(b"large".to_vec(), value)], "{name}");
    }
}

#[test]
fn files_are_created_written_and_reopened() {
    for (name, place) in all() {
        let mut backend = place.backend();
        for number in [1, 2, 30] {
            let file = backend.create_file(number).unwrap();
            file.write_at(format!("file {number}").as_bytes(), 0).unwrap();
            file.sync().unwrap();
        }
        backend.remove_file(2).unwrap();
        drop(backend);
        let mut backend = place.backend();
        let mut numbers = backend.files().unwrap();
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 30], "{name}");
        assert_eq!(content(&backend.open_file(30).unwrap()), b"file 30", "{name}");
        assert!(backend.open_file(2).is_err(), "{name}");
    }
}

#[test]
fn a_read_past_the_end_has_its_own_error() {
    for (name, place) in all() {
        let file = place.backend().create_file(1).unwrap();
        file.write_at(b"12345", 0).unwrap();
        for (offset, length) in [(0, 6), (5, 1), (4, 2), (1 << 40, 1)] {
            let error = file.read_at(&mut vec![0; length], offset).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{name}, {length} bytes at {offset}");
        }
        file.read_at(&mut [], 5).unwrap();
    }
}

#[test]
fn a_gap_reads_as_zeros_and_truncation_removes_the_rest() {
    for (name, place) in all() {
        let file = place.backend().create_file(1).unwrap();
        file.write_at(b"abc", 4).unwrap();
        assert_eq!(content(&file), b"\0\0\0\0abc", "{name}");
        file.truncate(5).unwrap();
        assert_eq!(content(&file), b"\0\0\0\0a", "{name}");
        file.write_at(b"xy", 5).unwrap();
        assert_eq!(content(&file), b"\0\0\0\0axy", "{name}: nothing of the old bytes is left");
    }
}

#[test]
fn a_removed_file_is_readable_through_open_handles() {
    for (name, place) in all() {
        let mut backend = place.backend();
        let file = backend.create_file(9).unwrap();
        file.write_at(b"still here", 0).unwrap();
        backend.remove_file(9).unwrap();
        assert_eq!(content(&file), b"still here", "{name}");
        assert!(backend.files().unwrap().is_empty(), "{name}");
    }
}

#[test]
fn files_and_entries_know_their_names() {
    for (name, place) in all() {
        let mut backend = place.backend();
        let names: Vec<_> = [3, 4].map(|number| backend.create_file(number).unwrap().name()).into();
        assert!(names[0].contains('3') && names[0] != names[1], "{name}: {names:?}");
        backend.update(update(&[("key", "value")], &[])).unwrap();
    }
}

/// Fills a store with one entry and one file, both with this content.
fn fill(backend: &mut dyn Backend, word: &str) -> Arc<dyn BlockFile> {
    backend.update(update(&[("word", word)], &[])).unwrap();
    let file = backend.create_file(1).unwrap();
    file.write_at(word.as_bytes(), 0).unwrap();
    file.sync().unwrap();
    file
}

fn check(backend: &mut dyn Backend, word: &str, context: &str) {
    assert_eq!(entries(backend), pairs(&[("word", word)]), "{context}");
    assert_eq!(content(&backend.open_file(1).unwrap()), word.as_bytes(), "{context}");
}

#[test]
fn the_incoming_slot_is_separate_and_emptied_every_time() {
    for (name, place) in all() {
        let mut home = place.backend();
        fill(&mut *home, "home");
        for round in 0..2 {
            let mut incoming = place.incoming();
            assert_eq!(entries(&mut *incoming), [], "{name}, round {round}");
            assert!(incoming.files().unwrap().is_empty(), "{name}, round {round}");
            fill(&mut *incoming, "incoming");
        }
        check(&mut *home, "home", name);
        assert_eq!(place.staged(), None, "{name}: received, but not complete");
        place.discard();
        check(&mut *home, "home", name);
    }
}

#[test]
fn a_completed_store_replaces_the_current_one() {
    let applied = LogPosition::new(12, 3);
    for (name, place) in all() {
        let mut home = place.backend();
        let held = fill(&mut *home, "old");
        let mut incoming = place.incoming();
        fill(&mut *incoming, "new");
        incoming.complete(applied).unwrap();
        assert_eq!(place.staged(), Some(applied), "{name}");
        check(&mut *home, "old", name);

        home.replace(incoming).unwrap();
        check(&mut *home, "new", name);
        assert_eq!(content(&held), b"old", "{name}: who reads the old store goes on reading it");
        assert_eq!(place.staged(), None, "{name}");
        // It can be used like any store.
        home.update(update(&[("more", "entries")], &["word"])).unwrap();
        home.create_file(2).unwrap();
        drop(home);
        assert_eq!(entries(&mut *place.backend()), pairs(&[("more", "entries")]), "{name}");
    }
}

#[test]
fn an_incomplete_store_replaces_nothing() {
    for (name, place) in all() {
        let mut home = place.backend();
        fill(&mut *home, "old");
        let mut incoming = place.incoming();
        fill(&mut *incoming, "half");
        let replaced = home.replace(incoming);
        assert!(matches!(replaced, Err(Error::Refused { .. })), "{name}: {replaced:?}");
        check(&mut *home, "old", name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_catalogue_behaves_like_a_map(
        updates in prop::collection::vec(
            (
                prop::collection::btree_map(0..20u8, prop::collection::vec(any::<u8>(), 0..300), 0..8),
                prop::collection::vec(20..40u8, 0..4),
            ),
            1..15,
        )
    ) {
        for (name, place) in all() {
            let (mut backend, mut expected) = (place.backend(), Entries::new());
            for (number, (puts, removals)) in updates.iter().enumerate() {
                // Keys of puts and removals are disjoint in an update. Every other update swaps their ranges.
                let shift = if number % 2 == 0 { 0 } else { 20 };
                let key = |key: u8| vec![1 + (key + shift) % 40];
                let update = Update {
                    puts: puts.iter().map(|(number, value)| (key(*number), value.clone())).collect(),
                    removals: removals.iter().map(|number| key(*number)).collect(),
                };
                update.removals.iter().for_each(|key| drop(expected.remove(key)));
                expected.extend(update.puts.iter().cloned());
                backend.update(update).unwrap();
                if number % 5 == 4 {
                    drop(backend);
                    backend = place.backend();
                }
                let found: Entries = backend.catalogue().unwrap().into_iter().collect();
                prop_assert_eq!(&found, &expected, "{} after update {}", name, number);
            }
        }
    }
}
