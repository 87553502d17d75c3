//! The state guarded by the lock of a connection: the state machine, and the wakers and buffers of its
//! streams.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};

use ::http2::{Connection, ErrorCode, Event, HeaderBlock, Limits, StreamId, Varying};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use parking_lot::Mutex;

use super::super::account::{Account, Body as Counted};
use super::heads::{Heads, RequestHead, header_map};

/// Messages below this size are copied out of the receive buffer, so that it can be reused. A larger one
/// pins the buffer until its call completes, which is at most about 64 times its size.
const COPIED_BYTES_MAX: usize = 1 << 10;

/// One connection, shared by its task and the handles of its streams.
pub(crate) struct Wire {
    pub(super) state: Mutex<WireState>,
    /// A stream was reset since the connection was opened.
    has_resets: AtomicBool,
}

pub(super) struct WireState {
    pub(super) connection: Connection,
    /// Streams with a waiting handle or an incomplete request.
    streams: BTreeMap<StreamId, Entry>,
    /// Requests to be taken, by ascending id. A stream that is reset is removed, so there are never more
    /// than live streams, even while no requests are accepted.
    begun: VecDeque<BegunRequest>,
    heads: Heads,
    account: Arc<Account>,
    /// A stream was reset since this was taken.
    new_resets: bool,
    /// The connection's task is running, and checks the output before it sleeps.
    is_awake: bool,
    /// The socket accepts no output, or the task should yield. The task will wake.
    pub(super) is_blocked: bool,
    /// Bytes written in this poll of the task.
    pub(super) written_in_turn: usize,
    /// This side has closed the connection, which its task has not noticed yet.
    pub(super) was_closed: bool,
    /// The socket is closed.
    is_closed: bool,
    task: Option<Waker>,
}

/// A new request.
pub(crate) struct BegunRequest {
    pub(super) stream: StreamId,
    pub(super) head: Arc<RequestHead>,
    /// Counts a large head.
    pub(super) counted_head: Option<Box<Counted>>,
    /// The value of the varying field, if it is not in the head.
    pub(super) varying: Option<Varying>,
    /// The body, if it is complete: a slice of the receive buffer until [`BegunRequest::keep`].
    pub(super) whole: Option<Bytes>,
    /// The request arrived with the last read.
    is_new: bool,
}

/// The state and wakers of a stream.
#[derive(Default)]
struct Entry {
    body: WaitingFrames,
    trailers: Option<Box<HeaderMap>>,
    has_ended: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    has_reader: bool,
    has_writer: bool,
}

/// The next item of a request.
pub(super) enum Next {
    Data(Bytes),
    /// The end of the request, with its trailers, if any.
    End(Option<Box<HeaderMap>>),
    /// The stream was reset, or the connection is closed.
    Gone,
}

impl BegunRequest {
    /// Copies a small body out of the receive buffer.
    pub(super) fn keep(&mut self) {
        self.is_new = false;
        if let Some(body) = self.whole.as_mut().filter(|body| body.len() < COPIED_BYTES_MAX) {
            *body = Bytes::copy_from_slice(body);
        }
    }
}

impl Wire {
    pub(super) fn new(limits: Limits, account: Arc<Account>) -> Arc<Wire> {
        let mut connection = Connection::new(limits, 0);
        connection.hold_pongs(true);
        let state = WireState {
            connection,
            streams: BTreeMap::new(),
            begun: VecDeque::new(),
            heads: Heads::default(),
            account,
            new_resets: false,
            is_awake: true,
            is_blocked: false,
            written_in_turn: 0,
            was_closed: false,
            is_closed: false,
            task: None,
        };
        Arc::new(Wire { state: Mutex::new(state), has_resets: AtomicBool::new(false) })
    }

    /// Sends the whole response of a request without handles, like
    /// [`send_at_once`](super::StreamWriter::send_at_once). Returns true even if the stream or connection
    /// is closed.
    pub(crate) fn answer_at_once(
        &self,
        begun: &BegunRequest,
        head: &HeaderBlock,
        body: &[u8],
        trailers: &HeaderBlock,
    ) -> bool {
        let mut state = self.state.lock();
        let sent = state.connection.answer_at_once(begun.stream, head, body, trailers);
        self.changed(&mut state);
        sent.unwrap_or(true)
    }

    /// Reports whether a stream was reset since the connection was opened.
    pub(super) fn has_resets(&self) -> bool {
        self.has_resets.load(Relaxed)
    }

    /// Passes the events of the state machine to the streams.
    pub(super) fn hand_out(&self, state: &mut WireState) {
        while let Some(event) = state.connection.next_event() {
            if matches!(event, Event::Reset { .. }) {
                self.has_resets.store(true, Relaxed);
            }
            state.handle(event);
        }
    }

    /// Must be called after each change by a handle: handles events, and wakes the connection's task for
    /// new output.
    pub(super) fn changed(&self, state: &mut WireState) {
        self.hand_out(state);
        if !state.is_awake && !state.is_blocked && !state.connection.output().is_empty() {
            state.wake_task();
        }
    }

    /// Starts a new poll after the task has yielded.
    pub(crate) fn begin_turn(&self) {
        self.state.lock().written_in_turn = 0;
    }

    /// Ready if there is output that the socket may accept. Otherwise the task sleeps, and is woken when
    /// there is some. Must be polled last.
    pub(crate) fn poll_rest(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if !state.is_blocked && !state.connection.output().is_empty() {
            return Poll::Ready(());
        }
        state.is_awake = false;
        state.written_in_turn = 0;
        if !state.task.as_ref().is_some_and(|task| task.will_wake(context.waker())) {
            state.task = Some(context.waker().clone());
        }
        Poll::Pending
    }

    /// Pings the client. Returns false if the connection is closed.
    pub(crate) fn ping(&self) -> bool {
        let mut state = self.state.lock();
        state.connection.ping(*b"liveness");
        self.changed(&mut state);
        !state.is_closed
    }

    /// Starts a graceful shutdown: the client should open no more streams.
    pub(crate) fn shut_down(&self) {
        let mut state = self.state.lock();
        state.connection.shut_down();
        self.changed(&mut state);
    }

    /// Reports whether the socket has accepted all responses.
    pub(crate) fn is_written(&self) -> bool {
        let connection = &self.state.lock().connection;
        connection.output().is_empty() && connection.unsent() == 0
    }

    /// Like [`Wire::shut_down`], without waiting for the client any longer: later streams are ignored.
    pub(crate) fn end_drain(&self) {
        let mut state = self.state.lock();
        state.connection.end_drain();
        self.changed(&mut state);
    }

    /// Closes the connection because of the client.
    pub(crate) fn close(&self, code: ErrorCode, reason: &'static str) {
        let mut state = self.state.lock();
        state.connection.close(code, reason);
        state.was_closed = true;
        state.written_in_turn = 0; // The last poll may be the only one left.
        self.changed(&mut state);
    }
}

impl WireState {
    fn handle(&mut self, event: Event) {
        match event {
            Event::Request { stream, head, varying, body, end } => {
                self.begin(stream, &head, varying, body, end);
            }
            Event::Data { stream, bytes, end } => match self.streams.get_mut(&stream) {
                Some(entry) if entry.has_reader => {
                    entry.body.push(bytes);
                    entry.has_ended = end;
                    wake(&mut entry.reader);
                    if end {
                        wake(&mut entry.writer);
                    }
                }
                entry => {
                    if let Some(entry) = entry.filter(|_| end) {
                        entry.has_ended = true;
                        wake(&mut entry.writer);
                    }
                    self.connection.release(stream, bytes.len());
                }
            },
            Event::Trailers { stream, fields } => {
                if let Some(entry) = self.streams.get_mut(&stream) {
                    // No handler reads the trailers of a request whose body is discarded.
                    if entry.has_reader {
                        entry.trailers = header_map(&fields).map(Box::new);
                    }
                    entry.has_ended = true;
                    wake(&mut entry.reader);
                    wake(&mut entry.writer);
                }
            }
            Event::Reset { stream, .. } => {
                self.new_resets = true;
                self.drop_begun(stream);
                if let Some(entry) = self.streams.get_mut(&stream) {
                    wake(&mut entry.reader);
                    wake(&mut entry.writer);
                }
            }
            Event::Writable { stream } => {
                if let Some(entry) = self.streams.get_mut(&stream) {
                    wake(&mut entry.writer);
                }
            }
            // A sign of life, like all received bytes.
            Event::Pong { .. } => {}
            // The client opens no more streams; open ones are served.
            Event::GoAway { .. } => {}
        }
    }

    fn begin(
        &mut self,
        stream: StreamId,
        head: &Arc<::http2::Head>,
        varying: Option<Varying>,
        body: Bytes,
        end: bool,
    ) {
        let Some(head) = self.heads.get(head) else {
            self.connection.release(stream, body.len());
            self.connection.refuse(stream, ErrorCode::PROTOCOL_ERROR);
            return;
        };
        // It may wait for long while its client takes no responses.
        let Ok(counted_head) = Counted::of_head(&self.account, head.bytes) else {
            self.connection.release(stream, body.len());
            self.connection.refuse(stream, ErrorCode::REFUSED_STREAM);
            return;
        };
        let whole = if end {
            self.connection.release(stream, body.len());
            Some(body)
        } else {
            self.connection.keep_open(stream, true);
            let mut entry = Entry { has_reader: true, has_writer: true, ..Entry::default() };
            entry.body.push(body);
            self.streams.insert(stream, entry);
            None
        };
        self.begun.push_back(BegunRequest { stream, head, counted_head, varying, whole, is_new: true });
    }

    /// Must be called before the receive buffer is reused: requests that are still queued release it.
    pub(super) fn keep_begun(&mut self) {
        self.begun.iter_mut().rev().take_while(|begun| begun.is_new).for_each(BegunRequest::keep);
    }

    /// Returns the next request. Streams that were reset have been removed, unless the connection has
    /// failed.
    pub(super) fn next_begun(&mut self) -> Option<BegunRequest> {
        while let Some(begun) = self.begun.pop_front() {
            if self.connection.is_live(begun.stream) {
                return Some(begun);
            }
            self.drop_halves(begun.stream);
        }
        None
    }

    /// Removes a request that was reset before it was taken.
    fn drop_begun(&mut self, stream: StreamId) {
        if let Ok(place) = self.begun.binary_search_by_key(&stream, |begun| begun.stream) {
            self.begun.remove(place);
            self.drop_halves(stream);
        }
    }

    /// Drops the stream's halves for a request without handles.
    fn drop_halves(&mut self, stream: StreamId) {
        self.drop_reader(stream, 0);
        self.drop_writer(stream);
    }

    pub(super) fn take_new_resets(&mut self) -> bool {
        std::mem::take(&mut self.new_resets)
    }

    /// Reports whether a response can still be sent on a stream.
    pub(super) fn is_live(&mut self, stream: StreamId) -> bool {
        !self.is_closed && self.connection.is_live(stream)
    }

    /// Returns the received parts of a request, in order.
    pub(super) fn poll_body(&mut self, stream: StreamId, context: &mut Context<'_>) -> Poll<Next> {
        let is_live = self.is_live(stream);
        let Some(entry) = self.streams.get_mut(&stream) else { return Poll::Ready(Next::Gone) };
        if let Some(bytes) = entry.body.pop() {
            return Poll::Ready(Next::Data(bytes));
        }
        if entry.has_ended {
            return Poll::Ready(Next::End(entry.trailers.take()));
        }
        if !is_live {
            return Poll::Ready(Next::Gone);
        }
        set_waker(&mut entry.reader, context);
        Poll::Pending
    }

    /// Reports whether the request is complete and was read.
    pub(super) fn is_body_read(&mut self, stream: StreamId) -> bool {
        let Some(entry) = self.streams.get_mut(&stream) else { return true };
        entry.has_ended && entry.body.is_empty() && entry.trailers.is_none()
    }

    /// Registers the response handle to be woken when there is capacity, or the stream is closed.
    pub(super) fn wake_writer(&mut self, stream: StreamId, context: &mut Context<'_>) {
        // An incomplete request has an entry, so this one is complete.
        let entry =
            self.streams.entry(stream).or_insert_with(|| Entry { has_ended: true, ..Entry::default() });
        entry.has_writer = true;
        set_waker(&mut entry.writer, context);
    }

    /// Ready when a request without a reader is complete, or its stream is closed.
    pub(super) fn poll_request_end(&mut self, stream: StreamId, context: &mut Context<'_>) -> Poll<()> {
        let is_live = self.is_live(stream);
        match self.streams.get_mut(&stream) {
            Some(entry) if is_live && !entry.has_ended => {
                set_waker(&mut entry.writer, context);
                Poll::Pending
            }
            Some(_) | None => Poll::Ready(()),
        }
    }

    /// Handles the drop of a reader: the request is neither read nor waited for. `unreleased` bytes of it
    /// were read and not released.
    pub(super) fn drop_reader(&mut self, stream: StreamId, unreleased: usize) {
        self.discard_body(stream, unreleased);
        self.connection.keep_open(stream, false);
    }

    /// Discards the rest of the request until the response handle is dropped. `unreleased` bytes of it were
    /// read and not released.
    pub(super) fn discard_body(&mut self, stream: StreamId, unreleased: usize) {
        let Some(entry) = self.streams.get_mut(&stream) else { return };
        let bytes = unreleased + entry.body.clear();
        entry.trailers = None;
        entry.has_reader = false;
        entry.reader = None;
        if !entry.has_writer {
            self.forget(stream);
        }
        self.connection.release(stream, bytes);
    }

    /// Handles the drop of a response handle.
    pub(super) fn drop_writer(&mut self, stream: StreamId) {
        let Some(entry) = self.streams.get_mut(&stream) else { return };
        entry.has_writer = false;
        entry.writer = None;
        if !entry.has_reader {
            self.forget(stream);
        }
    }

    /// Removes an entry without handles: the rest of the request is not needed.
    fn forget(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
        self.connection.keep_open(stream, false);
    }

    /// Records that the connection's task is running.
    pub(super) fn note_awake(&mut self) {
        self.is_awake = true;
    }

    fn wake_task(&mut self) {
        // One wake-up is enough.
        self.is_awake = true;
        if let Some(task) = &self.task {
            task.wake_by_ref();
        }
    }

    /// Marks the connection as closed, and wakes all waiting handles.
    pub(super) fn end(&mut self) {
        self.is_closed = true;
        self.begun.clear();
        // Drops all streams and pending bytes.
        self.connection.close(ErrorCode::NO_ERROR, "");
        for entry in self.streams.values_mut() {
            wake(&mut entry.reader);
            wake(&mut entry.writer);
        }
    }

    /// Releases memory that an idle connection does not need.
    pub(super) fn shrink(&mut self) {
        self.connection.shrink();
        self.heads.clear();
        self.begun.shrink_to_fit();
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

fn set_waker(place: &mut Option<Waker>, context: &mut Context<'_>) {
    if !place.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
        *place = Some(context.waker().clone());
    }
}

/// Frames of at least this size are buffered without a copy.
const WHOLE_FRAME_BYTES_MIN: usize = 1 << 10;

/// Received, unread bytes of a body. A frame is a slice of a receive buffer, which it pins. So small frames
/// are joined in another buffer.
#[derive(Debug, Default)]
struct WaitingFrames {
    frames: VecDeque<Bytes>,
    /// Small frames received after them.
    small: BytesMut,
}

impl WaitingFrames {
    pub(super) fn push(&mut self, frame: Bytes) {
        if frame.len() < WHOLE_FRAME_BYTES_MIN {
            self.small.extend_from_slice(&frame);
            return;
        }
        if !self.small.is_empty() {
            self.frames.push_back(std::mem::take(&mut self.small).freeze());
        }
        self.frames.push_back(frame);
    }

    pub(super) fn pop(&mut self) -> Option<Bytes> {
        if let Some(frame) = self.frames.pop_front() {
            return Some(frame);
        }
        (!self.small.is_empty()).then(|| std::mem::take(&mut self.small).freeze())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.small.is_empty()
    }

    /// Drops all bytes, and returns their number.
    pub(super) fn clear(&mut self) -> usize {
        std::iter::from_fn(|| self.pop()).map(|bytes| bytes.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use ::http2::{EndOfBody, HeaderBlock, ProcessResult};

    use super::super::StreamWriter;
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    /// Returns a request for the given path, with `flags` such as END_STREAM.
    fn request(flags: u8, stream: u32, path: &str) -> Vec<u8> {
        let fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")];
        frame(1, 4 | flags, stream, HeaderBlock::new(fields).bytes())
    }

    /// Returns a connection after the handshake.
    fn open(limits: Limits) -> Arc<Wire> {
        open_in(limits, Arc::new(Account::new(Arc::default())))
    }

    fn open_in(limits: Limits, account: Arc<Account>) -> Arc<Wire> {
        let wire = Wire::new(limits, account);
        let hello = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, &[])].concat();
        receive(&wire, &hello);
        wire
    }

    fn receive(wire: &Wire, bytes: &[u8]) -> ProcessResult {
        let mut state = wire.state.lock();
        state.connection.receive(bytes);
        let progress = state.connection.process(0);
        wire.hand_out(&mut state);
        let output = state.connection.output().len();
        state.connection.written(output);
        progress
    }

    #[test]
    fn large_heads_that_wait_count_like_bodies() {
        let account = Arc::new(Account::new(Arc::default()));
        let mut held = Counted::new(&account);
        held.add((48 << 20) - 20_000, None).unwrap();
        let wire = open_in(Limits::default(), account);
        let token = "x".repeat(15_000);
        let large = |id| {
            let fields = [(":method", "POST"), (":scheme", "http"), (":path", "/"), ("token", &token)];
            frame(1, 4, id, HeaderBlock::new(fields).bytes())
        };
        for id in [1, 3, 5] {
            receive(&wire, &large(id));
        }
        receive(&wire, &request(0, 7, "/small"));
        let begun =
            |wire: &Wire| wire.state.lock().begun.iter().map(|it| it.stream.number()).collect::<Vec<_>>();
        assert_eq!(begun(&wire), [1, 7]);
        drop(wire.state.lock().next_begun());
        receive(&wire, &large(9));
        assert_eq!(begun(&wire), [7, 9], "what the first has counted is free");
    }

    #[test]
    fn a_discarded_request_holds_no_trailers() {
        let trailers = frame(1, 5, 1, HeaderBlock::new([("x", "1")]).bytes());
        for (discards_first, held_before) in [(true, 0), (false, 1)] {
            let wire = open(Limits::default());
            receive(&wire, &request(0, 1, "/"));
            let begun = wire.state.lock().next_begun().unwrap();
            let stream = begun.stream;
            let _call = begun.open(&wire);
            let held = || wire.state.lock().streams.values().filter(|it| it.trailers.is_some()).count();
            if discards_first {
                wire.state.lock().discard_body(stream, 0);
            }
            receive(&wire, &trailers);
            assert_eq!(held(), held_before);
            wire.state.lock().discard_body(stream, 0);
            assert_eq!(held(), 0, "discards_first: {discards_first}");
        }
    }

    #[test]
    fn requests_that_are_reset_before_they_are_taken_leave_nothing() {
        type Requests<'a> = &'a dyn Fn(u32) -> Vec<u8>;
        let data_after_the_end = |id| [request(1, id, "/"), frame(0, 1, id, &[])].concat();
        let reset_by_the_client = |id| [request(0, id, "/"), frame(3, 0, id, &[0, 0, 0, 8])].concat();
        let reset_with_a_body =
            |id| [request(0, id, "/"), frame(0, 0, id, b"body"), frame(3, 0, id, &[0, 0, 0, 8])].concat();
        let cases: [(&str, Requests<'_>); 3] = [
            ("DATA after the end", &data_after_the_end),
            ("a reset by the client", &reset_by_the_client),
            ("a reset after a part of the body", &reset_with_a_body),
        ];
        for (name, bytes) in cases {
            let wire = open(Limits { resets_max: u32::MAX, ..Limits::default() });
            receive(&wire, &request(1, 1, "/first"));
            for id in (3..4001).step_by(2) {
                receive(&wire, &bytes(id));
            }
            receive(&wire, &request(1, 4001, "/last"));
            let mut state = wire.state.lock();
            assert_eq!(state.begun.len(), 2, "{name}");
            assert_eq!((state.streams.len(), state.connection.streams()), (0, 2), "{name}");
            let paths = std::iter::from_fn(|| state.next_begun()).map(|begun| begun.head.uri.to_string());
            assert_eq!(paths.collect::<Vec<_>>(), ["/first", "/last"].map(|path| format!("http://x{path}")));
        }
    }

    #[test]
    fn requests_that_wait_leave_the_receive_buffer_before_it_is_used_again() {
        let wire = open(Limits::default());
        for stream in [1, 3] {
            receive(&wire, &[request(0, stream, "/"), frame(0, 1, stream, b"small")].concat());
            let mut state = wire.state.lock();
            // A copy is not shared with the buffer.
            let slices = |state: &WireState| {
                state
                    .begun
                    .iter()
                    .filter(|begun| begun.whole.as_ref().is_some_and(|body| !body.is_unique()))
                    .count()
            };
            assert_eq!((state.begun.len(), slices(&state)), (stream as usize / 2 + 1, 1));
            state.keep_begun();
            assert_eq!(slices(&state), 0);
        }
    }

    #[test]
    fn requests_whose_head_is_refused_count_as_resets() {
        let wire = open(Limits { resets_max: 2, ..Limits::default() });
        for (id, progress) in [(1, ProcessResult::NeedBytes), (3, ProcessResult::NeedBytes)] {
            assert_eq!(receive(&wire, &request(1, id, "/a b")), progress);
        }
        assert_eq!(receive(&wire, &[]), ProcessResult::Paused { until: 1000 });
        assert!(wire.state.lock().begun.is_empty());
    }

    /// Counts how often an owner is woken.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// Polls an owner as its task would: it sends bytes, one by one, and waits again. How many it has sent.
    fn poll(writer: &mut StreamWriter, wakes: &Arc<Wakes>) -> usize {
        let waker = Waker::from(Arc::clone(wakes));
        let (mut context, mut sent) = (Context::from_waker(&waker), 0);
        while let Poll::Ready(room) = writer.poll_room(1, &mut context) {
            writer.send_data(vec![0; room.unwrap()].into(), EndOfBody::More).unwrap();
            sent += 1;
        }
        sent
    }

    #[test]
    fn a_window_update_wakes_as_many_streams_as_it_can_serve() {
        const WAITING: u32 = 300;
        let wire = open(Limits { streams_max: WAITING, ..Limits::default() });
        receive(&wire, &frame(4, 0, 0, &[0, 4, 0, 1, 0, 0]));
        receive(&wire, &(0..WAITING).flat_map(|n| request(1, 2 * n + 1, "/")).collect::<Vec<u8>>());
        let mut owners = Vec::new();
        while let Some(begun) = { wire.state.lock().next_begun() } {
            let (_reader, mut writer) = begun.open(&wire);
            writer.send_head(&HeaderBlock::new([(":status", "200")]), EndOfBody::More).unwrap();
            owners.push((writer, Arc::new(Wakes::default())));
        }
        owners[0].0.send_data(vec![0; 65_535].into(), EndOfBody::More).unwrap();
        assert!(owners.iter_mut().all(|(writer, wakes)| poll(writer, wakes) == 0));
        for bytes in [1, 3, 200] {
            receive(&wire, &frame(8, 0, 0, &[0, 0, 0, bytes]));
            let (mut woken, mut sent) = (0, 0);
            while let Some((writer, wakes)) = owners.iter_mut().find(|(_, wakes)| wakes.0.load(Relaxed) > 0) {
                woken += wakes.0.swap(0, Relaxed);
                sent += poll(writer, wakes);
                assert!(woken <= usize::from(bytes) + 3, "{woken} wakes for {bytes} bytes");
            }
            assert_eq!(sent, usize::from(bytes), "all of the window is used");
        }
    }

    #[test]
    fn bytes_come_out_in_order_and_small_frames_joined() {
        let sizes = [1, 2, 1024, 3, 4, 5000, 6, 7];
        let frames: Vec<Bytes> =
            sizes.iter().zip(0..).map(|(size, value)| vec![value; *size].into()).collect();
        let mut waiting = WaitingFrames::default();
        frames.iter().for_each(|frame| waiting.push(frame.clone()));
        let read: Vec<Bytes> = std::iter::from_fn(|| waiting.pop()).collect();
        assert_eq!(read.iter().map(Bytes::len).collect::<Vec<_>>(), [3, 1024, 7, 5000, 13]);
        assert_eq!(read.concat(), frames.concat());
        frames.iter().for_each(|frame| waiting.push(frame.clone()));
        assert_eq!((waiting.clear(), waiting.pop()), (sizes.iter().sum(), None));
    }
}
