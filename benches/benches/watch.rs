//! The watch hub: an event to its watchers, encoded for each stream, without clients and sockets.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use mvcc::{LogPosition, Maintainer, MemoryBackend, Pressure, Store, StoreOptions, Writer};
use watch::{CreateRequest, Encoder, Hub, Parcel, WatchLimits, WatchStreamId};

const VALUE: &[u8] = &[7; 256];
/// As many bytes as the server encodes at once.
const CHUNK_BYTES: usize = 64 << 10;
const FRAGMENT_BYTES: usize = 2 << 20;
const HISTORY: usize = 100_000;

/// A member without clients: its store, its hub, and a stream and an encoder for each client.
struct Home {
    writer: Writer,
    store: Store,
    maintainer: Maintainer,
    index: u64,
    hub: Hub,
    streams: Vec<(WatchStreamId, Encoder)>,
    parcels: VecDeque<Parcel>,
    frames: Vec<Bytes>,
}

fn key(number: usize) -> Bytes {
    format!("/registry/pods/namespace/{number:08}").into()
}

impl Home {
    fn new() -> Self {
        let backend = Box::new(MemoryBackend::new());
        let (writer, store, maintainer) =
            mvcc::open(backend, StoreOptions::default()).expect("a fresh store");
        let hub = Hub::new(store.clone(), WatchLimits::default());
        let (parcels, frames) = (VecDeque::new(), Vec::new());
        Home { writer, store, maintainer, index: 0, hub, streams: Vec::new(), parcels, frames }
    }

    /// Opens streams with watchers, each of the key that `of` gives for its number.
    fn watched(mut self, streams: usize, each: usize, of: impl Fn(usize) -> CreateRequest) -> Self {
        for stream in 0..streams {
            let opened = self.hub.open(Duration::ZERO);
            self.streams.push((opened, Encoder::new(1, 2, FRAGMENT_BYTES)));
            for number in 0..each {
                self.hub.create(opened, of(stream * each + number));
                if number % 100 == 99 {
                    self.deliver();
                }
            }
        }
        self.deliver();
        self
    }

    fn put(&mut self, number: usize) {
        self.writer.begin().put(&key(number), VALUE, 0);
        self.index += 1;
        let applied = LogPosition::new(self.index, 1);
        if self.writer.end_entry(applied).expect("in order") != Pressure::Calm {
            self.maintainer.persist().expect("memory does not fail");
        }
    }

    /// Turns of the hub until nothing is left, all of it encoded.
    fn deliver(&mut self) {
        loop {
            let turn = self.hub.turn().expect("memory does not fail");
            let ready = self.hub.ready();
            for stream in &ready {
                let at = self.streams.binary_search_by_key(stream, |known| known.0).expect("an open stream");
                let encoder = &mut self.streams[at].1;
                self.hub.take(*stream, usize::MAX, &mut self.parcels);
                self.parcels.drain(..).for_each(|parcel| encoder.push(parcel));
                while !encoder.is_empty() {
                    encoder.encode(1, CHUNK_BYTES, &mut self.frames);
                    self.frames.clear();
                }
            }
            if !turn.more && ready.is_empty() {
                return;
            }
        }
    }
}

fn on(number: usize) -> CreateRequest {
    CreateRequest { key: key(number), ..CreateRequest::default() }
}

/// All keys, from a revision on.
fn all(start_revision: i64) -> CreateRequest {
    CreateRequest { key: "/".into(), range_end: "0".into(), start_revision, ..CreateRequest::default() }
}

fn events(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("watch event");
    for (streams, each) in [(1, 1), (100, 1), (1, 100), (100, 100)] {
        group.throughput(Throughput::Elements((streams * each) as u64));
        let mut home = Home::new().watched(streams, each, |_| on(0));
        group.bench_function(format!("of one key, {streams} streams of {each} watchers"), |bencher| {
            bencher.iter(|| {
                home.put(0);
                home.deliver();
            });
        });
    }
    group.throughput(Throughput::Elements(1));
    for idle in [0, 100_000] {
        let mut home = Home::new().watched(100, idle / 100, |number| on(1 + number)).watched(1, 1, |_| on(0));
        group.bench_function(format!("of one watcher, {idle} of other keys"), |bencher| {
            bencher.iter(|| {
                home.put(0);
                home.deliver();
            });
        });
    }
    group.finish();
}

fn catch_up(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("watch history");
    group.sample_size(10).throughput(Throughput::Elements(HISTORY as u64));
    let mut home = Home::new();
    (0..HISTORY).for_each(|number| home.put(number % 1000));
    let first = home.store.revision() + 1 - HISTORY as i64;
    group.bench_function(format!("{HISTORY} events to one watcher"), |bencher| {
        bencher.iter(|| {
            let stream = home.hub.open(Duration::ZERO);
            home.streams.push((stream, Encoder::new(1, 2, FRAGMENT_BYTES)));
            home.hub.create(stream, all(first));
            home.deliver();
            home.hub.close(stream);
            home.streams.pop();
            home.deliver();
        });
    });
    group.finish();
}

fn watchers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("watch create");
    group.throughput(Throughput::Elements(10_000));
    group.bench_function("10,000 watchers on 100 streams", |bencher| {
        bencher.iter_batched(
            Home::new,
            |home| home.watched(100, 100, |number| on(number % 1000)),
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .measurement_time(Duration::from_secs(1))
        .warm_up_time(Duration::from_millis(300));
    targets = events, catch_up, watchers
}
criterion_main!(benches);
