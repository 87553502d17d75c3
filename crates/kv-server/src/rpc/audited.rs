//! Calls of tonic's services in the audit log, by watching their bodies go past.

use std::sync::Arc;

use api::Method;
use api::grpc::{PREFIX_BYTES, Prefix};
use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use parking_lot::Mutex;
use tonic::Status;
use tonic::body::Body;

use super::header;
use super::observed::{FrameObserver, ObservedBody};
use crate::audit::{AuditSubject, AuditedCall};

/// Bytes of a request that are kept until its call ends: a call may wait for hours. A longer request is
/// replaced by what it names.
const KEPT_BYTES_MAX: usize = 4 << 10;

/// A request, as far as it came.
enum AuditedRequest {
    /// With its prefix.
    Bytes(BytesMut),
    Subject(AuditSubject),
}

type SharedRequest = Arc<Mutex<AuditedRequest>>;

/// A call without a response yet. One that is dropped was given up by its client: its line names what it
/// asked for all the same.
pub struct UnansweredCall {
    call: Option<AuditedCall>,
    request: SharedRequest,
}

/// The same request, watched. No more than `message_bytes_max` of it are kept: what is longer is refused.
pub fn observed(
    request: Request<Body>,
    call: AuditedCall,
    message_bytes_max: usize,
) -> (Request<Body>, UnansweredCall) {
    let seen = Arc::new(Mutex::new(AuditedRequest::nothing()));
    let bytes_max = message_bytes_max.saturating_add(PREFIX_BYTES);
    let keeps = Keeps { seen: Arc::clone(&seen), method: call.method(), bytes_max };
    let request = request.map(|body| Body::new(ObservedBody { body, observer: keeps }));
    (request, UnansweredCall { call: Some(call), request: seen })
}

impl UnansweredCall {
    /// The same response; the line is made when its status is known. A stream has its line with its first
    /// answer.
    pub fn followed(mut self, response: Response<Body>) -> Response<Body> {
        let Some(call) = self.take() else { return response };
        if let Some(status) = Status::from_header_map(response.headers()) {
            end(call, &status, None);
            return response;
        }
        response.map(|body| {
            Body::new(ObservedBody { body, observer: Follows { call: Some(call), revision: None } })
        })
    }

    fn take(&mut self) -> Option<AuditedCall> {
        let call = self.call.take()?;
        Some(match std::mem::replace(&mut *self.request.lock(), AuditedRequest::nothing()) {
            AuditedRequest::Bytes(framed) => call.with_request(first_message(framed.freeze())),
            AuditedRequest::Subject(subject) => call.with_subject(subject),
        })
    }
}

impl Drop for UnansweredCall {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl AuditedRequest {
    fn nothing() -> AuditedRequest {
        AuditedRequest::Bytes(BytesMut::new())
    }

    /// Whether bytes that begin with a message have all of it.
    fn is_whole(framed: &[u8]) -> bool {
        Prefix::of(framed).is_some_and(|prefix| framed.len() - PREFIX_BYTES >= prefix.message_bytes)
    }
}

/// The message that a method without a stream of requests reads. What follows it is passed over.
fn first_message(mut framed: Bytes) -> Bytes {
    let Some(prefix) = Prefix::of(&framed) else { return Bytes::new() };
    framed.advance(PREFIX_BYTES);
    framed.truncate(prefix.message_bytes);
    framed
}

fn end(call: AuditedCall, status: &Status, revision: Option<i64>) {
    call.end(if status.code() == tonic::Code::Ok { Ok(revision) } else { Err(status) });
}

struct Keeps {
    seen: SharedRequest,
    method: Method,
    bytes_max: usize,
}

impl FrameObserver for Keeps {
    fn data(&mut self, data: &Bytes) {
        let mut seen = self.seen.lock();
        let AuditedRequest::Bytes(framed) = &mut *seen else { return };
        if AuditedRequest::is_whole(framed) {
            return;
        }
        let room = self.bytes_max.saturating_sub(framed.len());
        framed.extend_from_slice(&data[..data.len().min(room)]);
        if framed.len() > KEPT_BYTES_MAX && AuditedRequest::is_whole(framed) {
            let message = first_message(std::mem::take(framed).freeze());
            // The services' methods name one range at most, so that a refusal needs no search for it.
            // Transactions do not come here.
            *seen = AuditedRequest::Subject(AuditSubject::of(self.method, message, None, 0));
        }
    }
}

struct Follows {
    /// Until its line is made.
    call: Option<AuditedCall>,
    revision: Option<i64>,
}

impl FrameObserver for Follows {
    fn data(&mut self, data: &Bytes) {
        if self.revision.is_none() {
            self.revision = header::revision_in(data);
        }
        let is_stream = |call: &AuditedCall| call.method().kind() != api::CallKind::Unary;
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
