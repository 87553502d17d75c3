//! With this crate: every request gets its response when it is complete.

use std::future::pending;

use crate::harness::{Deadlines, Handler, serve as drive};
use http2::{Connection, EndOfBody, Event, HeaderBlock, Limits, SendResult, StreamId};
use tokio::net::TcpStream;

struct Fixed {
    head: HeaderBlock,
    trailers: HeaderBlock,
}

impl Fixed {
    fn answer(&self, connection: &mut Connection, stream: StreamId) {
        // A stream that was reset needs no response.
        if let Ok(SendResult::Part) = connection.answer(stream, &self.head, &crate::MESSAGE, &self.trailers) {
            let sent = connection.send_data(stream, &mut crate::MESSAGE.to_vec().into(), EndOfBody::More);
            assert!(sent != Ok(SendResult::Part), "the limits on unsent bytes are larger");
            let _ = connection.send_trailers(stream, &self.trailers);
        }
    }
}

impl Handler for Fixed {
    fn round(&mut self, connection: &mut Connection) {
        while let Some(event) = connection.next_event() {
            match event {
                Event::Request { stream, body, end, .. } | Event::Data { stream, bytes: body, end } => {
                    connection.release(stream, body.len());
                    if end {
                        self.answer(connection, stream);
                    }
                }
                Event::Trailers { stream, .. } => self.answer(connection, stream),
                Event::Reset { .. } | Event::Writable { .. } | Event::Pong { .. } | Event::GoAway { .. } => {}
            }
        }
    }
}

pub async fn serve(socket: TcpStream) {
    let handler = Fixed {
        head: HeaderBlock::new([(":status", "200"), ("content-type", "application/grpc")]),
        trailers: HeaderBlock::new([("grpc-status", "0")]),
    };
    // A socket error closes its connection, which is sufficient here.
    let _ = drive(socket, handler, Limits::default(), Deadlines::default(), pending()).await;
}
