//! Bytes sent before the frame of a small message while large ones are in progress on its connection.

use std::collections::BTreeMap;

use crate::common::*;
use http2::{Connection, EndOfBody, Event, HeaderBlock, Limits, ProcessResult, StreamId};

const LARGE: usize = 10;
const SMALL: &[u8] = b"an event";
/// Half of the output buffer, and a frame.
const BYTES_BEFORE_MAX: usize = (128 + 16 + 1) << 10;

/// A client with unlimited windows, and `count` streams with sent heads.
fn streams(count: usize) -> (Connection, Vec<StreamId>) {
    let mut connection = open(Limits {
        stream_unsent_bytes_max: usize::MAX,
        connection_unsent_bytes_max: usize::MAX,
        ..Limits::default()
    });
    let windows = [frame(SETTINGS, 0, 0, &setting(4, 1 << 30)), frame(WINDOW_UPDATE, 0, 0, &[0x3f, 0, 0, 0])];
    let requests = (0..count as u32).flat_map(|n| post(2 * n + 1)).collect();
    connection.receive(&[windows.concat(), requests].concat());
    assert_eq!(connection.process(0), ProcessResult::NeedBytes);
    let streams = take_events(&mut connection).into_iter().map(|event| match event {
        Event::Request { stream, .. } => stream,
        event => panic!("{event:?}"),
    });
    let streams: Vec<StreamId> = streams.collect();
    for stream in &streams {
        connection.send_head(*stream, &HeaderBlock::new([(":status", "200")]), EndOfBody::More).unwrap();
    }
    take_output(&mut connection);
    (connection, streams)
}

/// The strategy of owners of large messages.
#[derive(Clone, Copy, Debug)]
enum LargeOwners {
    /// Send as much as the limits allow, and the rest when notified.
    AsThereIsRoom,
    /// Send 64 KiB, and the same again when the client has taken some.
    AllAtOnce,
}

struct Run {
    connection: Connection,
    large: Vec<StreamId>,
    owners: LargeOwners,
    sent: Vec<u8>,
    /// Owners of small messages that were notified.
    notified: Vec<StreamId>,
}

impl Run {
    fn new(small: usize, owners: LargeOwners) -> (Run, Vec<StreamId>) {
        let (connection, mut streams) = streams(LARGE + small);
        let small = streams.split_off(LARGE);
        let mut run = Run { connection, large: streams, owners, sent: Vec::new(), notified: Vec::new() };
        run.large.clone().into_iter().for_each(|stream| run.send_large(stream));
        (run, small)
    }

    fn send_large(&mut self, stream: StreamId) {
        match self.owners {
            LargeOwners::AsThereIsRoom => {
                while let Ok(room @ 1..) = self.connection.window(stream) {
                    let mut data = vec![0; room].into();
                    self.connection.send_data(stream, &mut data, EndOfBody::More).unwrap();
                }
            }
            LargeOwners::AllAtOnce if self.connection.unsent() < LARGE * (64 << 10) => {
                let mut data = vec![0; 64 << 10].into();
                self.connection.send_data(stream, &mut data, EndOfBody::More).unwrap();
            }
            LargeOwners::AllAtOnce => {}
        }
    }

    /// Returns whether the message fit.
    fn send_small(&mut self, stream: StreamId) -> bool {
        let room = self.connection.window_for(stream, SMALL.len()).unwrap();
        if room >= SMALL.len() {
            self.connection.send_data(stream, &mut SMALL.into(), EndOfBody::More).unwrap();
        }
        room >= SMALL.len()
    }

    /// The client takes `bytes`; large owners send more.
    fn take(&mut self, bytes: usize) {
        let bytes = bytes.min(self.connection.output().len());
        self.sent.extend_from_slice(&self.connection.output()[..bytes]);
        self.connection.written(bytes);
        loop {
            let events = take_events(&mut self.connection);
            for event in &events {
                let Event::Writable { stream } = *event else { panic!("{event:?}") };
                match self.large.contains(&stream) {
                    true => self.send_large(stream),
                    false => self.notified.push(stream),
                }
            }
            if events.is_empty() {
                break;
            }
        }
        if let LargeOwners::AllAtOnce = self.owners {
            self.large.clone().into_iter().for_each(|stream| self.send_large(stream));
        }
    }

    /// Bytes of bodies by stream.
    fn bodies(&self) -> BTreeMap<u32, usize> {
        let mut bodies = BTreeMap::new();
        for (kind, _, stream, payload) in whole_frames(&self.sent) {
            if kind == DATA {
                *bodies.entry(stream).or_default() += payload;
            }
        }
        bodies
    }
}

/// Kind, flags, stream and length of the complete frames.
fn whole_frames(mut bytes: &[u8]) -> Vec<(u8, u8, u32, usize)> {
    let mut frames = Vec::new();
    while bytes.len() >= 9 {
        let length = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        let Some(rest) = bytes.get(9 + length..) else { break };
        frames.push((bytes[3], bytes[4], u32::from_be_bytes(bytes[5..9].try_into().unwrap()), length));
        bytes = rest;
    }
    frames
}

#[test]
fn a_small_message_waits_for_half_an_output_buffer_at_most_however_many_large_ones_are_under_way() {
    for owners in [LargeOwners::AsThereIsRoom, LargeOwners::AllAtOnce] {
        for taken_before in [0, 5_000, 100_000, 1_000_000] {
            let (mut run, small) = Run::new(1, owners);
            while run.sent.len() < taken_before {
                run.take(30_000);
            }
            let before = run.sent.len();
            assert!(run.send_small(small[0]), "{owners:?} after {taken_before}: there is room at once");
            while !run.bodies().contains_key(&small[0].number()) {
                run.take(1000);
            }
            let passed = run.sent.len() - before;
            assert!(passed <= BYTES_BEFORE_MAX, "{owners:?} after {taken_before}: {passed} bytes before");
        }
    }
}

#[test]
fn small_messages_without_end_leave_large_ones_their_turns() {
    for owners in [LargeOwners::AsThereIsRoom, LargeOwners::AllAtOnce] {
        let (mut run, small) = Run::new(400, owners);
        run.notified.clone_from(&small);
        while run.sent.len() < 4 << 20 {
            for stream in std::mem::take(&mut run.notified) {
                if run.send_small(stream) {
                    run.notified.push(stream);
                }
            }
            run.take(30_000);
        }
        let bodies = run.bodies();
        let large: usize = run.large.iter().filter_map(|stream| bodies.get(&stream.number())).sum();
        assert!(large > 1 << 20, "{owners:?}: {large} bytes of large messages");
        let served = small.iter().filter(|stream| bodies.contains_key(&stream.number())).count();
        assert_eq!(served, small.len(), "{owners:?}");
    }
}

#[test]
fn an_owner_that_waits_has_its_turn_while_others_leave_bytes_pending() {
    let (mut run, waiting) = Run::new(1, LargeOwners::AllAtOnce);
    let mut sent = 0;
    while run.sent.len() < 4 << 20 {
        if sent == 0 || run.notified.pop().is_some() {
            while let Ok(room @ 1..) = run.connection.window(waiting[0]) {
                run.connection.send_data(waiting[0], &mut vec![0; room].into(), EndOfBody::More).unwrap();
                sent += room;
            }
            sent = sent.max(1);
        }
        run.take(30_000);
    }
    let part = run.bodies().get(&waiting[0].number()).copied().unwrap_or_default();
    assert!(part > 256 << 10, "{part} bytes");
}
