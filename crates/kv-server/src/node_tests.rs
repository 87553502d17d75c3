//! Allocations of hot calls on a whole member, from the bytes of a client to those of its answers.
//!
//! Counted in the task of the connection alone. The client is bytes that were made before.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, Waker};

use ::http2::HeaderBlock;
use api::etcdserverpb::{PutRequest, RangeRequest};
use parking_lot::Mutex;
use prost::Message;
use testkit::process::PATIENCE;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use super::*;
use crate::auth::Origin;
use crate::config::flags::{self, Parsed};
use crate::net::client_port::PerConnection;
use crate::net::http2::{Methods, serve};
use crate::process::shutdown::Stop;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Calls that come with one read.
const CALLS: usize = 10;
const ROUNDS: usize = 300;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A member of one, which serves no port.
struct Alone {
    runtimes: Runtimes,
    running: Running,
    _stopper: Stopper,
    stop: Stop,
}

fn start(path: &Path) -> Alone {
    let arguments = [OsString::from("--data-dir"), path.as_os_str().to_owned()];
    let Ok(Parsed::Flags(flags, _)) = flags::parse(arguments, []) else { panic!("flags") };
    let settings = Settings::from_flags(&flags).unwrap();
    let directory = Directory::open(&settings.data_dir, None).unwrap();
    let runtimes = Runtimes::build(TlsOf { clients: false, peers: false }).unwrap();
    let threads = HandshakeThreads { clients: runtimes.tls().handle(), peers: runtimes.peer_tls().handle() };
    let dialer = Tls::load(&settings, directory.path(), threads).unwrap().dialer();
    let metrics = Arc::new(Metrics::default());
    let fs = TimedFs::new(Arc::clone(&metrics));
    let ask =
        |identity: &Identity| runtimes.peers().block_on(peer::bootstrapped_elsewhere(&dialer, identity));
    let cluster = |urls: &[String]| runtimes.peers().block_on(peer::running_cluster(&dialer, urls));
    let established = bootstrap::establish(&settings, &directory, fs, ask, cluster).unwrap();
    let company = bootstrap::company(&settings, &established, &directory).unwrap();
    let opened = open_fitting_store(&directory, &established, company).unwrap();
    let peering = Peering { ports: Vec::new(), connections_max: 10, dialer };
    let parts = (established, opened, company);
    let running = Running::start(&runtimes, settings, &directory, parts, metrics, peering).unwrap();
    runtimes.clients.block_on(running.publish());
    let (_stopper, stop) = shutdown::stop();
    Alone { runtimes, running, _stopper, stop }
}

/// The socket: what the client has sent, and what it has received.
#[derive(Clone, Default)]
struct Socket(Arc<Mutex<(VecDeque<u8>, Vec<u8>)>>);

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut TaskContext<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let sent = &mut self.0.lock().0;
        let bytes = sent.len().min(buffer.remaining());
        if bytes == 0 {
            return Poll::Pending;
        }
        sent.drain(..bytes).for_each(|byte| buffer.put_slice(&[byte]));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.0.lock().1.extend_from_slice(bytes);
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
struct Connection {
    socket: Socket,
    task: Pin<Box<dyn Future<Output = ()>>>,
    stream: u32,
}

impl Connection {
    fn open(alone: &Alone) -> Connection {
        let running = &alone.running;
        let http = listeners::http(&running.member, &running.leases, &running.settings);
        let services = listeners::services(http, &running.leases, &running.settings, &alone.stop);
        let origin = Origin::default();
        let methods = Methods {
            hot: services.hot.of(&origin),
            streams: services.streams.of(&origin),
            services: services.grpc.of(&origin),
        };
        let socket = Socket::default();
        let (io, limits) = (socket.clone(), services.limits);
        let task = Box::pin(async move {
            let (_stops, stop) = watch::channel(false);
            serve(io, methods, limits, Arc::default(), stop).await;
        });
        let window = (1u32 << 30).to_be_bytes();
        let hello = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(SETTINGS, 0, 0, &[]),
            frame(WINDOW_UPDATE, 0, 0, &window),
        ];
        {
            let mut bytes = socket.0.lock();
            bytes.0.reserve(1 << 20);
            bytes.1.reserve(1 << 20);
            bytes.0.extend(hello.concat());
        }
        Connection { socket, task, stream: 1 }
    }

    /// Calls, as one read, that the task answers. How often it allocated.
    fn round(&mut self, head: &HeaderBlock, message: &[u8]) -> u64 {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let body = [&[0], &length[..], message].concat();
        for _ in 0..CALLS {
            let stream = self.stream;
            let call =
                [frame(HEADERS, END_HEADERS, stream, head.bytes()), frame(DATA, END_STREAM, stream, &body)];
            self.socket.0.lock().0.extend(call.concat());
            self.stream += 2;
        }
        let (mut allocations, began) = (0, std::time::Instant::now());
        while self.answers() < CALLS {
            assert!(began.elapsed() < PATIENCE, "{} answers", self.answers());
            let mut context = TaskContext::from_waker(Waker::noop());
            allocations += allocation_counter::measure(|| {
                assert!(self.task.as_mut().poll(&mut context).is_pending(), "the connection has ended");
            })
            .count_total;
            std::thread::yield_now();
        }
        self.socket.0.lock().1.clear();
        allocations
    }

    /// Streams that have ended in what the client received.
    fn answers(&self) -> usize {
        let (received, mut at, mut ended) = (&self.socket.0.lock().1, 0, 0);
        while let Some(head) = received.get(at..at + 9) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            ended += usize::from(head[3] == HEADERS && head[4] & END_STREAM != 0);
            at += 9 + length;
        }
        ended
    }

    /// Allocations of a call, in the steady state.
    fn allocations(&mut self, method: &str, message: &impl Message) -> f64 {
        let head = HeaderBlock::new([
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ]);
        let message = message.encode_to_vec();
        let _warm: u64 = (0..ROUNDS).map(|_| self.round(&head, &message)).sum();
        let allocations: u64 = (0..ROUNDS).map(|_| self.round(&head, &message)).sum();
        allocations as f64 / (ROUNDS * CALLS) as f64
    }
}

#[test]
fn a_range_from_memory_allocates_nothing_and_other_hot_calls_little() {
    let directory = tempfile::tempdir().unwrap();
    let alone = start(directory.path());
    let inside = alone.runtimes.clients.enter();
    let mut connection = Connection::open(&alone);
    let put =
        PutRequest { key: b"foo".as_slice().into(), value: vec![7; 256].into(), ..PutRequest::default() };
    let range = |serializable| RangeRequest {
        key: b"foo".as_slice().into(),
        serializable,
        ..RangeRequest::default()
    };
    let put = connection.allocations("/etcdserverpb.KV/Put", &put);
    let linearizable = connection.allocations("/etcdserverpb.KV/Range", &range(false));
    let serializable = connection.allocations("/etcdserverpb.KV/Range", &range(true));
    assert_eq!(serializable, 0.0);
    assert!(linearizable <= 6.1, "{linearizable}");
    assert!(put <= 7.1, "{put}");
    drop((connection, inside));
    let stopper = shutdown::stop().0;
    let (running, runtimes) = (alone.running, alone.runtimes);
    runtimes.clients.block_on(running.stop(&stopper, &Permits::new(1))).unwrap();
    runtimes.abandon();
}
