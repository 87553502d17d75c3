//! Calls with a header block seen before do not allocate.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod common;

use common::*;
use http2::{Connection, Event, HeaderBlock, Limits, ProcessResult, SendResult};

/// Ten calls in one read, each a head and a message, with the header blocks of a client in its steady
/// state.
fn calls(first: u32) -> Vec<u8> {
    let message = b"\0\0\0\0\x05hello";
    (0..10)
        .flat_map(|call| {
            let stream = first + 2 * call;
            // 82..: static entries; be: the entry added by the first call.
            let block = [&block(&POST)[..], b"\xbe"].concat();
            [frame(HEADERS, END_HEADERS, stream, &block), frame(DATA, END_STREAM, stream, message)].concat()
        })
        .collect()
}

fn serve(connection: &mut Connection, bytes: &[u8], head: &HeaderBlock, trailers: &HeaderBlock) -> usize {
    connection.read_buffer();
    connection.receive(bytes);
    assert_eq!(connection.process(0), ProcessResult::NeedBytes);
    let mut answered = 0;
    while let Some(event) = connection.next_event() {
        let Event::Request { stream, head: request, body, end: true, .. } = event else {
            panic!("{event:?}")
        };
        assert_eq!(request.path.as_deref(), Some(&b"/call"[..]));
        assert_eq!(body.len(), 10);
        connection.release(stream, body.len());
        assert_eq!(connection.answer(stream, head, b"\0\0\0\0\x05world", trailers), Ok(SendResult::Whole));
        answered += 1;
    }
    let output = connection.output().len();
    connection.written(output);
    answered
}

#[test]
fn calls_in_the_steady_state_allocate_nothing() {
    let mut connection = open(Limits::default());
    // Window capacity for all responses, as a client grants it from time to time.
    connection.receive(&frame(WINDOW_UPDATE, 0, 0, &(1u32 << 30).to_be_bytes()));
    let head = HeaderBlock::new([(":status", "200"), ("content-type", "application/grpc")]);
    let trailers = HeaderBlock::new([("grpc-status", "0")]);
    let first = [&block(&POST)[..], b"\x40\x01a\x01b"].concat();
    let message = b"\0\0\0\0\x05hello";
    let first = [frame(HEADERS, END_HEADERS, 1, &first), frame(DATA, END_STREAM, 1, message)].concat();
    assert_eq!(serve(&mut connection, &first, &head, &trailers), 1);

    let rounds: Vec<Vec<u8>> = (0..2000).map(|round| calls(3 + 20 * round)).collect();
    let (warm, measured) = rounds.split_at(1000);
    for bytes in warm {
        serve(&mut connection, bytes, &head, &trailers);
    }
    let mut answered = 0;
    let counted = allocation_counter::measure(|| {
        for bytes in measured {
            answered += serve(&mut connection, bytes, &head, &trailers);
        }
    });
    assert_eq!(answered, 10_000);
    assert_eq!(counted.count_total, 0, "{counted:?}");
}

/// Each call has another timeout, like from clients with deadlines. It is added to the dynamic table, so
/// that the other fields are evicted from time to time.
#[test]
fn calls_with_deadlines_allocate_their_entry_of_the_table() {
    let mut connection = open(Limits { varying_field: "grpc-timeout", ..Limits::default() });
    connection.receive(&frame(WINDOW_UPDATE, 0, 0, &(1u32 << 30).to_be_bytes()));
    let head = HeaderBlock::new([(":status", "200"), ("content-type", "application/grpc")]);
    let trailers = HeaderBlock::new([("grpc-status", "0")]);
    let mut encoder = Encoder::new(4096);
    let mut call = |call: u32| {
        let timeout = format!("{}u", 10_000 + call % 50_000);
        let block = encoder.block(&[&POST[..], &[("grpc-timeout", &timeout), ("token", "t")]].concat());
        let stream = 2 * call + 1;
        let message = frame(DATA, END_STREAM, stream, b"\0\0\0\0\x05hello");
        [frame(HEADERS, END_HEADERS, stream, &block), message].concat()
    };
    let calls: Vec<Vec<u8>> = (0..2000).map(&mut call).collect();
    let (warm, measured) = calls.split_at(1000);
    let mut answered = 0;
    for bytes in warm {
        answered += serve(&mut connection, bytes, &head, &trailers);
    }
    let counted = allocation_counter::measure(|| {
        for bytes in measured {
            answered += serve(&mut connection, bytes, &head, &trailers);
        }
    });
    assert_eq!(answered, 2000);
    // One per call, and some for each field that returns to the table, every 60 calls.
    assert!(counted.count_total <= 2500, "{counted:?}");
    assert!(counted.count_current <= 100, "{counted:?}");
}
