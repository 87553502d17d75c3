//! The interface between a connection and its methods: lookup and execution of hot calls.

use std::collections::VecDeque;
use std::convert::Infallible;

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;
use tonic::Status;

use super::account::Room;
use admission::Pass;

/// Methods that are served inside the connection's task.
pub trait HotMethods: Clone + Send + 'static {
    /// One call: its method and the parameters from its headers. Stored once per open call.
    type Call: Send;
    /// Type of responses that are produced in parts; `Infallible` if there are none.
    type Long: LongAnswer;

    /// Returns the call for a path such as `/etcdserverpb.KV/Put`, if its method is hot and its message is
    /// not compressed. `timeout` is a `grpc-timeout` that was removed from the headers.
    fn find(&self, path: &str, headers: &HeaderMap, timeout: Option<&[u8]>) -> Option<Self::Call>;

    /// Returns the deadline of the call.
    fn deadline(call: &Self::Call) -> Option<Instant>;

    /// Returns the authenticated user of the call, as a key for quotas.
    fn user(_call: &Self::Call) -> Option<u64> {
        None
    }

    /// Returns the authenticated user from the headers of a call that is not hot, as a key for quotas.
    fn user_of(&self, _headers: &HeaderMap) -> Option<u64> {
        None
    }

    /// Serves a call that does not have to wait: `send` takes the response, prefix included, and returns
    /// whether it was sent. On false the call has to be made by [`HotMethods::call`], and has not been
    /// counted.
    ///
    /// `message` is a slice of the receive buffer, so it must not be retained.
    fn answer_now(&self, _call: &Self::Call, _message: &Bytes, _send: &mut SendNow<'_>) -> bool {
        false
    }

    /// Serves one encoded message and returns the response, gRPC's five-byte prefix included. A method with
    /// large responses waits for `room` before it builds one.
    fn call(
        &self,
        call: Self::Call,
        message: Bytes,
        room: Room<'_>,
    ) -> impl Future<Output = Result<HotAnswer<Self::Long>, Status>> + Send;
}

/// Sends a response if the client and the output buffer accept it immediately.
pub type SendNow<'a> = dyn FnMut(&[u8]) -> bool + 'a;

/// The response of a hot call.
#[derive(Debug)]
pub enum HotAnswer<L> {
    /// The message, with its prefix.
    Whole(Bytes),
    /// A response that is produced while it is sent. Boxed to keep the enum small.
    Long(Box<L>),
}

/// A response message that is too large to be held in memory. The methods have no defaults, because a
/// wrapper type could inherit them by mistake.
pub trait LongAnswer: Send + Sync + 'static {
    /// Prepares the first byte and returns the length of the message, prefix included. Called once, before
    /// the other methods.
    fn begin(&mut self) -> impl Future<Output = Result<u64, Status>> + Send;

    /// Returns at least one byte starting at `position`. Must be repeatable: bytes that a client did not
    /// take in time are dropped, and requested again.
    fn part(&mut self, position: u64) -> impl Future<Output = Result<Part, Status>> + Send;

    /// Returns when the connection may hold more bytes that are not written yet.
    fn room(&self) -> impl Future<Output = ()> + Send;

    /// Counts bytes of a part until they were written.
    fn counted(&self, sent: Bytes) -> Bytes;

    /// Reports whether other calls wait for the memory held between two parts.
    fn is_wanted(&self) -> bool;

    /// Records that the message was aborted because the client did not read.
    fn unread(&mut self);
}

/// Some bytes of a message, and the permit to hold them: where memory is short, other calls wait for it.
#[derive(Debug)]
pub struct Part {
    /// The bytes in pieces, each of which is freed once it was sent.
    pub pieces: VecDeque<Bytes>,
    pub turn: Option<Pass>,
}

impl Part {
    /// Returns the number of bytes left.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// Reports whether no bytes are left.
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
