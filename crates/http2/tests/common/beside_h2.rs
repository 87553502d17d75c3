//! Differential test of this crate and the server of the `h2` crate: both get the same client frames, one
//! by one. Shared by the property test and the fuzz target.
//!
//! Law: after each frame both report the same requests, bodies, ends of requests, trailers and resets,
//! unless this crate has rejected the stream or the connection. Input rejected by `h2` is rejected by this
//! crate too, with these exceptions:
//!
//! * GOAWAY. h2 closes the connection for most of them; the owner of this crate's connection gets an event.
//! * This crate rejects the stream where h2 rejects the connection: for invalid field names, which make a
//!   request malformed (RFC 9113, 8.1.1), and for frames after END_STREAM.
//! * This crate responds with 431 to a header list that is too large, without checking the fields beyond
//!   the limit; h2 rejects the connection if one of them has no name.
//! * This crate treats an empty authority as absent, like grpc-go; h2 rejects the stream.
//! * This crate decodes complete header blocks. h2 decodes each fragment, so it rejects earlier.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, Uri};
use http2::{Connection, Event, Head, Limits, PeerWait, ProcessResult, Varying};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Streams that may be open, on both sides.
const STREAMS_MAX: u32 = 20;
/// Header list size above the limits of both sides. This crate accepts the announced size, h2 one byte
/// less.
const LIST_BYTES_TOO_MANY: u32 = 4096;
/// A value out of reach, for limits that the two sides count differently.
const MANY: u32 = 1 << 20;

/// The varying field: a name that is frequent in the inputs.
const VARYING: &str = "a";

/// Fields sorted by name: only the order of equal names matters.
type Fields = Vec<(String, Vec<u8>)>;

/// The state of a stream, as reported by one side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Stream {
    head: Option<(String, String, Fields)>,
    body: Vec<u8>,
    has_ended: bool,
    trailers: Fields,
    /// Reset by the client.
    was_reset: bool,
}

/// The state of one side.
#[derive(Debug, Default)]
struct Side {
    streams: BTreeMap<u32, Stream>,
    /// Streams rejected by this side.
    refused: BTreeSet<u32>,
    /// Streams that this side has sent a response on by itself.
    answered: BTreeSet<u32>,
    /// This side has rejected the connection.
    has_failed: bool,
    /// A request had an empty authority.
    has_empty_authority: bool,
}

impl Side {
    /// Records the rejections in its output.
    fn read_output(&mut self, output: &[u8]) {
        for (kind, _, stream, _) in crate::common::frames(output) {
            match kind {
                crate::common::RST_STREAM => drop(self.refused.insert(stream)),
                crate::common::HEADERS => drop(self.answered.insert(stream)),
                crate::common::GOAWAY => self.has_failed = true,
                _ => {}
            }
        }
    }
}

fn sorted(map: &HeaderMap) -> Fields {
    let mut fields: Fields =
        map.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect();
    fields.sort();
    fields
}

/// This crate.
struct Ours {
    connection: Connection,
    side: Side,
}

impl Ours {
    fn new() -> Ours {
        let limits = Limits {
            streams_max: STREAMS_MAX,
            varying_field: VARYING,
            header_list_bytes_max: LIST_BYTES_TOO_MANY as usize - 1,
            control_tokens_at_start: MANY,
            control_tokens_max: MANY,
            resets_max: MANY,
            window_changes_max: MANY,
            reset_streams_remembered: MANY as usize,
            stream_window_bytes: 65_535,
            connection_window_bytes: 65_535,
            ..Limits::default()
        };
        Ours { connection: Connection::new(limits, 0), side: Side::default() }
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.connection.receive(bytes);
        loop {
            let progress = self.connection.process(0);
            while let Some(event) = self.connection.next_event() {
                self.note(event);
            }
            self.side.read_output(&crate::common::take_output(&mut self.connection));
            match progress {
                ProcessResult::More | ProcessResult::OutputFull => {}
                ProcessResult::NeedBytes | ProcessResult::Failed { .. } => return,
                ProcessResult::Paused { .. } => panic!("so many frames are no input"),
            }
        }
    }

    fn note(&mut self, event: Event) {
        if let Event::Request { head, .. } = &event {
            self.side.has_empty_authority |= head.authority.as_ref().is_some_and(Bytes::is_empty);
        }
        let streams = &mut self.side.streams;
        match event {
            Event::Request { stream, head, varying, body, end } => match named(&head, varying) {
                Some(head) => {
                    let new =
                        Stream { head: Some(head), body: body.to_vec(), has_ended: end, ..Stream::default() };
                    streams.insert(stream.number(), new);
                }
                // Like the server that owns the connection.
                None => self.connection.reset(stream, http2::ErrorCode::PROTOCOL_ERROR),
            },
            Event::Data { stream, bytes, end } => {
                if let Some(stream) = streams.get_mut(&stream.number()) {
                    stream.body.extend_from_slice(&bytes);
                    stream.has_ended = end;
                }
            }
            Event::Trailers { stream, fields } => {
                if let Some(stream) = streams.get_mut(&stream.number()) {
                    stream.has_ended = true;
                    let name = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                    stream.trailers =
                        fields.iter().map(|field| (name(&field.name), field.value.to_vec())).collect();
                    stream.trailers.sort();
                }
            }
            Event::Reset { stream, origin: http2::ResetOrigin::Peer, .. } => {
                if let Some(stream) = streams.get_mut(&stream.number()) {
                    stream.was_reset = true;
                }
            }
            Event::Reset { .. } | Event::Writable { .. } | Event::Pong { .. } | Event::GoAway { .. } => {}
        }
    }
}

/// Converts a head with the rules of the crate `http`, or returns None if they do not allow it.
fn named(head: &Head, varying: Option<Varying>) -> Option<(String, String, Fields)> {
    let method = http::Method::from_bytes(&head.method).ok()?;
    let mut parts = http::uri::Parts::default();
    if let Some(authority) = head.authority.as_ref().filter(|authority| !authority.is_empty()) {
        parts.authority = Some(http::uri::Authority::from_maybe_shared(authority.clone()).ok()?);
    }
    if let Some(path) = &head.path {
        parts.path_and_query = Some(http::uri::PathAndQuery::from_maybe_shared(path.clone()).ok()?);
    }
    let scheme = head.scheme.as_ref().map(|scheme| http::uri::Scheme::try_from(&scheme[..]));
    parts.scheme = scheme.transpose().ok()?.filter(|_| parts.authority.is_some());
    let uri = Uri::from_parts(parts).ok()?;
    let mut map = HeaderMap::new();
    for field in &head.fields {
        let name = http::HeaderName::from_bytes(&field.name).ok()?;
        map.append(name, http::HeaderValue::from_maybe_shared(field.value.clone()).ok()?);
    }
    if let Some(varying) = varying {
        map.append(VARYING, http::HeaderValue::from_bytes(varying.as_bytes()).ok()?);
    }
    Some((method.to_string(), uri.to_string(), sorted(&map)))
}

/// A socket with the other end in this program.
#[derive(Clone, Default)]
struct Pipe(Rc<RefCell<(Vec<u8>, Vec<u8>)>>);

impl AsyncRead for Pipe {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let incoming = &mut self.0.borrow_mut().0;
        if incoming.is_empty() {
            return Poll::Pending;
        }
        let bytes = incoming.len().min(buffer.remaining());
        buffer.put_slice(&incoming[..bytes]);
        incoming.drain(..bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().1.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The crate `h2`.
struct Theirs {
    pipe: Pipe,
    connection: h2::server::Connection<Pipe, Bytes>,
    open: Vec<(u32, h2::RecvStream, h2::server::SendResponse<Bytes>)>,
    side: Side,
}

impl Theirs {
    /// Reads the preface and the first settings, which `hello` starts with.
    fn new(hello: &[u8]) -> Theirs {
        let pipe = Pipe::default();
        pipe.0.borrow_mut().0.extend_from_slice(hello);
        let mut builder = h2::server::Builder::new();
        builder
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(LIST_BYTES_TOO_MANY)
            .initial_window_size(65_535)
            .initial_connection_window_size(65_535)
            .max_concurrent_reset_streams(MANY as usize)
            .max_pending_accept_reset_streams(MANY as usize)
            .max_local_error_reset_streams(None)
            .reset_stream_duration(std::time::Duration::from_secs(3600))
            .data_frame_budget(MANY as usize);
        let mut handshake = Box::pin(builder.handshake(pipe.clone()));
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(Ok(connection)) = handshake.as_mut().poll(&mut context) else {
            panic!("the preface is complete")
        };
        let mut theirs = Theirs { pipe, connection, open: Vec::new(), side: Side::default() };
        theirs.receive(&[]);
        theirs
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.pipe.0.borrow_mut().0.extend_from_slice(bytes);
        self.drive();
        for (id, body, respond) in &mut self.open {
            let stream = self.side.streams.get_mut(id).expect("it was accepted");
            read(stream, body);
            // A completely read body does not report a later reset of the stream.
            let reset = respond.poll_reset(&mut Context::from_waker(Waker::noop()));
            stream.was_reset |= matches!(reset, Poll::Ready(Ok(_)));
        }
        // Write the responses to the frames just read.
        self.drive();
        let output = std::mem::take(&mut self.pipe.0.borrow_mut().1);
        self.side.read_output(&output);
    }

    fn drive(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match self.connection.poll_accept(&mut context) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    let id = respond.stream_id().as_u32();
                    let (head, body) = request.into_parts();
                    let head = (head.method.to_string(), head.uri.to_string(), sorted(&head.headers));
                    self.side.streams.insert(id, Stream { head: Some(head), ..Stream::default() });
                    self.open.push((id, body, respond));
                }
                Poll::Ready(Some(Err(_)) | None) => {
                    self.side.has_failed = true;
                    return;
                }
                Poll::Pending => return,
            }
        }
    }
}

/// Reads the available part of a body.
fn read(stream: &mut Stream, body: &mut h2::RecvStream) {
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match body.poll_data(&mut context) {
            Poll::Ready(Some(Ok(bytes))) => stream.body.extend_from_slice(&bytes),
            Poll::Ready(Some(Err(error))) => {
                stream.was_reset |= error.is_reset() && error.is_remote();
                return;
            }
            Poll::Ready(None) => break,
            Poll::Pending => return,
        }
    }
    match body.poll_trailers(&mut context) {
        Poll::Ready(Ok(trailers)) => {
            stream.has_ended = true;
            if let Some(trailers) = trailers {
                stream.trailers = sorted(&trailers);
            }
        }
        Poll::Ready(Err(error)) => stream.was_reset |= error.is_reset() && error.is_remote(),
        Poll::Pending => {}
    }
}

/// Frames in few bytes, so that most inputs are some: length, kind, flags and stream in a byte each.
fn frames(mut input: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let Some(([length, kind, flags, stream], rest)) = input.split_first_chunk() {
        let (payload, after) = rest.split_at(rest.len().min(usize::from(*length)));
        frames.push(crate::common::frame(*kind, *flags, u32::from(*stream), payload));
        input = after;
    }
    frames
}

/// Checks the law for one input.
pub fn check(input: &[u8]) {
    let hello = crate::common::hello();
    let (mut ours, mut theirs) = (Ours::new(), Theirs::new(&hello));
    ours.receive(&hello);
    for frame in frames(input) {
        ours.receive(&frame);
        if ours.side.has_failed || ours.side.has_empty_authority {
            return;
        }
        // h2 closes the connection for it; the owner of this crate's connection gets an event.
        if frame[3] == crate::common::GOAWAY {
            return;
        }
        if !theirs.side.has_failed {
            theirs.receive(&frame);
        }
        // h2 decodes fragments, this crate whole blocks.
        let is_in_block = ours.connection.waits().any(|wait| wait.waiting == PeerWait::Frame);
        if !is_in_block {
            let stream = stream_of(&frame);
            if theirs.side.has_failed
                && (ours.side.refused.contains(&stream) || ours.side.answered.contains(&stream))
            {
                return;
            }
            assert!(!theirs.side.has_failed, "h2 refuses the connection at {frame:?}: {:?}", ours.side);
            compare(&ours.side, &theirs.side, &frame);
        }
    }
}

fn stream_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes([frame[5], frame[6], frame[7], frame[8]])
}

fn compare(ours: &Side, theirs: &Side, frame: &[u8]) {
    let ids: BTreeSet<&u32> = ours.streams.keys().chain(theirs.streams.keys()).collect();
    for id in ids {
        if ours.refused.contains(id) {
            continue;
        }
        assert!(!theirs.refused.contains(id), "h2 refuses {id} at {frame:?}: {:?}", ours.streams.get(id));
        assert_eq!(ours.streams.get(id), theirs.streams.get(id), "stream {id} at {frame:?}");
    }
}
