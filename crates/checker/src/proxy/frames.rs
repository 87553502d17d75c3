//! The gRPC messages of a body.

use api::grpc;
use bytes::{Bytes, BytesMut};
use h2::RecvStream;

/// A message as it is on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyMessage {
    /// Compressed messages cannot be inspected.
    pub compressed: bool,
    pub bytes: Bytes,
}

/// Reads messages from a body.
pub struct MessageReader {
    body: RecvStream,
    /// Received part of the messages.
    buffer: BytesMut,
}

impl MessageReader {
    pub fn new(body: RecvStream) -> Self {
        Self { body, buffer: BytesMut::new() }
    }

    /// Reads the next message; `None` at the end of the body.
    pub async fn next(&mut self) -> Result<Option<ProxyMessage>, h2::Error> {
        loop {
            if let Some((prefix, bytes)) = grpc::take(&mut self.buffer) {
                return Ok(Some(ProxyMessage { compressed: prefix.format != 0, bytes }));
            }
            let Some(piece) = self.body.data().await.transpose()? else { return Ok(None) };
            // Fails only on a closed stream, which needs no window.
            let _ = self.body.flow_control().release_capacity(piece.len());
            self.buffer.extend_from_slice(&piece);
        }
    }

    pub async fn trailers(&mut self) -> Result<Option<http::HeaderMap>, h2::Error> {
        self.body.trailers().await
    }
}

impl ProxyMessage {
    pub fn plain(bytes: Bytes) -> Self {
        Self { compressed: false, bytes }
    }

    pub fn frame(&self) -> Bytes {
        let mut prefix = grpc::prefix(self.bytes.len()).expect("it was read from a frame of this length");
        prefix[0] = u8::from(self.compressed);
        [&prefix, &self.bytes[..]].concat().into()
    }
}
