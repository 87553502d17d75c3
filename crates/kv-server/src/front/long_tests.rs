//! A long answer between the two ends of a pipe: whole, cut off, or at the pace of a client that hardly reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use h2::RecvStream;
use tokio::io::DuplexStream;
use tokio::sync::Semaphore;
use tonic::{Code, Status};

use super::*;
use crate::front::Part;

/// What byte stands where.
fn byte(position: u64) -> u8 {
    (position % 251) as u8
}

/// A message of `bytes` in parts of `part_bytes`, and how many turns there are.
struct Numbered {
    bytes: u64,
    part_bytes: u64,
    /// Where it turns out to be damaged.
    damaged_at: u64,
    turns: Arc<Semaphore>,
    asked: Arc<Mutex<Vec<u64>>>,
}

impl Numbered {
    fn new(bytes: u64, part_bytes: u64) -> Self {
        let (turns, asked) = (Arc::new(Semaphore::new(1)), Arc::default());
        Numbered { bytes, part_bytes, damaged_at: u64::MAX, turns, asked }
    }
}

impl LongAnswer for Numbered {
    async fn begin(&mut self) -> Result<u64, Status> {
        if self.damaged_at == 0 { Err(Status::internal("damaged")) } else { Ok(self.bytes) }
    }

    async fn part(&mut self, position: u64) -> Result<Part, Status> {
        self.asked.lock().unwrap().push(position);
        let turn = Arc::clone(&self.turns).acquire_owned().await.unwrap();
        let end = self.bytes.min(position + self.part_bytes);
        if end > self.damaged_at {
            return Err(Status::internal("damaged"));
        }
        let bytes: Vec<u8> = (position..end).map(byte).collect();
        let pieces = bytes.chunks(1000).map(Bytes::copy_from_slice).collect();
        Ok(Part { pieces, turn: Some(turn) })
    }
}

/// A call that `answer` answers, as its client sees it. Headers that were not taken yet are lost with a reset.
async fn call(answer: Numbered) -> Result<http::Response<RecvStream>, h2::Error> {
    let (ours, theirs): (DuplexStream, DuplexStream) = tokio::io::duplex(1 << 20);
    tokio::spawn(async move {
        let mut connection = h2::server::handshake(ours).await.unwrap();
        let (_request, respond) = connection.accept().await.unwrap().unwrap();
        tokio::spawn(send(respond, answer));
        while connection.accept().await.is_some() {}
    });
    let (client, connection) = h2::client::handshake(theirs).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get("http://localhost/").body(()).unwrap();
    let (response, _) = client.ready().await.unwrap().send_request(request, true).unwrap();
    response.await
}

/// Reads to the end, from byte `position` on.
async fn read(body: &mut RecvStream, position: &AtomicU64) -> Result<(), h2::Error> {
    while let Some(data) = body.data().await {
        let data = data?;
        let start = position.fetch_add(data.len() as u64, Ordering::Relaxed);
        assert!(data.iter().zip(start..).all(|(found, position)| *found == byte(position)));
        body.flow_control().release_capacity(data.len())?;
    }
    Ok(())
}

#[tokio::test]
async fn every_byte_comes_once_and_in_order() {
    for (bytes, part_bytes) in [(1, 10), (10, 10), (11, 10), (3_000_000, 700_001)] {
        let mut body = call(Numbered::new(bytes, part_bytes)).await.unwrap().into_body();
        let position = AtomicU64::new(0);
        read(&mut body, &position).await.unwrap();
        assert_eq!(position.into_inner(), bytes);
        assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "0");
    }
}

#[tokio::test]
async fn damage_before_the_first_byte_is_a_status_and_after_it_the_end() {
    let response = call(Numbered { damaged_at: 0, ..Numbered::new(1000, 100) }).await.unwrap();
    assert_eq!(Status::from_header_map(response.headers()).unwrap().code(), Code::Internal);
    let position = AtomicU64::new(0);
    let broken = match call(Numbered { damaged_at: 550, ..Numbered::new(1000, 100) }).await {
        Ok(response) => read(&mut response.into_body(), &position).await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(broken.reason(), Some(Reason::INTERNAL_ERROR));
    assert!(position.into_inner() <= 500, "bytes that were never made");
}

#[tokio::test]
async fn who_does_not_read_holds_no_turn_and_goes_on_where_it_stopped() {
    // Far more than the client's window of 64 KiB.
    let answer = Numbered::new(1_000_000, 1_000_000);
    let (turns, asked) = (Arc::clone(&answer.turns), Arc::clone(&answer.asked));
    let mut body = call(answer).await.unwrap().into_body();
    // Its turn comes back although it has taken nothing.
    while asked.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    drop(timeout(10 * PAUSE_SECONDS_MAX, turns.acquire()).await.expect("the turn ends").unwrap());
    assert_eq!(asked.lock().unwrap()[..], [0]);
    let position = AtomicU64::new(0);
    read(&mut body, &position).await.unwrap();
    assert_eq!(position.into_inner(), 1_000_000);
    assert_eq!(asked.lock().unwrap()[..], [0, 65_535], "the rest, from where the window ended");
}

#[tokio::test]
async fn who_goes_away_gives_its_turn_back_at_once() {
    let answer = Numbered::new(1_000_000, 1_000_000);
    let (turns, asked) = (Arc::clone(&answer.turns), Arc::clone(&answer.asked));
    let body = call(answer).await.unwrap().into_body();
    while asked.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    drop(body);
    let turn = timeout(PAUSE_SECONDS_MAX / 2, turns.acquire()).await;
    drop(turn.expect("sooner than by waiting").unwrap());
}
