//! Enforcement of RFC 9113: frames that a client must not send, and the resulting errors.

use crate::common::*;
use bytes::Bytes;
use http2::{
    Connection, EndOfBody, ErrorCode, Event, FrameWork, HeaderBlock, Limits, ProcessResult, ResetOrigin,
    SendResult, StreamId,
};

/// The outcome of a case.
#[derive(Debug, PartialEq)]
enum Outcome {
    Fine,
    Stream(u32, ErrorCode),
    Connection(ErrorCode),
}
use Outcome::{Fine, Stream};

fn connection(code: ErrorCode) -> Outcome {
    Outcome::Connection(code)
}

const PROTOCOL: ErrorCode = ErrorCode::PROTOCOL_ERROR;
const SIZE: ErrorCode = ErrorCode::FRAME_SIZE_ERROR;
const FLOW: ErrorCode = ErrorCode::FLOW_CONTROL_ERROR;
const CLOSED: ErrorCode = ErrorCode::STREAM_CLOSED;

/// Small enough to reach every limit.
fn limits() -> Limits {
    Limits {
        streams_max: 3,
        header_list_bytes_max: 1000,
        header_block_bytes_max: 2000,
        continuation_frames_max: 3,
        stream_window_bytes: 1000,
        connection_window_bytes: 65_535,
        ..Limits::default()
    }
}

/// Returns the first error that the server sends for these bytes.
fn outcome(limits: Limits, bytes: &[u8]) -> Outcome {
    let mut connection = Connection::new(limits, 0);
    connection.receive(bytes);
    let progress = connection.process(0);
    for (kind, _, stream, payload) in frames(&take_output(&mut connection)) {
        let code = |at: usize| ErrorCode(u32::from_be_bytes(payload[at..at + 4].try_into().unwrap()));
        match kind {
            RST_STREAM => return Stream(stream, code(0)),
            GOAWAY => {
                assert!(matches!(progress, ProcessResult::Failed { code: failed, .. } if failed == code(4)));
                return Outcome::Connection(code(4));
            }
            _ => {}
        }
    }
    assert_eq!(progress, ProcessResult::NeedBytes);
    Fine
}

/// Cases: frames after the preface, and their outcome.
fn check(cases: &[(&str, &[Vec<u8>], Outcome)]) {
    for (name, frames, expected) in cases {
        let bytes = [hello(), frames.concat()].concat();
        assert_eq!(outcome(limits(), &bytes), *expected, "{name}");
    }
}

#[test]
fn a_connection_begins_with_the_preface_and_settings() {
    let settings = frame(SETTINGS, 0, 0, &[]);
    for (name, bytes, expected) in [
        ("another protocol (3.4)", b"GET / HTTP/1.1\r\n\r\n".to_vec(), connection(PROTOCOL)),
        ("a wrong first byte alone (3.4)", b"Q".to_vec(), connection(PROTOCOL)),
        ("the begin of the preface", PREFACE[..10].to_vec(), Fine),
        ("PING before SETTINGS (3.4)", [PREFACE, &frame(PING, 0, 0, &[0; 8])].concat(), connection(PROTOCOL)),
        (
            "SETTINGS ACK before SETTINGS",
            [PREFACE, &frame(SETTINGS, ACK, 0, &[])].concat(),
            connection(PROTOCOL),
        ),
        ("SETTINGS", [PREFACE, &settings].concat(), Fine),
    ] {
        assert_eq!(outcome(limits(), &bytes), expected, "{name}");
    }
}

#[test]
fn frames_have_their_size_and_their_stream() {
    check(&[
        ("a frame above MAX_FRAME_SIZE (4.2)", &[frame(9, 0, 1, &[0; 16_385])], connection(SIZE)),
        ("an unknown frame (4.1)", &[frame(0xbe, 0xff, 77, &[1, 2, 3])], Fine),
        ("undefined flags (4.1)", &[frame(PING, 0xfe, 0, &[0; 8])], Fine),
        ("the reserved bit (4.1)", &[frame(PING, 0, 1 << 31, &[0; 8])], Fine),
        ("DATA without a stream (6.1)", &[frame(DATA, 0, 0, b"x")], connection(PROTOCOL)),
        ("HEADERS without a stream (6.2)", &[get(0)], connection(PROTOCOL)),
        ("PRIORITY without a stream (6.3)", &[frame(PRIORITY, 0, 0, &[0; 5])], connection(PROTOCOL)),
        ("RST_STREAM without a stream (6.4)", &[frame(RST_STREAM, 0, 0, &[0; 4])], connection(PROTOCOL)),
        ("SETTINGS on a stream (6.5)", &[get(1), frame(SETTINGS, 0, 1, &[])], connection(PROTOCOL)),
        (
            "PUSH_PROMISE of a client (8.4)",
            &[get(1), frame(PUSH_PROMISE, 4, 1, &[0, 0, 0, 2])],
            connection(PROTOCOL),
        ),
        ("PING on a stream (6.7)", &[frame(PING, 0, 1, &[0; 8])], connection(PROTOCOL)),
        ("GOAWAY on a stream (6.8)", &[frame(GOAWAY, 0, 1, &[0; 8])], connection(PROTOCOL)),
        ("CONTINUATION without a block (6.10)", &[frame(CONTINUATION, 4, 1, &[])], connection(PROTOCOL)),
        ("PRIORITY of four bytes (6.3)", &[post(1), frame(PRIORITY, 0, 1, &[0; 4])], Stream(1, SIZE)),
        ("RST_STREAM of five bytes (6.4)", &[post(1), frame(RST_STREAM, 0, 1, &[0; 5])], connection(SIZE)),
        ("SETTINGS of five bytes (6.5)", &[frame(SETTINGS, 0, 0, &[0; 5])], connection(SIZE)),
        ("SETTINGS ACK with a payload (6.5)", &[frame(SETTINGS, ACK, 0, &[0; 6])], connection(SIZE)),
        ("PING of seven bytes (6.7)", &[frame(PING, 0, 0, &[0; 7])], connection(SIZE)),
        ("GOAWAY of seven bytes (6.8)", &[frame(GOAWAY, 0, 0, &[0; 7])], connection(SIZE)),
        ("WINDOW_UPDATE of three bytes (6.9)", &[frame(WINDOW_UPDATE, 0, 0, &[0; 3])], connection(SIZE)),
        ("HEADERS too short for priority (6.2)", &[frame(HEADERS, 0x25, 1, &[0; 4])], connection(SIZE)),
        (
            "padding as long as DATA (6.1)",
            &[post(1), frame(DATA, PADDED, 1, &[3, 0, 0])],
            connection(PROTOCOL),
        ),
        ("DATA without its pad length (6.1)", &[post(1), frame(DATA, PADDED, 1, &[])], connection(PROTOCOL)),
        ("padding as long as HEADERS (6.2)", &[frame(HEADERS, 0xc, 1, &[9, 0x82])], connection(PROTOCOL)),
        ("DATA of padding only (6.1)", &[post(1), frame(DATA, PADDED, 1, &[2, 0, 0])], Fine),
    ]);
}

#[test]
fn settings_have_their_ranges() {
    let settings = |id, value| frame(SETTINGS, 0, 0, &setting(id, value));
    check(&[
        ("ENABLE_PUSH of 2 (6.5.2)", &[settings(2, 2)], connection(PROTOCOL)),
        ("ENABLE_PUSH of 1", &[settings(2, 1)], Fine),
        ("INITIAL_WINDOW_SIZE of 2^31 (6.5.2)", &[settings(4, 1 << 31)], connection(FLOW)),
        ("INITIAL_WINDOW_SIZE of 2^31-1", &[settings(4, (1 << 31) - 1)], Fine),
        ("MAX_FRAME_SIZE of 16,383 (6.5.2)", &[settings(5, 16_383)], connection(PROTOCOL)),
        ("MAX_FRAME_SIZE of 2^24 (6.5.2)", &[settings(5, 1 << 24)], connection(PROTOCOL)),
        ("ENABLE_CONNECT_PROTOCOL of 2 (RFC 8441, 3)", &[settings(8, 2)], connection(PROTOCOL)),
        ("ENABLE_CONNECT_PROTOCOL of 1", &[settings(8, 1)], Fine),
        ("an unknown setting (6.5.2)", &[settings(0xbeef, 7)], Fine),
        (
            "INITIAL_WINDOW_SIZE that takes a window above 2^31-1 (6.9.2)",
            &[post(1), frame(WINDOW_UPDATE, 0, 1, &0x7000_0000u32.to_be_bytes()), settings(4, 0x7000_0000)],
            connection(FLOW),
        ),
    ]);
}

#[test]
fn streams_have_states() {
    let reset = frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]);
    let update = |stream, by: u32| frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes());
    check(&[
        ("DATA on an idle stream (5.1)", &[frame(DATA, 0, 1, b"x")], connection(PROTOCOL)),
        ("DATA on a stream of the server (5.1.1)", &[get(3), frame(DATA, 0, 2, b"x")], connection(PROTOCOL)),
        ("RST_STREAM on an idle stream (5.1)", &[frame(RST_STREAM, 0, 1, &[0; 4])], connection(PROTOCOL)),
        ("WINDOW_UPDATE on an idle stream (5.1)", &[update(1, 1)], connection(PROTOCOL)),
        ("PRIORITY on an idle stream (5.1)", &[frame(PRIORITY, 0, 1, &[0; 5])], Fine),
        ("HEADERS with an even id (5.1.1)", &[get(2)], connection(PROTOCOL)),
        ("an id below an earlier one (5.1.1)", &[get(5), get(3)], connection(PROTOCOL)),
        ("DATA after END_STREAM (5.1)", &[get(1), frame(DATA, 0, 1, b"x")], Stream(1, CLOSED)),
        ("HEADERS after END_STREAM (5.1)", &[get(1), get(1)], Stream(1, CLOSED)),
        (
            "DATA after RST_STREAM (5.1)",
            &[post(1), reset.clone(), frame(DATA, 0, 1, b"x")],
            Stream(1, CLOSED),
        ),
        ("HEADERS after RST_STREAM (5.1)", &[post(1), reset.clone(), get(1)], connection(CLOSED)),
        ("RST_STREAM twice", &[post(1), reset.clone(), reset.clone()], Fine),
        ("WINDOW_UPDATE after RST_STREAM (5.1)", &[post(1), reset, update(1, 1)], Fine),
        ("PRIORITY after END_STREAM (5.1)", &[get(1), frame(PRIORITY, 0, 1, &[0; 5])], Fine),
        (
            "too many streams (5.1.2)",
            &[post(1), get(3), post(5), get(7)],
            Stream(7, ErrorCode::REFUSED_STREAM),
        ),
        ("a stream that depends on itself", &[frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 0])], connection(PROTOCOL)),
        (
            "an open stream that depends on itself",
            &[post(1), frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 0])],
            Stream(1, PROTOCOL),
        ),
        (
            "HEADERS that depend on themselves",
            &[frame(HEADERS, 0x25, 1, &[&[0, 0, 0, 1, 0], &block(&POST)[..]].concat())],
            Stream(1, PROTOCOL),
        ),
    ]);
}

#[test]
fn windows_are_kept() {
    let update = |stream, by: u32| frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes());
    let data = |stream, bytes: usize| frame(DATA, 0, stream, &vec![0; bytes]);
    check(&[
        ("DATA up to the stream's window", &[post(1), data(1, 1000)], Fine),
        ("DATA beyond the stream's window (6.9.1)", &[post(1), data(1, 1000), data(1, 1)], Stream(1, FLOW)),
        (
            "padding counts (6.1)",
            &[post(1), frame(DATA, PADDED, 1, &[&[255], &[0; 1000][..]].concat())],
            Stream(1, FLOW),
        ),
        ("WINDOW_UPDATE of 0 on a stream (6.9)", &[post(1), update(1, 0)], Stream(1, PROTOCOL)),
        ("WINDOW_UPDATE of 0 (6.9)", &[update(0, 0)], connection(PROTOCOL)),
        ("a stream's window above 2^31-1 (6.9.1)", &[post(1), update(1, (1 << 31) - 1)], Stream(1, FLOW)),
        ("the window above 2^31-1 (6.9.1)", &[update(0, (1 << 31) - 1)], connection(FLOW)),
    ]);
    let wide = Limits { stream_window_bytes: 1 << 20, ..limits() };
    let mut bytes = [hello(), post(1)].concat();
    for _ in 0..4 {
        bytes.extend(data(1, 16_000));
    }
    assert_eq!(outcome(wide.clone(), &bytes), Fine);
    bytes.extend(data(1, 2000));
    assert_eq!(outcome(wide, &bytes), connection(FLOW), "DATA beyond the connection's window (6.9.1)");
}

#[test]
fn header_blocks_are_whole_and_bounded() {
    let block = block(&POST);
    let begin = frame(HEADERS, END_STREAM, 1, &block[..3]);
    let rest = frame(CONTINUATION, END_HEADERS, 1, &block[3..]);
    let empty = frame(CONTINUATION, 0, 1, &[]);
    check(&[
        ("CONTINUATION", &[begin.clone(), empty.clone(), rest.clone()], Fine),
        ("PING inside a block (6.2)", &[begin.clone(), frame(PING, 0, 0, &[0; 8])], connection(PROTOCOL)),
        (
            "an unknown frame inside a block (5.5)",
            &[begin.clone(), frame(0xbe, 0, 1, &[])],
            connection(PROTOCOL),
        ),
        (
            "CONTINUATION of another stream (6.10)",
            &[begin.clone(), frame(CONTINUATION, 4, 3, &[])],
            connection(PROTOCOL),
        ),
        (
            "CONTINUATION after END_HEADERS (6.10)",
            &[begin.clone(), rest, empty.clone()],
            connection(PROTOCOL),
        ),
        (
            "too many fragments",
            &[begin.clone(), empty.clone(), empty.clone(), empty.clone(), empty],
            connection(ErrorCode::ENHANCE_YOUR_CALM),
        ),
        (
            "a block that is too large",
            &[begin, frame(CONTINUATION, 0, 1, &[0; 2000])],
            connection(ErrorCode::ENHANCE_YOUR_CALM),
        ),
        (
            "a block in one frame that is too large",
            &[frame(HEADERS, 5, 1, &[0x82; 2001])],
            connection(ErrorCode::ENHANCE_YOUR_CALM),
        ),
        (
            "a block that cannot be decoded (4.3)",
            &[frame(HEADERS, 5, 1, &[0x80])],
            connection(ErrorCode::COMPRESSION_ERROR),
        ),
        (
            "a block of a refused stream that cannot be decoded (4.3)",
            &[post(1), post(3), post(5), frame(HEADERS, 5, 7, &[0x80])],
            connection(ErrorCode::COMPRESSION_ERROR),
        ),
    ]);
}

/// Literal fields, so that names can be wrong.
fn literal(fields: &[(&str, &str)]) -> Vec<u8> {
    let string = |string: &str| [&[string.len() as u8], string.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], string(name), string(value)].concat()).collect()
}

#[test]
fn malformed_requests_reset_their_stream() {
    let valid: &[(&str, &str)] = &[(":method", "POST"), (":scheme", "http"), (":path", "/")];
    let with = |more: &[(&'static str, &'static str)]| [valid, more].concat();
    let cases = [
        ("a valid one", valid.to_vec(), Fine),
        ("te: trailers (8.2.2)", with(&[("te", "trailers")]), Fine),
        ("te of something else (8.2.2)", with(&[("te", "gzip")]), Stream(1, PROTOCOL)),
        ("upper case (8.2.1)", with(&[("X-a", "")]), Stream(1, PROTOCOL)),
        ("an empty name (8.2.1)", with(&[("", "a")]), Stream(1, PROTOCOL)),
        ("a space in a name (8.2.1)", with(&[("a b", "a")]), Stream(1, PROTOCOL)),
        ("a colon in a name (8.2.1)", with(&[("a:b", "a")]), Stream(1, PROTOCOL)),
        ("a line break in a value (8.2.1)", with(&[("a", "a\nb")]), Stream(1, PROTOCOL)),
        ("NUL in a value (8.2.1)", with(&[("a", "a\0b")]), Stream(1, PROTOCOL)),
        ("a carriage return in a value (8.2.1)", with(&[("a", "a\r")]), Stream(1, PROTOCOL)),
        ("a value that begins with a space", with(&[("a", " b")]), Fine),
        ("a value that ends with a space", with(&[("a", "b ")]), Fine),
        ("a value between tabs", with(&[("a", "\tb\t")]), Fine),
        ("a value of a space", with(&[("a", " ")]), Fine),
        ("te with a space (8.2.2)", with(&[("te", " trailers")]), Stream(1, PROTOCOL)),
        ("a length with a space", with(&[("content-length", " 0")]), Stream(1, PROTOCOL)),
        ("a path that begins with a space", vec![valid[0], valid[1], (":path", " /")], Stream(1, PROTOCOL)),
        ("a path that ends with a tab", vec![valid[0], valid[1], (":path", "/\t")], Stream(1, PROTOCOL)),
        ("connection (8.2.2)", with(&[("connection", "close")]), Stream(1, PROTOCOL)),
        ("keep-alive (8.2.2)", with(&[("keep-alive", "1")]), Stream(1, PROTOCOL)),
        ("proxy-connection (8.2.2)", with(&[("proxy-connection", "close")]), Stream(1, PROTOCOL)),
        ("transfer-encoding (8.2.2)", with(&[("transfer-encoding", "chunked")]), Stream(1, PROTOCOL)),
        ("upgrade (8.2.2)", with(&[("upgrade", "h2c")]), Stream(1, PROTOCOL)),
        ("an unknown pseudo-header field (8.3)", with(&[(":a", "b")]), Stream(1, PROTOCOL)),
        (":status in a request (8.3)", with(&[(":status", "200")]), Stream(1, PROTOCOL)),
        (
            "a pseudo-header field after others (8.3)",
            with(&[("a", "b"), (":authority", "c")]),
            Stream(1, PROTOCOL),
        ),
        (":path twice (8.3)", with(&[(":path", "/")]), Stream(1, PROTOCOL)),
        ("no :method (8.3.1)", valid[1..].to_vec(), Stream(1, PROTOCOL)),
        ("no :path (8.3.1)", valid[..2].to_vec(), Stream(1, PROTOCOL)),
        ("no :scheme (8.3.1)", vec![valid[0], valid[2]], Stream(1, PROTOCOL)),
        ("an empty :path (8.3.1)", vec![valid[0], valid[1], (":path", "")], Stream(1, PROTOCOL)),
        ("CONNECT (8.5)", vec![(":method", "CONNECT"), (":authority", "a:1")], Fine),
        (
            "CONNECT with :path (8.5)",
            vec![(":method", "CONNECT"), (":authority", "a:1"), (":path", "/")],
            Stream(1, PROTOCOL),
        ),
        ("CONNECT without :authority (8.5)", vec![(":method", "CONNECT")], Stream(1, PROTOCOL)),
        ("a length without a body (8.1.1)", with(&[("content-length", "1")]), Stream(1, PROTOCOL)),
        ("a length that is no number", with(&[("content-length", "0x0")]), Stream(1, PROTOCOL)),
        ("two lengths", with(&[("content-length", "0"), ("content-length", "1")]), Stream(1, PROTOCOL)),
        ("a list that is too large (10.5.1)", with(&[("a", "b"); 30]), Fine),
    ];
    for (name, fields, expected) in cases {
        let bytes = [hello(), frame(HEADERS, END_HEADERS | END_STREAM, 1, &literal(&fields))].concat();
        assert_eq!(outcome(limits(), &bytes), expected, "{name}");
    }
}

/// gRPC's Go server passes these fields on.
#[test]
fn blanks_at_the_ends_of_values_are_kept() {
    let mut connection = open(limits());
    let fields = [(":method", "POST"), (":scheme", "http"), (":path", "/"), ("a", " b\t"), ("c", "\t")];
    connection.receive(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &literal(&fields)));
    connection.process(0);
    let events = take_events(&mut connection);
    let [Event::Request { head, .. }] = &events[..] else { panic!("{events:?}") };
    let values: Vec<&[u8]> = head.fields.iter().map(|field| &field.value[..]).collect();
    assert_eq!(values, [&b" b\t"[..], b"\t"]);
}

#[test]
fn bodies_and_trailers_fit_their_head() {
    let head =
        |length| frame(HEADERS, END_HEADERS, 1, &block(&[&POST[..], &[("content-length", length)]].concat()));
    let trailers = |flags, fields: &[(&str, &str)]| frame(HEADERS, END_HEADERS | flags, 1, &literal(fields));
    check(&[
        ("a body of its length", &[head("3"), frame(DATA, END_STREAM, 1, b"abc")], Fine),
        (
            "a body in two parts",
            &[head("3"), frame(DATA, 0, 1, b"ab"), frame(DATA, END_STREAM, 1, b"c")],
            Fine,
        ),
        (
            "a body that is too short (8.1.1)",
            &[head("3"), frame(DATA, END_STREAM, 1, b"ab")],
            Stream(1, PROTOCOL),
        ),
        ("a body that is too long (8.1.1)", &[head("3"), frame(DATA, 0, 1, b"abcd")], Stream(1, PROTOCOL)),
        ("trailers before the length (8.1.1)", &[head("3"), trailers(END_STREAM, &[])], Stream(1, PROTOCOL)),
        ("trailers", &[post(1), trailers(END_STREAM, &[("a", "b")])], Fine),
        ("trailers without END_STREAM (8.1)", &[post(1), trailers(0, &[("a", "b")])], Stream(1, PROTOCOL)),
        (
            "pseudo-header fields in trailers (8.1)",
            &[post(1), trailers(END_STREAM, &[(":path", "/")])],
            Stream(1, PROTOCOL),
        ),
        (
            "DATA after trailers (5.1)",
            &[post(1), trailers(END_STREAM, &[]), frame(DATA, 0, 1, b"a")],
            Stream(1, CLOSED),
        ),
        (
            "trailers that are too large",
            &[post(1), trailers(END_STREAM, &[("a", "b"); 40])],
            Stream(1, ErrorCode::ENHANCE_YOUR_CALM),
        ),
    ]);
}

#[test]
fn pings_and_settings_are_acknowledged_in_order() {
    let mut connection = open(limits());
    connection.receive(&frame(PING, 0, 0, b"12345678"));
    connection.receive(&frame(SETTINGS, 0, 0, &setting(5, 20_000)));
    connection.receive(&frame(PING, ACK, 0, b"87654321"));
    connection.process(0);
    let expected = [(PING, ACK, 0, b"12345678".to_vec()), (SETTINGS, ACK, 0, vec![])];
    assert_eq!(frames(&take_output(&mut connection)), expected);
    assert_eq!(take_events(&mut connection), [Event::Pong { payload: *b"87654321" }]);
}

/// Returns the stream of the first request among the events.
fn first_stream(connection: &mut Connection) -> StreamId {
    take_events(connection)
        .iter()
        .find_map(|event| if let Event::Request { stream, .. } = event { Some(*stream) } else { None })
        .expect("a request was sent")
}

#[test]
fn a_list_that_is_too_large_is_answered_with_431() {
    let mut connection = open(limits());
    let fields = [&POST[..], &[("a", "b"); 30]].concat();
    connection.receive(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &literal(&fields)));
    connection.receive(&get(3));
    assert_eq!(connection.process(0), ProcessResult::NeedBytes);
    let output = frames(&take_output(&mut connection));
    assert_eq!(output.len(), 1);
    assert_eq!((output[0].0, output[0].1, output[0].2), (HEADERS, END_HEADERS | END_STREAM, 1));
    assert_eq!(first_stream(&mut connection).number(), 3, "the connection goes on");
}

#[test]
fn a_request_refused_or_reset_by_us_ignores_what_is_under_way() {
    let mut connection = open(limits());
    connection.receive(&post(1));
    connection.process(0);
    let stream = first_stream(&mut connection);
    connection.reset(stream, ErrorCode::CANCEL);
    take_output(&mut connection);
    connection.receive(&[frame(DATA, 0, 1, &[0; 100]), get(1)].concat());
    assert_eq!(connection.process(0), ProcessResult::NeedBytes);
    assert_eq!(take_events(&mut connection), []);
    assert_eq!(frames(&take_output(&mut connection)), []);
}

#[test]
fn an_answer_before_the_end_of_a_request_ends_it() {
    let mut connection = open(limits());
    connection.receive(&post(1));
    connection.process(0);
    let stream = first_stream(&mut connection);
    connection.send_head(stream, &HeaderBlock::new([(":status", "200")]), EndOfBody::Stream).unwrap();
    let output = frames(&take_output(&mut connection));
    assert_eq!(output[0], (HEADERS, END_HEADERS | END_STREAM, 1, vec![0x88]));
    assert_eq!(output[1], (RST_STREAM, 0, 1, vec![0; 4]), "NO_ERROR (8.1)");
    assert_eq!(connection.streams(), 0);
    assert!(connection.send_head(stream, &HeaderBlock::new([(":status", "200")]), EndOfBody::More).is_err());
}

#[test]
fn a_stream_that_is_kept_open_ends_with_its_request_or_when_the_owner_says_so() {
    let trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, &literal(&[("a", "b")]));
    let ends: [(&str, Option<Vec<u8>>); 4] = [
        ("an empty frame", Some(frame(DATA, END_STREAM, 1, &[]))),
        ("data", Some([frame(DATA, 0, 1, &[7; 9]), frame(DATA, END_STREAM, 1, &[7])].concat())),
        ("trailers", Some(trailers)),
        ("the owner", None),
    ];
    for (name, end) in ends {
        let mut connection = open(limits());
        connection.receive(&post(1));
        connection.process(0);
        let stream = first_stream(&mut connection);
        connection.keep_open(stream, true);
        connection.send_head(stream, &HeaderBlock::new([(":status", "200")]), EndOfBody::Stream).unwrap();
        assert_eq!(frames(&take_output(&mut connection)).len(), 1, "{name}");
        assert!(connection.is_live(stream) && connection.window(stream).is_err(), "{name}");
        let resets = match end {
            Some(bytes) => {
                connection.receive(&bytes);
                assert_eq!(connection.process(0), ProcessResult::NeedBytes, "{name}");
                vec![]
            }
            None => {
                connection.keep_open(stream, false);
                vec![(RST_STREAM, 0, 1, vec![0; 4])]
            }
        };
        assert_eq!(connection.streams(), 0, "{name}");
        assert_eq!(frames(&take_output(&mut connection)), resets, "{name}");
    }
}

#[test]
fn a_smaller_table_of_the_peer_is_confirmed_by_the_next_block() {
    let mut connection = open(limits());
    connection.receive(&[frame(SETTINGS, 0, 0, &setting(1, 100)), get(1), get(3)].concat());
    connection.process(0);
    for event in take_events(&mut connection) {
        let Event::Request { stream, .. } = event else { panic!("{event:?}") };
        connection.send_head(stream, &HeaderBlock::new([(":status", "200")]), EndOfBody::Stream).unwrap();
    }
    let output = frames(&take_output(&mut connection));
    assert_eq!(output[1].3, [0x20, 0x88], "RFC 7541, 4.2");
    assert_eq!(output[2].3, [0x88]);
}

#[test]
fn answers_keep_to_the_windows_and_the_frame_size_of_the_peer() {
    let mut connection = open(limits());
    let settings = frame(SETTINGS, 0, 0, &setting(4, 10));
    connection.receive(&[settings, get(1)].concat());
    connection.process(0);
    let stream = first_stream(&mut connection);
    take_output(&mut connection);
    let (head, trailers) = (HeaderBlock::new([(":status", "200")]), HeaderBlock::new([("a", "b")]));
    assert_eq!(connection.answer(stream, &head, &[7; 25], &trailers), Ok(SendResult::Whole));
    let sizes = |connection: &mut Connection| -> Vec<(u8, u8, usize)> {
        frames(&take_output(connection)).iter().map(|frame| (frame.0, frame.1, frame.3.len())).collect()
    };
    assert_eq!(sizes(&mut connection), [(HEADERS, END_HEADERS, 1), (DATA, 0, 10)]);
    // A smaller initial window makes this one negative: -5.
    connection.receive(&frame(SETTINGS, 0, 0, &setting(4, 5)));
    connection.receive(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 5]));
    connection.process(0);
    assert_eq!(sizes(&mut connection), [(SETTINGS, ACK, 0)]);
    connection.receive(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 15]));
    connection.process(0);
    assert_eq!(sizes(&mut connection), [(DATA, 0, 15), (HEADERS, END_HEADERS | END_STREAM, 5)]);
    assert_eq!(connection.streams(), 0);
}

#[test]
fn the_connections_window_is_shared_in_turn() {
    let mut connection = open(limits());
    connection.receive(&[frame(SETTINGS, 0, 0, &setting(4, 1 << 20)), get(1), get(3)].concat());
    connection.process(0);
    take_output(&mut connection);
    let head = HeaderBlock::new([(":status", "200")]);
    for event in take_events(&mut connection) {
        let Event::Request { stream, .. } = event else { panic!("{event:?}") };
        connection.send_head(stream, &head, EndOfBody::More).unwrap();
        let sent = connection.send_data(stream, &mut vec![1; 100_000].into(), EndOfBody::Stream);
        assert_eq!(sent, Ok(SendResult::Whole));
    }
    let data = |connection: &mut Connection, stream| -> usize {
        let output = frames(&take_output(connection));
        output.iter().filter(|frame| frame.0 == DATA && frame.2 == stream).map(|frame| frame.3.len()).sum()
    };
    assert_eq!(data(&mut connection, 1), 65_535);
    connection.receive(&frame(WINDOW_UPDATE, 0, 0, &65_536u32.to_be_bytes()));
    connection.process(0);
    assert_eq!(data(&mut connection, 3), 2 * 16_384);
    connection.receive(&frame(WINDOW_UPDATE, 0, 0, &(1u32 << 20).to_be_bytes()));
    connection.process(0);
    take_output(&mut connection);
    assert_eq!(connection.streams(), 0);
}

/// Opens streams and sends their heads.
fn answering(connection: &mut Connection, bytes: &[u8]) -> Vec<StreamId> {
    connection.receive(bytes);
    connection.process(0);
    let mut streams = Vec::new();
    for event in take_events(connection) {
        let Event::Request { stream, .. } = event else { panic!("{event:?}") };
        connection.send_head(stream, &HeaderBlock::new([(":status", "200")]), EndOfBody::More).unwrap();
        streams.push(stream);
    }
    take_output(connection);
    streams
}

#[test]
fn an_owner_that_makes_its_answer_as_it_is_taken_is_told_when_the_windows_have_room() {
    let mut connection = open(limits());
    let settings = frame(SETTINGS, 0, 0, &setting(4, 10));
    let stream = answering(&mut connection, &[settings, get(1)].concat())[0];
    let cases: [(&str, Vec<u8>, usize); 4] = [
        ("the stream's window", frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 7]), 7),
        ("the initial window", frame(SETTINGS, 0, 0, &setting(4, 15)), 5),
        ("several at once", frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]).repeat(3), 3),
        ("more than the connection's window", frame(WINDOW_UPDATE, 0, 1, &[0, 1, 0, 0]), 65_535 - 25),
    ];
    assert_eq!(connection.window(stream), Ok(10));
    connection.send_data(stream, &mut vec![0; 10].into(), EndOfBody::More).unwrap();
    for (name, bytes, room) in cases {
        assert_eq!(connection.window(stream), Ok(0), "{name}");
        assert_eq!(take_events(&mut connection), [], "{name}");
        take_output(&mut connection);
        connection.receive(&bytes);
        connection.process(0);
        assert_eq!(take_events(&mut connection), [Event::Writable { stream }], "{name}");
        assert_eq!(connection.window(stream), Ok(room), "{name}");
        connection.send_data(stream, &mut vec![0; room].into(), EndOfBody::More).unwrap();
        take_output(&mut connection);
    }
    assert_eq!(connection.window(stream), Ok(0), "the connection's window is used up");
    connection.receive(&frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 9]));
    connection.process(0);
    assert_eq!(take_events(&mut connection), [Event::Writable { stream }]);
    assert_eq!(connection.window(stream), Ok(9));
    connection.reset(stream, ErrorCode::CANCEL);
    assert!(connection.window(stream).is_err() && !connection.is_live(stream));
}

#[test]
fn a_full_output_buffer_is_no_room_until_it_was_written() {
    let limits = Limits { output_bytes_max: 32 << 10, ..limits() };
    let mut connection = open(limits);
    let stream = answering(&mut connection, &get(1))[0];
    assert_eq!(connection.window(stream), Ok(16 << 10));
    connection.send_data(stream, &mut vec![0; 20_000].into(), EndOfBody::More).unwrap();
    assert_eq!(connection.window(stream), Ok(0));
    assert_eq!(take_events(&mut connection), []);
    take_output(&mut connection);
    assert_eq!(take_events(&mut connection), [Event::Writable { stream }]);
    assert_eq!(connection.window(stream), Ok(16 << 10));
}

#[test]
fn an_end_without_bytes_does_not_wait_for_a_window() {
    let mut connection = open(limits());
    let streams = answering(&mut connection, &[get(1), get(3), get(5)].concat());
    connection.send_data(streams[0], &mut vec![0; 70_000].into(), EndOfBody::More).unwrap();
    let data = frames(&take_output(&mut connection)).iter().map(|frame| frame.3.len()).sum::<usize>();
    assert_eq!(data, 65_535, "the connection's window is used up");
    connection.send_trailers(streams[1], &HeaderBlock::new([("a", "b")])).unwrap();
    connection.send_data(streams[2], &mut Bytes::new(), EndOfBody::Stream).unwrap();
    let ends = frames(&take_output(&mut connection));
    assert_eq!((ends[0].0, ends[0].1, ends[0].2), (HEADERS, END_HEADERS | END_STREAM, 3));
    assert_eq!((ends[1].0, ends[1].1, ends[1].2), (DATA, END_STREAM, 5));
    assert_eq!(connection.streams(), 1);
}

#[test]
fn an_answer_that_does_not_fit_at_once_leaves_no_trace() {
    let mut connection = open(limits());
    let settings = frame(SETTINGS, 0, 0, &setting(4, 10));
    connection.receive(&[settings, get(1)].concat());
    connection.process(0);
    let stream = first_stream(&mut connection);
    take_output(&mut connection);
    let (head, trailers) = (HeaderBlock::new([(":status", "200")]), HeaderBlock::new([("a", "b")]));
    assert_eq!(connection.answer_at_once(stream, &head, &[7; 11], &trailers), Ok(false));
    assert_eq!(frames(&take_output(&mut connection)), []);
    assert_eq!(connection.answer_at_once(stream, &head, &[7; 10], &trailers), Ok(true));
    assert_eq!(frames(&take_output(&mut connection)).len(), 3);
    assert!(connection.answer_at_once(stream, &head, &[], &trailers).is_err());
}

#[test]
fn an_answer_at_once_has_16_kib_at_most_and_room_in_the_output_buffer() {
    let (head, trailers) = (HeaderBlock::new([(":status", "200")]), HeaderBlock::new([("a", "b")]));
    // SETTINGS: windows and frames as large as they can be.
    let settings = [setting(4, (1 << 31) - 1), setting(5, (1 << 24) - 1)].concat();
    let window = frame(WINDOW_UPDATE, 0, 0, &(1u32 << 30).to_be_bytes());
    let hello = [frame(SETTINGS, 0, 0, &settings), window, get(1), get(3)].concat();
    for (name, output_bytes_max, body, expected) in [
        ("16 KiB", 256 << 10, 16 << 10, true),
        ("one byte more", 256 << 10, (16 << 10) + 1, false),
        ("16 MiB", 256 << 10, (1 << 24) - 1, false),
        ("as much as the output buffer", 4096, 4096, true),
        ("more than the output buffer", 4096, 4097, false),
    ] {
        let mut connection = open(Limits { output_bytes_max, ..limits() });
        connection.receive(&hello);
        connection.process(0);
        let stream = first_stream(&mut connection);
        take_output(&mut connection);
        let sent = connection.answer_at_once(stream, &head, &vec![7; body], &trailers);
        assert_eq!(sent, Ok(expected), "{name}");
        assert_eq!(!connection.output().is_empty(), expected, "{name}");
    }
}

#[test]
fn an_answer_at_once_leaves_the_output_buffer_within_its_bound() {
    let (head, trailers) = (HeaderBlock::new([(":status", "200")]), HeaderBlock::new([("a", "b")]));
    let mut connection = open(Limits { output_bytes_max: 4096, ..limits() });
    connection.receive(&[get(1), get(3)].concat());
    connection.process(0);
    let streams: Vec<StreamId> = take_events(&mut connection)
        .iter()
        .filter_map(|event| if let Event::Request { stream, .. } = event { Some(*stream) } else { None })
        .collect();
    take_output(&mut connection);
    assert_eq!(connection.answer_at_once(streams[0], &head, &[7; 3000], &trailers), Ok(true));
    assert_eq!(connection.answer_at_once(streams[1], &head, &[7; 3000], &trailers), Ok(false));
    take_output(&mut connection);
    assert_eq!(connection.answer_at_once(streams[1], &head, &[7; 3000], &trailers), Ok(true));
}

#[test]
fn a_shutdown_serves_what_is_under_way_and_ignores_what_comes_later() {
    let mut connection = open(limits());
    connection.receive(&get(1));
    connection.process(0);
    let stream = first_stream(&mut connection);
    connection.shut_down();
    let output = frames(&take_output(&mut connection));
    assert_eq!(output[0], (GOAWAY, 0, 0, [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0].to_vec()));
    let (PING, 0, 0, payload) = &output[1] else { panic!("{output:?}") };
    connection.receive(&[get(3), frame(PING, ACK, 0, payload), post(5), frame(DATA, 1, 5, b"x")].concat());
    assert_eq!(connection.process(0), ProcessResult::NeedBytes);
    let output = frames(&take_output(&mut connection));
    assert_eq!(output, [(GOAWAY, 0, 0, [0, 0, 0, 3, 0, 0, 0, 0].to_vec())]);
    let other = first_stream(&mut connection);
    assert_eq!((other.number(), connection.streams(), connection.is_drained()), (3, 2, false));
    for stream in [stream, other] {
        connection.send_head(stream, &HeaderBlock::new([(":status", "200")]), EndOfBody::Stream).unwrap();
    }
    take_output(&mut connection);
    assert!(connection.is_drained());
}

#[test]
fn a_reset_of_the_peer_reaches_the_owner() {
    let mut connection = open(limits());
    connection.receive(&[post(1), frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])].concat());
    connection.process(0);
    let events = take_events(&mut connection);
    let [Event::Request { stream, .. }, reset] = &events[..] else { panic!("{events:?}") };
    assert_eq!(*reset, Event::Reset { stream: *stream, code: ErrorCode::CANCEL, origin: ResetOrigin::Peer });
}

/// The owner is notified once per partial send, for any source of capacity: its own stream, another stream,
/// or a reset.
#[test]
fn an_owner_that_waits_for_room_is_notified_when_there_is_some() {
    let limits = Limits { stream_unsent_bytes_max: 100, connection_unsent_bytes_max: 150, ..limits() };
    let mut connection = open(limits);
    connection.receive(&[frame(SETTINGS, 0, 0, &setting(4, 0)), get(1), get(3)].concat());
    connection.process(0);
    let streams: Vec<StreamId> = take_events(&mut connection)
        .iter()
        .filter_map(|event| if let Event::Request { stream, .. } = event { Some(*stream) } else { None })
        .collect();
    let mut left = Vec::new();
    for stream in &streams {
        connection.send_head(*stream, &HeaderBlock::new([(":status", "200")]), EndOfBody::More).unwrap();
        let mut data = vec![0; 1000].into();
        assert_eq!(connection.send_data(*stream, &mut data, EndOfBody::Stream), Ok(SendResult::Part));
        left.push(data.len());
    }
    assert_eq!(left, [900, 950]);
    connection.receive(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 10]));
    connection.process(0);
    assert_eq!(
        take_events(&mut connection),
        [Event::Writable { stream: streams[1] }],
        "90 bytes are over a half"
    );
    connection.receive(&frame(RST_STREAM, 0, 1, &[0; 4]));
    let mut data = vec![0; 1000].into();
    assert_eq!(connection.send_data(streams[1], &mut data, EndOfBody::Stream), Ok(SendResult::Part));
    assert_eq!(data.len(), 990);
    connection.process(0);
    let events = take_events(&mut connection);
    assert!(matches!(events[..], [Event::Reset { .. }]), "{events:?}");
    connection.receive(&frame(WINDOW_UPDATE, 0, 3, &[0, 0, 0, 10]));
    connection.process(0);
    assert_eq!(take_events(&mut connection), [Event::Writable { stream: streams[1] }]);
}

/// A remembered head must not outlive the table that its block refers to.
#[test]
fn equal_blocks_are_decoded_again_when_the_table_has_changed() {
    let mut connection = open(limits());
    let mut heads = Vec::new();
    // 40: a literal with an entry; be: the latest entry.
    for (stream, field) in
        (1..).step_by(2).zip([&b"\x40\x01a\x01b"[..], b"\xbe", b"\xbe", b"\x40\x01a\x01c", b"\xbe"])
    {
        connection.receive(&frame(HEADERS, 5, stream, &[&block(&POST)[..], field].concat()));
        connection.process(0);
        let [Event::Request { stream, head, .. }] = &take_events(&mut connection)[..] else { panic!() };
        connection.reset(*stream, ErrorCode::CANCEL);
        heads.push(std::sync::Arc::clone(head));
    }
    let values: Vec<&[u8]> = heads.iter().map(|head| &head.get("a").unwrap()[..]).collect();
    assert_eq!(values, [b"b", b"b", b"b", b"c", b"c"]);
    assert!(std::sync::Arc::ptr_eq(&heads[1], &heads[2]), "the second was remembered");
}

/// The connection is paused, not closed, and resumes in the next interval.
#[test]
fn resets_pause_the_connection_until_the_interval_ends() {
    let limits = Limits { resets_max: 2, interval_ticks: 100, streams_max: 50, ..limits() };
    let reset = |stream| [post(stream), frame(RST_STREAM, 0, stream, &[0; 4])].concat();
    for (name, flood, pauses) in [
        ("resets", [reset(1), reset(3), reset(5)].concat(), vec![100]),
        (
            "malformed requests",
            (1..8).step_by(2).flat_map(|id| frame(HEADERS, 5, id, &[0x82])).collect(),
            vec![100, 200],
        ),
    ] {
        let mut connection = open(limits.clone());
        connection.receive(&flood);
        let mut now = 0;
        for until in pauses {
            assert_eq!(connection.process(now), ProcessResult::Paused { until }, "{name}");
            assert_eq!(connection.process(until - 1), ProcessResult::Paused { until }, "{name}");
            now = until;
        }
        assert_eq!(connection.process(now), ProcessResult::NeedBytes, "{name}");
    }
}

#[test]
fn requests_are_free_and_frames_without_an_answer_are_not() {
    let work = |bytes: &[u8]| {
        let mut connection = open(Limits::default());
        connection.receive(&post(1));
        connection.process(0);
        connection.take_work();
        connection.receive(bytes);
        assert_eq!(connection.process(0), ProcessResult::NeedBytes);
        connection.take_work()
    };
    let cases: [(&str, Vec<u8>, u32, u32); 11] = [
        ("a request", get(3), 0, 0),
        ("the end of a body", frame(DATA, END_STREAM, 1, b""), 0, 0),
        ("a large part", frame(DATA, 0, 1, &[0; 900]), 0, 0),
        ("a part", frame(DATA, 0, 1, &[0; 100]), 0, 1),
        ("a tiny part", frame(DATA, 0, 1, b"drops"), 1, 1),
        ("a reset", frame(RST_STREAM, 0, 1, &[0; 4]), 4, 0),
        ("a ping", frame(PING, 0, 0, &[0; 8]), 4, 0),
        ("settings", frame(SETTINGS, 0, 0, &[]), 32, 0),
        ("a window update", frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]), 1, 0),
        (
            "a continuation",
            [frame(HEADERS, 1, 3, &block(&POST)), frame(CONTINUATION, 4, 3, b"")].concat(),
            1,
            0,
        ),
        ("an unknown frame", frame(200, 0, 0, b""), 1, 0),
    ];
    for (name, bytes, tokens, small_data) in cases {
        let FrameWork { tokens: cost, small_data: small, pings, settings } = work(&bytes);
        assert_eq!((cost, small), (tokens, small_data), "{name}");
        assert_eq!((pings, settings), (u32::from(name == "a ping"), u32::from(name == "settings")), "{name}");
    }
}

#[test]
fn a_flood_is_handled_at_a_bounded_rate_and_answered_requests_at_any() {
    const READ: usize = 4096;
    // Returns the bytes handled within a second, with an endless supply.
    let handled = |flood: Vec<u8>, tokens: usize| {
        let mut connection = open(Limits::default());
        let (mut now, mut bytes) = (0, 0);
        while now < 1000 {
            connection.receive(&flood.repeat(READ / flood.len()));
            bytes += READ / flood.len() * flood.len();
            now = match connection.process(now) {
                ProcessResult::NeedBytes => now,
                ProcessResult::Paused { until } => until,
                other => panic!("{other:?}"),
            };
            connection.written(connection.output().len());
        }
        // The initial tokens, a second's worth, and those earned by acknowledgements.
        let frames = bytes / flood.len();
        assert!(frames * tokens <= 2 * (8_000 + 4_000 + READ / flood.len() * tokens), "{frames} frames");
    };
    handled(frame(PING, 0, 0, &[0; 8]), 4);
    handled(frame(SETTINGS, 0, 0, &[]), 32);
    handled(frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]), 1);
    let mut connection = open(Limits::default());
    let (head, end) = (HeaderBlock::new([(":status", "200")]), HeaderBlock::new([("grpc-status", "0")]));
    for id in (1..20_000).step_by(2) {
        let window = frame(WINDOW_UPDATE, 0, 0, &20u32.to_be_bytes());
        let body = [frame(DATA, 0, id, b"x"), frame(DATA, END_STREAM, id, b"")].concat();
        connection.receive(&[post(id), body, window].concat());
        assert_eq!(connection.process(0), ProcessResult::NeedBytes, "answers pay");
        let stream = first_stream(&mut connection);
        connection.answer(stream, &head, &[0; 20], &end).unwrap();
        take_output(&mut connection);
    }
}

#[test]
fn headers_are_open_until_their_last_byte() {
    let mut connection = open(limits());
    let mut is_open_after = |bytes: &[u8]| {
        connection.receive(bytes);
        connection.process(0);
        connection.is_in_headers()
    };
    let whole = get(1);
    assert!(is_open_after(&whole[..11]));
    assert!(!is_open_after(&whole[11..]));
    assert!(is_open_after(&frame(HEADERS, 0, 3, &block(&POST))), "a CONTINUATION must follow");
    assert!(!is_open_after(&frame(CONTINUATION, END_HEADERS, 3, &[])));
    assert!(!is_open_after(&frame(DATA, 0, 3, &[0; 4])[..10]), "a body has a separate deadline");
}

#[test]
fn an_idle_connection_gives_its_memory_back() {
    let mut connection = open(Limits::default());
    for first in (1..20_000).step_by(200) {
        connection.read_buffer();
        let calls: Vec<u8> = (first..first + 200).step_by(2).flat_map(get).collect();
        connection.receive(&calls);
        connection.process(0);
        for event in take_events(&mut connection) {
            let Event::Request { stream, .. } = event else { panic!("{event:?}") };
            connection.send_head(stream, &HeaderBlock::new([(":status", "200")]), EndOfBody::Stream).unwrap();
        }
        take_output(&mut connection);
    }
    let busy = connection.memory().total();
    connection.shrink();
    let idle = connection.memory();
    assert_eq!((idle.input, idle.output, connection.has_read_buffer()), (0, 0, false), "{idle:?}");
    assert!(idle.total() < 1 << 10, "{busy} bytes before, then {idle:?}");
    connection.read_buffer();
    assert!(connection.has_read_buffer());
}

#[test]
fn a_connection_on_which_no_request_has_begun_has_no_read_buffer() {
    let mut connection = Connection::new(Limits::default(), 0);
    for bytes in [hello(), frame(PING, 0, 0, &[7; 8]), get(1)] {
        connection.receive(&bytes);
        assert_eq!(connection.process(0), ProcessResult::NeedBytes);
        assert_eq!(connection.memory().input, 0);
    }
    connection.receive(&get(3));
    connection.process(0);
    assert!(connection.has_read_buffer());
    assert_eq!(take_events(&mut connection).len(), 2);
}

#[test]
fn strings_and_heads_of_header_blocks_are_not_kept_while_a_connection_is_idle() {
    let mut connection = open(Limits::default());
    let fresh = connection.memory().headers;
    // A field without an entry in the table: "x", and 480 times "a", which has the Huffman code 00011.
    let field = [&b"\x00\x01x\xff\xad\x01"[..], &[0x18, 0xc6, 0x31, 0x8c, 0x63].repeat(60)].concat();
    let head = [&block(&POST)[..], &field].concat();
    connection.receive(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &head));
    connection.process(0);
    let stream = first_stream(&mut connection);
    connection.send_head(stream, &HeaderBlock::new([(":status", "200")]), EndOfBody::Stream).unwrap();
    take_output(&mut connection);
    let busy = connection.memory().headers;
    assert!(busy >= fresh + 2 * 480, "{busy} bytes after {fresh}");
    connection.shrink();
    assert_eq!(connection.memory().headers, fresh);
}

/// The connection's window is used up, so that the front of the queue is blocked.
#[test]
fn streams_that_are_reset_while_they_wait_for_the_window_leave_no_memory() {
    let limits = Limits { resets_max: u32::MAX, control_tokens_at_start: 1 << 20, ..limits() };
    let mut connection = open(limits);
    let first =
        answering(&mut connection, &[frame(SETTINGS, 0, 0, &setting(4, 1 << 20)), get(1)].concat())[0];
    connection.send_data(first, &mut vec![0; 70_000].into(), EndOfBody::More).unwrap();
    take_output(&mut connection);
    let mut waiting = None;
    for id in (3..20_003).step_by(2) {
        let stream = answering(&mut connection, &get(id))[0];
        assert_eq!(connection.window(stream), Ok(0));
        if waiting.is_none() {
            waiting = Some(stream);
            continue;
        }
        connection.receive(&frame(RST_STREAM, 0, id, &[0, 0, 0, 8]));
        connection.process(0);
        take_events(&mut connection);
    }
    let bytes = connection.memory().streams;
    assert!(bytes < 16 << 10, "{bytes} bytes for two streams");
    connection.receive(&frame(WINDOW_UPDATE, 0, 0, &(1u32 << 20).to_be_bytes()));
    connection.process(0);
    let stream = waiting.unwrap();
    assert_eq!(take_events(&mut connection), [Event::Writable { stream }], "one that waits is notified");
}
