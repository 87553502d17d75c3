//! Which file is emptied, when, and what becomes of its blocks.

use super::*;
use crate::types::{Applied, CompactProgress, Options};
use crate::{KeyRange, Maintainer, MemoryBackend, Previous, RangeOptions, Store, Writer};

fn options() -> Options {
    Options {
        block_bytes: 512,
        block_file_bytes: 4096,
        cache_bytes: 4096,
        checkpoint_due_bytes: 1 << 20,
        checkpoint_full_bytes: 4 << 20,
    }
}

/// Keys 0 … 99 in as many requests; `doomed` of them deleted again, and all of it compacted, but not yet tidied.
fn swept(doomed: impl Fn(u64) -> bool) -> (Writer, Store, Maintainer) {
    let (mut writer, store, mut maintainer) = crate::open(Box::new(MemoryBackend::new()), options()).unwrap();
    for key in 0..100u64 {
        // Values that differ, or LZ4 would leave nothing to move.
        let value: Vec<u8> =
            (0..60u64).map(|byte| (key.wrapping_mul(0x9e37_79b9) >> (byte % 23)) as u8).collect();
        writer.begin().put(&key.to_be_bytes(), &value, 0);
    }
    for key in (0..100u64).filter(|key| doomed(*key)) {
        let range = KeyRange::one(key.to_be_bytes().to_vec().into());
        writer.begin().delete_range(&range, Previous::Skip).unwrap();
    }
    // One more, so that no tombstone lies at the revision of the compaction and has to stay.
    writer.begin().put(b"last", b"", 0);
    writer.compact(store.revision()).unwrap();
    writer.end_entry(Applied { index: 1, term: 1 }).unwrap();
    while !matches!(maintainer.compact_step(1000).unwrap(), CompactProgress::Finished { .. }) {}
    (writer, store, maintainer)
}

fn sizes(maintainer: &Maintainer) -> Vec<(u64, u64)> {
    maintainer.durable.files.sizes().collect()
}

#[test]
fn the_bound_allows_a_share_of_live_data_and_some_slack() {
    for (bound, allocated, live, is_broken) in [
        (Bound::Usual, 1000, 1000, false),
        (Bound::Usual, 1333, 1000, false),
        (Bound::Usual, 1343, 1000, false),
        (Bound::Usual, 1344, 1000, true),
        (Bound::Tight, 1060, 1000, false),
        (Bound::Tight, 1061, 1000, true),
        (Bound::Usual, 10, 0, false),
        (Bound::Usual, 11, 0, true),
        (Bound::Tight, 0, 0, false),
    ] {
        assert_eq!(bound.is_broken(allocated, live, 10), is_broken, "{bound:?}, {allocated} for {live}");
    }
}

#[test]
fn the_file_with_the_largest_holes_goes_first() {
    // The second quarter of the keys dies but for a few: some file has hardly anything else in it.
    let (_writer, store, mut maintainer) = swept(|key| (25..50).contains(&key) && key % 6 != 0);
    let before = sizes(&maintainer);
    let live = live_bytes_by_file(&store.shared);
    let share = |(number, bytes): &(u64, u64)| live.get(number).copied().unwrap_or(0) * 1000 / bytes;
    let worst = before.iter().min_by_key(|file| share(file)).unwrap().0;
    let tidying = Tidying::begin(&mut maintainer.durable, &store.shared, Bound::Tight).unwrap();
    assert_eq!(tidying.unwrap().victim, worst, "{before:?}, live {live:?}");
}

#[test]
fn a_store_within_its_bound_is_left_alone() {
    let (_writer, store, mut maintainer) = swept(|_| false);
    let before = sizes(&maintainer);
    assert!(Tidying::begin(&mut maintainer.durable, &store.shared, Bound::Usual).unwrap().is_none());
    assert_eq!(maintainer.compact_step(1000).unwrap(), CompactProgress::Idle);
    assert_eq!(sizes(&maintainer), before);
}

#[test]
fn every_answer_is_the_same_after_every_file_was_emptied_in_turn() {
    let (_writer, store, mut maintainer) = swept(|key| key % 3 == 0);
    let all = || store.range(&KeyRange::all(), 0, &RangeOptions::default()).unwrap().kvs;
    let (before, hash) = (all(), store.hash_kv(0).unwrap().hash);
    let victims: Vec<u64> = sizes(&maintainer).into_iter().map(|(number, _)| number).collect();
    for victim in victims {
        maintainer.durable.files.close(victim).unwrap();
        let mut tidying = Tidying { victim, from: Revision::first_of(0) };
        while !tidying.step(&mut maintainer.durable, &store.shared).unwrap() {}
        assert!(
            sizes(&maintainer).iter().all(|(number, _)| *number != victim),
            "file {victim} is still there"
        );
        assert_eq!((all(), store.hash_kv(0).unwrap().hash), (before.clone(), hash), "file {victim}");
    }
    let (stored, live) = store.shared.state.read().directory.bytes();
    assert_eq!(stored, live, "what was moved is wholly alive");
}

#[test]
fn a_damaged_block_is_not_given_a_new_place() {
    let (_writer, store, mut maintainer) = swept(|_| false);
    let block = store.shared.state.read().directory.get(0).unwrap().clone();
    let place = block.place().unwrap();
    let file = maintainer.durable.backend.open_file(place.number).unwrap();
    file.write_at(b"?", place.offset + 60).unwrap();
    maintainer.durable.files.close(place.number).unwrap();
    let mut tidying = Tidying { victim: place.number, from: Revision::first_of(0) };
    let moved = tidying.step(&mut maintainer.durable, &store.shared);
    assert!(matches!(moved, Err(crate::Error::Corrupt { .. })), "{moved:?}");
}
