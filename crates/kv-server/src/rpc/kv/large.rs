//! Ranges with a response that is sent as it is produced.
//!
//!   turn ─▶ find, measure ─▶ turn given back ─▶ (turn ─▶ window ─▶ sent ─▶ turn given back) for each window
//!
//! * Long work runs on blocking threads with a permit. The gate serves connections round-robin, and a
//!   connection holds one permit at most. Waiting calls are not rejected. Started work retains its permit
//!   until it finishes, even if its client disconnects.
//! * So windows use at most 3 × 32 MiB for any number of clients. Between permits a response holds 12 bytes
//!   per key, and the rest of the block that is being written.
//! * A client that was too slow for its permit gets smaller windows, so that it does not cause wasted
//!   reads.
//! * Rejections happen before the first byte. After it the message can only be aborted: because of
//!   corruption, or because it pinned too many deleted block files.
//!
//! Serializable or not, the range reflects the state when it is found, which is later than the read point.

use std::pin::pin;
use std::sync::Arc;

use api::etcdserverpb::{RangeRequest, RangeResponse};
use bytes::Bytes;
use mvcc::Meter;
use parking_lot::Mutex;
use state_machine::{Failure, LargeRange};
use tokio::time::Instant;
use tonic::Status;

use crate::member::Member;
use crate::rpc::deadline;
use admission::{ClientId, Pass};
use admission::{ReadGuard, blocking};
use auth::Caller as Reader;
use grpc_server::http2::{LongAnswer, Part, PartRoom, frame_prefix};
use telemetry::metrics::UnderWay;

/// With scattered keys the whole store is read for each window: nine times for a million keys with values
/// of 256 bytes.
const WINDOW_BYTES: usize = 32 << 20;
/// Window of a client that takes little per permit: the amount that a connection buffers of one response.
const WINDOW_BYTES_MIN: usize = 1 << 20;
/// Memory per key while a range is being found.
const FOUND_BYTES: u64 = 32;

/// A large range, which may have started.
pub struct LargeAnswer {
    member: Arc<Member>,
    client: ClientId,
    reader: Reader,
    room: PartRoom,
    request: RangeRequest,
    /// Estimated number of keys, until the range is found.
    keys: u64,
    /// Deadline of the client.
    pub deadline: Option<Instant>,
    begun: Option<Arc<LargeMessage>>,
    window: Window,
}

/// The large response in the extensions of the method's response. Extensions have to be `Clone`.
#[derive(Clone)]
struct LargeReply(Arc<Mutex<Option<Box<LargeAnswer>>>>);

/// The previous window, to determine how much of it the client took while the permit was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    start: u64,
    end: u64,
    bytes_max: usize,
}

impl Window {
    const FIRST: Window = Window { start: 0, end: 0, bytes_max: WINDOW_BYTES };

    /// Returns the maximum size of the window at `start`: twice the amount taken of the previous window, or
    /// twice its size if it was taken completely.
    fn bytes_max_from(&self, start: u64) -> usize {
        let was_taken = start >= self.end;
        let base = if was_taken { self.bytes_max } else { (start - self.start) as usize };
        base.saturating_mul(2).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES)
    }
}

/// The parts of the message: the fields before the pairs, the pairs, the fields after them.
struct LargeMessage {
    before: Bytes,
    range: LargeRange,
    after: Bytes,
    /// Memory for the positions of the pairs.
    places: Pass,
    _open: UnderWay,
}

impl LargeAnswer {
    /// Returns a response that has not been read yet.
    pub fn new(
        member: Arc<Member>,
        client: ClientId,
        reader: Reader,
        request: RangeRequest,
        keys: u64,
        room: PartRoom,
    ) -> Self {
        LargeAnswer {
            member,
            client,
            reader,
            room,
            request,
            keys,
            deadline: None,
            begun: None,
            window: Window::FIRST,
        }
    }

    /// Returns a response that refers to this one.
    pub fn reply(self: Box<Self>) -> tonic::Response<RangeResponse> {
        let mut reply = tonic::Response::new(RangeResponse::default());
        reply.extensions_mut().insert(LargeReply(Arc::new(Mutex::new(Some(self)))));
        reply
    }

    /// Returns the large response to which a response refers.
    pub fn take(extensions: &mut tonic::Extensions) -> Option<Box<LargeAnswer>> {
        extensions.remove::<LargeReply>()?.0.lock().take()
    }

    /// Runs `work` on a blocking thread, with a permit.
    async fn in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Meter) -> Result<T, Failure> + Send + 'static,
    ) -> Result<(T, Pass), Status> {
        let turn = self.member.admission.windows.enter(self.client, 1).await;
        let turn = turn.map_err(|_| grpc_errors::reads_exhausted())?;
        let caller = ReadGuard::default();
        let gone = caller.gone();
        let done = blocking(move || (work(&gone), turn)).await?;
        done.0.map(|made| (made, done.1)).map_err(grpc_errors::read)
    }
}

impl LargeMessage {
    fn new(member: &Member, range: LargeRange, places: Pass) -> Result<Self, Status> {
        let mut header = range.header();
        member.fill_header(&mut header);
        let (fields, after) = (range.before(header), Bytes::from(range.after()));
        let bytes = (fields.len() + after.len()) as u64 + range.pairs_bytes();
        let prefix = frame_prefix(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let before = Bytes::from([&prefix, &fields[..]].concat());
        let open = UnderWay::new(&member.metrics.keys.large_ranges);
        Ok(LargeMessage { before, range, after, places, _open: open })
    }

    /// Returns the position after the last pair.
    fn pairs_end(&self) -> u64 {
        self.before.len() as u64 + self.range.pairs_bytes()
    }

    /// Returns the bytes at `position`, unless they belong to a pair.
    fn around(&self, position: u64) -> Option<Bytes> {
        let rest = |bytes: &Bytes, from: u64| bytes.slice(usize::try_from(from).expect("inside of it")..);
        if position < self.before.len() as u64 {
            return Some(rest(&self.before, position));
        }
        position.checked_sub(self.pairs_end()).map(|from| rest(&self.after, from))
    }
}

impl LongAnswer for LargeAnswer {
    async fn begin(&mut self) -> Result<u64, Status> {
        deadline::within(self.deadline, pin!(self.find())).await
    }

    async fn part(&mut self, position: u64) -> Result<Part, Status> {
        deadline::within(self.deadline, pin!(self.make(position))).await
    }

    async fn room(&self) {
        self.room.wait().await;
    }

    fn counted(&self, sent: Bytes) -> Bytes {
        self.room.counted(sent)
    }

    fn is_wanted(&self) -> bool {
        self.begun.as_ref().is_some_and(|begun| begun.places.is_wanted())
    }

    fn unread(&mut self) {
        self.member.metrics.keys.large_ranges_unread.inc();
    }
}

impl LargeAnswer {
    async fn find(&mut self) -> Result<u64, Status> {
        let (store, request) = (self.member.store.clone(), std::mem::take(&mut self.request));
        if self.member.admission.memory.is_short() {
            self.member.admission.memory.note_refused();
            return Err(grpc_errors::reads_exhausted());
        }
        let places = self.member.admission.places.enter(self.client, self.keys * FOUND_BYTES).await;
        let mut places = places.map_err(|_| grpc_errors::reads_exhausted())?;
        // The permit is released here: the client has not taken anything yet.
        let caller = self.client.caller;
        let found = self.in_turn(move |meter| {
            let range = LargeRange::find(&store, &request, caller, meter)?;
            // Needs more than requested if each pair has a separate block, or a record of the open block.
            let fits = places.try_resize(range.memory_bytes());
            Ok((range, fits.then_some(places)))
        });
        let ((range, places), _turn) = found.await?;
        let places = places.ok_or_else(grpc_errors::reads_exhausted)?;
        // The permissions must not have changed since the start.
        let unchanged = self.reader.check_unchanged(self.member.auth.table.revision());
        unchanged.map_err(grpc_errors::refused)?;
        let begun = LargeMessage::new(&self.member, range, places)?;
        let bytes = begun.pairs_end() + begun.after.len() as u64;
        self.begun = Some(Arc::new(begun));
        Ok(bytes)
    }

    async fn make(&mut self, position: u64) -> Result<Part, Status> {
        let begun = Arc::clone(self.begun.as_ref().expect("an answer begins before it goes on"));
        if let Some(bytes) = begun.around(position) {
            return Ok(Part { pieces: [bytes].into(), turn: None });
        }
        let start = position - begun.before.len() as u64;
        let bytes_max = self.member.admission.window(self.window.bytes_max_from(start), WINDOW_BYTES_MIN);
        let (pieces, turn) = self.in_turn(move |_| begun.range.window(start, bytes_max)).await?;
        let part = Part { pieces, turn: Some(turn) };
        self.window = Window { start, end: start + part.len() as u64, bytes_max };
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_twice_what_its_client_took_of_the_one_before() {
        const MIB: u64 = 1 << 20;
        let window = |start, end, bytes_max: usize| Window { start, end, bytes_max };
        let cases = [
            (Window::FIRST, 0, WINDOW_BYTES),
            (window(0, 32 * MIB, WINDOW_BYTES), 32 * MIB, WINDOW_BYTES),
            (window(0, 32 * MIB, WINDOW_BYTES), 2048, WINDOW_BYTES_MIN),
            (window(0, 32 * MIB, WINDOW_BYTES), 3 * MIB, 6 << 20),
            (window(0, 32 * MIB, WINDOW_BYTES), 31 * MIB, WINDOW_BYTES),
            (window(5, 5 + MIB, WINDOW_BYTES_MIN), 5 + MIB, 2 * WINDOW_BYTES_MIN),
            (window(5, 5 + MIB, WINDOW_BYTES_MIN), 5, WINDOW_BYTES_MIN),
        ];
        for (before, start, wanted) in cases {
            assert_eq!(before.bytes_max_from(start), wanted, "{before:?} from {start}");
        }
    }
}
