//! A raw HTTP/2 connection for attackers. Sends frames unchanged and counts responses.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::frame;

/// Maximum wait for the server's settings. A slower server is busy or rejects the connection; the
/// attacker reconnects.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

/// Handling of the bytes that the server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// Reads everything, acknowledges settings and pings, and returns the connection's window.
    Everything,
    /// Leaves everything in the socket after the server's first settings.
    Nothing,
}

pub struct RawConnection {
    writer: Arc<Mutex<OwnedWriteHalf>>,
    reader: Option<JoinHandle<()>>,
    /// Keeps the socket open in `ReadMode::Nothing`.
    _unread: Option<OwnedReadHalf>,
    stream: u32,
}

pub async fn dial(port: u16) -> io::Result<TcpStream> {
    dial_from(port, Ipv4Addr::LOCALHOST).await
}

/// Dials from the given local address.
pub async fn dial_from(port: u16, source: Ipv4Addr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((source, 0).into())?;
    let dialling = socket.connect((Ipv4Addr::LOCALHOST, port).into());
    let dialled = tokio::time::timeout(HELLO_TIMEOUT, dialling).await;
    let stream = dialled.map_err(|_| io::ErrorKind::TimedOut)??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl RawConnection {
    /// Dials and exchanges preface and settings.
    pub async fn open(port: u16, settings: &[(u16, u32)], reading: ReadMode) -> io::Result<RawConnection> {
        let (mut read, mut write) = dial(port).await?.into_split();
        let mut greeting = frame::PREFACE.to_vec();
        frame::put_settings(&mut greeting, settings);
        write.write_all(&greeting).await?;
        // Settings may only be acknowledged after the server's settings have arrived.
        let greeted = tokio::time::timeout(HELLO_TIMEOUT, next_frame(&mut read)).await;
        let (kind, _, _) = greeted.map_err(|_| io::ErrorKind::TimedOut)??;
        if kind != frame::SETTINGS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut acknowledgement = Vec::new();
        frame::put(&mut acknowledgement, frame::SETTINGS, frame::ACK, 0, &[]);
        write.write_all(&acknowledgement).await?;
        let writer = Arc::new(Mutex::new(write));
        let (reader, unread) = match reading {
            ReadMode::Everything => (Some(tokio::spawn(answer(read, Arc::clone(&writer)))), None),
            ReadMode::Nothing => (None, Some(read)),
        };
        Ok(RawConnection { writer, reader, _unread: unread, stream: 1 })
    }

    /// Writes bytes unchanged. Fails once the server has closed the connection.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        if self.is_closed() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        self.writer.lock().await.write_all(bytes).await
    }

    /// Reports whether the server has closed its side. Unknown, thus false, in `ReadMode::Nothing`.
    pub fn is_closed(&self) -> bool {
        self.reader.as_ref().is_some_and(JoinHandle::is_finished)
    }

    pub fn next_stream(&mut self) -> u32 {
        let stream = self.stream;
        self.stream += 2;
        stream
    }

    /// Appends the headers of a call and a part of its body, without END_STREAM. Returns the stream.
    pub fn put_open_call(&mut self, out: &mut Vec<u8>, headers: &[u8], body: &[u8]) -> u32 {
        let stream = self.next_stream();
        frame::put(out, frame::HEADERS, frame::END_HEADERS, stream, headers);
        frame::put_data(out, stream, body, 0);
        stream
    }

    pub fn put_call(&mut self, out: &mut Vec<u8>, headers: &[u8], body: &[u8]) -> u32 {
        let stream = self.next_stream();
        frame::put(out, frame::HEADERS, frame::END_HEADERS, stream, headers);
        frame::put_data(out, stream, body, frame::END_STREAM);
        stream
    }
}

impl Drop for RawConnection {
    fn drop(&mut self) {
        if let Some(reader) = &self.reader {
            reader.abort();
        }
    }
}

/// Reads the type, flags and payload of the next frame.
async fn next_frame(read: &mut OwnedReadHalf) -> io::Result<(u8, u8, Vec<u8>)> {
    let mut header = [0; frame::HEADER_BYTES];
    read.read_exact(&mut header).await?;
    let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
    let mut payload = vec![0; usize::try_from(length).expect("24 bits")];
    read.read_exact(&mut payload).await?;
    Ok((header[3], header[4], payload))
}

/// Reads until the connection closes, and acknowledges frames per RFC 9113, so that keepalive does
/// not close it.
async fn answer(mut read: OwnedReadHalf, writer: Arc<Mutex<OwnedWriteHalf>>) {
    while let Ok((kind, flags, payload)) = next_frame(&mut read).await {
        let mut out = Vec::new();
        match kind {
            frame::SETTINGS if flags & frame::ACK == 0 => {
                frame::put(&mut out, frame::SETTINGS, frame::ACK, 0, &[]);
            }
            frame::PING if flags & frame::ACK == 0 => {
                frame::put(&mut out, frame::PING, frame::ACK, 0, &payload);
            }
            frame::DATA if !payload.is_empty() => {
                let bytes = u32::try_from(payload.len()).expect("24 bits");
                frame::put_window_update(&mut out, 0, bytes);
            }
            // The connection is closing; the attacker continues on a new one.
            frame::GOAWAY => return,
            _ => {}
        }
        if !out.is_empty() && writer.lock().await.write_all(&out).await.is_err() {
            return;
        }
    }
}
