//! gRPC over HTTP/2: the prefix of a message, headers and trailers.

use bytes::Bytes;
use h2::server::SendResponse;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use tonic::Status;

/// gRPC puts one flag byte and four bytes of length in front of every message.
pub const PREFIX_BYTES: usize = 5;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const OK: HeaderValue = HeaderValue::from_static("0");

/// The headers of an answer.
pub(super) fn headers() -> Response<()> {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// The trailers of a successful call.
pub(super) fn trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, OK);
    trailers
}

/// An error travels as headers alone.
pub(super) fn send_status(respond: &mut SendResponse<Bytes>, status: Status) -> Result<(), h2::Error> {
    respond.send_response(status.into_http::<()>(), true).map(drop)
}
