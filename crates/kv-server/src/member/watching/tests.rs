//! Tests of streams that read, stop reading and close, with a store in memory.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use mvcc::{LogPosition, MemoryBackend, StoreOptions, Writer};
use testkit::process::PATIENCE;
use tokio::time::timeout;
use watch::{CreateRequest, Encoder, Parcel, WatchLimits};

use super::stream::{HANDED_BYTES_MAX, REQUESTS_MAX};
use super::*;
use admission::ClientId;
use auth::Caller;

struct Bench {
    writer: Writer,
    thread: WatchThread,
    index: u64,
}

impl Bench {
    fn new() -> Bench {
        let (writer, store, _) =
            mvcc::open(Box::new(MemoryBackend::default()), StoreOptions::default()).unwrap();
        let thread = WatchThread::start(store, WatchLimits::default(), |fatal| panic!("{fatal:?}")).unwrap();
        Bench { writer, thread, index: 0 }
    }

    /// Applies an entry with a put of `bytes`.
    fn put(&mut self, bytes: usize) {
        self.index += 1;
        self.writer.begin().put(b"k", &vec![7; bytes], 0);
        self.writer.end_entry(LogPosition::new(self.index, 1)).unwrap();
    }

    async fn stream(&self) -> WatchStream {
        let stream = self.thread.watching().open(ClientId::alone(1)).await.unwrap();
        request(&stream, everything()).await;
        stream
    }

    async fn wait_for_watchers(&self, count: usize) {
        let waited = timeout(PATIENCE, async {
            while self.thread.watching().stats().watchers != count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        waited.await.unwrap_or_else(|_| panic!("not {count} watchers: {:?}", self.thread.watching().stats()));
    }
}

fn everything() -> WatchRequest {
    let all = Bytes::from_static(b"\0");
    WatchRequest::Create(CreateRequest { key: all.clone(), range_end: all, ..CreateRequest::default() })
}

async fn request(stream: &WatchStream, request: WatchRequest) {
    stream.place().await;
    stream.request(request).await.unwrap();
}

/// Reads until there are `wanted` encoded bytes. Returns their number.
async fn read(stream: &WatchStream, wanted: usize) -> usize {
    let (mut encoder, mut frames, mut bytes) = (Encoder::new(1, 2, 1 << 20), Vec::new(), 0);
    while bytes < wanted {
        timeout(PATIENCE, stream.read(encoder.queue())).await.expect("more to read");
        while !encoder.is_empty() {
            bytes += encoder.encode(3, 1 << 20, &mut frames);
            frames.clear();
        }
    }
    bytes
}

#[tokio::test]
async fn a_stream_that_stops_reading_is_handed_little_and_misses_nothing() {
    const PUTS: usize = 3000;
    let mut bench = Bench::new();
    let (stalled, healthy) = (bench.stream().await, bench.stream().await);
    bench.wait_for_watchers(2).await;
    for _ in 0..PUTS {
        bench.put(1000);
    }
    read(&healthy, PUTS * 1000).await;
    let mut handed: VecDeque<Parcel> = VecDeque::new();
    stalled.read(&mut handed).await;
    let bytes: usize = handed.iter().map(Parcel::bytes).sum();
    assert!(bytes <= HANDED_BYTES_MAX + 2000, "{bytes} bytes are outside of the hub");
    assert!(bytes + read(&stalled, PUTS * 1000 - bytes).await >= PUTS * 1000);
    bench.thread.stop();
}

#[tokio::test]
async fn a_dropped_stream_frees_its_watchers_also_if_its_requests_are_on_their_way() {
    let bench = Bench::new();
    for _ in 0..20 {
        let kept = bench.stream().await;
        let dropped = bench.stream().await;
        for _ in 0..20 {
            request(&dropped, everything()).await;
        }
        drop(dropped);
        bench.wait_for_watchers(1).await;
        drop(kept);
        bench.wait_for_watchers(0).await;
    }
    bench.thread.stop();
}

#[tokio::test]
async fn a_stream_whose_answers_wait_has_no_place_for_further_requests() {
    let bench = Bench::new();
    let stream = bench.stream().await;
    let mut requests = 1;
    let patience = |requests| {
        if requests < WatchLimits::default().answers_max { PATIENCE } else { Duration::from_secs(2) }
    };
    while timeout(patience(requests), stream.place()).await.is_ok() {
        stream.request(everything()).await.unwrap();
        requests += 1;
        assert!(requests < 2000, "answers wait without a bound");
    }
    assert!(requests >= WatchLimits::default().answers_max, "{requests} requests");
    read(&stream, 1).await;
    timeout(PATIENCE, async {
        while timeout(Duration::from_millis(10), stream.place()).await.is_err() {
            read(&stream, 1).await;
        }
    })
    .await
    .expect("a place when answers were read");
    bench.thread.stop();
}

#[tokio::test]
async fn a_review_needs_no_place_of_the_streams_requests() {
    let bench = Bench::new();
    let stream = bench.stream().await;
    bench.wait_for_watchers(1).await;
    for _ in 0..REQUESTS_MAX {
        timeout(PATIENCE, stream.place()).await.expect("the hub has carried out what came before");
    }
    timeout(PATIENCE, stream.review(Caller::Unnamed)).await.expect("no wait for the client").unwrap();
    bench.wait_for_watchers(0).await;
    bench.thread.stop();
}

#[tokio::test]
async fn a_stop_ends_the_thread_and_refuses_streams() {
    let bench = Bench::new();
    let (stream, watching) = (bench.stream().await, bench.thread.watching());
    bench.thread.stop();
    assert_eq!(watching.open(ClientId::alone(1)).await.err(), Some(WatchStopped));
    stream.place().await;
    assert_eq!(stream.request(WatchRequest::Progress).await, Err(WatchStopped));
}
