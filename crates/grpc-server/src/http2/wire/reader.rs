//! The half of a stream that reads its request.

use std::sync::Arc;
use std::task::{Context, Poll};

use ::http2::{StreamEnded, StreamId};
use bytes::Bytes;
use http::HeaderMap;

use super::state::{Next, Wire};

/// The body of one request. What was read counts against the window of the client until it is released, or
/// this is dropped.
pub(crate) struct BodyReader(Body);

enum Body {
    Whole(Option<Bytes>),
    Arriving(Arriving),
}

struct Arriving {
    wire: Arc<Wire>,
    stream: StreamId,
    /// Read and not released.
    unreleased: usize,
    /// In a box: hardly a request has any.
    trailers: Option<Box<HeaderMap>>,
    discards_rest: bool,
}

impl BodyReader {
    pub(super) fn whole(body: Bytes) -> BodyReader {
        BodyReader(Body::Whole(Some(body).filter(|body| !body.is_empty())))
    }

    pub(super) fn arriving(wire: &Arc<Wire>, stream: StreamId) -> BodyReader {
        let wire = Arc::clone(wire);
        BodyReader(Body::Arriving(Arriving {
            wire,
            stream,
            unreleased: 0,
            trailers: None,
            discards_rest: false,
        }))
    }

    /// The next bytes, in order; None after the last.
    pub(crate) fn poll_data(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, StreamEnded>>> {
        let arriving = match &mut self.0 {
            Body::Whole(body) => return Poll::Ready(body.take().map(Ok)),
            Body::Arriving(arriving) => arriving,
        };
        let next = arriving.wire.state.lock().poll_body(arriving.stream, context);
        next.map(|next| match next {
            Next::Data(bytes) => {
                arriving.unreleased += bytes.len();
                Some(Ok(bytes))
            }
            Next::End(trailers) => {
                arriving.trailers = trailers.or(arriving.trailers.take());
                None
            }
            Next::Gone => Some(Err(StreamEnded)),
        })
    }

    /// As [`BodyReader::poll_data`].
    pub(crate) async fn data(&mut self) -> Option<Result<Bytes, StreamEnded>> {
        std::future::poll_fn(|context| self.poll_data(context)).await
    }

    /// Trailers of the request. To be taken after the end.
    pub(crate) fn take_trailers(&mut self) -> Option<HeaderMap> {
        match &mut self.0 {
            Body::Whole(_) => None,
            Body::Arriving(arriving) => arriving.trailers.take().map(|trailers| *trailers),
        }
    }

    /// Whether everything was read.
    pub(crate) fn is_end(&self) -> bool {
        match &self.0 {
            Body::Whole(body) => body.is_none(),
            Body::Arriving(Arriving { wire, stream, trailers, .. }) => {
                trailers.is_none() && wire.state.lock().is_body_read(*stream)
            }
        }
    }

    /// Once this is dropped, what comes is discarded, and the stream stays open after its answer until the
    /// request ends or its [`Writer`](super::StreamWriter) is dropped. Without this call it is reset with its
    /// answer.
    pub(crate) fn discard_when_dropped(&mut self) {
        if let Body::Arriving(arriving) = &mut self.0 {
            arriving.discards_rest = true;
        }
    }

    /// Gives the windows of bytes back that were read.
    pub(crate) fn release(&mut self, bytes: usize) {
        let Body::Arriving(arriving) = &mut self.0 else { return };
        arriving.unreleased = arriving.unreleased.saturating_sub(bytes);
        let mut state = arriving.wire.state.lock();
        state.connection.release(arriving.stream, bytes);
        arriving.wire.changed(&mut state);
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        let mut state = self.wire.state.lock();
        if self.discards_rest {
            state.discard_body(self.stream, self.unreleased);
        } else {
            state.drop_reader(self.stream, self.unreleased);
        }
        self.wire.changed(&mut state);
    }
}
