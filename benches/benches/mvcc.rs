//! The store's verbs, on memory and on disk. A put is measured with everything that it causes later: its
//! share of sealing, compressing and persisting.

use std::hint::black_box;
use std::time::Duration;

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use mvcc::{
    Backend, CompactProgress, Fetch, KeyRange, LogPosition, Maintainer, MemoryBackend, Pressure,
    RangeOptions, SledBackend, Store, StoreOptions, Writer,
};
use tempfile::TempDir;

const VALUE_BYTES: usize = 256;
const KEYS: u64 = 100_000;

struct Home {
    writer: Writer,
    store: Store,
    maintainer: Maintainer,
    next: u64,
    _dir: Option<TempDir>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Memory,
    Sled,
}

impl Home {
    fn new(kind: Kind) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (backend, dir): (Box<dyn Backend>, _) = match kind {
            Kind::Memory => (Box::new(MemoryBackend::new()), None),
            Kind::Sled => (Box::new(SledBackend::open(dir.path()).expect("a fresh store")), Some(dir)),
        };
        let (writer, store, maintainer) =
            mvcc::open(backend, StoreOptions::default()).expect("a fresh store");
        Home { writer, store, maintainer, next: 0, _dir: dir }
    }

    /// One put; every hundredth ends an entry, and a checkpoint is persisted when it is due.
    fn put(&mut self, value: &mut [u8; VALUE_BYTES]) {
        let key = (self.next % KEYS).to_be_bytes();
        scramble(value, self.next);
        self.writer.begin().put(&key, value, 0);
        self.next += 1;
        if self.next.is_multiple_of(100) {
            let applied = LogPosition::new(self.next, 1);
            if self.writer.end_entry(applied).expect("in order") != Pressure::Calm {
                self.maintainer.persist().expect("a disk with room");
            }
        }
    }

    fn filled(kind: Kind, puts: u64) -> Self {
        let (mut home, mut value) = (Home::new(kind), [0; VALUE_BYTES]);
        for _ in 0..puts {
            home.put(&mut value);
        }
        home.maintainer.persist().expect("a disk with room");
        home
    }
}

/// Bytes that do not compress.
fn scramble(value: &mut [u8], seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in value.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes());
    }
}

fn puts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("mvcc put");
    group.throughput(Throughput::Elements(1));
    for kind in [Kind::Memory, Kind::Sled] {
        let (mut home, mut value) = (Home::new(kind), [0; VALUE_BYTES]);
        group.bench_function(format!("{kind:?}"), |bencher| bencher.iter(|| home.put(&mut value)));
    }
    group.finish();
}

fn reads(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("mvcc range");
    for kind in [Kind::Memory, Kind::Sled] {
        let home = Home::filled(kind, KEYS);
        let hot = KeyRange::one(Bytes::copy_from_slice(&777u64.to_be_bytes()));
        group.bench_function(format!("one hot key, {kind:?}"), |bencher| {
            bencher.iter(|| home.store.range(black_box(&hot), 0, &RangeOptions::default()));
        });
        let thousand = KeyRange::new(
            Bytes::copy_from_slice(&5000u64.to_be_bytes()),
            Bytes::copy_from_slice(&6000u64.to_be_bytes()),
        );
        group.bench_function(format!("1000 keys, {kind:?}"), |bencher| {
            bencher.iter(|| home.store.range(black_box(&thousand), 0, &RangeOptions::default()));
        });
        let count = RangeOptions { limit: 0, fetch: Fetch::CountOnly };
        group.bench_function(format!("count 100,000 keys, {kind:?}"), |bencher| {
            bencher.iter(|| home.store.range(black_box(&KeyRange::all()), 0, &count));
        });
    }
    group.finish();
}

fn compaction(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("mvcc compact");
    group.sample_size(10).measurement_time(Duration::from_secs(1));
    group.throughput(Throughput::Elements(KEYS));
    for kind in [Kind::Memory, Kind::Sled] {
        group.bench_function(format!("100,000 superseded, {kind:?}"), |bencher| {
            bencher.iter_batched(|| Home::filled(kind, 2 * KEYS), compact, BatchSize::PerIteration);
        });
    }
    group.finish();
}

fn compact(mut home: Home) -> Home {
    home.writer.compact(home.store.revision()).expect("the first compaction");
    home.writer.end_entry(LogPosition::new(home.next + 1, 1)).expect("in order");
    while home.maintainer.compact_step(1000).expect("sound blocks") == CompactProgress::More {}
    home
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .measurement_time(Duration::from_secs(1))
        .warm_up_time(Duration::from_millis(300));
    targets = puts, reads, compaction
}
criterion_main!(benches);
