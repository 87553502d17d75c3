//! Streams that the hub closes, as seen by their clients.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use ::watch::{CreateRequest, Encoder, WatchLimits};
use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use mvcc::{LogPosition, MemoryBackend, StoreOptions, Writer};
use testkit::process::PATIENCE;
use tokio::io::{DuplexStream, duplex};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use tonic::Status;
use tonic::body::Body;

use super::serve::deliver;
use crate::member::{WatchRequest, WatchThread, Watching};
use admission::{ClientId, Holder};
use grpc_server::http2::{
    Answer, BegunCall, CallHandler, ConnectionLimits, Replies, Requests, Room, SendNow, Services, serve,
};

/// Exceeds the window of a client that does not read.
const LARGE_BYTES: usize = 1 << 20;
const WINDOW_BYTES: usize = 65_535;

/// Streams that watch all keys starting at the first revision. The hub closes them when it is notified.
#[derive(Clone)]
struct WatchedStreams {
    watching: Watching,
    end: Arc<Notify>,
}

impl CallHandler for WatchedStreams {
    /// True for streams that the hub closes.
    type Call = bool;
    type Long = Infallible;

    fn of(&self, _connection: &auth::Connection, _holder: &Arc<Holder>) -> WatchedStreams {
        self.clone()
    }

    fn begin(
        &self,
        path: &str,
        _headers: &HeaderMap,
        _timeout: Option<&[u8]>,
    ) -> Result<BegunCall<bool>, Status> {
        Ok(BegunCall::Stream(path == "/ended"))
    }

    fn deadline(_call: &bool) -> Option<Instant> {
        None
    }

    fn user(_call: &bool) -> Option<u64> {
        None
    }

    fn answer_now(&self, _call: &bool, _message: &Bytes, _send: &mut SendNow<'_>) -> bool {
        false
    }

    async fn unary(&self, _: bool, _: Bytes, _: Room<'_>) -> Result<Answer<Infallible>, Status> {
        unreachable!("all calls are streams")
    }

    async fn stream(&self, is_ended: bool, _requests: Requests, replies: Replies) -> Status {
        let stream = self.watching.open(ClientId::alone(1)).await.unwrap();
        let (key, range_end) = (Bytes::from_static(b"\0"), Bytes::from_static(b"\0"));
        let request = CreateRequest { key, range_end, start_revision: 1, ..CreateRequest::default() };
        stream.place().await;
        stream.request(WatchRequest::Create(request)).await.unwrap();
        let ending = async {
            self.end.notified().await;
            stream.end();
            std::future::pending().await
        };
        tokio::select! {
            status = deliver(&stream, Encoder::new(1, 2, 4 << 20), || 3, replies) => status,
            status = ending, if is_ended => status,
        }
    }
}

struct WatchBench {
    writer: Writer,
    thread: WatchThread,
    client: SendRequest<Bytes>,
    end: Arc<Notify>,
}

impl WatchBench {
    /// Returns a bench with this value in the store.
    async fn new(value: &[u8]) -> WatchBench {
        let (mut writer, store, _) =
            mvcc::open(Box::new(MemoryBackend::default()), StoreOptions::default()).unwrap();
        writer.begin().put(b"k", value, 0);
        writer.end_entry(LogPosition::new(1, 1)).unwrap();
        let thread = WatchThread::start(store, WatchLimits::default(), |fatal| panic!("{fatal:?}")).unwrap();
        let (ours, theirs) = duplex(64 << 10);
        let end = Arc::new(Notify::new());
        tokio::spawn(serve_watched(
            ours,
            WatchedStreams { watching: thread.watching(), end: Arc::clone(&end) },
        ));
        let (client, connection) = h2::client::handshake(theirs).await.unwrap();
        tokio::spawn(connection);
        WatchBench { writer, thread, client, end }
    }

    /// Opens a stream; its request side stays open, like a watcher's.
    async fn open(&self, path: &str) -> (RecvStream, SendStream<Bytes>) {
        let request =
            Request::post(format!("http://localhost{path}")).header("content-type", "application/grpc");
        let request = request.body(()).unwrap();
        let mut client = self.client.clone().ready().await.unwrap();
        let (response, requests) = client.send_request(request, false).unwrap();
        (timeout(PATIENCE, response).await.unwrap().unwrap().into_body(), requests)
    }

    /// Applies an entry, after which the hub checks the memory of streams.
    fn put(&mut self, index: u64) {
        self.writer.begin().put(b"other", b"small", 0);
        self.writer.end_entry(LogPosition::new(index, 1)).unwrap();
    }
}

async fn serve_watched(io: DuplexStream, streams: WatchedStreams) {
    let limits = ConnectionLimits::for_tests(1 << 20);
    let http = tower::service_fn(|request: Request<Body>| async {
        Ok::<_, Infallible>(Response::new(request.into_body()))
    });
    let (_stops, stop) = watch::channel(false);
    serve(io, Services { calls: streams, http }, limits, Arc::default(), Holder::new(), stop).await;
}

/// Reads until there are `wanted` bytes, and gives their window back if `releases`.
async fn read(body: &mut RecvStream, wanted: usize, releases: bool) {
    let mut bytes = 0;
    while bytes < wanted {
        let data = timeout(PATIENCE, body.data()).await.unwrap().expect("more data").expect("an open stream");
        bytes += data.len();
        if releases {
            body.flow_control().release_capacity(data.len()).unwrap();
        }
    }
}

#[tokio::test]
async fn a_client_that_stops_inside_a_response_has_its_stream_reset_when_the_hub_ends_it() {
    let mut bench = WatchBench::new(&[7; LARGE_BYTES]).await;
    let (mut stopped, requests) = bench.open("/ended").await;
    read(&mut stopped, WINDOW_BYTES, false).await;
    bench.end.notify_one();
    let reset =
        timeout(PATIENCE, stopped.data()).await.unwrap().expect("no end inside a message").unwrap_err();
    assert_eq!(reset.reason(), Some(Reason::REFUSED_STREAM));
    // The client gives the window back with the last handle of the stream.
    drop((stopped, requests));
    // The connection's other streams continue, and no memory is held for the closed one.
    let (mut going, _requests) = bench.open("/watched").await;
    read(&mut going, LARGE_BYTES, true).await;
    let held = |bench: &WatchBench| bench.thread.watching().stats().handed_bytes;
    let freed = timeout(PATIENCE, async {
        for index in 2.. {
            bench.put(index);
            tokio::time::sleep(Duration::from_millis(5)).await;
            if held(&bench) == 0 {
                return;
            }
        }
    });
    freed.await.unwrap_or_else(|_| panic!("{} bytes are held", held(&bench)));
    bench.thread.stop();
}

#[tokio::test]
async fn a_client_between_two_responses_reads_the_status_when_the_hub_ends_its_stream() {
    let bench = WatchBench::new(b"small").await;
    let (mut body, _requests) = bench.open("/ended").await;
    read(&mut body, 1, true).await;
    bench.end.notify_one();
    while let Some(data) = timeout(PATIENCE, body.data()).await.unwrap() {
        body.flow_control().release_capacity(data.unwrap().len()).unwrap();
    }
    let trailers: HeaderMap = body.trailers().await.unwrap().expect("a status");
    assert_eq!(trailers["grpc-status"], "14");
    assert_eq!(trailers["grpc-message"], "etcdserver:%20watch%20canceled");
    bench.thread.stop();
}
