//! Bytes to the client: at once if they are few, else in pieces and in time.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, StatusCode};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;

use super::budget::{FREE_BYTES, Held};

/// Bytes that a client takes in a second, at least, after [`BEGUN_WITHIN`].
pub(super) const PACE_BYTES_MIN: usize = 256 << 10;
/// Time for a client to begin.
const BEGUN_WITHIN: Duration = Duration::from_secs(60);
/// Bytes that wait in the connection at one time.
const PIECE_BYTES: usize = 64 << 10;

/// The writing end of a body whose length is not known. Dropped, it ends the body; what a client has then is
/// complete.
pub(super) struct Writer(mpsc::Sender<Result<Bytes, Slow>>);

/// The client took nothing for too long, or is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client does not read")]
pub(super) struct Slow;

/// A response in JSON.
pub(super) fn json(code: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The answer of a call that went well.
pub(super) fn answer(body: Body) -> Response {
    let mut response = json(StatusCode::OK, body);
    let name = HeaderName::from_static("grpc-metadata-content-type");
    response.headers_mut().insert(name, HeaderValue::from_static("application/grpc"));
    response
}

/// The answer of one message, which `held` counts until the client has it.
pub(super) fn whole(bytes: Vec<u8>, held: Held) -> Response {
    if bytes.len() <= FREE_BYTES {
        return answer(bytes.into());
    }
    let (writer, body) = pieces();
    let mut response = answer(body);
    response.headers_mut().insert(CONTENT_LENGTH, bytes.len().into());
    tokio::spawn(async move {
        if let Err(Slow) = writer.write(bytes.into()).await {
            writer.break_off();
        }
        drop(held);
    });
    response
}

/// A body that is written piece by piece.
pub(super) fn pieces() -> (Writer, Body) {
    let (sender, receiver) = mpsc::channel(1);
    (Writer(sender), Body::from_stream(ReceiverStream::new(receiver)))
}

impl Writer {
    /// Writes all of `bytes` in time.
    pub async fn write(&self, mut bytes: Bytes) -> Result<(), Slow> {
        let pace = Duration::from_secs((bytes.len() / PACE_BYTES_MIN) as u64);
        let deadline = Instant::now() + BEGUN_WITHIN + pace;
        while !bytes.is_empty() {
            let piece = bytes.split_to(PIECE_BYTES.min(bytes.len()));
            match timeout_at(deadline, self.0.send(Ok(piece))).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(Slow),
            }
        }
        Ok(())
    }

    /// Returns when the client is gone.
    pub async fn gone(&self) {
        self.0.closed().await;
    }

    /// Ends the body so that the client sees that it is not complete. Waits for nothing: the connection ends
    /// when the piece before is taken, or by its own deadline.
    pub fn break_off(&self) {
        drop(self.0.try_send(Err(Slow)));
    }
}
