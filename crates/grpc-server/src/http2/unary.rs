//! One hot call: read one message, answer it with one message.
//!
//! Cost per call that waits: no task; the message is copied out of the receive buffer if it came in one small
//! DATA frame, a slice of the buffer in a larger one, and gathered into one buffer otherwise. One that waits
//! for nothing: no future and no copy of its message.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::http2::{EndOfBody, StreamEnded};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::account::{Account, Body, Room, counted};
use super::grpc::{self, AT_ONCE_BYTES_MAX, HEADERS, PREFIX_BYTES, Prefix, TRAILERS, send_data, send_status};
use super::long;
use super::methods::{HotAnswer, HotMethods};
use super::shared::{ConnectionShared, stopped_for_requests};
use super::wire::{BegunRequest, BodyReader, StreamWriter, Wire};

/// Time for a request to arrive as a whole: 2 MiB at 35 KB/s.
pub(super) const BODY_WITHIN: Duration = Duration::from_secs(60);

/// Answers a call whose message has come as a whole, if that waits for nothing. Whether it was answered.
pub(super) fn answer_now<H: HotMethods>(
    hot: &H,
    call: &H::Call,
    begun: &BegunRequest,
    wire: &Wire,
    shared: &ConnectionShared,
) -> bool {
    let Some(body) = begun.whole() else { return false };
    let bytes_max = shared.limits.message_bytes_max;
    let is_whole = body.len() >= PREFIX_BYTES
        && message_length(body, bytes_max).is_ok_and(|length| body.len() == PREFIX_BYTES + length);
    is_whole
        && hot.answer_now(call, &body.slice(PREFIX_BYTES..), &mut |answer| {
            wire.answer_at_once(begun, &HEADERS, answer, &TRAILERS)
        })
}

/// Answers one call. A failure to send means that the client is gone; there is no one to report it to.
pub(super) async fn answer<H: HotMethods>(
    hot: H,
    call: H::Call,
    mut body: BodyReader,
    mut writer: StreamWriter,
    shared: &ConnectionShared,
) {
    let read = read_in_time(&mut body, shared, H::deadline(&call), H::user(&call)).await;
    let mut rest = match &read {
        Ok(_) => (!has_ended(&mut body)).then_some(body),
        Err(ReadError::Refused(_)) => None,
        Err(ReadError::Gone) => return,
    };
    let mut answering = pin!(async {
        let (outcome, counted_body) = match read {
            Ok((message, counted)) => {
                // In a box: a call whose message never comes holds no room for what would answer it.
                let mut call = Box::pin(hot.call(call, message, Room(&shared.account)));
                (unless_reset(call.as_mut(), &writer).await?, counted)
            }
            Err(ReadError::Refused(status)) => (Err(status), None),
            Err(ReadError::Gone) => return None,
        };
        // A long answer keeps its request until it is begun.
        let _counted_body = counted_body.filter(|_| matches!(outcome, Ok(HotAnswer::Long(_))));
        let sent = match outcome {
            Ok(HotAnswer::Whole(message)) => send_message(&mut writer, message, &shared.account).await,
            // In a box: the future of every other call stays as small as it is.
            Ok(HotAnswer::Long(answer)) => Box::pin(long::send(writer, *answer, shared.stopped())).await,
            Err(status) => send_status(&mut writer, status),
        };
        sent.ok()
    });
    let answered = poll_fn(|context| match poll_excess(&mut rest, context) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => answering.as_mut().poll(context),
    });
    if answered.await.is_some()
        && let Some(rest) = rest
    {
        Box::pin(wait_for_end(rest, shared)).await;
    }
}

/// Ready when data follows the one message of a call, which is then dropped, and its stream with it: what
/// follows would be kept for as long as the call waits.
fn poll_excess(rest: &mut Option<BodyReader>, context: &mut Context<'_>) -> Poll<()> {
    while let Some(body) = rest {
        match ready!(body.poll_data(context)) {
            Some(Ok(part)) if part.is_empty() => {}
            Some(Ok(_)) => return Poll::Ready(()),
            Some(Err(_)) | None => *rest = None,
        }
    }
    Poll::Pending
}

/// Whether the client has ended its stream. The end may have come in a separate frame, after the message.
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

/// Keeps an answered stream open until its client has ended it. A client may take the reset of a stream that
/// it has not ended for a failure.
async fn wait_for_end(mut rest: BodyReader, shared: &ConnectionShared) {
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
/// reset ([`super::connection`]); until then this costs nothing.
///
/// The call is polled even if its client takes no answers: it may hold a place at a gate, which others wait
/// for.
async fn unless_reset<F: Future>(mut call: Pin<&mut F>, writer: &StreamWriter) -> Option<F::Output> {
    poll_fn(|context| {
        // Before the call goes on: while this process stood still, deadlines of the client may have passed.
        if writer.was_reset() {
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
    body: &mut BodyReader,
    shared: &ConnectionShared,
    deadline: Option<Instant>,
    user: Option<u64>,
) -> Result<UnaryMessage, ReadError> {
    let mut reading = pin!(read_message(body, shared, user));
    // A small request has arrived by now, and needs no timer.
    let first = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
    match first {
        Poll::Ready(message) => message,
        Poll::Pending => Box::pin(read_before(deadline, reading, shared, user.is_some())).await,
    }
}

/// Goes on reading until the call's deadline, or for [`BODY_WITHIN`], or until a stopping member waits no
/// longer; without a user, until its caller is over its share.
async fn read_before(
    deadline: Option<Instant>,
    reading: impl Future<Output = Result<UnaryMessage, ReadError>>,
    shared: &ConnectionShared,
    is_users: bool,
) -> Result<UnaryMessage, ReadError> {
    let latest = Instant::now() + BODY_WITHIN;
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

/// A message, and its count against the bounds of `account`. One that came in one frame is not counted.
type UnaryMessage = (Bytes, Option<Body>);

/// Reads the message and gives the window back as it arrives. What has arrived counts against the bounds of
/// `account`, which flow control cannot replace: if the window were given back only for complete messages, a
/// dozen large ones that arrive by turns would use it up, and none could be completed.
async fn read_message(
    body: &mut BodyReader,
    shared: &ConnectionShared,
    user: Option<u64>,
) -> Result<UnaryMessage, ReadError> {
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
                return Ok((part, None));
            }
        }
        let arrived = counted.get_or_insert_with(|| Body::new(&shared.account));
        arrived.add(part.len(), user).map_err(ReadError::Refused)?;
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
                return Err(ReadError::Refused(grpc_errors::more_than_one_message()));
            }
            _ => {}
        }
    }
    Err(ReadError::Refused(grpc_errors::unary_cut_short(wanted.is_some())))
}

/// The length that the prefix announces, refused before a single byte of it is stored when it is too large.
fn message_length(prefixed: &[u8], bytes_max: usize) -> Result<usize, ReadError> {
    let prefix = Prefix::of(prefixed).expect("the caller has read the prefix");
    let length = grpc::accepted_length(prefix, bytes_max).map_err(ReadError::Refused);
    match prefixed[0] {
        0 | 1 => length,
        flag => Err(ReadError::Refused(grpc_errors::unknown_format(flag))),
    }
}

/// Sends headers, the prefixed message and trailers.
async fn send_message(
    writer: &mut StreamWriter,
    message: Bytes,
    account: &Arc<Account>,
) -> Result<(), StreamEnded> {
    if writer.send_at_once(&HEADERS, &message, &TRAILERS)? {
        return Ok(());
    }
    writer.send_head(&HEADERS, EndOfBody::More)?;
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
