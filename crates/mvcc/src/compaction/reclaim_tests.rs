//! Selection of the file to empty, and treatment of its blocks.

use super::*;
use crate::types::{CompactProgress, LogPosition, StoreOptions};
use crate::{KeyRange, Maintainer, MemoryBackend, Previous, RangeOptions, Store, Writer};

fn options() -> StoreOptions {
    StoreOptions {
        block_bytes: 512,
        block_file_bytes: 4096,
        cache_bytes: 4096,
        checkpoint_due_bytes: 1 << 20,
        checkpoint_full_bytes: 4 << 20,
        dropped_max: 1000,
        ..StoreOptions::default()
    }
}

/// Writes keys 0 … 99 in a request each, deletes some, and compacts everything without reclaiming
/// space.
fn swept(deleted: impl Fn(u64) -> bool) -> (Writer, Store, Maintainer) {
    let (mut writer, store, mut maintainer) = crate::open(Box::new(MemoryBackend::new()), options()).unwrap();
    for key in 0..100u64 {
        // Different values, which LZ4 cannot compress away.
        let value: Vec<u8> =
            (0..60u64).map(|byte| (key.wrapping_mul(0x9e37_79b9) >> (byte % 23)) as u8).collect();
        writer.begin().put(&key.to_be_bytes(), &value, 0);
    }
    for key in (0..100u64).filter(|key| deleted(*key)) {
        let range = KeyRange::one(key.to_be_bytes().to_vec().into());
        writer.begin().delete_range(&range, Previous::Skip).unwrap();
    }
    // One more put, so that there is no tombstone at the compact revision, which would be retained.
    writer.begin().put(b"last", b"", 0);
    writer.compact(store.revision()).unwrap();
    writer.end_entry(LogPosition::new(1, 1)).unwrap();
    while !matches!(maintainer.compact_step(1000).unwrap(), CompactProgress::Finished { .. }) {}
    (writer, store, maintainer)
}

fn sizes(maintainer: &Maintainer) -> Vec<(u64, u64)> {
    maintainer.checkpoints.durable.files.sizes().collect()
}

#[test]
fn the_limit_allows_a_share_of_live_data_and_some_slack() {
    for (bound, allocated, live, is_exceeded) in [
        (SpaceLimit::Normal, 1000, 1000, false),
        (SpaceLimit::Normal, 1333, 1000, false),
        (SpaceLimit::Normal, 1343, 1000, false),
        (SpaceLimit::Normal, 1344, 1000, true),
        (SpaceLimit::Tight, 1060, 1000, false),
        (SpaceLimit::Tight, 1061, 1000, true),
        (SpaceLimit::Normal, 10, 0, false),
        (SpaceLimit::Normal, 11, 0, true),
        (SpaceLimit::Tight, 0, 0, false),
    ] {
        assert_eq!(bound.is_exceeded(allocated, live, 10), is_exceeded, "{bound:?}, {allocated} for {live}");
    }
}

#[test]
fn the_file_with_the_smallest_live_share_is_emptied_first() {
    // Most of the second quarter of the keys is deleted, so some file has hardly any live data.
    let (_writer, store, mut maintainer) = swept(|key| (25..50).contains(&key) && key % 6 != 0);
    let before = sizes(&maintainer);
    let live = live_bytes_by_file(&store.shared);
    let share = |(number, bytes): &(u64, u64)| live.get(number).copied().unwrap_or(0) * 1000 / bytes;
    let worst = before.iter().min_by_key(|file| share(file)).unwrap().0;
    let reclaim =
        Reclaim::begin(&mut maintainer.checkpoints.durable, &store.shared, SpaceLimit::Tight).unwrap();
    assert_eq!(reclaim.unwrap().victim, worst, "{before:?}, live {live:?}");
}

#[test]
fn a_store_within_its_limit_is_not_changed() {
    let (_writer, store, mut maintainer) = swept(|_| false);
    let before = sizes(&maintainer);
    assert!(
        Reclaim::begin(&mut maintainer.checkpoints.durable, &store.shared, SpaceLimit::Normal)
            .unwrap()
            .is_none()
    );
    assert_eq!(maintainer.compact_step(1000).unwrap(), CompactProgress::Idle);
    assert_eq!(sizes(&maintainer), before);
}

#[test]
fn reads_do_not_change_when_every_file_is_emptied() {
    let (_writer, store, mut maintainer) = swept(|key| key % 3 == 0);
    let all = || store.range(&KeyRange::all(), 0, &RangeOptions::default()).unwrap().kvs;
    let (before, hash) = (all(), store.hash_kv(0).unwrap().hash);
    let victims: Vec<u64> = sizes(&maintainer).into_iter().map(|(number, _)| number).collect();
    for victim in victims {
        maintainer.checkpoints.durable.files.close(victim).unwrap();
        let mut reclaim = Reclaim { victim, from: Revision::first_of(0) };
        while !reclaim.step(&mut maintainer.checkpoints.durable, &store.shared).unwrap() {}
        assert!(
            sizes(&maintainer).iter().all(|(number, _)| *number != victim),
            "file {victim} is still there"
        );
        assert_eq!((all(), store.hash_kv(0).unwrap().hash), (before.clone(), hash), "file {victim}");
    }
    let (stored, live) = store.shared.state.read(crate::LockPurpose::Lookup).block_table.bytes();
    assert_eq!(stored, live, "what was moved is wholly alive");
}

#[test]
fn a_damaged_block_is_not_moved() {
    let (_writer, store, mut maintainer) = swept(|_| false);
    let block = store.shared.state.read(crate::LockPurpose::Lookup).block_table.get(0).unwrap().clone();
    let location = block.location().unwrap();
    let file = maintainer.checkpoints.durable.backend.open_file(location.number).unwrap();
    file.write_at(b"?", location.offset + 60).unwrap();
    maintainer.checkpoints.durable.files.close(location.number).unwrap();
    let mut reclaim = Reclaim { victim: location.number, from: Revision::first_of(0) };
    let moved = reclaim.step(&mut maintainer.checkpoints.durable, &store.shared);
    assert!(matches!(moved, Err(crate::Error::Corrupt { .. })), "{moved:?}");
}
