//! A message that is made while it is sent: what of it is in memory is one part, and not for long.
//!
//!   begin ─▶ headers ─▶ ┌─▶ the client has room ─▶ its turn, a part ─▶ sent ─┐ ─▶ trailers
//!                       └────────────── what is left, anew ◀─ not in time ───┘
//!
//! * A part is asked for only when the client takes bytes: one that does not read holds no part and nobody's turn.
//! * A part is held for [`TURN_SECONDS_MAX`] at the most, and for [`PAUSE_SECONDS_MAX`] while the client takes nothing. What is left of
//!   it then is dropped and made again later, so that a slow client costs others no more than that.
//! * A client that resets its call ends it at whatever it was waiting for.
//! * Once the first byte is out, an error can only break the message off: the stream is reset, and the client sees no answer.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use tokio::time::timeout;

use super::LongAnswer;
use super::unary::{headers, send_status, trailers};

/// 32 MiB in ten seconds is what a client takes over a link of 30 Mbit/s.
const TURN_SECONDS_MAX: Duration = Duration::from_secs(10);
/// Far above what a client that reads lets pass between two reads. One that is wrong here waits for a part to be made again.
const PAUSE_SECONDS_MAX: Duration = Duration::from_secs(1);

/// Sends headers, the message and trailers, or a status alone if there will be no message.
pub(super) async fn send<L: LongAnswer>(
    mut respond: SendResponse<Bytes>,
    mut answer: L,
) -> Result<(), h2::Error> {
    let begun = unless_reset(answer.begin(), |context| respond.poll_reset(context)).await?;
    let bytes = match begun {
        Ok(bytes) => bytes,
        Err(status) => return send_status(respond, status),
    };
    let mut stream = respond.send_response(headers(), false)?;
    let mut sent = 0;
    while sent < bytes {
        room(&mut stream, 1).await?;
        let made = unless_reset(answer.part(sent), |context| stream.poll_reset(context)).await?;
        let Ok(mut part) = made else {
            stream.send_reset(Reason::INTERNAL_ERROR);
            return Ok(());
        };
        let made = part.len();
        assert!(made > 0, "a part that brings the message no further");
        let sending = timeout(TURN_SECONDS_MAX, send_part(&mut stream, &mut part.pieces)).await;
        sent += (made - part.len()) as u64;
        drop(part);
        if let Ok(outcome) = sending {
            outcome?;
        }
    }
    assert!(sent == bytes, "a message of another length than its prefix says");
    stream.send_trailers(trailers())
}

/// What `work` comes to, unless the client gives up first.
async fn unless_reset<T>(
    work: impl Future<Output = T>,
    mut poll_reset: impl FnMut(&mut Context<'_>) -> Poll<Result<Reason, h2::Error>>,
) -> Result<T, h2::Error> {
    let mut work = pin!(work);
    poll_fn(|context| match poll_reset(context) {
        Poll::Ready(reason) => Poll::Ready(Err(reason.map_or_else(|error| error, h2::Error::from))),
        Poll::Pending => work.as_mut().poll(context).map(Ok),
    })
    .await
}

/// Sends off the front of `pieces` no faster than the client takes it, and as long as it does. What is left has not been sent.
async fn send_part(stream: &mut SendStream<Bytes>, pieces: &mut VecDeque<Bytes>) -> Result<(), h2::Error> {
    while let Some(piece) = pieces.front_mut() {
        let Ok(granted) = timeout(PAUSE_SECONDS_MAX, room(stream, piece.len())).await else { return Ok(()) };
        stream.send_data(piece.split_to(granted?), false)?;
        if piece.is_empty() {
            pieces.pop_front();
        }
    }
    Ok(())
}

/// Waits until the client takes something, and says how many of `wanted` bytes.
async fn room(stream: &mut SendStream<Bytes>, wanted: usize) -> Result<usize, h2::Error> {
    stream.reserve_capacity(wanted);
    loop {
        // What is there already is not announced again.
        match stream.capacity() {
            0 => {}
            granted => return Ok(granted.min(wanted)),
        }
        match poll_fn(|context| stream.poll_capacity(context)).await {
            Some(granted) => granted?,
            None => return Err(Reason::CANCEL.into()),
        };
    }
}

#[cfg(test)]
#[path = "long_tests.rs"]
mod tests;
