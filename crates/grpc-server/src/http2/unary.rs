//! One unary call: one request message, one response message.
//!
//! A waiting call needs no task. Its message is copied out of the receive buffer if it arrived in one small
//! DATA frame, is a slice of the buffer if the frame was larger, and is gathered into one buffer otherwise.
//! A call that does not wait needs no future and no copy of its message. Bytes after the message are
//! discarded as they arrive, as by grpc-go.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use ::http2::{EndOfBody, StreamEnded};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::account::{Account, Body, Room, counted};
use super::calls::{Answer, CallHandler};
use super::grpc::{self, AT_ONCE_BYTES_MAX, HEADERS, PREFIX_BYTES, Prefix, TRAILERS, send_data, send_status};
use super::long;
use super::shared::{BODY_TIMEOUT, ConnectionShared, stopped_for_requests};
use super::wire::{BegunRequest, BodyReader, StreamWriter, Wire, response_block};

/// The content type of responses.
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Serves a call with a complete message, if it does not have to wait. Returns whether the response was
/// sent.
pub(super) fn answer_now<C: CallHandler>(
    calls: &C,
    call: &C::Call,
    begun: &BegunRequest,
    wire: &Wire,
    shared: &ConnectionShared,
) -> bool {
    let Some(body) = begun.whole() else { return false };
    let bytes_max = shared.limits.message_bytes_max;
    let is_whole = body.len() >= PREFIX_BYTES
        && message_length(body, bytes_max).is_ok_and(|length| body.len() == PREFIX_BYTES + length);
    is_whole
        && calls.answer_now(call, &body.slice(PREFIX_BYTES..), &mut |answer| {
            wire.answer_at_once(begun, &HEADERS, answer, &TRAILERS)
        })
}

/// Serves one call. A send error means that the client disconnected, so it is not reported.
pub(super) async fn answer<C: CallHandler>(
    calls: C,
    call: C::Call,
    mut body: BodyReader,
    mut writer: StreamWriter,
    shared: &ConnectionShared,
) {
    let read = read_in_time(&mut body, shared, C::deadline(&call), C::user(&call)).await;
    let ends_later = read.is_ok() && !has_ended(&mut body);
    if ends_later {
        body.discard_when_dropped();
    }
    drop(body);
    let outcome = match read {
        Ok(message) => {
            // Not boxed: the method itself is.
            let call = pin!(calls.unary(call, message, Room(&shared.account)));
            let Some(outcome) = unless_reset(call, &writer).await else { return };
            outcome
        }
        Err(ReadError::Refused(status)) => Err(status),
        Err(ReadError::Gone) => return,
    };
    let sent = match outcome {
        Ok(Answer::Whole(message)) => send_message(&mut writer, message, &shared.account).await,
        Ok(Answer::WithMetadata(metadata, message)) => {
            send_with_metadata(&mut writer, *metadata, message, &shared.account).await
        }
        // Boxed to keep the future of every other call small.
        Ok(Answer::Long(answer)) => Box::pin(long::send(&mut writer, *answer, shared.stopped())).await,
        Err(status) => send_status(&mut writer, status),
    };
    if sent.is_ok() && ends_later {
        Box::pin(wait_for_end(&mut writer, shared)).await;
    }
}

/// Reports whether the client has closed its side. END_STREAM may arrive in a separate frame, after the
/// message.
fn has_ended(body: &mut BodyReader) -> bool {
    while !body.is_end() {
        match body.data().now_or_never() {
            Some(Some(Ok(part))) if part.is_empty() => {}
            Some(Some(_)) => return false,
            Some(None) => return true,
            None => return false,
        }
    }
    true
}

/// Keeps the stream open after the response until its client has closed it. A client may treat a reset
/// before that as a failure.
async fn wait_for_end(writer: &mut StreamWriter, shared: &ConnectionShared) {
    tokio::select! {
        () = poll_fn(|context| writer.poll_request_end(context)) => {}
        () = tokio::time::sleep(BODY_TIMEOUT) => {}
        () = shared.stopped() => {}
    }
}

/// Returns the result of the call, or None if its client reset it. The connection polls the call after a
/// reset ([`super::connection`]); other than that this costs no time.
///
/// The call is polled even if its client reads no responses: it may hold a permit that other calls wait
/// for.
async fn unless_reset<F: Future>(mut call: Pin<&mut F>, writer: &StreamWriter) -> Option<F::Output> {
    poll_fn(|context| {
        // Checked before polling: after a stall of this process the client's deadlines may have expired.
        if writer.was_reset() {
            return Poll::Ready(None);
        }
        call.as_mut().poll(context).map(Some)
    })
    .await
}

enum ReadError {
    Refused(Status),
    /// The client reset the stream or the connection broke.
    Gone,
}

/// Reads the single message of a unary request, without its prefix, with a deadline.
async fn read_in_time(
    body: &mut BodyReader,
    shared: &ConnectionShared,
    deadline: Option<Instant>,
    user: Option<u64>,
) -> Result<Bytes, ReadError> {
    let mut reading = pin!(read_message(body, shared, user));
    // A small request has usually arrived already, and needs no timer.
    let first = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
    match first {
        Poll::Ready(message) => message,
        Poll::Pending => Box::pin(read_before(deadline, reading, shared, user.is_some())).await,
    }
}

/// Continues reading until the call's deadline, for [`BODY_TIMEOUT`] at most, or until a stopping member
/// cancels it; for calls without a user, also until the client exceeds its quota.
async fn read_before(
    deadline: Option<Instant>,
    reading: impl Future<Output = Result<Bytes, ReadError>>,
    shared: &ConnectionShared,
    is_users: bool,
) -> Result<Bytes, ReadError> {
    let latest = Instant::now() + BODY_TIMEOUT;
    let reading = async {
        tokio::select! {
            biased;
            message = reading => message,
            () = shared.account.over_share(), if !is_users => {
                Err(ReadError::Refused(grpc_errors::too_many_request_bytes()))
            }
            () = stopped_for_requests(shared.stop.clone()) => Err(ReadError::Refused(grpc_errors::stopped())),
        }
    };
    let message = timeout_at(deadline.map_or(latest, |deadline| deadline.min(latest)), reading).await;
    message.unwrap_or_else(|_| {
        Err(ReadError::Refused(match deadline {
            Some(deadline) if deadline < latest => grpc_errors::deadline_exceeded(),
            Some(_) | None => grpc_errors::incomplete_too_long(),
        }))
    })
}

/// A message that counts against the limits of `account` until its last slice is dropped.
struct CountedMessage {
    bytes: Bytes,
    _counted: Body,
}

impl AsRef<[u8]> for CountedMessage {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the message and returns the window as it arrives. Received bytes count against the limits of
/// `account`, which flow control cannot replace: if the window were returned only for complete messages, a
/// dozen large ones that arrive interleaved would use it up, and none could complete. A message that arrived
/// in one frame is not counted.
async fn read_message(
    body: &mut BodyReader,
    shared: &ConnectionShared,
    user: Option<u64>,
) -> Result<Bytes, ReadError> {
    let bytes_max = shared.limits.message_bytes_max;
    let mut gathered = BytesMut::new();
    let mut counted = None;
    let mut wanted: Option<usize> = None;
    while let Some(part) = body.data().await {
        let mut part = part.map_err(|_| ReadError::Gone)?;
        body.release(part.len());
        if wanted.is_none() && gathered.is_empty() && part.len() >= PREFIX_BYTES {
            let length = message_length(&part, bytes_max)?;
            if part.len() == PREFIX_BYTES + length {
                part.advance(PREFIX_BYTES);
                return Ok(part);
            }
            if part.len() > PREFIX_BYTES + length {
                // A slice would pin the rest.
                return Ok(Bytes::copy_from_slice(&part[PREFIX_BYTES..][..length]));
            }
        }
        let arrived = counted.get_or_insert_with(|| Body::new(&shared.account));
        arrived.add(part.len(), user).map_err(ReadError::Refused)?;
        gathered.extend_from_slice(&part);
        if wanted.is_none() && gathered.len() >= PREFIX_BYTES {
            let length = message_length(&gathered, bytes_max)?;
            // Untouched capacity costs only address space; the received bytes are counted.
            gathered.reserve((PREFIX_BYTES + length).saturating_sub(gathered.len()));
            wanted = Some(PREFIX_BYTES + length);
        }
        match wanted {
            Some(wanted) if gathered.len() >= wanted => {
                gathered.truncate(wanted);
                gathered.advance(PREFIX_BYTES);
                let bytes = gathered.freeze();
                return Ok(match counted {
                    Some(counted) => Bytes::from_owner(CountedMessage { bytes, _counted: counted }),
                    None => bytes,
                });
            }
            _ => {}
        }
    }
    Err(ReadError::Refused(grpc_errors::unary_cut_short(wanted.is_some())))
}

/// Returns the length from the prefix. A message that is too large is rejected before any of it is stored.
fn message_length(prefixed: &[u8], bytes_max: usize) -> Result<usize, ReadError> {
    let prefix = Prefix::of(prefixed).expect("the caller has read the prefix");
    grpc::accepted_length(prefix, bytes_max).map_err(ReadError::Refused)
}

async fn send_message(
    writer: &mut StreamWriter,
    message: Bytes,
    account: &Arc<Account>,
) -> Result<(), StreamEnded> {
    if writer.send_at_once(&HEADERS, &message, &TRAILERS)? {
        return Ok(());
    }
    writer.send_head(&HEADERS, EndOfBody::More)?;
    send_body(writer, message, account).await
}

/// Sends a message whose headers have more than the usual fields. Rare, so it has a simple form.
async fn send_with_metadata(
    writer: &mut StreamWriter,
    metadata: HeaderMap,
    message: Bytes,
    account: &Arc<Account>,
) -> Result<(), StreamEnded> {
    let mut response = http::Response::new(());
    *response.headers_mut() = metadata;
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    writer.send_head(&response_block(&response), EndOfBody::More)?;
    send_body(writer, message, account).await
}

async fn send_body(
    writer: &mut StreamWriter,
    message: Bytes,
    account: &Arc<Account>,
) -> Result<(), StreamEnded> {
    if message.len() <= AT_ONCE_BYTES_MAX {
        writer.send_data(counted(account, message), EndOfBody::More)?;
    } else {
        Box::pin(send_data(writer, message, account)).await?;
    }
    writer.send_trailers(&TRAILERS)
}

#[cfg(test)]
#[path = "unary_tests.rs"]
mod tests;
