//! The messages to a client, sent as fast as its window allows.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use parking_lot::Mutex;
use tonic::Status;

use super::super::account::{Account, Room, counted};
use super::super::grpc::{headers, send_status};

/// The client reset the stream, or the connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamGone;

/// Whether bytes end with the end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Border {
    EndOfMessage,
    InsideMessage,
}

/// Sends the answers of one stream. The headers leave with the first.
pub struct Replies {
    outgoing: Arc<Mutex<Outgoing>>,
    account: Arc<Account>,
}

/// The sending half of a stream. Shared by the method and by what ends its call; never contended, since both
/// run in one task.
pub(super) struct Outgoing {
    state: State,
    border: Border,
}

enum State {
    Unopened(SendResponse<Bytes>),
    Open(SendStream<Bytes>),
}

impl Outgoing {
    pub(super) fn new(respond: SendResponse<Bytes>) -> Arc<Mutex<Outgoing>> {
        let state = State::Unopened(respond);
        Arc::new(Mutex::new(Outgoing { state, border: Border::EndOfMessage }))
    }

    fn opened(&mut self) -> Result<&mut SendStream<Bytes>, StreamGone> {
        if let State::Unopened(respond) = &mut self.state {
            self.state = State::Open(respond.send_response(headers(), false).map_err(|_| StreamGone)?);
        }
        match &mut self.state {
            State::Open(stream) => Ok(stream),
            State::Unopened(_) => unreachable!("it was opened above"),
        }
    }

    /// How many of `wanted` bytes the client takes.
    fn poll_room(&mut self, wanted: usize, context: &mut Context<'_>) -> Poll<Result<usize, StreamGone>> {
        let stream = self.opened()?;
        loop {
            // What is there already is not announced again.
            match stream.capacity() {
                0 => {}
                granted => return Poll::Ready(Ok(granted.min(wanted))),
            }
            match ready!(stream.poll_capacity(context)) {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Poll::Ready(Err(StreamGone)),
            }
        }
    }

    /// Ready when the client has reset the stream or the connection is broken.
    pub(super) fn poll_reset(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.state {
            State::Unopened(respond) => respond.poll_reset(context).map(drop),
            State::Open(stream) => stream.poll_reset(context).map(drop),
        }
    }

    /// Ends the call. Inside a message no status can follow, so the stream is reset; clients read
    /// REFUSED_STREAM as UNAVAILABLE.
    pub(super) fn end(&mut self, status: Status) {
        // A failure to send means that the client is gone; there is no one to report it to.
        match &mut self.state {
            State::Unopened(respond) => drop(send_status(respond, status)),
            State::Open(stream) if self.border == Border::InsideMessage => {
                stream.send_reset(Reason::REFUSED_STREAM);
            }
            State::Open(stream) => {
                drop(stream.send_trailers(status.into_http::<()>().into_parts().0.headers));
            }
        }
    }
}

impl Replies {
    pub(super) fn new(outgoing: &Arc<Mutex<Outgoing>>, account: &Arc<Account>) -> Replies {
        Replies { outgoing: Arc::clone(outgoing), account: Arc::clone(account) }
    }

    /// Waits until the client takes bytes, the connection may hold more of them, and others had their turn.
    /// Returns how many it takes, at most `wanted`.
    pub async fn room(&mut self, wanted: usize) -> Result<usize, StreamGone> {
        Room(&self.account).wait().await;
        while self.account.is_turn_used() {
            tokio::task::yield_now().await;
        }
        self.outgoing.lock().opened()?.reserve_capacity(wanted);
        poll_fn(|context| self.outgoing.lock().poll_room(wanted, context)).await
    }

    /// Sends `data` as the client takes it. `border` says what comes after its last byte.
    ///
    /// Not to be cancelled unless the call ends: what was not sent is lost.
    pub async fn send(&mut self, mut data: Bytes, border: Border) -> Result<(), StreamGone> {
        while !data.is_empty() {
            let granted = self.room(data.len()).await?;
            let part = data.split_to(granted);
            self.account.note_sent_in_turn(part.len());
            let part = counted(&self.account, part);
            let mut outgoing = self.outgoing.lock();
            outgoing.border = if data.is_empty() { border } else { Border::InsideMessage };
            outgoing.opened()?.send_data(part, false).map_err(|_| StreamGone)?;
        }
        Ok(())
    }
}
