//! Memory of large reads. A result takes the memory of its pairs, not that of their blocks. A range
//! read in parts takes only locations.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use bytes::Bytes;
use mvcc::{KeyRange, LogPosition, RangeOptions, SledBackend, Store, StoreOptions, Writer};

const KEYS: u64 = 30_000;
const VALUE_BYTES: usize = 256;

/// Returns keys in an order unrelated to the order of writing.
fn key(number: u64) -> [u8; 8] {
    (number * 7919 % KEYS).to_be_bytes()
}

/// Creates a store with all blocks on disk: the cache has space for two.
fn scattered(dir: &std::path::Path) -> (Writer, Store) {
    let options = StoreOptions { cache_bytes: 128 << 10, ..StoreOptions::default() };
    let open = || mvcc::open(Box::new(SledBackend::open(dir).unwrap()), options).unwrap();
    let (mut writer, store, mut maintainer) = open();
    for number in 0..KEYS {
        writer.begin().put(&key(number), &[number as u8; VALUE_BYTES], 0);
    }
    writer.end_entry(LogPosition::new(1, 1)).unwrap();
    maintainer.persist().unwrap();
    drop((writer, store, maintainer));
    let (writer, store, _) = open();
    (writer, store)
}

#[test]
fn a_pinned_range_takes_little_memory_however_much_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (_writer, store) = scattered(dir.path());
    let mut seen = 0;
    let counted = allocation_counter::measure(|| {
        let held = store.pin_range(&KeyRange::all(), 0, 0, 0, &(), |kv| kv.value.len() as u32).unwrap();
        assert_eq!(held.sizes(0..held.len()).map(u64::from).sum::<u64>(), KEYS * VALUE_BYTES as u64);
        assert_eq!((held.len() as u64, held.count as u64), (KEYS, KEYS));
        for start in (0..held.len()).step_by(3000) {
            // Each pair is copied to its position, like in a window of a response.
            let mut window = vec![0; 3000 * VALUE_BYTES];
            held.visit(start..(start + 3000).min(held.len()), |number, kv| {
                assert_eq!(kv.key[..], (number as u64).to_be_bytes());
                window[(number - start) * VALUE_BYTES..][..VALUE_BYTES].copy_from_slice(kv.value);
                seen += 1;
            })
            .unwrap();
        }
    });
    assert_eq!(seen, KEYS);
    let grown = counted.bytes_max;
    // Half a megabyte of locations, a window of 0.75 MB with its order, and a block as stored and as
    // decoded. All pairs would take 12 MB.
    assert!(grown < 4 << 20, "{grown} bytes while {KEYS} pairs were read");
}

#[test]
fn a_range_over_scattered_keys_keeps_its_pairs_and_not_their_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let (_writer, store) = scattered(dir.path());
    let mut found = None;
    let counted = allocation_counter::measure(|| {
        found = Some(store.range(&KeyRange::all(), 0, &RangeOptions::default()).unwrap());
    });
    let (found, grown) = (found.unwrap(), counted.bytes_max);
    assert_eq!(found.kvs.len() as u64, KEYS);
    for (number, kv) in (0..KEYS).map(|number| (number, &found.kvs[(number * 7919 % KEYS) as usize])) {
        assert_eq!(kv.key, Bytes::copy_from_slice(&key(number)));
        assert!(kv.value.iter().all(|byte| *byte == number as u8) && kv.value.len() == VALUE_BYTES);
    }
    // The pairs take 12 MB. A block of 64 KiB for each of them would take 2 GB.
    assert!(grown < 64 << 20, "{grown} bytes for {KEYS} pairs");
}

#[test]
fn a_store_knows_whether_it_fits_in_its_cache() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, store) = scattered(dir.path());
    assert!(!store.fits_in_cache(), "eight megabytes, and two blocks");
    drop((writer, store));
    let (_writer, store, _) =
        mvcc::open(Box::new(SledBackend::open(dir.path()).unwrap()), StoreOptions::default()).unwrap();
    assert!(store.fits_in_cache());
}
