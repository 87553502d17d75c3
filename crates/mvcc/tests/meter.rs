//! Metered reads: limited in memory, and stopped between two steps.

use std::cell::Cell;

use mvcc::{Error, Fetch, KeyRange, MemoryBackend, Meter, RangeOptions, Store, StoreOptions, Writer};

const KEYS: usize = 5000;
const VALUE_BYTES: usize = 100;

fn filled() -> (Writer, Store) {
    let backend = Box::new(MemoryBackend::default());
    let (mut writer, store, _maintainer) =
        mvcc::open(backend, StoreOptions::default()).expect("an empty store opens");
    for number in 0..KEYS {
        let mut revision = writer.begin();
        revision.put(format!("k{number:05}").as_bytes(), &[b'v'; VALUE_BYTES], 0);
        revision.finish();
    }
    (writer, store)
}

/// Counting meter. Stops the read when it holds more than `bytes_max`, or after a number of calls.
struct Counting {
    bytes_max: u64,
    calls_max: u64,
    pairs: Cell<u64>,
    bytes: Cell<u64>,
    calls: Cell<u64>,
}

impl Counting {
    fn new(bytes_max: u64, calls_max: u64) -> Self {
        let (pairs, bytes, calls) = (Cell::new(0), Cell::new(0), Cell::new(0));
        Counting { bytes_max, calls_max, pairs, bytes, calls }
    }
}

impl Meter for Counting {
    fn hold(&self, pairs: u64, bytes: u64) -> mvcc::Result<()> {
        self.pairs.set(self.pairs.get() + pairs);
        self.bytes.set(self.bytes.get() + bytes);
        self.calls.set(self.calls.get() + 1);
        let is_over = self.bytes.get() > self.bytes_max || self.calls.get() > self.calls_max;
        if is_over { Err(Error::Interrupted) } else { Ok(()) }
    }
}

#[test]
fn everything_held_is_counted_for_every_kind_of_fetch() {
    let (_writer, store) = filled();
    let at_least = |key_bytes, value_bytes| (2 * KEYS * (key_bytes + value_bytes)) as u64;
    for (fetch, pairs, bytes) in [
        (Fetch::Full, KEYS as u64, at_least(6, VALUE_BYTES)),
        (Fetch::KeysOnly, KEYS as u64, at_least(6, 0)),
        (Fetch::CountOnly, 0, 0),
    ] {
        let meter = Counting::new(u64::MAX, u64::MAX);
        let options = RangeOptions { limit: 0, fetch };
        let read = store.range_metered(&KeyRange::all(), 0, &options, &meter).unwrap();
        assert_eq!(read, store.range(&KeyRange::all(), 0, &options).unwrap());
        assert_eq!(meter.pairs.get(), pairs, "{fetch:?}");
        assert!(meter.bytes.get() >= bytes && meter.bytes.get() <= bytes + bytes / 4, "{fetch:?}");
    }
}

#[test]
fn a_read_exceeds_its_bound_by_one_step_at_most() {
    let (_writer, store) = filled();
    for fetch in [Fetch::Full, Fetch::KeysOnly] {
        let meter = Counting::new(20_000, u64::MAX);
        let options = RangeOptions { limit: 0, fetch };
        let refused = store.range_metered(&KeyRange::all(), 0, &options, &meter);
        assert!(matches!(refused, Err(Error::Interrupted)), "{fetch:?}");
        let step = 2 * (64 << 10) + 20_000;
        assert!(meter.bytes.get() <= step, "{fetch:?}: {}", meter.bytes.get());
    }
}

#[test]
fn every_long_read_can_be_stopped() {
    let (mut writer, store) = filled();
    let old = store.revision();
    // A new record in every leaf of the index: a count at the previous revision examines each key.
    for number in (0..KEYS).step_by(50) {
        let mut revision = writer.begin();
        revision.put(format!("k{number:05}").as_bytes(), b"new", 0);
        revision.finish();
    }
    let stopped = || Counting::new(u64::MAX, 2);
    let count = RangeOptions { limit: 0, fetch: Fetch::CountOnly };
    let counted = store.range_metered(&KeyRange::all(), old, &count, &stopped());
    assert!(matches!(counted, Err(Error::Interrupted)), "a count at an old revision");
    let full = RangeOptions::default();
    let read = store.range_metered(&KeyRange::all(), old, &full, &stopped());
    assert!(matches!(read, Err(Error::Interrupted)), "a range");
    assert!(matches!(store.hash_kv_metered(0, &stopped()), Err(Error::Interrupted)), "a hash");
    let held = store.pin_range(&KeyRange::all(), 0, 0, 0, &stopped(), |_| 1);
    assert!(matches!(held, Err(Error::Interrupted)), "a large range");
}
