//! The work per frame of the peer, counted in events and frames: it is bounded by the window that the frame
//! adds, for any number of waiting streams.

use std::collections::VecDeque;

use crate::common::*;
use http2::{Connection, EndOfBody, Event, HeaderBlock, Limits, ProcessResult, SendResult, StreamId};

const STREAMS: u32 = 500;

fn limits() -> Limits {
    Limits { streams_max: STREAMS, ..Limits::default() }
}

fn update(stream: u32, by: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

fn process(connection: &mut Connection, bytes: &[u8]) {
    connection.receive(bytes);
    assert_eq!(connection.process(0), ProcessResult::NeedBytes);
}

/// Opens streams and sends their heads, with the connection's window used up.
fn streams_without_window(connection: &mut Connection) -> Vec<StreamId> {
    let settings = frame(SETTINGS, 0, 0, &setting(4, 1 << 20));
    process(connection, &[settings, (0..STREAMS).flat_map(|n| post(2 * n + 1)).collect()].concat());
    let mut streams = Vec::new();
    for event in take_events(connection) {
        let Event::Request { stream, .. } = event else { panic!("{event:?}") };
        connection.send_head(stream, &HeaderBlock::new([(":status", "200")]), EndOfBody::More).unwrap();
        streams.push(stream);
    }
    assert_eq!(connection.window(streams[0]), Ok(65_535));
    connection.send_data(streams[0], &mut vec![0; 65_535].into(), EndOfBody::More).unwrap();
    take_output(connection);
    streams
}

/// Like [`streams_without_window`], with an owner that waits for the window on each stream.
fn waiting_streams(connection: &mut Connection) -> Vec<StreamId> {
    let streams = streams_without_window(connection);
    assert!(streams.iter().all(|stream| connection.window(*stream) == Ok(0)));
    assert_eq!(take_events(connection), []);
    streams
}

/// Serves owners that send a byte when they are notified and wait again. Counts the notifications of each.
fn serve(connection: &mut Connection, notified: &mut [u32]) {
    let mut woken: VecDeque<StreamId> = VecDeque::new();
    loop {
        for event in take_events(connection) {
            let Event::Writable { stream } = event else { panic!("{event:?}") };
            notified[stream.number() as usize / 2] += 1;
            woken.push_back(stream);
        }
        let Some(stream) = woken.pop_front() else { return };
        if connection.window(stream).unwrap() > 0 {
            assert_eq!(
                connection.send_data(stream, &mut vec![0; 1].into(), EndOfBody::More),
                Ok(SendResult::Whole)
            );
            connection.window(stream).unwrap();
        }
    }
}

#[test]
fn a_byte_of_window_is_offered_to_one_stream_and_all_have_their_turn() {
    let mut connection = open(limits());
    waiting_streams(&mut connection);
    let mut notified = vec![0; STREAMS as usize];
    for _ in 0..STREAMS {
        process(&mut connection, &update(0, 1));
        serve(&mut connection, &mut notified);
    }
    let sent = frames(&take_output(&mut connection));
    assert_eq!(sent.len(), STREAMS as usize, "a byte for each frame");
    let mut served: Vec<u32> = sent.iter().map(|frame| frame.2).collect();
    served.sort_unstable();
    assert!(served.iter().copied().eq((0..STREAMS).map(|n| 2 * n + 1)), "each stream has sent a byte");
    let most = notified.iter().max().unwrap();
    assert!(*most <= 3, "a stream was notified {most} times for one byte");
}

#[test]
fn a_window_for_all_serves_all_at_once() {
    let mut connection = open(limits());
    waiting_streams(&mut connection);
    let mut notified = vec![0; STREAMS as usize];
    process(&mut connection, &update(0, STREAMS));
    serve(&mut connection, &mut notified);
    assert_eq!(frames(&take_output(&mut connection)).len(), STREAMS as usize);
    // Each owner is notified while capacity remains, even if other owners use it.
    let mut connection = open(limits());
    waiting_streams(&mut connection);
    process(&mut connection, &update(0, 1 << 20));
    let mut woken = 0;
    while let Some(event) = connection.next_event() {
        let Event::Writable { stream } = event else { panic!("{event:?}") };
        assert!(connection.window(stream).unwrap() > 0);
        woken += 1;
    }
    assert_eq!(woken, STREAMS);
}

/// Ways for a notified owner to leave the window unused.
#[test]
fn a_turn_that_is_not_used_passes_on() {
    type Use = fn(&mut Connection, StreamId);
    let cases: [(&str, Use); 6] = [
        ("it resets its stream", |connection, stream| {
            connection.reset(stream, http2::ErrorCode::CANCEL);
        }),
        ("it ends its answer", |connection, stream| {
            connection.send_trailers(stream, &HeaderBlock::new([("a", "b")])).unwrap();
        }),
        ("it ends its answer, and the request goes on", |connection, stream| {
            connection.keep_open(stream, true);
            connection.send_trailers(stream, &HeaderBlock::new([("a", "b")])).unwrap();
        }),
        ("its client resets it", |connection, stream| {
            process(connection, &frame(RST_STREAM, 0, stream.number(), &[0, 0, 0, 8]));
        }),
        ("it asks and sends nothing yet", |connection, stream| {
            assert_eq!(connection.window(stream), Ok(9));
        }),
        ("it forgets its stream, and time passes", |connection, _| connection.tick(1)),
    ];
    for (name, not_used) in cases {
        let mut connection = open(limits());
        let streams = waiting_streams(&mut connection);
        process(&mut connection, &update(0, 9));
        assert_eq!(take_events(&mut connection), [Event::Writable { stream: streams[0] }], "{name}");
        not_used(&mut connection, streams[0]);
        let events = take_events(&mut connection);
        assert!(events.contains(&Event::Writable { stream: streams[1] }), "{name}: {events:?}");
    }
}

/// Owners that produce a message only when the client can take it.
#[test]
fn a_byte_sets_one_owner_to_work_and_the_next_when_that_one_has_sent() {
    let mut connection = open(limits());
    let streams = waiting_streams(&mut connection);
    process(&mut connection, &update(0, 1));
    for (round, &stream) in streams.iter().enumerate().take(20) {
        assert_eq!(take_events(&mut connection), [Event::Writable { stream }], "{round}");
        assert_eq!(connection.window(stream), Ok(1));
        assert_eq!(take_events(&mut connection), [], "the byte is reserved");
        // Neither time nor unrelated frames trigger another notification.
        connection.tick(1000);
        process(&mut connection, &frame(PING, ACK, 0, b"12345678"));
        assert!(matches!(take_events(&mut connection)[..], [Event::Pong { .. }]));
        match round % 3 {
            0 => drop(connection.send_data(stream, &mut vec![0; 1].into(), EndOfBody::More).unwrap()),
            1 => connection.reset(stream, http2::ErrorCode::CANCEL),
            _ => connection.send_trailers(stream, &HeaderBlock::new([("a", "b")])).unwrap(),
        }
        if round % 3 == 0 {
            assert_eq!(take_events(&mut connection), [], "it was used");
            process(&mut connection, &update(0, 1));
        }
    }
}

#[test]
fn a_stream_that_was_notified_too_late_is_the_next() {
    let mut connection = open(limits());
    let streams = waiting_streams(&mut connection);
    process(&mut connection, &update(0, 1));
    assert_eq!(take_events(&mut connection), [Event::Writable { stream: streams[0] }]);
    // A stream that did not wait uses the byte.
    connection.send_data(streams[7], &mut vec![0; 1].into(), EndOfBody::More).unwrap();
    assert_eq!(connection.window(streams[0]), Ok(0));
    process(&mut connection, &update(0, 1));
    assert_eq!(take_events(&mut connection), [Event::Writable { stream: streams[0] }]);
}

/// A large response of the first stream fills the connection's limit; each of the other streams has a byte
/// to send.
#[test]
fn a_byte_less_that_is_pending_is_offered_to_one_stream() {
    let limits = Limits { connection_unsent_bytes_max: 1000, ..limits() };
    let mut connection = open(limits);
    let streams = streams_without_window(&mut connection);
    assert_eq!(
        connection.send_data(streams[0], &mut vec![0; 1000].into(), EndOfBody::More),
        Ok(SendResult::Whole)
    );
    for stream in &streams[1..] {
        assert_eq!(
            connection.send_data(*stream, &mut vec![0; 1].into(), EndOfBody::More),
            Ok(SendResult::Part)
        );
    }
    for stream in &streams[1..] {
        process(&mut connection, &update(0, 1));
        assert_eq!(take_events(&mut connection), [Event::Writable { stream: *stream }]);
        assert_eq!(
            connection.send_data(*stream, &mut vec![0; 1].into(), EndOfBody::More),
            Ok(SendResult::Whole)
        );
        assert_eq!(take_events(&mut connection), []);
    }
}

#[test]
fn a_reset_that_frees_what_was_pending_serves_one_after_the_other() {
    let mut connection = open(Limits { connection_unsent_bytes_max: 1000, ..limits() });
    let streams = streams_without_window(&mut connection);
    connection.send_data(streams[0], &mut vec![0; 1000].into(), EndOfBody::More).unwrap();
    for stream in &streams[1..] {
        assert_eq!(
            connection.send_data(*stream, &mut vec![0; 1].into(), EndOfBody::More),
            Ok(SendResult::Part)
        );
    }
    connection.reset(streams[0], http2::ErrorCode::CANCEL);
    for stream in &streams[1..] {
        assert_eq!(take_events(&mut connection), [Event::Writable { stream: *stream }]);
        assert_eq!(
            connection.send_data(*stream, &mut vec![0; 1].into(), EndOfBody::More),
            Ok(SendResult::Whole)
        );
    }
    assert_eq!(take_events(&mut connection), []);
}

/// Three streams: the first has pending bytes up to the connection's limit but one, which the second has.
/// The second and the third wait for capacity.
fn waiting_for_room(connection: &mut Connection) -> [StreamId; 3] {
    let streams = streams_without_window(connection);
    let &[first, second, third, ..] = &streams[..] else { panic!("three streams") };
    for (stream, bytes, sent) in
        [(first, 999, SendResult::Whole), (second, 2, SendResult::Part), (third, 1, SendResult::Part)]
    {
        assert_eq!(connection.send_data(stream, &mut vec![0; bytes].into(), EndOfBody::More), Ok(sent));
    }
    [first, second, third]
}

#[test]
fn an_owner_that_has_ended_its_answer_takes_no_turn_of_others() {
    let trailers = HeaderBlock::new([("a", "b")]);
    for is_notified in [true, false] {
        let mut connection = open(Limits { connection_unsent_bytes_max: 1000, ..limits() });
        let [_, second, third] = waiting_for_room(&mut connection);
        if !is_notified {
            connection.send_trailers(second, &trailers).unwrap();
        }
        process(&mut connection, &update(0, 1));
        if is_notified {
            assert_eq!(take_events(&mut connection), [Event::Writable { stream: second }]);
            // It has a pending byte, which waits for the window.
            connection.send_trailers(second, &trailers).unwrap();
        }
        assert_eq!(take_events(&mut connection), [Event::Writable { stream: third }], "{is_notified}");
    }
}

#[test]
fn an_owner_that_was_notified_of_room_and_waits_for_the_window_passes_the_room_on() {
    let mut connection = open(Limits { connection_unsent_bytes_max: 1000, ..limits() });
    let streams = streams_without_window(&mut connection);
    connection.send_data(streams[0], &mut vec![0; 1000].into(), EndOfBody::More).unwrap();
    for stream in &streams[1..3] {
        assert_eq!(
            connection.send_data(*stream, &mut vec![0; 1].into(), EndOfBody::More),
            Ok(SendResult::Part)
        );
    }
    process(&mut connection, &update(0, 1));
    assert_eq!(take_events(&mut connection), [Event::Writable { stream: streams[1] }]);
    assert_eq!(connection.window(streams[1]), Ok(0));
    assert_eq!(take_events(&mut connection), [Event::Writable { stream: streams[2] }]);
}

#[test]
fn an_owner_that_was_notified_of_the_window_and_waits_for_room_passes_the_window_on() {
    let mut connection = open(Limits { connection_unsent_bytes_max: 1000, ..limits() });
    let streams = streams_without_window(&mut connection);
    // The first has no window left, so its bytes remain pending.
    process(&mut connection, &frame(SETTINGS, 0, 0, &setting(4, 65_535)));
    connection.send_data(streams[0], &mut vec![0; 1000].into(), EndOfBody::More).unwrap();
    assert!(streams[1..3].iter().all(|stream| connection.window(*stream) == Ok(0)));
    process(&mut connection, &update(0, 9));
    assert_eq!(take_events(&mut connection), [Event::Writable { stream: streams[1] }]);
    assert_eq!(
        connection.send_data(streams[1], &mut vec![0; 1].into(), EndOfBody::More),
        Ok(SendResult::Part)
    );
    assert_eq!(take_events(&mut connection), [Event::Writable { stream: streams[2] }]);
}

#[test]
fn a_connection_knows_whether_owners_wait() {
    let mut connection = open(Limits { connection_unsent_bytes_max: 1000, ..limits() });
    let streams = streams_without_window(&mut connection);
    assert!(!connection.has_waiting_owners());
    assert_eq!(connection.window(streams[0]), Ok(0));
    assert!(connection.has_waiting_owners());
    process(&mut connection, &update(0, 1));
    assert_eq!(connection.window(streams[0]), Ok(1));
    assert!(!connection.has_waiting_owners());
    assert_eq!(
        connection.send_data(streams[0], &mut vec![0; 2000].into(), EndOfBody::More),
        Ok(SendResult::Part)
    );
    assert!(connection.has_waiting_owners());
}

/// Each change of the initial window updates every stream.
#[test]
fn settings_that_change_the_windows_of_many_streams_are_slowed_down() {
    let window = |bytes| frame(SETTINGS, 0, 0, &setting(4, bytes));
    for (streams, handled) in [(0, 40), (1, 40), (STREAMS, 4)] {
        let mut connection = open(Limits { window_changes_max: 4 * STREAMS - 3, ..limits() });
        process(&mut connection, &(0..streams).flat_map(|n| get(2 * n + 1)).collect::<Vec<u8>>());
        take_events(&mut connection);
        let flood: Vec<u8> = (0..40).flat_map(|n| window(n % 2)).collect();
        connection.receive(&flood);
        let expected =
            if handled < 40 { ProcessResult::Paused { until: 1000 } } else { ProcessResult::NeedBytes };
        assert_eq!(connection.process(0), expected, "{streams} streams");
        let acknowledged = frames(&take_output(&mut connection));
        assert_eq!(acknowledged.len(), handled, "{streams} streams");
        // Handling resumes after an interval.
        connection.process(1000);
        let acknowledged = frames(&take_output(&mut connection));
        assert_eq!(acknowledged.len(), handled.min(40 - handled), "{streams} streams");
    }
}
