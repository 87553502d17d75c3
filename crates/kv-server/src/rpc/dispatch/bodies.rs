//! Request and response bodies of calls to tonic's services: metrics, the audit log, and deadlines.
//!
//! A message is counted by its frame: tonic hands out one frame per message unless the message is large.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use api::etcdserverpb::ResponseHeader;
use api::grpc::{PREFIX_BYTES, Prefix};
use api::{CallKind, Method};
use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Response};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint};
use tonic::body::Body;
use tonic::{Code, Status};

use crate::audit::{AuditSubject, AuditedCall};
use telemetry::metrics::{CallInProgress, Metrics};

/// Request bytes retained until the call completes, which may take hours. Of a longer request only the
/// audit subject is retained.
const KEPT_BYTES_MAX: usize = 4 << 10;

/// Status that completes a response early.
pub type EarlyEnd = Pin<Box<dyn Future<Output = Status> + Send>>;

/// A request body that counts its messages. The call may continue after its request is complete.
pub struct RequestBody {
    pub body: Body,
    pub metrics: Arc<Metrics>,
    pub method: Method,
    /// The request for the audit log, if that is enabled.
    pub kept: Option<KeptRequest>,
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            self.metrics.calls.received(self.method, data.len());
            if let Some(kept) = &self.kept {
                kept.add(data);
            }
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

/// The received part of a request.
enum RequestPart {
    /// The received bytes, starting with the prefix.
    Bytes(BytesMut),
    Subject(AuditSubject),
}

/// The request of a call, for the audit log. Retains at most `bytes_max`, since longer requests are
/// rejected.
#[derive(Clone)]
pub struct KeptRequest {
    part: Arc<Mutex<RequestPart>>,
    method: Method,
    bytes_max: usize,
}

impl KeptRequest {
    pub fn new(method: Method, message_bytes_max: usize) -> KeptRequest {
        let part = Arc::new(Mutex::new(RequestPart::nothing()));
        KeptRequest { part, method, bytes_max: message_bytes_max.saturating_add(PREFIX_BYTES) }
    }

    fn add(&self, data: &Bytes) {
        let mut part = self.part.lock();
        let RequestPart::Bytes(framed) = &mut *part else { return };
        if RequestPart::is_whole(framed) {
            return;
        }
        let room = self.bytes_max.saturating_sub(framed.len());
        framed.extend_from_slice(&data[..data.len().min(room)]);
        if framed.len() > KEPT_BYTES_MAX && RequestPart::is_whole(framed) {
            let message = first_message(std::mem::take(framed).freeze());
            // These methods name one range at most, so a rejection needs no search for it. Transactions
            // take another path.
            *part = RequestPart::Subject(AuditSubject::of(self.method, message, None));
        }
    }

    fn take(&self) -> RequestPart {
        std::mem::replace(&mut *self.part.lock(), RequestPart::nothing())
    }
}

impl RequestPart {
    fn nothing() -> RequestPart {
        RequestPart::Bytes(BytesMut::new())
    }

    /// Reports whether bytes starting with a message contain all of it.
    fn is_whole(framed: &[u8]) -> bool {
        Prefix::of(framed).is_some_and(|prefix| framed.len() - PREFIX_BYTES >= prefix.message_bytes)
    }
}

/// Returns the message of a method without a request stream. Further bytes are ignored.
fn first_message(mut framed: Bytes) -> Bytes {
    let Some(prefix) = Prefix::of(&framed) else { return Bytes::new() };
    framed.advance(PREFIX_BYTES);
    framed.truncate(prefix.message_bytes);
    framed
}

/// Returns the revision in the header of an encoded response with its prefix. The header is its first
/// field. None if it is absent, or incomplete.
pub fn revision_in(framed: &[u8]) -> Option<i64> {
    let mut message = framed.get(PREFIX_BYTES..)?;
    let (number, kind) = decode_key(&mut message).ok()?;
    if (number, kind) != (1, WireType::LengthDelimited) {
        return None;
    }
    let length = usize::try_from(decode_varint(&mut message).ok()?).ok()?;
    let header = ResponseHeader::decode(message.get(..length)?).ok()?;
    (header.revision != 0).then_some(header.revision)
}

/// An open call, for metrics and the audit log. If it is dropped before completion, its client cancelled
/// it; the audit log then still contains the request.
pub struct OpenCall {
    counted: CallInProgress,
    method: Method,
    /// None after the audit line was written.
    audited: Option<(AuditedCall, KeptRequest)>,
    revision: Option<i64>,
}

impl OpenCall {
    pub fn new(
        counted: CallInProgress,
        method: Method,
        audited: Option<(AuditedCall, KeptRequest)>,
    ) -> OpenCall {
        OpenCall { counted, method, audited, revision: None }
    }

    /// Returns the same response, with a body that completes the call when its status is known.
    pub fn followed(mut self, response: Response<Body>, end: Option<EarlyEnd>) -> Response<Body> {
        // A response without a body has its status in the headers.
        if let Some(status) = Status::from_header_map(response.headers()) {
            self.end(&status);
            return response;
        }
        response
            .map(|body| Body::new(ResponseBody { body, call: self, end: end.map_or(End::Own, End::Early) }))
    }

    fn sent(&mut self, data: &Bytes) {
        self.counted.sent(data.len());
        if self.audited.is_none() {
            return;
        }
        if self.revision.is_none() {
            self.revision = revision_in(data);
        }
        // A stream is logged with its first response.
        if self.method.kind() != CallKind::Unary {
            self.audit(Ok(self.revision));
        }
    }

    fn end(&mut self, status: &Status) {
        self.counted.end(status.code());
        self.audit(if status.code() == Code::Ok { Ok(self.revision) } else { Err(status) });
    }

    fn audit(&mut self, result: Result<Option<i64>, &Status>) {
        if let Some(line) = self.line() {
            line.end(result);
        }
    }

    fn line(&mut self) -> Option<AuditedCall> {
        let (line, request) = self.audited.take()?;
        Some(match request.take() {
            RequestPart::Bytes(framed) => line.with_request(first_message(framed.freeze())),
            RequestPart::Subject(subject) => line.with_subject(subject),
        })
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        drop(self.line());
    }
}

/// The completion of a response.
enum End {
    Own,
    /// The given status, if it becomes available first.
    Early(EarlyEnd),
    Ended,
}

struct ResponseBody {
    body: Body,
    call: OpenCall,
    end: End,
}

impl ResponseBody {
    fn trailers(&mut self, trailers: &HeaderMap) {
        if let Some(status) = Status::from_header_map(trailers) {
            self.call.end(&status);
        }
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match &mut self.end {
            End::Own => {}
            End::Ended => return Poll::Ready(None),
            End::Early(end) => {
                if let Poll::Ready(status) = end.as_mut().poll(context) {
                    self.end = End::Ended;
                    self.body = Body::empty(); // Drops the pending work of the body now.
                    self.call.end(&status);
                    let trailers = status.into_http::<()>().into_parts().0.headers;
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
            }
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.call.sent(data);
                } else if let Some(trailers) = frame.trailers_ref() {
                    self.trailers(trailers);
                }
            }
            Some(Err(status)) => self.call.end(status),
            None => self.call.end(&Status::ok("")),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.end, End::Ended) || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.end {
            End::Own => self.body.size_hint(),
            End::Early(_) | End::Ended => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::etcdserverpb::PutResponse;

    #[test]
    fn the_revision_of_an_encoded_answer_is_found() {
        let header = ResponseHeader { cluster_id: 7, revision: 300, raft_term: 2, ..Default::default() };
        let answer = PutResponse { header: Some(header), prev_kv: None };
        let framed = [&[0; PREFIX_BYTES][..], &answer.encode_to_vec()].concat();
        assert_eq!(revision_in(&framed), Some(300));
        for cut in 0..framed.len() {
            assert_eq!(revision_in(&framed[..cut]), None, "{cut} bytes");
        }
    }
}
