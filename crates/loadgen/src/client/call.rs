//! A call in flight: a state machine of a few hundred bytes, polled by its worker.
//!
//! ```text
//!   sent ──headers──▶ body ──data …, trailers──▶ reply
//!     └──headers that end the stream──▶ failure
//! ```

use crate::client::failure::CallFailure;
use crate::client::reply::{CompleteReply, PartialReply, verdict};
use bytes::Bytes;
use h2::RecvStream;
use h2::client::ResponseFuture;
use http::{Response, StatusCode};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    Message,
    /// A message that reports whether the lease still exists.
    Renewal,
    /// Any number of messages.
    Stream,
}

/// A request sent on a link.
pub struct SentCall {
    pub position: u64,
    pub link: u32,
    /// Time from which its latency counts.
    pub clock_from: Instant,
    /// Time at which the link accepted it.
    pub sent_at: Instant,
    /// The request, if an observer needs its keys; else empty.
    pub request: Bytes,
    stage: CallStage,
    reply: PartialReply,
}

enum CallStage {
    Sent(ResponseFuture),
    Body { stream: RecvStream, data_is_over: bool },
}

impl SentCall {
    pub fn new(
        position: u64,
        link: u32,
        clock_from: Instant,
        sent_at: Instant,
        request: Bytes,
        response: ResponseFuture,
    ) -> Self {
        let stage = CallStage::Sent(response);
        Self { position, link, clock_from, sent_at, request, stage, reply: PartialReply::new() }
    }

    /// Reads the available part of the reply.
    pub fn poll(
        &mut self,
        replies: ReplyKind,
        context: &mut Context<'_>,
    ) -> Poll<Result<CompleteReply, CallFailure>> {
        if let CallStage::Sent(response) = &mut self.stage {
            let response = match ready!(Pin::new(response).poll(context)) {
                Ok(response) => response,
                Err(error) => return Poll::Ready(Err(broken(&error))),
            };
            self.stage = match body_of(response) {
                Ok(stream) => CallStage::Body { stream, data_is_over: false },
                Err(failure) => return Poll::Ready(Err(failure)),
            };
        }
        let CallStage::Body { stream, data_is_over } = &mut self.stage else {
            unreachable!("headers lead to a body or out of here");
        };
        let read = ready!(read_to_end(stream, data_is_over, &mut self.reply, context));
        Poll::Ready(read.and_then(|()| match replies {
            ReplyKind::Message => self.reply.finish(),
            ReplyKind::Renewal => self.reply.finish_renewal(),
            ReplyKind::Stream => Ok(self.reply.finish_stream()),
        }))
    }
}

/// Reads until the trailers have arrived or reading failed.
fn read_to_end(
    stream: &mut RecvStream,
    data_is_over: &mut bool,
    reply: &mut PartialReply,
    context: &mut Context<'_>,
) -> Poll<Result<(), CallFailure>> {
    while !*data_is_over {
        match ready!(stream.poll_data(context)) {
            Some(Ok(piece)) => {
                reply.push(&piece);
                // Fails only on a closed stream, which needs no window.
                let _ = stream.flow_control().release_capacity(piece.len());
            }
            Some(Err(error)) => return Poll::Ready(Err(broken(&error))),
            None => *data_is_over = true,
        }
    }
    Poll::Ready(match ready!(stream.poll_trailers(context)) {
        Ok(Some(trailers)) => verdict(&trailers),
        Ok(None) => Err(CallFailure::protocol("reply ended without trailers")),
        Err(error) => Err(broken(&error)),
    })
}

/// Returns the body that follows the headers, or the failure in the headers.
pub fn body_of(response: Response<RecvStream>) -> Result<RecvStream, CallFailure> {
    if response.status() != StatusCode::OK {
        return Err(CallFailure::unavailable(format!("HTTP status {}", response.status().as_u16())));
    }
    if response.body().is_end_stream() {
        verdict(response.headers())?;
        return Err(CallFailure::protocol("reply says OK and holds no message"));
    }
    Ok(response.into_body())
}

/// Converts a broken stream or connection to a failure: the server may have executed the request.
pub fn broken(error: &h2::Error) -> CallFailure {
    CallFailure::unavailable(format!("connection: {error}"))
}
