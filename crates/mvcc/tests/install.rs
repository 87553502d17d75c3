//! A checkpoint is transferred from one store to another and replaces its state, while readers and a
//! writer are active. See `install_crash` for crashes.

use crate::common::location::Location;
use crate::common::member::{Member, chunks, leader, receive};
use crate::common::tiny_options;
use bytes::Bytes;
use mvcc::{Backend, CompactProgress, Error, LogPosition, MemoryBackend, Staging, Store};

#[test]
fn what_was_exported_is_what_is_installed() {
    let leader = leader();
    for home in Location::both() {
        for bytes_max in [40, 1000, 1 << 20] {
            let mut follower = home.open();
            let export = leader.maintainer.export();
            assert_eq!(
                (export.applied(), export.revision()),
                (leader.oracle.applied, leader.oracle.revision())
            );
            assert!(export.bytes() > 1000);
            let chunks = chunks(export, bytes_max);
            assert!(chunks.iter().all(|chunk| chunk.len() <= bytes_max));
            let staged = receive(&home, &chunks).unwrap();
            assert_eq!(home.staged(), Some(leader.oracle.applied));
            assert_eq!(staged.applied(), leader.oracle.applied);
            assert_eq!(follower.maintainer.install(staged).unwrap(), leader.oracle.applied);
            assert_eq!(home.staged(), None);
            leader.oracle.check_all(&follower.store);
            assert_eq!(follower.store.hash_kv(0).unwrap().hash, leader.oracle.hash(leader.oracle.revision()));

            // It continues, and a restart finds the same.
            follower.oracle = leader.oracle.clone();
            follower.entries(200..=230);
            follower.compact(5);
            follower.settle();
            follower.check();
            let Member { oracle, writer, store, maintainer } = follower;
            drop((writer, store, maintainer));
            oracle.check_all(&home.open().store);
            // The next round starts without the store.
            home.wipe();
        }
    }
}

#[test]
fn an_export_does_not_change_with_its_store() {
    for source in Location::both() {
        let mut leader = source.open();
        leader.entries(1..=80);
        leader.settle();
        let (mut export, expected) = (leader.maintainer.export(), leader.oracle.clone());
        let mut sent = vec![export.next(200).unwrap().unwrap()];
        // Everything in the export is overwritten, compacted, moved, and its files are removed.
        leader.entries(100..=250);
        leader.compact(0);
        leader.settle();
        while leader.maintainer.reclaim_step(50).unwrap() != CompactProgress::Idle {}
        leader.check();
        sent.extend(chunks(export, 200));
        let home = Location::Memory(MemoryBackend::new());
        let mut follower = home.open();
        follower.maintainer.install(receive(&home, &sent).unwrap()).unwrap();
        expected.check_all(&follower.store);
    }
}

#[test]
fn an_empty_store_is_transferred() {
    for home in Location::both() {
        let leader = Location::Memory(MemoryBackend::new()).open();
        let mut follower = home.open();
        let staged = receive(&home, &chunks(leader.maintainer.export(), 64)).unwrap();
        assert_eq!((staged.applied(), staged.revision()), (LogPosition::default(), 1));
        follower.maintainer.install(staged).unwrap();
        follower.entries(1..=3);
        follower.check();
    }
}

#[test]
fn unpersisted_changes_are_lost_with_the_old_store() {
    let leader = leader();
    for home in Location::both() {
        let mut follower = home.open();
        follower.entries(1..=9);
        follower.maintainer.persist().unwrap();
        follower.entries(10..=15);
        follower.writer.begin().put(b"half", b"an entry", 0);
        let staged = receive(&home, &chunks(leader.maintainer.export(), 500)).unwrap();
        follower.maintainer.install(staged).unwrap();
        leader.oracle.check_all(&follower.store);
        // The lost changes do not return with the next checkpoint.
        follower.oracle = leader.oracle.clone();
        follower.entries(400..=401);
        follower.maintainer.persist().unwrap();
        follower.check();
    }
}

#[test]
fn handles_and_pairs_stay_valid_after_an_install() {
    let leader = leader();
    for home in Location::both() {
        let mut follower = home.open();
        follower.entries(1..=20);
        follower.maintainer.persist().unwrap();
        let (clone, held) = (follower.store.clone(), read_all(&follower.store));
        let copy: Vec<_> = held.iter().map(|kv| (kv.key.to_vec(), kv.value.to_vec())).collect();
        let staged = receive(&home, &chunks(leader.maintainer.export(), 500)).unwrap();
        follower.maintainer.install(staged).unwrap();
        leader.oracle.check_all(&clone);
        assert!(held.iter().map(|kv| (kv.key.to_vec(), kv.value.to_vec())).eq(copy));
    }
}

fn read_all(store: &Store) -> Vec<mvcc::KeyValue> {
    store.range(&mvcc::KeyRange::all(), 0, &mvcc::RangeOptions::default()).unwrap().kvs
}

#[test]
fn two_installs_in_a_row_end_in_the_second() {
    for home in Location::both() {
        let mut leader = Location::Memory(MemoryBackend::new()).open();
        let mut follower = home.open();
        for round in 0..3 {
            leader.entries(round * 50 + 1..=round * 50 + 40);
            leader.compact(3);
            leader.settle();
            let staged = receive(&home, &chunks(leader.maintainer.export(), 300)).unwrap();
            follower.maintainer.install(staged).unwrap();
            leader.oracle.check_all(&follower.store);
            // Reads fill the cache with blocks of this store. The next store uses the same numbers.
            read_all(&follower.store);
        }
    }
}

#[test]
fn a_new_stream_replaces_an_aborted_one() {
    let leader = leader();
    let all = chunks(leader.maintainer.export(), 300);
    for home in Location::both() {
        let mut follower = home.open();
        for count in [0, 1, all.len() / 2, all.len() - 1] {
            let mut staging = Staging::begin(home.incoming(), &tiny_options()).unwrap();
            all[..count].iter().for_each(|chunk| staging.add(chunk).unwrap());
            assert!(matches!(staging.finish(), Err(Error::Corrupt { .. })), "{count} chunks are no store");
            assert_eq!(home.staged(), None);
            assert!(matches!(home.finish_install(), Err(Error::Refused { .. })));
        }
        let staged = receive(&home, &all).unwrap();
        follower.maintainer.install(staged).unwrap();
        leader.oracle.check_all(&follower.store);
    }
}

#[test]
fn a_slot_in_use_is_not_received_into() {
    let leader = leader();
    for home in Location::both() {
        let mut member = home.open();
        member.entries(1..=3);
        member.maintainer.persist().unwrap();
        drop(member);
        let begun = Staging::begin(home.backend(), &tiny_options());
        assert!(matches!(begun, Err(Error::Refused { .. })));
        assert_eq!(home.open().store.revision(), 4);
        drop(receive(&home, &chunks(leader.maintainer.export(), 999)).unwrap());
    }
}

#[test]
fn every_flipped_bit_of_the_stream_is_noticed_before_anything_is_complete() {
    let (leader, home) = (leader(), Location::Memory(MemoryBackend::new()));
    let intact = chunks(leader.maintainer.export(), 400);
    for (number, chunk) in intact.iter().enumerate() {
        for position in (0..chunk.len()).step_by(5) {
            let mut damaged = intact.clone();
            let mut bytes = chunk.to_vec();
            bytes[position] ^= 1 << (position % 8);
            damaged[number] = Bytes::from(bytes);
            let received = receive(&home, &damaged);
            assert!(matches!(received, Err(Error::Corrupt { .. })), "chunk {number}, byte {position}");
            assert_eq!(home.staged(), None);
        }
    }
}

#[test]
fn after_a_damaged_chunk_nothing_more_is_accepted() {
    let (leader, home) = (leader(), Location::Memory(MemoryBackend::new()));
    let chunks = chunks(leader.maintainer.export(), 400);
    let mut staging = Staging::begin(home.incoming(), &tiny_options()).unwrap();
    staging.add(&chunks[0]).unwrap();
    assert!(staging.add(b"garbage").is_err());
    assert!(matches!(staging.add(&chunks[1]), Err(Error::Poisoned)));
    assert!(matches!(staging.finish(), Err(Error::Poisoned)));
}

#[test]
fn a_damaged_block_is_not_sent() {
    let backend = MemoryBackend::new();
    let mut leader = Location::Memory(backend.clone()).open();
    leader.entries(1..=60);
    leader.settle();
    let mut disk = backend.clone();
    let number = disk.files().unwrap()[0];
    disk.open_file(number).unwrap().write_at(b"?", 24 + 60).unwrap();
    let mut export = leader.maintainer.export();
    let outcome = loop {
        match export.next(300) {
            Ok(Some(_)) => {}
            other => break other,
        }
    };
    let error = outcome.unwrap_err();
    assert!(
        matches!(&error, Error::Corrupt { file, offset: 24, .. } if file.contains("block file")),
        "{error}"
    );
}
