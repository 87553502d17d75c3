//! Response bytes for the client: small ones immediately, large ones in pieces with a minimum rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, StatusCode};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::budget::{BudgetPass, FREE_BYTES};

/// Minimum rate of a client in bytes per second, after [`START_TIMEOUT`].
pub(super) const PACE_BYTES_MIN: usize = 256 << 10;
/// Grace period for a client that starts reading.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes buffered in the connection at a time.
const PIECE_BYTES: usize = 64 << 10;

/// The writing end of a body of unknown length. Dropping it before [`BodyWriter::end`] aborts the body, so
/// that the client detects the truncation.
pub(super) struct BodyWriter {
    pieces: mpsc::Sender<Bytes>,
    has_ended: Arc<AtomicBool>,
}

/// The client stalled for too long, or disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client does not read")]
pub(super) struct Slow;

/// The body was aborted before its last byte.
#[derive(Debug, thiserror::Error)]
#[error("the response was aborted")]
struct BrokenOff;

pub(super) fn json(code: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Returns the response of a successful call.
pub(super) fn answer(body: Body) -> Response {
    let mut response = json(StatusCode::OK, body);
    let name = HeaderName::from_static("grpc-metadata-content-type");
    response.headers_mut().insert(name, HeaderValue::from_static("application/grpc"));
    response
}

/// Returns a response with one message, accounted for in `held` until the client has received it.
pub(super) fn whole(bytes: Vec<u8>, held: BudgetPass) -> Response {
    if bytes.len() <= FREE_BYTES {
        return answer(bytes.into());
    }
    let (writer, body) = pieces();
    let mut response = answer(body);
    response.headers_mut().insert(CONTENT_LENGTH, bytes.len().into());
    tokio::spawn(async move {
        if writer.write(bytes.into()).await.is_ok() {
            writer.end();
        }
        drop(held);
    });
    response
}

/// Returns a body that is written in pieces.
pub(super) fn pieces() -> (BodyWriter, Body) {
    let (pieces, receiver) = mpsc::channel(1);
    let has_ended = Arc::new(AtomicBool::new(false));
    let body = stream::unfold((Some(receiver), Arc::clone(&has_ended)), async |(receiver, has_ended)| {
        let mut receiver: mpsc::Receiver<Bytes> = receiver?;
        match receiver.recv().await {
            Some(piece) => Some((Ok(piece), (Some(receiver), has_ended))),
            None if has_ended.load(Ordering::Acquire) => None,
            None => Some((Err(BrokenOff), (None, has_ended))),
        }
    });
    (BodyWriter { pieces, has_ended }, Body::from_stream(body))
}

impl BodyWriter {
    /// Writes all of `bytes`, or fails if the client is too slow.
    pub async fn write(&self, mut bytes: Bytes) -> Result<(), Slow> {
        let pace = Duration::from_secs((bytes.len() / PACE_BYTES_MIN) as u64);
        let deadline = Instant::now() + START_TIMEOUT + pace;
        while !bytes.is_empty() {
            let piece = bytes.split_to(PIECE_BYTES.min(bytes.len()));
            match timeout_at(deadline, self.pieces.send(piece)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(Slow),
            }
        }
        Ok(())
    }

    /// Returns when the client has disconnected.
    pub async fn gone(&self) {
        self.pieces.closed().await;
    }

    /// Completes the body.
    pub fn end(self) {
        self.has_ended.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    /// The client reads only after its response was aborted, and then all of it.
    #[tokio::test(start_paused = true)]
    async fn a_client_sees_that_an_answer_was_broken_off() {
        let (writer, body) = pieces();
        assert_eq!(writer.write(Bytes::from(vec![7; 2 * PIECE_BYTES])).await, Err(Slow));
        drop(writer);
        assert!(body.collect().await.is_err(), "half of the answer ends as a whole one does");
    }

    #[tokio::test]
    async fn an_answer_that_was_written_ends() {
        let (writer, body) = pieces();
        writer.write(Bytes::from_static(b"all")).await.unwrap();
        writer.end();
        assert_eq!(body.collect().await.unwrap().to_bytes(), "all");
    }
}
