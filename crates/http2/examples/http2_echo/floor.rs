//! By hand: one thread, epoll, frame headers only, constant responses, one write per read.
//!
//! No HPACK, no flow control, no limits: it measures the kernel and a loop over frames.

use std::collections::HashMap;
use std::io::{self, Read, Write};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

const LISTENER: Token = Token(0);
const PREFACE_BYTES: usize = 24;

struct Connection {
    socket: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    greeted: bool,
}

pub fn serve(address: &str) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1024);
    let mut listener = TcpListener::bind(address.parse().map_err(io::Error::other)?)?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut connections = HashMap::new();
    let mut next = 1;
    let mut buffer = vec![0; 64 << 10];
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() != LISTENER {
                let done = connections.get_mut(&event.token()).is_some_and(|c| turn(c, &mut buffer).is_err());
                if done {
                    connections.remove(&event.token());
                }
                continue;
            }
            while let Ok((mut socket, _)) = listener.accept() {
                socket.set_nodelay(true)?;
                let interest = Interest::READABLE | Interest::WRITABLE;
                poll.registry().register(&mut socket, Token(next), interest)?;
                // SETTINGS, and a window large enough for the whole run.
                let mut output = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
                output.extend([0, 0, 4, 8, 0, 0, 0, 0, 0, 0x7f, 0, 0, 0]);
                connections.insert(Token(next), Connection { socket, input: vec![], output, greeted: false });
                next += 1;
            }
        }
    }
}

/// Reads the available bytes, responds, writes once.
fn turn(connection: &mut Connection, buffer: &mut [u8]) -> io::Result<()> {
    loop {
        let read = match connection.socket.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return write(connection),
            Err(error) => return Err(error),
        };
        connection.input.extend_from_slice(&buffer[..read]);
        handle(connection);
        write(connection)?;
        // A short read means that the socket is empty.
        if read < buffer.len() {
            return Ok(());
        }
    }
}

fn write(connection: &mut Connection) -> io::Result<()> {
    while !connection.output.is_empty() {
        match connection.socket.write(&connection.output) {
            Ok(bytes) => drop(connection.output.drain(..bytes)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn handle(connection: &mut Connection) {
    let mut at = 0;
    if !connection.greeted {
        if connection.input.len() < PREFACE_BYTES {
            return;
        }
        connection.greeted = true;
        at = PREFACE_BYTES;
    }
    while let Some(&[a, b, c, kind, flags, d, e, f, g]) = connection.input[at..].first_chunk::<9>() {
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let Some(payload) = connection.input.get(at + 9..at + 9 + length) else { break };
        let output = &mut connection.output;
        match (kind, flags & 1) {
            (0 | 1, 1) => answer(output, [d, e, f, g]),
            (4, 0) => output.extend([0, 0, 0, 4, 1, 0, 0, 0, 0]),
            (6, 0) => {
                output.extend([0, 0, 8, 6, 1, 0, 0, 0, 0]);
                output.extend(payload);
            }
            _ => {}
        }
        at += 9 + length;
    }
    connection.input.drain(..at);
}

/// `:status 200`, `content-type: application/grpc` as a literal; then `grpc-status: 0`.
fn answer(output: &mut Vec<u8>, stream: [u8; 4]) {
    let mut frame = |kind, flags, payload: &[u8]| {
        output.extend([0, 0, payload.len() as u8, kind, flags]);
        output.extend(stream);
        output.extend(payload);
    };
    frame(1, 4, b"\x88\x0f\x10\x10application/grpc");
    frame(0, 0, &crate::MESSAGE);
    frame(1, 5, b"\x00\x0bgrpc-status\x010");
}
