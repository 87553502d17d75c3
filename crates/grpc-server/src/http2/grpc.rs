//! gRPC over HTTP/2: the prefix of a message, headers and trailers.

use std::sync::LazyLock;

use ::http2::{EndOfBody, HeaderBlock, StreamEnded};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use tonic::Status;

use super::wire::{StreamWriter, response_block, trailers_block};

pub(super) use api::grpc::{PREFIX_BYTES, Prefix};

/// The field with the time that a call has: clients send what is left of it, so it differs from call to call.
pub(super) const TIMEOUT: &str = "grpc-timeout";

/// Whether these are the headers of a call.
pub fn is_call(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    matches!(content_type.strip_prefix(b"application/grpc"), Some([] | [b'+' | b';', ..]))
}

/// The headers of an answer.
pub(super) static HEADERS: LazyLock<HeaderBlock> =
    LazyLock::new(|| HeaderBlock::new([(":status", "200"), ("content-type", "application/grpc")]));

/// The trailers of a successful call.
pub(super) static TRAILERS: LazyLock<HeaderBlock> =
    LazyLock::new(|| HeaderBlock::new([("grpc-status", "0")]));

/// The length of the message after `prefix`. A compressed message is refused, and one that is too large.
pub(super) fn accepted_length(prefix: Prefix, bytes_max: usize) -> Result<usize, Status> {
    let length = prefix.message_bytes;
    match prefix.is_compressed {
        true => Err(grpc_errors::compressed_unannounced()),
        false if length > bytes_max => Err(grpc_errors::too_large(length, bytes_max)),
        false => Ok(length),
    }
}

/// An error travels as headers alone.
pub(super) fn send_status(writer: &mut StreamWriter, status: Status) -> Result<(), StreamEnded> {
    writer.send_head(&response_block(&status.into_http::<()>()), EndOfBody::Stream)
}

/// An error after headers travels as trailers.
pub(super) fn send_status_after_headers(
    writer: &mut StreamWriter,
    status: Status,
) -> Result<(), StreamEnded> {
    writer.send_trailers(&trailers_block(status.into_http::<()>().headers()))
}
