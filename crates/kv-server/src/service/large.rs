//! Ranges whose answer is sent as it is made.
//!
//!   turn ─▶ find, measure ─▶ turn given back ─▶ (turn ─▶ window ─▶ sent ─▶ turn given back) for each window
//!
//! * What is long is done on blocking threads, within a turn. There are [`LARGE_RANGES_AT_ONCE`]; whoever comes when all are taken
//!   waits, in the order of coming, and is not refused. Work that was begun keeps its turn to its end, even if its client is gone.
//! * So windows take 3 × 32 MiB at the most, however many clients ask. Between its turns an answer holds 12 bytes per key.
//! * Refusals come before the first byte. After it there is only damage, which breaks the message off.
//!
//! Serializable or not, the range is of the moment when it is found: later than the read point that was waited for.

use std::sync::Arc;

use api::etcdserverpb::RangeRequest;
use bytes::Bytes;
use state_machine::{Failure, LargeRange};
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;

use super::header;
use super::hot::prefix;
use super::kv::blocking;
use crate::front::{LongAnswer, Part};
use crate::member::Member;

/// Each holds a window, and takes a processor while it makes one. Three, so that one slow client leaves room for others.
pub const LARGE_RANGES_AT_ONCE: usize = 3;
/// A store of scattered keys is read as a whole for each window: nine times for a million keys with values of 256 bytes.
const WINDOW_BYTES: usize = 32 << 20;

/// One large range, asked for and perhaps begun.
pub struct LargeAnswer {
    member: Arc<Member>,
    request: RangeRequest,
    begun: Option<Arc<Begun>>,
}

/// The message: what comes before the pairs, the pairs, what comes behind them.
struct Begun {
    before: Bytes,
    range: LargeRange,
    after: Bytes,
}

impl LargeAnswer {
    /// Nothing is read yet.
    pub fn new(member: Arc<Member>, request: RangeRequest) -> Self {
        LargeAnswer { member, request, begun: None }
    }

    /// Does `work` on a blocking thread, within a turn.
    async fn in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<(T, OwnedSemaphorePermit), Status> {
        let turns = Arc::clone(&self.member.large_ranges);
        let turn = turns.acquire_owned().await.expect("turns are never closed");
        blocking(move || Ok((work()?, turn))).await
    }
}

impl Begun {
    fn new(member: &Member, range: LargeRange) -> Result<Self, Status> {
        let mut header = range.header();
        header::fill(member, &mut header);
        let (fields, after) = (range.before(header), Bytes::from(range.after()));
        let bytes = (fields.len() + after.len()) as u64 + range.pairs_bytes();
        let prefix = prefix(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let before = Bytes::from([&prefix, &fields[..]].concat());
        Ok(Begun { before, range, after })
    }

    /// Where the pairs end.
    fn pairs_end(&self) -> u64 {
        self.before.len() as u64 + self.range.pairs_bytes()
    }

    /// The bytes from `position` on, if they are no pair's.
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
        let (store, request) = (self.member.store.clone(), std::mem::take(&mut self.request));
        // The turn ends here: the client has not said yet that it takes anything.
        let (range, _turn) = self.in_turn(move || LargeRange::find(&store, &request)).await?;
        let begun = Begun::new(&self.member, range)?;
        let bytes = begun.pairs_end() + begun.after.len() as u64;
        self.begun = Some(Arc::new(begun));
        Ok(bytes)
    }

    async fn part(&mut self, position: u64) -> Result<Part, Status> {
        let begun = Arc::clone(self.begun.as_ref().expect("an answer begins before it goes on"));
        if let Some(bytes) = begun.around(position) {
            return Ok(Part { pieces: [bytes].into(), turn: None });
        }
        let start = position - begun.before.len() as u64;
        let (pieces, turn) = self.in_turn(move || begun.range.window(start, WINDOW_BYTES)).await?;
        Ok(Part { pieces, turn: Some(turn) })
    }
}
