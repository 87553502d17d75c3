//! The gRPC messages of a body.

use crate::workload::frame::PREFIX_BYTES;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::RecvStream;

/// A message as it is on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Then nothing in it can be read.
    pub compressed: bool,
    pub bytes: Bytes,
}

/// Reads messages from a body.
pub struct Incoming {
    body: RecvStream,
    buffer: Buffer,
}

impl Incoming {
    pub fn new(body: RecvStream) -> Self {
        Self { body, buffer: Buffer::default() }
    }

    /// `None` at the end of the body.
    pub async fn next(&mut self) -> Result<Option<Message>, h2::Error> {
        loop {
            if let Some(message) = self.buffer.take() {
                return Ok(Some(message));
            }
            let Some(piece) = self.body.data().await.transpose()? else { return Ok(None) };
            // Fails only on a stream that has ended, which needs no window.
            let _ = self.body.flow_control().release_capacity(piece.len());
            self.buffer.0.extend_from_slice(&piece);
        }
    }

    pub async fn trailers(&mut self) -> Result<Option<http::HeaderMap>, h2::Error> {
        self.body.trailers().await
    }
}

/// The part of the messages that has arrived.
#[derive(Default)]
struct Buffer(BytesMut);

impl Buffer {
    /// The first message, if it is complete.
    fn take(&mut self) -> Option<Message> {
        let &[flag, a, b, c, d] = self.0.first_chunk::<PREFIX_BYTES>()?;
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if self.0.len() < PREFIX_BYTES + length {
            return None;
        }
        self.0.advance(PREFIX_BYTES);
        Some(Message { compressed: flag != 0, bytes: self.0.split_to(length).freeze() })
    }
}

impl Message {
    pub fn plain(bytes: Bytes) -> Self {
        Self { compressed: false, bytes }
    }

    pub fn frame(&self) -> Bytes {
        let mut frame = BytesMut::with_capacity(PREFIX_BYTES + self.bytes.len());
        frame.put_u8(u8::from(self.compressed));
        frame.put_u32(
            u32::try_from(self.bytes.len()).expect("a message was read from a frame of this length"),
        );
        frame.extend_from_slice(&self.bytes);
        frame.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_however_the_body_is_split() {
        let sent = [Message::plain("abc".into()), Message { compressed: true, bytes: Bytes::new() }];
        let body: Vec<u8> = sent.iter().flat_map(Message::frame).collect();
        for at in 0..=body.len() {
            let mut buffer = Buffer::default();
            let mut received = Vec::new();
            for piece in [&body[..at], &body[at..]] {
                buffer.0.extend_from_slice(piece);
                received.extend(std::iter::from_fn(|| buffer.take()));
            }
            assert_eq!(received, sent, "{at}");
        }
    }
}
