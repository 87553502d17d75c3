//! What the connection knows of methods: how a hot call is found and answered.

use std::collections::VecDeque;
use std::convert::Infallible;

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;
use tonic::Status;

use super::account::Room;
use admission::Pass;

/// The methods that are answered inside the connection's task.
pub trait HotMethods: Clone + Send + 'static {
    /// One call: its method, and what its headers ask for. Stored once per open call.
    type Call: Send;
    /// What is answered piece by piece; `Infallible` if nothing is.
    type Long: LongAnswer;

    /// The call of a path such as `/etcdserverpb.KV/Put`, if its method is a hot one and its message is not
    /// compressed. `timeout` is a `grpc-timeout` that is not among the headers.
    fn find(&self, path: &str, headers: &HeaderMap, timeout: Option<&[u8]>) -> Option<Self::Call>;

    /// When the call must have ended.
    fn deadline(call: &Self::Call) -> Option<Instant>;

    /// The user of the call, as who shares, if it has shown one.
    fn user(_call: &Self::Call) -> Option<u64> {
        None
    }

    /// The user that the headers of a call that is not hot show, as who shares.
    fn user_of(&self, _headers: &HeaderMap) -> Option<u64> {
        None
    }

    /// Answers a call that waits for nothing: `send` takes the answer, with its prefix, and returns whether it
    /// was sent. Otherwise false: then the call is to be made, and nothing of it was counted.
    ///
    /// `message` is a slice of the receive buffer, so it must not be kept.
    fn answer_now(&self, _call: &Self::Call, _message: &Bytes, _send: &mut SendNow<'_>) -> bool {
        false
    }

    /// Answers one encoded message with another, gRPC's five bytes of prefix included. A method that makes
    /// large answers waits for `room` before it makes one.
    fn call(
        &self,
        call: Self::Call,
        message: Bytes,
        room: Room<'_>,
    ) -> impl Future<Output = Result<HotAnswer<Self::Long>, Status>> + Send;
}

/// Sends an answer if the client and the output buffer take it at once.
pub type SendNow<'a> = dyn FnMut(&[u8]) -> bool + 'a;

/// What a hot call is answered with.
#[derive(Debug)]
pub enum HotAnswer<L> {
    /// The message, with its prefix.
    Whole(Bytes),
    /// One that is made while it is sent. In a box: every other answer stays as small as it is.
    Long(Box<L>),
}

/// One message that is too large to be held as a whole. No function has a default: a wrapper of another one
/// would have it by mistake.
pub trait LongAnswer: Send + Sync + 'static {
    /// Does what comes before the first byte, and says how many there will be, prefix included. Called once,
    /// first.
    fn begin(&mut self) -> impl Future<Output = Result<u64, Status>> + Send;

    /// Makes bytes from `position` on, at least one. The same position gives the same bytes again: what a
    /// client did not take in time is dropped, and asked for once more.
    fn part(&mut self, position: u64) -> impl Future<Output = Result<Part, Status>> + Send;

    /// Returns when the connection may hold more bytes that are not written yet.
    fn room(&self) -> impl Future<Output = ()> + Send;

    /// Counts bytes of a part until they were written.
    fn counted(&self, sent: Bytes) -> Bytes;

    /// Whether others wait for what is held between two parts.
    fn is_wanted(&self) -> bool;

    /// The client did not read, so the message ends here.
    fn unread(&mut self);
}

/// Some bytes of a message, and the right to hold them: where memory is short, others wait for it.
#[derive(Debug)]
pub struct Part {
    /// In pieces, each of which is free once it was sent.
    pub pieces: VecDeque<Bytes>,
    pub turn: Option<Pass>,
}

impl Part {
    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}

impl LongAnswer for Infallible {
    async fn begin(&mut self) -> Result<u64, Status> {
        match *self {}
    }

    async fn part(&mut self, _position: u64) -> Result<Part, Status> {
        match *self {}
    }

    async fn room(&self) {
        match *self {}
    }

    fn counted(&self, _sent: Bytes) -> Bytes {
        match *self {}
    }

    fn is_wanted(&self) -> bool {
        match *self {}
    }

    fn unread(&mut self) {
        match *self {}
    }
}

/// No hot methods.
#[derive(Clone, Copy, Debug)]
pub struct NoHot;

impl HotMethods for NoHot {
    type Call = Infallible;
    type Long = Infallible;

    fn find(&self, _path: &str, _headers: &HeaderMap, _timeout: Option<&[u8]>) -> Option<Infallible> {
        None
    }

    fn deadline(call: &Infallible) -> Option<Instant> {
        match *call {}
    }

    async fn call(
        &self,
        call: Infallible,
        _message: Bytes,
        _room: Room<'_>,
    ) -> Result<HotAnswer<Infallible>, Status> {
        match call {}
    }
}
