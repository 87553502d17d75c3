//! Measures the memory of idle watchers, and the time to deliver an event to many watchers and
//! history to a lagging one.
//!
//! ```text
//! cargo run --release -p watch --example watchers -- [STREAMS] [WATCHERS_PER_STREAM] [KEYS]
//! ```
//!
//! The default is 10,000 streams with 100 watchers each, on 1000 keys. Measures only the hub and
//! the encoder, without clients and sockets.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a measuring tool reads the clock and talks to its user"
)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use mvcc::{LogPosition, MemoryBackend, StoreOptions, Writer};
use watch::{CreateRequest, Encoder, Hub, WatchLimits, WatchStreamId};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Resident bytes of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

fn key(number: usize) -> Vec<u8> {
    format!("/registry/pods/namespace/{number:08}").into_bytes()
}

fn put(writer: &mut Writer, index: &mut u64, key: &[u8]) {
    writer.begin().put(key, &[7; 100], 0);
    *index += 1;
    writer.end_entry(LogPosition::new(*index, 1)).unwrap();
}

/// Takes and encodes all parcels. Returns the number of bytes.
fn drain(hub: &mut Hub, streams: &mut [(WatchStreamId, Encoder)]) -> usize {
    let (mut bytes, mut pieces, mut parcels) = (0, Vec::new(), VecDeque::new());
    for (stream, encoder) in streams {
        hub.take(*stream, usize::MAX, &mut parcels);
        parcels.drain(..).for_each(|parcel| encoder.push(parcel));
        while !encoder.is_empty() {
            bytes += encoder.encode(5, 64 << 10, &mut pieces);
            pieces.clear();
        }
    }
    hub.ready();
    bytes
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>().unwrap());
    let (count, each) = (arguments.next().unwrap_or(10_000), arguments.next().unwrap_or(100));
    let keys = arguments.next().unwrap_or(1000);
    let options = StoreOptions {
        checkpoint_full_bytes: usize::MAX,
        checkpoint_due_bytes: usize::MAX,
        ..StoreOptions::default()
    };
    let (mut writer, store, _maintainer) = mvcc::open(Box::new(MemoryBackend::new()), options).unwrap();
    let mut hub = Hub::new(store.clone(), WatchLimits::default());
    let mut index = 0;

    let before = resident();
    let mut streams: Vec<(WatchStreamId, Encoder)> =
        (0..count).map(|_| (hub.open(Duration::ZERO), Encoder::new(1, 2, 1 << 20))).collect();
    let opened = resident();
    let began = Instant::now();
    for number in 0..count * each {
        let request = CreateRequest { key: key(number % keys).into(), ..CreateRequest::default() };
        hub.create(streams[number / each].0, request);
        if number % each == each - 1 {
            let slot = number / each;
            drain(&mut hub, &mut streams[slot..=slot]);
        }
    }
    let watchers = count * each;
    println!("{count} streams: {} B each", (opened - before) / count as u64);
    println!(
        "{watchers} watchers on {keys} keys: {} B each, {:.2} us to create",
        (resident() - opened) / watchers as u64,
        began.elapsed().as_secs_f64() * 1e6 / watchers as f64
    );

    let events = (2_000_000 * keys / watchers).clamp(10, 100_000);
    let (began, mut bytes) = (Instant::now(), 0);
    for number in 0..events {
        put(&mut writer, &mut index, &key(number % keys));
        hub.turn().unwrap();
        bytes += drain_ready(&mut hub, &mut streams);
    }
    let delivered = hub.stats().events;
    println!(
        "{events} events to {} watchers each: {:.0} ns per delivered event, {} B",
        watchers / keys,
        began.elapsed().as_nanos() as f64 / delivered as f64,
        bytes / delivered as usize
    );

    for number in 0..1_000_000 {
        put(&mut writer, &mut index, &key(keys + number % 1000));
    }
    while hub.has_work() {
        hub.turn().unwrap();
    }
    let start_revision = store.revision() - 999_999;
    let (stream, encoder) = (hub.open(Duration::ZERO), Encoder::new(1, 2, 1 << 20));
    let request = CreateRequest {
        key: b"/".to_vec().into(),
        range_end: b"0".to_vec().into(),
        start_revision,
        ..CreateRequest::default()
    };
    hub.create(stream, request);
    let (began, mut reader) = (Instant::now(), [(stream, encoder)]);
    let before = hub.stats().events;
    while hub.stats().events < before + 1_000_000 {
        hub.turn().unwrap();
        drain(&mut hub, &mut reader);
    }
    println!("history of 1,000,000 events: {:.0} events/s", 1e6 / began.elapsed().as_secs_f64());
}

/// Drains the streams that have parcels. Returns the number of bytes.
fn drain_ready(hub: &mut Hub, streams: &mut [(WatchStreamId, Encoder)]) -> usize {
    let ready = hub.ready();
    let mut bytes = 0;
    for stream in ready {
        let at = streams.binary_search_by_key(&stream, |known| known.0).unwrap();
        bytes += drain(hub, &mut streams[at..=at]);
    }
    bytes
}
