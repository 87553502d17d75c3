//! Source and sink of a stream from a protocol other than HTTP/2: requests as whole messages, responses as
//! bytes.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tonic::{Code, Status};

use super::super::wire::{BodyReader, StreamWriter};

/// Response bytes that may be buffered for the caller of a call.
const WINDOW_BYTES: usize = 64 << 10;

pub(super) enum RequestSource {
    Wire(BodyReader),
    /// Each message with its prefix. The next is taken after the previous one was read.
    Local(mpsc::Receiver<Bytes>),
}

pub(super) enum AnswerSink {
    Wire(StreamWriter),
    Local(AnswerWriter),
}

#[derive(Default)]
struct AnswerWindow {
    parts: VecDeque<Bytes>,
    bytes: usize,
    end: Option<Status>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// Reads the bytes of responses.
pub struct AnswerReader(Arc<Mutex<AnswerWindow>>);

/// Writes the bytes of responses.
pub(super) struct AnswerWriter(Arc<Mutex<AnswerWindow>>);

/// The source and sink of a call.
pub struct StreamEnds {
    pub(super) source: RequestSource,
    pub(super) sink: AnswerSink,
}

impl AnswerReader {
    /// Returns a reader for the responses to `requests`, and the source and sink to serve the call with.
    pub fn of(requests: mpsc::Receiver<Bytes>) -> (AnswerReader, StreamEnds) {
        let (reader, writer) = AnswerReader::new();
        let (source, sink) = (RequestSource::Local(requests), AnswerSink::Local(writer));
        (reader, StreamEnds { source, sink })
    }

    fn new() -> (AnswerReader, AnswerWriter) {
        let window = Arc::<Mutex<AnswerWindow>>::default();
        (AnswerReader(Arc::clone(&window)), AnswerWriter(window))
    }

    /// Returns the next bytes, or the final status.
    pub async fn next(&mut self) -> Result<Bytes, Status> {
        poll_fn(|context| {
            let mut window = self.0.lock();
            if let Some(part) = window.parts.pop_front() {
                window.bytes -= part.len();
                window.writer.take().into_iter().for_each(Waker::wake);
                return Poll::Ready(Ok(part));
            }
            match &window.end {
                Some(status) => Poll::Ready(Err(status.clone())),
                None => {
                    window.reader = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl AnswerWriter {
    /// Ready with the number of `wanted` bytes that fit into the buffer, at least one.
    pub(super) fn poll_room(&mut self, wanted: usize, context: &mut Context<'_>) -> Poll<usize> {
        let mut window = self.0.lock();
        match WINDOW_BYTES.saturating_sub(window.bytes).min(wanted) {
            0 => {
                window.writer = Some(context.waker().clone());
                Poll::Pending
            }
            room => Poll::Ready(room),
        }
    }

    pub(super) fn send(&mut self, part: Bytes) {
        let mut window = self.0.lock();
        window.bytes += part.len();
        window.parts.push_back(part);
        window.reader.take().into_iter().for_each(Waker::wake);
    }

    /// Completes the responses. Later statuses are ignored.
    pub(super) fn end(&mut self, status: Status) {
        let mut window = self.0.lock();
        window.end.get_or_insert(status);
        window.reader.take().into_iter().for_each(Waker::wake);
    }
}

impl Drop for AnswerWriter {
    /// A cancelled call has no status.
    fn drop(&mut self) {
        self.end(Status::new(Code::Unavailable, "the call was cut short"));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn answers_wait_for_their_reader_and_end_with_their_status() {
        let (mut reader, mut writer) = AnswerReader::new();
        let room =
            async |writer: &mut AnswerWriter| poll_fn(|context| writer.poll_room(1 << 20, context)).await;
        assert_eq!(room(&mut writer).await, WINDOW_BYTES);
        writer.send(vec![7; WINDOW_BYTES].into());
        assert!(room(&mut writer).now_or_never().is_none(), "nothing was taken");
        assert_eq!(reader.next().await.unwrap().len(), WINDOW_BYTES);
        assert_eq!(room(&mut writer).await, WINDOW_BYTES);
        writer.send(Bytes::from_static(b"last"));
        writer.end(Status::not_found("it"));
        drop(writer);
        assert_eq!(reader.next().await.unwrap(), "last");
        assert_eq!(reader.next().await.unwrap_err().code(), Code::NotFound);
        let (mut reader, writer) = AnswerReader::new();
        drop(writer);
        assert_eq!(reader.next().await.unwrap_err().code(), Code::Unavailable);
    }
}
