//! A handler that echoes bodies as they arrive, and records the heads. It releases bytes once the
//! connection has accepted their echo, so a client that does not read has to wait.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::harness::Handler;
use bytes::Bytes;
use http2::{Connection, EndOfBody, Event, Field, Head, HeaderBlock, SendResult, StreamId};

/// Heads and trailers, by the value of the field `id`.
pub type Requests = Arc<Mutex<BTreeMap<String, (Arc<Head>, Option<Vec<Field>>)>>>;

pub struct Echo {
    pub requests: Requests,
    names: BTreeMap<StreamId, String>,
    /// Bytes waiting for capacity, and whether they are the last.
    waiting: BTreeMap<StreamId, (Bytes, bool)>,
    head: HeaderBlock,
    trailers: HeaderBlock,
}

impl Echo {
    pub fn new(requests: Requests) -> Echo {
        Echo {
            requests,
            names: BTreeMap::new(),
            waiting: BTreeMap::new(),
            head: HeaderBlock::new([(":status", "200"), ("kind", "echo")]),
            trailers: HeaderBlock::new([("status", "done")]),
        }
    }

    fn send(&mut self, connection: &mut Connection, stream: StreamId, mut bytes: Bytes, end: bool) {
        if let Some((waiting, last)) = self.waiting.get_mut(&stream) {
            *waiting = [&waiting[..], &bytes].concat().into();
            *last = end;
            return;
        }
        let before = bytes.len();
        let sent = connection.send_data(stream, &mut bytes, EndOfBody::More);
        connection.release(stream, before - bytes.len());
        match sent {
            Ok(SendResult::Whole) if end => drop(connection.send_trailers(stream, &self.trailers)),
            Ok(SendResult::Part) => drop(self.waiting.insert(stream, (bytes, end))),
            Ok(SendResult::Whole) | Err(_) => {}
        }
    }
}

impl Handler for Echo {
    fn round(&mut self, connection: &mut Connection) {
        while let Some(event) = connection.next_event() {
            match event {
                Event::Request { stream, head, body, end, .. } => {
                    let name = head.get("id").map_or(String::new(), |id| String::from_utf8_lossy(id).into());
                    self.requests.lock().unwrap().insert(name.clone(), (head, None));
                    self.names.insert(stream, name);
                    connection.send_head(stream, &self.head, EndOfBody::More).unwrap();
                    self.send(connection, stream, body, end);
                }
                Event::Data { stream, bytes, end } => self.send(connection, stream, bytes, end),
                Event::Trailers { stream, fields } => {
                    let name = &self.names[&stream];
                    self.requests.lock().unwrap().get_mut(name).unwrap().1 = Some(fields);
                    self.send(connection, stream, Bytes::new(), true);
                }
                Event::Writable { stream } => {
                    if let Some((bytes, end)) = self.waiting.remove(&stream) {
                        self.send(connection, stream, bytes, end);
                    }
                }
                Event::Reset { stream, .. } => {
                    if let Some((bytes, _)) = self.waiting.remove(&stream) {
                        connection.release(stream, bytes.len());
                    }
                }
                Event::Pong { .. } | Event::GoAway { .. } => {}
            }
        }
    }
}
