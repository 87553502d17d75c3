//! Laws of a connection for arbitrary input. Shared by the property test and the fuzz target.
//!
//! * There is no panic.
//! * Events and output do not depend on the boundaries of reads.
//! * Memory stays within the sum of the limits, for any responses of the owner.

use bytes::Bytes;
use http2::{Connection, EndOfBody, ErrorCode, Event, HeaderBlock, Limits, ProcessResult, SendResult};

/// Small, so that short inputs reach them.
pub fn limits() -> Limits {
    Limits {
        streams_max: 8,
        header_list_bytes_max: 2048,
        header_block_bytes_max: 4096,
        continuation_frames_max: 4,
        stream_window_bytes: 4096,
        connection_window_bytes: 65_535,
        stream_unsent_bytes_max: 2048,
        connection_unsent_bytes_max: 8192,
        output_bytes_max: 4096,
        read_bytes: 4096,
        round_bytes_max: 8192,
        control_tokens_at_start: 16,
        control_tokens_max: 64,
        control_tokens_per_interval: 16,
        resets_max: 8,
        window_changes_max: 16,
        reset_streams_remembered: 8,
        cached_blocks_max: 4,
        ..Limits::default()
    }
}

/// The sum of the limits. Buffers grow by doubling, so each may hold twice its content.
fn memory_max(limits: &Limits) -> usize {
    let frame = limits.frame_bytes_max as usize + 9;
    let input = 2 * (limits.read_bytes + frame) + frame;
    // Beyond the limit: one frame of each stream, its header blocks, and the responses to one frame.
    let output = 2 * (limits.output_bytes_max + (limits.streams_max as usize + 1) * 1024 + frame);
    let headers = 2 * limits.header_block_bytes_max
        + limits.header_table_bytes_max as usize
        + 2 * limits.header_block_bytes_max
        + 2 * limits.cached_blocks_max
            * (limits.cached_block_bytes_max + 3 * limits.cached_list_bytes_max + 1024);
    let events = 2 * 1100 * size_of::<Event>();
    let streams =
        (2 * limits.streams_max as usize + 64) * 2 * 512 + 4 * 1024 * limits.reset_streams_remembered / 64;
    input + output + headers + events + streams + limits.connection_unsent_bytes_max
}

/// The result of a run.
#[derive(Debug, PartialEq)]
pub struct Seen {
    pub events: Vec<Event>,
    pub output: Vec<u8>,
    pub failed: Option<ErrorCode>,
}

/// Feeds `pieces` and passes each event to `owner`.
fn run<'a>(
    limits: &Limits,
    pieces: impl Iterator<Item = &'a [u8]>,
    mut owner: impl FnMut(&mut Connection, &Event),
) -> Seen {
    let mut connection = Connection::new(limits.clone(), 0);
    let mut seen = Seen { events: Vec::new(), output: Vec::new(), failed: None };
    let mut now = 0;
    for piece in pieces.flat_map(|piece| piece.chunks(limits.read_bytes)) {
        connection.read_buffer();
        connection.receive(piece);
        loop {
            let progress = connection.process(now);
            let memory = connection.memory();
            assert!(memory.total() <= memory_max(limits), "{memory:?}");
            while let Some(event) = connection.next_event() {
                owner(&mut connection, &event);
                seen.events.push(event);
            }
            seen.output.extend_from_slice(connection.output());
            connection.written(connection.output().len());
            match progress {
                ProcessResult::NeedBytes => break,
                ProcessResult::More | ProcessResult::OutputFull => {}
                ProcessResult::Paused { until } => now = until,
                ProcessResult::Failed { code, .. } => {
                    seen.failed = Some(code);
                    return seen;
                }
            }
        }
    }
    seen
}

/// A passive owner.
fn look(_: &mut Connection, _: &Event) {}

/// An owner that responds to each request immediately, resets some, and releases all bytes.
fn answer(connection: &mut Connection, event: &Event) {
    let head = HeaderBlock::new([(":status", "200"), ("content-type", "application/grpc")]);
    let trailers = HeaderBlock::new([("grpc-status", "0")]);
    match event {
        Event::Request { stream, body, end, .. } => {
            connection.release(*stream, body.len());
            let size = stream.number() as usize * 613 % 5000;
            match stream.number() % 8 {
                1 => connection.reset(*stream, ErrorCode::CANCEL),
                5 => {
                    let _ = connection.send_head(*stream, &head, EndOfBody::More);
                    if let Ok(room @ 1..) = connection.window(*stream) {
                        let sent = connection.send_data(
                            *stream,
                            &mut vec![3; room.min(size)].into(),
                            EndOfBody::More,
                        );
                        assert_eq!(sent, Ok(SendResult::Whole), "what the windows take does not wait");
                    }
                }
                3 if *end => drop(connection.answer(*stream, &head, &vec![1; size], &trailers)),
                _ => {
                    let _ = connection.send_head(*stream, &head, EndOfBody::More);
                    let mut data = Bytes::from(vec![2; size]);
                    match connection.send_data(*stream, &mut data, EndOfBody::Stream) {
                        Ok(SendResult::Whole) => assert!(data.is_empty()),
                        Ok(SendResult::Part) => assert!(!data.is_empty()),
                        Err(_) => {}
                    }
                }
            }
        }
        Event::Data { stream, bytes, .. } => connection.release(*stream, bytes.len()),
        Event::Writable { stream } => drop(connection.send_trailers(*stream, &trailers)),
        Event::Trailers { .. } | Event::Reset { .. } | Event::Pong { .. } | Event::GoAway { .. } => {}
    }
}

/// Splits `bytes` into pieces of the given lengths, repeated cyclically.
fn cut<'a>(mut bytes: &'a [u8], lengths: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut lengths = lengths.iter().cycle();
    std::iter::from_fn(move || {
        let length = usize::from(*lengths.next().unwrap_or(&0)) + 1;
        let piece;
        (piece, bytes) = bytes.split_at(length.min(bytes.len()));
        (!piece.is_empty()).then_some(piece)
    })
}

/// Checks all laws for one input.
pub fn check(bytes: &[u8], lengths: &[u8]) {
    let limits = limits();
    let mut whole = run(&limits, std::iter::once(bytes), look);
    let mut parts = run(&limits, cut(bytes, lengths), look);
    whole.events = crate::common::separated(whole.events);
    parts.events = crate::common::separated(parts.events);
    assert_eq!(whole, parts);
    run(&limits, cut(bytes, lengths), answer);
}
