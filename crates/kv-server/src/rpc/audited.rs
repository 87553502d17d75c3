//! Calls of tonic's services in the audit log, by watching their bodies go past.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tonic::Status;
use tonic::body::Body;

use super::header;
use crate::audit::Call;
use crate::net::http2::PREFIX_BYTES;

/// Bytes of a request that are kept for its line: more than `--max-request-bytes` allows by default. What is
/// longer names nothing.
const REQUEST_BYTES_MAX: usize = 4 << 20;

/// What has come of a request.
pub type Seen = Arc<Mutex<BytesMut>>;

/// The same request, and what comes of it.
pub fn observed(request: Request<Body>) -> (Request<Body>, Seen) {
    let seen = Seen::default();
    let keeps = Arc::clone(&seen);
    (request.map(|body| Body::new(Observed { body, seen: Keeps(keeps) })), seen)
}

/// The same response; the line is made when its status is known. A stream has its line with its first answer.
pub fn followed(response: Response<Body>, call: Call, request: Seen) -> Response<Body> {
    let mut message = std::mem::take(&mut *request.lock());
    message.advance(PREFIX_BYTES.min(message.len()));
    let call = call.with_request(message.freeze());
    if let Some(status) = Status::from_header_map(response.headers()) {
        end(call, &status, None);
        return response;
    }
    response.map(|body| Body::new(Observed { body, seen: Follows { call: Some(call), revision: None } }))
}

fn end(call: Call, status: &Status, revision: Option<i64>) {
    call.end(if status.code() == tonic::Code::Ok { Ok(revision) } else { Err(status) });
}

/// What sees the frames of a body.
trait Sees: Send + Unpin + 'static {
    fn data(&mut self, data: &Bytes);
    fn trailers(&mut self, trailers: &HeaderMap);
    fn ended(&mut self, error: Option<&Status>);
}

struct Keeps(Seen);

impl Sees for Keeps {
    fn data(&mut self, data: &Bytes) {
        let mut seen = self.0.lock();
        if seen.len() + data.len() <= REQUEST_BYTES_MAX {
            seen.extend_from_slice(data);
        }
    }

    fn trailers(&mut self, _: &HeaderMap) {}

    fn ended(&mut self, _: Option<&Status>) {}
}

struct Follows {
    /// Until its line is made.
    call: Option<Call>,
    revision: Option<i64>,
}

impl Sees for Follows {
    fn data(&mut self, data: &Bytes) {
        if self.revision.is_none() {
            self.revision = header::revision_in(data);
        }
        let is_stream = |call: &Call| call.method().kind() != api::Kind::Unary;
        if let Some(call) = self.call.take_if(|call| is_stream(call)) {
            call.end(Ok(self.revision));
        }
    }

    fn trailers(&mut self, trailers: &HeaderMap) {
        if let Some(status) = Status::from_header_map(trailers)
            && let Some(call) = self.call.take()
        {
            end(call, &status, self.revision);
        }
    }

    fn ended(&mut self, error: Option<&Status>) {
        if let Some(call) = self.call.take() {
            call.end(error.map_or(Ok(self.revision), Err));
        }
    }
}

/// A body that passes every frame on.
struct Observed<S> {
    body: Body,
    seen: S,
}

impl<S: Sees> http_body::Body for Observed<S> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.seen.data(data);
                } else if let Some(trailers) = frame.trailers_ref() {
                    self.seen.trailers(trailers);
                }
            }
            Some(Err(status)) => self.seen.ended(Some(status)),
            None => self.seen.ended(None),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
