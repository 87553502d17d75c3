//! One hot call: read one message, answer it with one message.
//!
//! Cost per call: no task, no boxed future; the message is a slice of the receive buffer when it came in one
//! DATA frame (all small ones do), and is gathered into one buffer otherwise.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use h2::RecvStream;
use h2::server::SendResponse;
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::account::{Account, Body, Room, counted};
use super::grpc::{PREFIX_BYTES, headers, send_status, trailers};
use super::long;
use super::methods::{Answer, HotMethods};
use super::sending::{AT_ONCE_BYTES_MAX, send_data};
use super::shared::Shared;
use crate::errors;

/// Time for a request to arrive as a whole: 2 MiB at 35 KB/s.
pub(super) const BODY_WITHIN: Duration = Duration::from_secs(60);

/// Answers one call. A failure to send means that the client is gone; there is no one to report it to.
pub(super) async fn answer<H: HotMethods>(
    hot: H,
    call: H::Call,
    mut body: RecvStream,
    mut respond: SendResponse<Bytes>,
    shared: &Shared,
) {
    let read = read_in_time(&mut body, shared, H::deadline(&call)).await;
    let mut rest = match &read {
        Ok(_) => (!has_ended(&mut body)).then_some(body),
        Err(ReadError::Refused(_)) => None,
        Err(ReadError::Gone) => return,
    };
    let answered = {
        let mut answering = pin!(async {
            let (outcome, counted_body) = match read {
                Ok((message, counted)) => {
                    let call = pin!(hot.call(call, message, Room(&shared.account)));
                    (unless_reset(call, &mut respond, shared).await?, counted)
                }
                Err(ReadError::Refused(status)) => (Err(status), None),
                Err(ReadError::Gone) => return None,
            };
            // A long answer keeps its request until it is begun.
            let _counted_body = counted_body.filter(|_| matches!(outcome, Ok(Answer::Long(_))));
            let sent = match outcome {
                Ok(Answer::Whole(message)) => send_message(respond, message, &shared.account).await,
                // In a box: the future of every other call stays as small as it is.
                Ok(Answer::Long(answer)) => Box::pin(long::send(respond, *answer, shared.stopped())).await,
                Err(status) => send_status(&mut respond, status),
            };
            sent.ok()
        });
        poll_fn(|context| match poll_excess(&mut rest, context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => answering.as_mut().poll(context),
        })
        .await
    };
    if let (Some(()), Some(rest)) = (answered, rest) {
        Box::pin(wait_for_end(rest, shared)).await;
    }
}

/// Ready when data follows the one message of a call, which is then dropped, and its stream with it: h2 would
/// keep what follows for as long as the call waits.
fn poll_excess(rest: &mut Option<RecvStream>, context: &mut Context<'_>) -> Poll<()> {
    while let Some(body) = rest {
        match ready!(body.poll_data(context)) {
            Some(Ok(part)) if part.is_empty() => {}
            Some(Ok(_)) => return Poll::Ready(()),
            Some(Err(_)) | None => *rest = None,
        }
    }
    Poll::Pending
}

/// Whether the client has ended its stream. The end may have come in a frame of its own, after the message.
fn has_ended(body: &mut RecvStream) -> bool {
    while !body.is_end_stream() {
        match body.data().now_or_never() {
            Some(Some(Ok(part))) if part.is_empty() => {}
            Some(Some(_)) => return false,
            Some(None) => return true,
            None => return false,
        }
    }
    true
}

/// Keeps an answered stream open until its client has ended it. A stream that is dropped earlier is reset by
/// h2, and the frame with the end, which arrives later, then counts as an error of the client: after
/// [`super::connection::ERROR_RESETS_MAX`] of them h2 closes the connection.
async fn wait_for_end(mut rest: RecvStream, shared: &Shared) {
    let ended = async {
        // Data that follows the one message is no end: such a stream is reset.
        while rest.data().await.is_some_and(|part| part.is_ok_and(|part| part.is_empty())) {}
    };
    tokio::select! {
        () = ended => {}
        () = tokio::time::sleep(BODY_WITHIN) => {}
        () = shared.stopped() => {}
    }
}

/// What the call comes to, or nothing if its client reset it. The connection has it polled when there was a
/// reset ([`super::open`]); until then this costs nothing.
///
/// The call is polled even if its client takes no answers: it may hold a place at a gate, which others wait
/// for.
async fn unless_reset<F: Future>(
    mut call: Pin<&mut F>,
    respond: &mut SendResponse<Bytes>,
    shared: &Shared,
) -> Option<F::Output> {
    poll_fn(|context| {
        // Before the call goes on: while this process stood still, deadlines of the client may have passed.
        let mut unwoken = Context::from_waker(Waker::noop());
        if shared.account.seen.resets() && respond.poll_reset(&mut unwoken).is_ready() {
            return Poll::Ready(None);
        }
        call.as_mut().poll(context).map(Some)
    })
    .await
}

enum ReadError {
    /// The client receives this status.
    Refused(Status),
    /// The client reset the stream or the connection broke.
    Gone,
}

/// Reads the one message of a unary request, without its prefix, in its time.
async fn read_in_time(
    body: &mut RecvStream,
    shared: &Shared,
    deadline: Option<Instant>,
) -> Result<Message, ReadError> {
    let mut reading = pin!(read_message(body, shared));
    // A small request has arrived by now, and needs no timer.
    let first = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
    match first {
        Poll::Ready(message) => message,
        Poll::Pending => Box::pin(read_before(deadline, reading)).await,
    }
}

/// Goes on reading until the call's deadline, or for [`BODY_WITHIN`].
async fn read_before(
    deadline: Option<Instant>,
    reading: impl Future<Output = Result<Message, ReadError>>,
) -> Result<Message, ReadError> {
    let latest = Instant::now() + BODY_WITHIN;
    let message = timeout_at(deadline.map_or(latest, |deadline| deadline.min(latest)), reading).await;
    message.unwrap_or_else(|_| {
        Err(ReadError::Refused(match deadline {
            Some(deadline) if deadline < latest => errors::deadline_exceeded(),
            Some(_) | None => errors::incomplete_too_long(),
        }))
    })
}

/// A message, and its count against the bounds of `account`. One that came in one frame is not counted.
type Message = (Bytes, Option<Body>);

/// Reads the message and gives the window back as it arrives. What has arrived counts against the bounds of
/// `account`, which flow control cannot replace: if the window were given back only for complete messages, a
/// dozen large ones that arrive by turns would use it up, and none could be completed.
async fn read_message(body: &mut RecvStream, shared: &Shared) -> Result<Message, ReadError> {
    let bytes_max = shared.limits.message_bytes_max;
    let mut gathered = BytesMut::new();
    let mut counted = None;
    let mut wanted: Option<usize> = None;
    while let Some(part) = body.data().await {
        let mut part = part.map_err(|_| ReadError::Gone)?;
        // Only fails when the stream is closed, which the next read says better.
        drop(body.flow_control().release_capacity(part.len()));
        if wanted.is_none() && gathered.is_empty() && part.len() >= PREFIX_BYTES {
            let length = message_length(&part, bytes_max)?;
            if part.len() == PREFIX_BYTES + length {
                part.advance(PREFIX_BYTES);
                return Ok((part, None));
            }
        }
        let arrived = counted.get_or_insert_with(|| Body::new(&shared.account));
        arrived.add(part.len()).map_err(ReadError::Refused)?;
        gathered.extend_from_slice(&part);
        if wanted.is_none() && gathered.len() >= PREFIX_BYTES {
            let length = message_length(&gathered, bytes_max)?;
            // Untouched memory costs an address only; what has arrived is what is counted.
            gathered.reserve((PREFIX_BYTES + length).saturating_sub(gathered.len()));
            wanted = Some(PREFIX_BYTES + length);
        }
        match wanted {
            Some(wanted) if gathered.len() == wanted => {
                gathered.advance(PREFIX_BYTES);
                return Ok((gathered.freeze(), counted));
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

/// Sends headers, the prefixed message and trailers.
async fn send_message(
    mut respond: SendResponse<Bytes>,
    message: Bytes,
    account: &Arc<Account>,
) -> Result<(), h2::Error> {
    let mut stream = respond.send_response(headers(), false)?;
    if message.len() <= AT_ONCE_BYTES_MAX {
        stream.send_data(counted(account, message), false)?;
    } else {
        Box::pin(send_data(&mut stream, message, account)).await?;
    }
    stream.send_trailers(trailers())
}

#[cfg(test)]
#[path = "unary_tests.rs"]
mod tests;
