//! Connections of a whole member, from the bytes of a client to those of its answers.

mod allocations; // of hot calls
mod at_once; // calls that are answered while their request is looked at
mod idle; // memory of connections without calls
mod page_cost; // processor time and memory of the status page
mod unnamed; // calls without a token

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, Waker};

use ::http2::HeaderBlock;
use parking_lot::Mutex;
use testkit::process::PATIENCE;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use super::*;
use crate::listeners::ClientServices;
use admission::Holder;
use auth::Connection;
use config::flags::{self, ParsedFlags};
use grpc_server::Ends;
use grpc_server::http2::{CallHandler, Services, serve};
use process::shutdown::Stop;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const RST_STREAM: u8 = 3;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// What a client sends first. Its windows take every answer.
fn hello() -> Vec<u8> {
    let window = (1u32 << 30).to_be_bytes();
    let setting = [&[0, 4][..], &window].concat();
    let frames = [frame(SETTINGS, 0, 0, &setting), frame(WINDOW_UPDATE, 0, 0, &window)];
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frames.concat()].concat()
}

/// The head of a call.
fn head(path: &str, more: &[(&str, &[u8])]) -> HeaderBlock {
    let fields = [
        (":method", &b"POST"[..]),
        (":scheme", b"http"),
        (":path", path.as_bytes()),
        (":authority", b"localhost"),
        ("content-type", b"application/grpc"),
        ("te", b"trailers"),
    ];
    HeaderBlock::new(fields.into_iter().chain(more.iter().copied()))
}

/// A message with its prefix.
fn prefixed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat()
}

/// A member of one, which serves no port.
struct Alone {
    runtimes: Runtimes,
    running: Running,
    _stopper: Stopper,
    stop: Stop,
}

impl Alone {
    fn services(&self) -> ClientServices {
        let Running { member, leases, settings, .. } = &self.running;
        let http = listeners::http(member, leases, settings, ShownAddress::default());
        listeners::services(http, leases, settings, &self.stop)
    }

    fn stop(self) {
        let (running, runtimes) = (self.running, self.runtimes);
        runtimes.clients.block_on(running.stop(&shutdown::stop().0, &Permits::new(1))).unwrap();
        runtimes.abandon();
    }
}

fn start(path: &Path, flags: &[&str]) -> Alone {
    let arguments = [OsString::from("--data-dir"), path.as_os_str().to_owned()];
    let arguments = arguments.into_iter().chain(flags.iter().map(OsString::from));
    let Ok(ParsedFlags::Flags(flags, _)) = flags::parse(arguments, []) else { panic!("flags") };
    let settings = Settings::from_flags(&flags).unwrap();
    let directory = Directory::open(&settings.data_dir, None).unwrap();
    let runtimes = Runtimes::build(TlsOf { clients: false, peers: false }).unwrap();
    let threads = HandshakeThreads { clients: runtimes.tls().handle(), peers: runtimes.peer_tls().handle() };
    let dialer = Tls::load(&settings, directory.path(), threads).unwrap().dialer();
    let metrics = Arc::new(Metrics::default());
    let fs = bootstrap::log_fs(Arc::clone(&metrics));
    let ask =
        |identity: &Identity| runtimes.peers().block_on(peer::bootstrapped_elsewhere(&dialer, identity));
    let cluster = |urls: &[String], fits: &dyn Fn(&RunningCluster) -> bool| {
        runtimes.peers().block_on(peer::running_cluster(&dialer, urls, fits))
    };
    let established = bootstrap::establish(&settings, &directory, fs, ask, cluster).unwrap();
    let company = bootstrap::company(&settings, &established, &directory).unwrap();
    let opened = open_fitting_store(&directory, &established, company).unwrap();
    let peering = Peering { ports: Vec::new(), connections_max: 10, dialer };
    let data = MemberData { established, opened, company };
    let running = Running::start(&runtimes, settings, &directory, data, metrics, peering).unwrap();
    runtimes.clients.block_on(running.publish());
    let (_stopper, stop) = shutdown::stop();
    Alone { runtimes, running, _stopper, stop }
}

#[test]
fn a_stopping_member_waits_some_heartbeats_for_a_quorum_and_never_too_short() {
    for (heartbeat, is_removed, wanted) in
        [(100, false, 300), (500, false, 1500), (500, true, 500), (10, false, 300), (10, true, 300)]
    {
        let within = quorum_within(Duration::from_millis(heartbeat), is_removed);
        assert_eq!(within, Duration::from_millis(wanted), "{heartbeat} {is_removed}");
    }
}

/// The two ends of a socket.
#[derive(Default)]
struct Pipe {
    sent: VecDeque<u8>,
    received: Vec<u8>,
    /// The client takes nothing.
    is_full: bool,
}

#[derive(Clone, Default)]
struct TestSocket(Arc<Mutex<Pipe>>);

impl Ends for TestSocket {
    fn has_ended(&self) -> bool {
        false
    }
}

impl AsyncRead for TestSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut TaskContext<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let sent = &mut self.0.lock().sent;
        let bytes = sent.len().min(buffer.remaining());
        if bytes == 0 {
            return Poll::Pending;
        }
        sent.drain(..bytes).for_each(|byte| buffer.put_slice(&[byte]));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TestSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let mut pipe = self.0.lock();
        if pipe.is_full {
            return Poll::Pending;
        }
        pipe.received.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut TaskContext<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut TaskContext<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A connection whose task is polled here.
struct PolledConnection {
    socket: TestSocket,
    task: Pin<Box<dyn Future<Output = ()>>>,
    /// Of the next call.
    stream: u32,
}

impl PolledConnection {
    fn open(alone: &Alone) -> PolledConnection {
        let services = alone.services();
        let (client, holder) = (Connection::default(), Holder::new());
        let http = tower::service_fn(async |_| Ok(http::Response::new(tonic::body::Body::empty())));
        let served = Services { calls: services.calls.of(&client, &holder), http };
        let socket = TestSocket::default();
        let (io, limits) = (socket.clone(), services.limits);
        let task = Box::pin(async move {
            let (_stops, stop) = watch::channel(false);
            serve(io, served, limits, Arc::default(), holder, stop).await;
        });
        {
            let mut pipe = socket.0.lock();
            pipe.sent.reserve(1 << 20);
            pipe.received.reserve(1 << 20);
        }
        let connection = PolledConnection { socket, task, stream: 1 };
        connection.send(&hello());
        connection
    }

    fn send(&self, bytes: &[u8]) {
        self.socket.0.lock().sent.extend(bytes);
    }

    /// A turn of the task.
    fn poll(&mut self) {
        let mut context = TaskContext::from_waker(Waker::noop());
        assert!(self.task.as_mut().poll(&mut context).is_pending(), "the connection has ended");
    }

    /// Frames that the client received: kind, flags, stream, payload.
    fn received(&self) -> Vec<(u8, u8, u32, Vec<u8>)> {
        let (received, mut at, mut frames) = (&self.socket.0.lock().received, 0, Vec::new());
        while let Some(head) = received.get(at..at + 9) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            frames.push((head[3], head[4], stream, received[at + 9..at + 9 + length].to_vec()));
            at += 9 + length;
        }
        frames
    }
}
