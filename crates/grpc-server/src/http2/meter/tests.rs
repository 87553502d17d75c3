//! Frames in every cut, prices, and the pace of floods.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::frames::{
    CONTINUATION, DATA, DEAR_TOKENS, END_HEADERS, END_STREAM, Frame, Frames, HEADERS, PREFACE_BYTES,
    RST_STREAM, SETTINGS,
};
use super::*;

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
}

#[test]
fn frames_are_found_however_the_bytes_are_cut() {
    let frames = [
        frame(SETTINGS, 0, &[0; 12]),
        frame(HEADERS, END_HEADERS, &[7; 40]),
        frame(DATA, END_STREAM, &[9; 300]),
    ];
    let stream = [vec![b'P'; PREFACE_BYTES], frames.concat()].concat();
    let expected = [(SETTINGS, 0, 12), (HEADERS, END_HEADERS, 40), (DATA, END_STREAM, 300)];
    for piece_bytes in 1..stream.len() {
        let (mut scan, mut found) = (Frames::default(), Vec::new());
        for piece in stream.chunks(piece_bytes) {
            scan.feed(piece, |frame| found.push((frame.kind, frame.flags, frame.length)));
        }
        assert_eq!(found, expected, "in pieces of {piece_bytes}");
    }
}

#[test]
fn headers_are_open_until_their_last_byte() {
    let mut scan = Frames::default();
    scan.feed(&[b'P'; PREFACE_BYTES], |_| ());
    let whole = frame(HEADERS, END_HEADERS, &[0; 4]);
    scan.feed(&whole[..11], |_| ());
    assert!(scan.is_in_headers());
    scan.feed(&whole[11..], |_| ());
    assert!(!scan.is_in_headers());
    scan.feed(&frame(HEADERS, 0, &[0; 4]), |_| ());
    assert!(scan.is_in_headers(), "a CONTINUATION must follow");
    scan.feed(&frame(CONTINUATION, END_HEADERS, &[0; 4]), |_| ());
    assert!(!scan.is_in_headers());
    scan.feed(&frame(DATA, 0, &[0; 4])[..10], |_| ());
    assert!(!scan.is_in_headers(), "a body has a separate deadline");
}

#[test]
fn requests_are_free_and_frames_without_an_answer_are_not() {
    let tokens = |kind, flags, length| Frame { kind, flags, length }.tokens();
    assert_eq!(tokens(HEADERS, END_HEADERS, 30), 0);
    assert_eq!(tokens(DATA, END_STREAM, 0), 0);
    assert_eq!(tokens(DATA, 0, 16 << 10), 0);
    assert_eq!(tokens(DATA, 0, 5), 1, "less than its answer earns");
    for (kind, flags) in
        [(DATA, 0), (RST_STREAM, 0), (PING, 0), (SETTINGS, 0), (CONTINUATION, 0), (8, 0), (200, 0)]
    {
        assert!(tokens(kind, flags, 0) > 0, "kind {kind}");
    }
}

/// Bytes of `flood` that are read within `time`, with an endless supply.
async fn read_of_flood(flood: Vec<u8>, time: Duration) -> usize {
    let (ours, mut theirs) = tokio::io::duplex(1 << 16);
    let feeding = tokio::spawn(async move {
        drop(theirs.write_all(&[b'P'; PREFACE_BYTES]).await);
        while theirs.write_all(&flood).await.is_ok() {}
    });
    let mut socket = MeteredIo::new(ours, Duration::ZERO, Arc::default());
    let (mut buffer, mut total) = (vec![0; 1 << 12], 0);
    let reading = async {
        loop {
            total += socket.read(&mut buffer).await.unwrap();
        }
    };
    drop(tokio::time::timeout(time, reading).await);
    feeding.abort();
    total
}

#[tokio::test]
async fn a_flood_is_read_at_a_bounded_rate_and_requests_at_any() {
    let second = Duration::from_secs(1);
    let floods = [frame(RST_STREAM, 0, &[0; 4]), frame(PING, 0, &[0; 8]), frame(SETTINGS, 0, &[])];
    for flood in floods {
        let (bytes, price) = (flood.len(), Frame { kind: flood[3], flags: 0, length: 0 }.tokens());
        let frames = read_of_flood(flood.repeat(100), second).await / bytes;
        // What a connection starts with, one second's worth, and a read buffer of debt.
        let tokens_max = (TOKENS_AT_START + TOKENS_PER_SECOND) as usize + (1 << 12) / bytes * price as usize;
        assert!(frames * price as usize <= 2 * tokens_max, "{frames} frames of {price} tokens in a second");
    }
    let request = [frame(HEADERS, END_HEADERS, &[0; 20]), frame(DATA, END_STREAM, &[0; 60])].concat();
    let bytes = request.len();
    let requests = read_of_flood(request.repeat(100), second).await / bytes;
    assert!(requests > 20_000, "only {requests} requests in a second");
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_requests_wait_is_read_slowly_until_they_are_read() {
    let (ours, mut theirs) = tokio::io::duplex(1 << 20);
    theirs.write_all(&[7; 100 << 10]).await.unwrap();
    let mut socket = MeteredIo::new(ours, Duration::ZERO, Arc::default());
    let seen = Arc::clone(&socket.seen);
    let mut buffer = [0; 1 << 10];
    let mut read = async |count: u64, socket: &mut MeteredIo<_>| {
        let began = Instant::now();
        for _ in 0..count {
            socket.read_exact(&mut buffer).await.unwrap();
        }
        began.elapsed().as_secs()
    };
    assert_eq!(read(10, &mut socket).await, 0);
    seen.change_waiting(0, WAITING_BYTES_MAX);
    assert_eq!(read(10, &mut socket).await, 0, "few");
    seen.change_waiting(0, 1);
    assert_eq!(read(10, &mut socket).await, 10, "not stopped");
    let reading = async { read(10, &mut socket).await };
    let taking = async {
        tokio::time::sleep(Duration::from_millis(2500)).await;
        seen.change_waiting(1, 0);
    };
    assert_eq!(tokio::join!(reading, taking).0, 2, "then at once");
}

/// A connection whose client is gone once this is set.
struct Gone(DuplexStream, Arc<AtomicBool>);

impl Ends for Gone {
    fn has_ended(&self) -> bool {
        self.1.load(Relaxed)
    }
}

impl AsyncRead for Gone {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_requests_wait_is_not_read_to_the_end_of_what_a_gone_client_sent() {
    let (ours, mut theirs) = tokio::io::duplex(1 << 20);
    theirs.write_all(&[7; 100 << 10]).await.unwrap();
    let gone = Arc::new(AtomicBool::new(false));
    let mut socket = MeteredIo::new(Gone(ours, Arc::clone(&gone)), Duration::ZERO, Arc::default());
    socket.seen.change_waiting(0, WAITING_BYTES_MAX + 1);
    let mut buffer = [0; 1 << 10];
    socket.read_exact(&mut buffer).await.unwrap();
    gone.store(true, Relaxed);
    let read = socket.read_exact(&mut buffer).await;
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn answers_pay_for_the_resets_of_a_busy_client() {
    let mut pace = FramePace::new();
    for _ in 0..60_000 {
        pace.earn(61);
    }
    assert_eq!(pace.tokens, TOKENS_MAX);
    for _ in 0..TOKENS_MAX / i64::from(DEAR_TOKENS) {
        pace.charge(DEAR_TOKENS);
    }
    assert!(pace.pause.is_none(), "2,000 callers lose nothing by a stall of ten deadlines");
    for _ in 0..TOKENS_PER_SECOND {
        pace.charge(DEAR_TOKENS);
    }
    assert!(pace.pause.is_some(), "what goes on like that is slowed down");
}

#[tokio::test]
async fn pings_are_judged_as_etcd_judges_them() {
    let seen = ReaderFlags::default();
    let five_seconds = Duration::from_secs(5);
    let ping = Frame { kind: PING, flags: 0, length: 8 };
    let settings = Frame { kind: SETTINGS, flags: 0, length: 6 };
    let smallest_answer = 58;
    // What is read before each ping, what is written before it, and whether each ping but the first is a
    // strike. Answers of pings leave two by two.
    let cases: [(&[Frame], [usize; 2], bool); 6] = [
        (&[], [0, 0], true),
        (&[], [17, 17], true),
        (&[], [34, 0], true),
        (&[settings; 3], [17 + 27, 17 + 27], true),
        (&[settings], [34 + 18 + smallest_answer, 0], false),
        (&[], [17 + smallest_answer, 17 + smallest_answer], false),
    ];
    for (frames, written, is_strike) in cases {
        let mut pings = Pings::new(five_seconds);
        let early: Vec<bool> = (0..6)
            .map(|n| {
                frames.iter().for_each(|frame| pings.owe(*frame));
                pings.note_written(written[n % 2]);
                pings.owe(ping);
                pings.is_too_early(&seen)
            })
            .collect();
        let expected = if is_strike { [false, false, false, true, true, true] } else { [false; 6] };
        assert_eq!(early, expected, "{written:?} bytes between pings");
    }
    let mut any = Pings::new(Duration::ZERO);
    assert!((0..20).all(|_| !any.is_too_early(&seen)));
}
