//! Connections without HTTP: half a preface, half a head, no bytes at all; more connections than
//! descriptors.

use std::io;
use std::time::Duration;

use api::etcdserverpb::PutRequest;
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::ground::{AttackPace, Ground};
use crate::attack::http2::connection::dial;
use crate::attack::http2::{frame, requests};

/// Connections to each of the two ports.
const STALLED: usize = 1_000;
const SLOW_HEADS: usize = 1_000;
/// Delay before a closed connection is opened again; bounds the rate of new connections.
const REST: Duration = Duration::from_secs(1);

/// Half a preface on the clients' and on the peers' port.
pub async fn stalled_prefaces(ground: Ground) {
    let (peers, clients) = (ground.clone(), ground.clone());
    tokio::join!(
        clients.keep(STALLED, |ground| stalled(ground.client_port(), ground)),
        peers.keep(STALLED, |ground| stalled(ground.peer_port(), ground)),
    );
}

async fn stalled(port: u16, ground: Ground) -> io::Result<()> {
    let outcome = async {
        let mut stream = dial(port).await?;
        stream.write_all(&frame::PREFACE[..7]).await?;
        ground.ledger.add_acts(1);
        until_closed(&mut stream).await
    };
    rested(outcome.await).await
}

/// HTTP/1 heads, one byte a second.
pub async fn slow_heads(ground: Ground) {
    ground.keep(SLOW_HEADS, slow_head).await;
}

async fn slow_head(ground: Ground) -> io::Result<()> {
    let outcome = async {
        let mut stream = dial(ground.client_port()).await?;
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ").await?;
        ground.ledger.add_acts(1);
        loop {
            let closed = tokio::time::timeout(Duration::from_secs(1), until_closed(&mut stream)).await;
            if let Ok(closed) = closed {
                return closed;
            }
            stream.write_all(b"x").await?;
        }
    };
    rested(outcome.await).await
}

/// With this limit, a member has fewer descriptors than the idle connections would take.
pub const DESCRIPTORS_MAX: u32 = 200;
const IDLE: usize = 260;
const PUT_BYTES: usize = 1 << 20;
const PUTS_PER_SECOND: u64 = 10;
/// Delay of the idle connections: the connection for puts must be open before them.
const HEAD_START: Duration = Duration::from_millis(500);

/// Idle connections take all descriptors while puts make the server open files.
pub async fn descriptors(ground: Ground) {
    let (idle, puts) = (ground.clone(), ground.clone());
    tokio::join!(puts.keep(1, large_puts), async {
        tokio::time::sleep(HEAD_START).await;
        idle.keep(IDLE, idle_connection).await;
    });
}

async fn idle_connection(ground: Ground) -> io::Result<()> {
    let outcome = async {
        let mut stream = dial(ground.client_port()).await?;
        ground.ledger.add_acts(1);
        until_closed(&mut stream).await
    };
    rested(outcome.await).await
}

async fn large_puts(ground: Ground) -> io::Result<()> {
    let mut kv = requests::kv(ground.client_port()).await?;
    let mut pace = AttackPace::new(PUTS_PER_SECOND);
    for number in (0u8..=u8::MAX).cycle() {
        let (key, value) = (Bytes::from(vec![b'd', number]), Bytes::from(vec![number; PUT_BYTES]));
        kv.put(PutRequest { key, value, ..PutRequest::default() }).await.map_err(io::Error::other)?;
        ground.ledger.add_acts(1);
        pace.take(1).await;
    }
    Ok(())
}

/// Reads until the server closes the connection.
async fn until_closed(stream: &mut TcpStream) -> io::Result<()> {
    let mut bytes = [0; 512];
    while stream.read(&mut bytes).await? > 0 {}
    Err(io::ErrorKind::ConnectionReset.into())
}

async fn rested(outcome: io::Result<()>) -> io::Result<()> {
    tokio::time::sleep(REST).await;
    outcome
}
