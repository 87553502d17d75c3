//! One hot call: read one message, answer it with one message.
//!
//! Cost per call: no task, no boxed future; the message is a slice of the receive buffer when it came in one DATA
//! frame (all small ones do), and is gathered into one buffer otherwise.

use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use tonic::Status;

use super::relay::send_data;
use super::{Answer, HotMethods, Limits, long};
use crate::service::errors;

/// gRPC puts one flag byte and four bytes of length in front of every message.
pub const PREFIX_BYTES: usize = 5;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const OK: HeaderValue = HeaderValue::from_static("0");

/// Answers one call. A failure to send means that the client is gone, which nobody has to hear of.
pub(super) async fn answer<H: HotMethods>(
    hot: H,
    method: H::Method,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    limits: Limits,
) {
    let (parts, body) = request.into_parts();
    let outcome = match read_message(body, limits.message_bytes_max).await {
        Ok(message) => hot.call(method, parts.headers, message).await,
        Err(ReadError::Refused(status)) => Err(status),
        Err(ReadError::Gone) => return,
    };
    let sent = match outcome {
        Ok(Answer::Whole(message)) => send_message(respond, message).await,
        // In a box: the future of every other call stays as small as it is.
        Ok(Answer::Long(answer)) => Box::pin(long::send(respond, answer)).await,
        Err(status) => send_status(respond, status),
    };
    drop(sent);
}

enum ReadError {
    /// The client is told why.
    Refused(Status),
    /// The client reset the stream or the connection broke.
    Gone,
}

/// Reads the one message of a unary request, without its prefix.
async fn read_message(mut body: RecvStream, bytes_max: usize) -> Result<Bytes, ReadError> {
    let mut gathered = BytesMut::new();
    let mut wanted = None;
    while let Some(part) = body.data().await {
        let mut part = part.map_err(|_| ReadError::Gone)?;
        // Only fails when the stream is closed, which the next read says better.
        drop(body.flow_control().release_capacity(part.len()));
        if wanted.is_none() && gathered.is_empty() && part.len() >= PREFIX_BYTES {
            let length = message_length(&part, bytes_max)?;
            if part.len() == PREFIX_BYTES + length {
                part.advance(PREFIX_BYTES);
                return Ok(part);
            }
        }
        gathered.extend_from_slice(&part);
        if wanted.is_none() && gathered.len() >= PREFIX_BYTES {
            let length = message_length(&gathered, bytes_max)?;
            gathered.reserve((PREFIX_BYTES + length).saturating_sub(gathered.len()));
            wanted = Some(PREFIX_BYTES + length);
        }
        match wanted {
            Some(wanted) if gathered.len() == wanted => {
                gathered.advance(PREFIX_BYTES);
                return Ok(gathered.freeze());
            }
            Some(wanted) if gathered.len() > wanted => {
                return Err(ReadError::Refused(errors::more_than_one_message()));
            }
            _ => {}
        }
    }
    Err(ReadError::Refused(errors::cut_short()))
}

/// The length that the prefix announces, refused before a single byte of it is stored when it is too large.
fn message_length(prefixed: &[u8], bytes_max: usize) -> Result<usize, ReadError> {
    assert!(prefixed.len() >= PREFIX_BYTES, "the caller has read the prefix");
    if prefixed[0] != 0 {
        return Err(ReadError::Refused(errors::compressed_unannounced()));
    }
    let length = u32::from_be_bytes([prefixed[1], prefixed[2], prefixed[3], prefixed[4]]) as usize;
    if length > bytes_max {
        return Err(ReadError::Refused(errors::too_large(length, bytes_max)));
    }
    Ok(length)
}

/// h2 buffers a message of this size whatever the client's window: not worth waiting for.
const AT_ONCE_BYTES_MAX: usize = 64 << 10;

/// Sends headers, the prefixed message and trailers.
async fn send_message(mut respond: SendResponse<Bytes>, message: Bytes) -> Result<(), h2::Error> {
    let mut stream = respond.send_response(headers(), false)?;
    if message.len() <= AT_ONCE_BYTES_MAX {
        stream.send_data(message, false)?;
    } else {
        send_data(&mut stream, message).await?;
    }
    stream.send_trailers(trailers())
}

/// What comes before the message.
pub(super) fn headers() -> Response<()> {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// What comes behind it: all went well.
pub(super) fn trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, OK);
    trailers
}

/// An error travels as headers alone.
pub(super) fn send_status(mut respond: SendResponse<Bytes>, status: Status) -> Result<(), h2::Error> {
    respond.send_response(status.into_http::<()>(), true).map(drop)
}
