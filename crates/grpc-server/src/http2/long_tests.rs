//! Long responses over a pipe: complete, aborted, or at the pace of a slow client.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use h2::{Reason, RecvStream};
use tokio::io::DuplexStream;
use tonic::{Code, Status};

use super::*;
use crate::http2::Part;
use crate::http2::account::{Account, Room, counted};
use crate::http2::wire::testing::first_stream;
use admission::{Bounds, ClientId, Gate};

/// A second client that competes for permits.
const OTHER: ClientId = ClientId::alone(2);

fn one_turn() -> Arc<Gate> {
    Gate::new(Bounds {
        capacity: 1,
        reserve: 0,
        light_max: 1,
        waiting_max: 9,
        waiting_weight_max: 9,
        wait_max: Duration::from_secs(3600),
    })
}

/// The expected byte at `position`.
fn byte(position: u64) -> u8 {
    (position % 251) as u8
}

/// A message of `bytes` in parts of `part_bytes`, with the number of permits.
struct NumberedAnswer {
    bytes: u64,
    part_bytes: u64,
    /// Position of a corruption, and the resulting error.
    damaged_at: u64,
    damage: Code,
    turns: Arc<Gate>,
    asked: Arc<Mutex<Vec<u64>>>,
    unread: Arc<AtomicU64>,
    /// Other calls want the memory that the response holds.
    wanted: Arc<AtomicBool>,
    account: Arc<Account>,
    /// Bytes that were counted.
    counted: Arc<AtomicU64>,
    /// Number of calls of `room`.
    waits: Arc<AtomicU64>,
}

impl NumberedAnswer {
    fn new(bytes: u64, part_bytes: u64) -> Self {
        let (turns, asked) = (one_turn(), Arc::default());
        NumberedAnswer {
            bytes,
            part_bytes,
            damaged_at: u64::MAX,
            damage: Code::Internal,
            turns,
            asked,
            unread: Arc::default(),
            wanted: Arc::default(),
            account: Arc::new(Account::new(Arc::default())),
            counted: Arc::default(),
            waits: Arc::default(),
        }
    }
}

impl LongAnswer for NumberedAnswer {
    async fn begin(&mut self) -> Result<u64, Status> {
        if self.damaged_at == 0 { Err(Status::internal("damaged")) } else { Ok(self.bytes) }
    }

    async fn part(&mut self, position: u64) -> Result<Part, Status> {
        self.asked.lock().unwrap().push(position);
        let turn = self.turns.enter(ClientId::alone(1), 1).await.unwrap();
        let end = self.bytes.min(position + self.part_bytes);
        if end > self.damaged_at {
            return Err(Status::new(self.damage, "damaged"));
        }
        let bytes: Vec<u8> = (position..end).map(byte).collect();
        let pieces = bytes.chunks(1000).map(Bytes::copy_from_slice).collect();
        Ok(Part { pieces, turn: Some(turn) })
    }

    async fn room(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        Room(&self.account).wait().await;
    }

    fn counted(&self, sent: Bytes) -> Bytes {
        self.counted.fetch_add(sent.len() as u64, Ordering::Relaxed);
        counted(&self.account, sent)
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    fn unread(&mut self) {
        self.unread.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends `answer` and returns the response as the client sees it. A reset discards headers that were not
/// read.
async fn call(answer: NumberedAnswer) -> Result<http::Response<RecvStream>, h2::Error> {
    call_until(answer, std::future::pending()).await
}

/// Like [`call`], on a member that stops.
async fn call_until(
    answer: NumberedAnswer,
    stopped: impl Future<Output = ()> + Send + 'static,
) -> Result<http::Response<RecvStream>, h2::Error> {
    let (ours, theirs): (DuplexStream, DuplexStream) = tokio::io::duplex(1 << 20);
    tokio::spawn(async move { send(&mut first_stream(ours).await, answer, stopped).await });
    let (client, connection) = h2::client::handshake(theirs).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get("http://localhost/").body(()).unwrap();
    let (response, _) = client.ready().await.unwrap().send_request(request, true).unwrap();
    response.await
}

/// Like [`call`], for a client that has to take something within `progress_within`.
async fn call_with_patience(answer: NumberedAnswer, progress_within: Duration) -> RecvStream {
    let (ours, theirs): (DuplexStream, DuplexStream) = tokio::io::duplex(1 << 20);
    tokio::spawn(async move { send_whole(&mut first_stream(ours).await, answer, progress_within).await });
    let (client, connection) = h2::client::handshake(theirs).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get("http://localhost/").body(()).unwrap();
    let (response, _) = client.ready().await.unwrap().send_request(request, true).unwrap();
    response.await.unwrap().into_body()
}

#[tokio::test]
async fn who_never_reads_is_reset_and_its_answer_released() {
    let answer = NumberedAnswer::new(1_000_000, 1_000_000);
    let (turns, asked, unread) =
        (Arc::clone(&answer.turns), Arc::clone(&answer.asked), Arc::clone(&answer.unread));
    let mut body = call_with_patience(answer, Duration::from_millis(100)).await;
    // The client's window is delivered first. Then the stream is reset, since no more fits.
    let mut read = 0;
    let broken = loop {
        match body.data().await.expect("no orderly end") {
            Ok(data) => read += data.len(),
            Err(error) => break error,
        }
    };
    assert_eq!(broken.reason(), Some(Reason::CANCEL));
    assert!(read <= 65_535, "{read} bytes in a window of 65,535");
    assert_eq!(unread.load(Ordering::Relaxed), 1);
    let _turn = turns.enter(OTHER, 1).await.unwrap();
    assert_eq!(Arc::strong_count(&asked), 1, "the answer was dropped");
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_a_turn_is_looked_at_when_it_is_due() {
    let answer = NumberedAnswer::new(1_000_000, 1_000_000);
    let waits = Arc::clone(&answer.waits);
    let (ours, theirs): (DuplexStream, DuplexStream) = tokio::io::duplex(1 << 20);
    let within = Duration::from_secs(60);
    tokio::spawn(async move { send_whole(&mut first_stream(ours).await, answer, within).await });
    let mut builder = h2::client::Builder::new();
    let (client, connection) = builder.initial_window_size(0).handshake::<_, Bytes>(theirs).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get("http://localhost/").body(()).unwrap();
    let (response, _) = client.ready().await.unwrap().send_request(request, true).unwrap();
    let mut body = response.await.unwrap().into_body();
    let broken = body.data().await.expect("no orderly end").unwrap_err();
    assert_eq!(broken.reason(), Some(Reason::CANCEL));
    assert!(waits.load(Ordering::Relaxed) <= 10, "{waits:?} in a minute");
}

/// Reads all data, starting with byte `position`.
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
        let mut body = call(NumberedAnswer::new(bytes, part_bytes)).await.unwrap().into_body();
        let position = AtomicU64::new(0);
        read(&mut body, &position).await.unwrap();
        assert_eq!(position.into_inner(), bytes);
        assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "0");
    }
}

#[tokio::test]
async fn damage_before_the_first_byte_is_a_status_and_after_it_the_end() {
    let response = call(NumberedAnswer { damaged_at: 0, ..NumberedAnswer::new(1000, 100) }).await.unwrap();
    assert_eq!(Status::from_header_map(response.headers()).unwrap().code(), Code::Internal);
    let codes = [
        (Code::Internal, Reason::INTERNAL_ERROR),
        (Code::ResourceExhausted, Reason::ENHANCE_YOUR_CALM), // As gRPC maps it.
    ];
    for (damage, reason) in codes {
        let position = AtomicU64::new(0);
        let answer = NumberedAnswer { damaged_at: 550, damage, ..NumberedAnswer::new(1000, 100) };
        let broken = match call(answer).await {
            Ok(response) => read(&mut response.into_body(), &position).await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(broken.reason(), Some(reason));
        assert!(position.into_inner() <= 500, "bytes that were never made");
    }
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_holds_no_turn_and_goes_on_where_it_stopped() {
    // Far more than the client's window of 64 KiB.
    let answer = NumberedAnswer::new(1_000_000, 1_000_000);
    let (turns, asked) = (Arc::clone(&answer.turns), Arc::clone(&answer.asked));
    let mut body = call(answer).await.unwrap().into_body();
    // The permit is released although the client has taken no data.
    while asked.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    drop(timeout(10 * TURN_QUANTUM, turns.enter(OTHER, 1)).await.expect("the turn ends").unwrap());
    assert_eq!(asked.lock().unwrap()[..], [0]);
    let position = AtomicU64::new(0);
    read(&mut body, &position).await.unwrap();
    assert_eq!(position.into_inner(), 1_000_000);
    assert_eq!(asked.lock().unwrap()[..], [0, 65_535], "the rest, from where the window ended");
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_gives_its_turn_back_at_once() {
    let answer = NumberedAnswer::new(1_000_000, 1_000_000);
    let (turns, asked) = (Arc::clone(&answer.turns), Arc::clone(&answer.asked));
    let body = call(answer).await.unwrap().into_body();
    while asked.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    drop(body);
    let turn = timeout(TURN_QUANTUM / 2, turns.enter(OTHER, 1)).await;
    drop(turn.expect("sooner than by waiting").unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_member_that_stops_ends_what_is_not_read() {
    let (stopper, stopped) = tokio::sync::oneshot::channel::<()>();
    let answer = NumberedAnswer::new(1_000_000, 1_000_000);
    let body = call_until(answer, async { drop(stopped.await) }).await.unwrap().into_body();
    drop(stopper);
    let (mut body, position) = (body, AtomicU64::new(0));
    let ended =
        timeout(Duration::from_secs(1), read(&mut body, &position)).await.expect("at once").unwrap_err();
    assert_eq!(ended.reason(), Some(Reason::REFUSED_STREAM));
}

#[tokio::test(start_paused = true)]
async fn who_is_slow_keeps_what_it_was_given_while_it_is_not_wanted() {
    let answer = NumberedAnswer::new(10_000_000, 10_000_000);
    let asked = Arc::clone(&answer.asked);
    let mut body = call(answer).await.unwrap().into_body();
    let mut read = 0;
    while let Some(data) = body.data().await {
        let bytes = data.unwrap().len();
        read += bytes;
        // 2 Mbit/s.
        tokio::time::sleep(Duration::from_millis(bytes as u64 / 256)).await;
        body.flow_control().release_capacity(bytes).unwrap();
    }
    assert_eq!((read, &asked.lock().unwrap()[..]), (10_000_000, &[0][..]), "made once");
}

#[tokio::test(start_paused = true)]
async fn who_is_slow_is_reset_if_others_want_what_its_answer_holds() {
    let wanted = Arc::new(AtomicBool::new(false));
    let answer = NumberedAnswer { wanted: Arc::clone(&wanted), ..NumberedAnswer::new(30_000_000, 1_000_000) };
    let unread = Arc::clone(&answer.unread);
    let mut body = call(answer).await.unwrap().into_body();
    let began = Instant::now();
    let broken = loop {
        match body.data().await.expect("no orderly end") {
            Ok(data) => {
                // 1 Mbit/s.
                tokio::time::sleep(Duration::from_millis(data.len() as u64 / 128)).await;
                body.flow_control().release_capacity(data.len()).unwrap();
            }
            Err(error) => break error,
        }
        wanted.store(began.elapsed() > Duration::from_secs(20), Ordering::Relaxed);
    };
    assert_eq!((broken.reason(), unread.load(Ordering::Relaxed)), (Some(Reason::CANCEL), 1));
    let after = began.elapsed() - Duration::from_secs(20);
    assert!(after < 2 * WANTED_TIMEOUT, "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn who_trickles_keeps_no_turn_that_others_want() {
    trickle_while_waiting(OTHER).await;
}

#[tokio::test(start_paused = true)]
async fn who_trickles_keeps_no_turn_that_its_own_connection_wants() {
    trickle_while_waiting(ClientId::alone(1)).await;
}

async fn trickle_while_waiting(waits: ClientId) {
    let answer = NumberedAnswer::new(10_000_000, 10_000_000);
    let turns = Arc::clone(&answer.turns);
    let mut body = call(answer).await.unwrap().into_body();
    tokio::spawn(async move {
        // Far more than from a stalled client, and far less than from a reading one.
        while let Some(Ok(data)) = body.data().await {
            tokio::time::sleep(Duration::from_millis(250)).await;
            body.flow_control().release_capacity(data.len().min(2048)).unwrap();
        }
    });
    for round in 0..10 {
        while turns.gauges().0 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let began = Instant::now();
        drop(turns.enter(waits, 1).await.unwrap());
        let allowed = if round == 0 { 2 * TURN_QUANTUM } else { TURN_QUANTUM / 4 };
        assert!(began.elapsed() < allowed, "waited {:?} in round {round}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_of_a_large_answer_counts_as_unsent_and_waits_for_room() {
    let answer = NumberedAnswer::new(1_000_000, 100_000);
    let (account, asked) = (Arc::clone(&answer.account), Arc::clone(&answer.asked));
    let bytes_counted = Arc::clone(&answer.counted);
    // Unread responses of the same connection.
    let unread = counted(&account, vec![0; 20 << 20].into());
    let (mut body, position) = (call(answer).await.unwrap().into_body(), AtomicU64::new(0));
    let read_early = timeout(Duration::from_secs(30), read(&mut body, &position)).await;
    assert!(read_early.is_err() && asked.lock().unwrap().is_empty(), "nothing is made yet");
    drop(unread);
    read(&mut body, &position).await.unwrap();
    assert_eq!((bytes_counted.load(Ordering::Relaxed), account.unsent()), (1_000_000, 0));
}

#[tokio::test(start_paused = true)]
async fn a_reset_ends_an_answer_that_waits_for_room() {
    let answer = NumberedAnswer::new(1_000_000, 100_000);
    let (account, asked) = (Arc::clone(&answer.account), Arc::clone(&answer.asked));
    let _unread = counted(&account, vec![0; 20 << 20].into());
    let body = call(answer).await.unwrap().into_body();
    let began = Instant::now();
    drop(body);
    while Arc::strong_count(&asked) > 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(began.elapsed() < TURN_QUANTUM / 2, "held for {:?}", began.elapsed());
}
