//! Builds frames of a client, and reads frames of the server.
#![allow(dead_code, reason = "each test uses its part")]

use bytes::Bytes;
use http2::{Connection, Event, HeaderBlock, Limits, ProcessResult};

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The first bytes of every client.
pub fn hello() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frame(SETTINGS, ACK, 0, &[])].concat()
}

pub fn setting(id: u16, value: u32) -> Vec<u8> {
    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    HeaderBlock::new(fields.iter().copied()).bytes().to_vec()
}

pub const POST: [(&str, &str); 4] =
    [(":method", "POST"), (":scheme", "http"), (":path", "/call"), (":authority", "host")];

/// The head of a request that has a body.
pub fn post(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &block(&POST))
}

/// A request without a body.
pub fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&POST))
}

/// Frames of the server: kind, flags, stream, payload.
pub fn frames(mut bytes: &[u8]) -> Vec<(u8, u8, u32, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
        frames.push((header[3], header[4], stream, rest[..length].to_vec()));
        bytes = &rest[length..];
    }
    assert!(bytes.is_empty(), "the output ends inside a frame header");
    frames
}

/// Returns a connection after the handshake, with its output removed.
pub fn open(limits: Limits) -> Connection {
    let mut connection = Connection::new(limits, 0);
    connection.receive(&hello());
    assert_eq!(connection.process(0), ProcessResult::NeedBytes);
    take_output(&mut connection);
    connection
}

pub fn take_output(connection: &mut Connection) -> Vec<u8> {
    let mut output = Vec::new();
    while !connection.output().is_empty() {
        output.extend_from_slice(connection.output());
        connection.written(connection.output().len());
    }
    output
}

pub fn take_events(connection: &mut Connection) -> Vec<Event> {
    std::iter::from_fn(|| connection.next_event()).collect()
}

/// Splits events as if every DATA frame had arrived in a separate read.
pub fn separated(events: Vec<Event>) -> Vec<Event> {
    let mut separated = Vec::new();
    for event in events {
        match event {
            Event::Request { stream, head, varying, body, end } => {
                // A head with END_STREAM and one with an empty last DATA frame are equivalent.
                separated.push(Event::Request {
                    stream,
                    head,
                    varying,
                    body: Bytes::new(),
                    end: end && body.is_empty(),
                });
                if !body.is_empty() {
                    separated.push(Event::Data { stream, bytes: body, end });
                }
            }
            Event::Data { stream, bytes, end: true } if bytes.is_empty() => match separated.last_mut() {
                Some(Event::Request { stream: last, end, .. }) if *last == stream => *end = true,
                _ => separated.push(Event::Data { stream, bytes, end: true }),
            },
            event => separated.push(event),
        }
    }
    separated
}

/// The encoding of a field that is not in the table.
#[derive(Clone, Copy, Debug)]
pub enum How {
    Added,
    Literal,
    NeverAdded,
}

/// An encoder with a dynamic table, as clients have one. Its strings are plain.
pub struct Encoder {
    table: std::collections::VecDeque<(String, String)>,
    bytes_max: u32,
}

impl Encoder {
    pub fn new(bytes_max: u32) -> Encoder {
        Encoder { table: Default::default(), bytes_max }
    }

    /// Returns the size update that precedes the first block, if the table size is not the default.
    pub fn update(&self) -> Vec<u8> {
        integer(0x20, 5, self.bytes_max as usize)
    }

    pub fn block(&mut self, fields: &[(&str, &str)]) -> Vec<u8> {
        self.block_as(fields, &[])
    }

    /// Like [`Encoder::block`], with the encoding of each field.
    pub fn block_as(&mut self, fields: &[(&str, &str)], how: &[How]) -> Vec<u8> {
        let mut block = Vec::new();
        for (place, (name, value)) in fields.iter().enumerate() {
            let known = |entry: &(String, String)| (entry.0 == *name, entry.0 == *name && entry.1 == *value);
            if let Some(place) = self.table.iter().position(|entry| known(entry).1) {
                block.extend(integer(0x80, 7, 62 + place));
                continue;
            }
            let how = how.get(place).copied().unwrap_or(How::Added);
            let (pattern, bits) = match how {
                How::Added => (0x40, 6),
                How::Literal => (0, 4),
                How::NeverAdded => (0x10, 4),
            };
            let named = self.table.iter().position(|entry| known(entry).0);
            block.extend(integer(pattern, bits, named.map_or(0, |place| 62 + place)));
            if named.is_none() {
                block.extend([&integer(0, 7, name.len())[..], name.as_bytes()].concat());
            }
            block.extend([&integer(0, 7, value.len())[..], value.as_bytes()].concat());
            if matches!(how, How::Added) {
                self.table.push_front((name.to_string(), value.to_string()));
                self.evict();
            }
        }
        block
    }

    fn evict(&mut self) {
        let size = |(name, value): &(String, String)| name.len() + value.len() + 32;
        while self.table.iter().map(size).sum::<usize>() > self.bytes_max as usize {
            self.table.pop_back();
        }
    }
}

/// An integer of HPACK.
fn integer(pattern: u8, bits: u32, value: usize) -> Vec<u8> {
    let mask = (1 << bits) - 1;
    if value < mask {
        return vec![pattern | value as u8];
    }
    let mut bytes = vec![pattern | mask as u8];
    let mut rest = value - mask;
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}
