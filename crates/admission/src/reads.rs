//! Limits the memory and concurrency of reads and large commands.
//!
//! ```text
//!   small read ──at most 1 MiB──▶ calling task
//!        └─more─▶ memory ──▶ turn ──▶ blocking thread, metered ──▶ answer; its memory is given back when it was sent
//!                   ▲                    │
//!                   └──more was needed───┘
//! ```
//!
//! * A read that does not fit into the calling task's bound enters the gate of memory first, then that of
//!   permits, and runs on a blocking thread under a meter. Memory is taken from the gate before it is
//!   allocated: the meter requests more when a read outgrows its initial amount. If there is no capacity,
//!   the read drops its memory and enters again for twice as much. A read never waits while it holds a
//!   permit.
//! * A read that needs more than the whole budget is rejected, with the limit in its text. A read with
//!   another form stops before it takes so much, and does not wait for memory: clients that do not read
//!   cannot delay ranges that can be streamed.
//! * Ranges that are sent as they are produced (`rpc/kv/large`) hold only the positions of their keys,
//!   which have a separate budget: a slow reader of a large range delays other large ranges and no other
//!   read.
//! * A read with a dropped caller stops within one step of its meter, and then releases its permit and
//!   memory.
//! * A transaction of many fields enters its gate before it is decoded, and so before all other gates. It
//!   holds its pass until the response: while it waits there, it is in memory.
//! * Gates share between callers, and their connections. Each has a bound on waiting; beyond it a read is
//!   rejected.
//!
//! At most, reads take `ANSWER_BYTES` + `PLACE_BYTES` + three windows of 32 MiB: 272 MiB. Snapshots take
//! 1 MiB each, 64 MiB together, and transactions `TXN_BYTES`.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::ClientId;
use bytes::Bytes;
use mvcc::{Error, Meter};
use state_machine::Failure;
use tokio::time::timeout;
use tonic::Status;

use super::gate::{Bounds, Gate, Pass};
use super::memory::MemoryLimit;
use super::shares::{Share, Shares};
use telemetry::metrics::{Stage, timed};

/// Memory of whole responses: pairs while they are read, and their encoded form until it is sent.
pub const ANSWER_BYTES: u64 = 144 << 20;
/// Part that responses above [`ANSWER_LIGHT_MAX`] leave free. One response takes 128 MiB at most: a range
/// of 1 MiB values takes twice its size, so it may have about 60 MiB.
const ANSWER_RESERVE: u64 = 16 << 20;
/// Most previous values, pages and encoded chunks of streamed ranges are below this: twice etcd's default
/// maximum of a request. A chunk takes more while it is read; a chunk of large values after small ones also
/// until it is sent.
const ANSWER_LIGHT_MAX: u64 = 4 << 20;
/// Maximum initial amount of a read. Estimates multiply keys by the mean size of a record, which is far too
/// much for ranges without values. A read that needs more takes it while it runs.
const ESTIMATE_MAX: u64 = 32 << 20;
/// Memory for key positions of large ranges, at 12 bytes each, and 32 while they are being found.
const PLACE_BYTES: u64 = 32 << 20;
/// Part that ranges above [`PLACE_LIGHT_MAX`] leave free. Larger ranges are clamped to the rest.
const PLACE_RESERVE: u64 = 4 << 20;
/// 32,768 keys: large ranges with so few keys have values of 1 KiB and more.
const PLACE_LIGHT_MAX: u64 = 1 << 20;
/// Concurrent reads, each on a thread: more than the cores of a small machine, since a cold block waits for
/// the disk.
const MAX_CONCURRENT_READS: u64 = 4;
/// Concurrent hashes of the whole history. Each takes a core and reads every block.
const MAX_CONCURRENT_HASHES: u64 = 2;
/// Concurrent recounts of a part of the state. One leader requests one.
const MAX_CONCURRENT_RECOUNTS: u64 = 1;
/// Concurrent conversions of long transactions and long JSON messages. 3 MB of empty strings take 32 MB
/// while they are read.
const MAX_CONCURRENT_CONVERSIONS: u64 = 2;
/// Memory of decoded transactions with many fields, until their response. The largest one takes 40 MiB.
const TXN_BYTES: u64 = 64 << 20;
/// Part that transactions above [`TXN_LIGHT_MAX`] leave free.
const TXN_RESERVE: u64 = 8 << 20;
/// 4,096 fields: 1,300 puts.
const TXN_LIGHT_MAX: u64 = 1 << 20;
/// Memory of a field of a decoded transaction. An operation has two, and may be copied as a read of the
/// response: 136 and 128 bytes, in vectors of up to twice the length.
const TXN_FIELD_BYTES: u64 = 256;
/// Snapshots that are streamed concurrently. Each takes a mebibyte, makes its parts within the turns of the
/// reads, and delays the freeing of space by compactions no more than one alone does. One address may have
/// three quarters of them, so that slow clients at a few addresses do not keep out a backup.
const MAX_CONCURRENT_SNAPSHOTS: u64 = 64;
/// Waiting snapshots: a cluster has few operators and backup programs.
const SNAPSHOTS_WAITING_MAX: usize = 16;
/// Concurrent large ranges that are being found, or hold a window of 32 MiB. Three, so that one connection
/// cannot use all of them.
const MAX_CONCURRENT_WINDOWS: u64 = 3;
/// Large ranges in progress are not rejected: their clients cancel them by a deadline, or by a reset.
const WINDOW_WAIT_MAX: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of calls that wait for a permit or for memory. Further ones fail with RESOURCE_EXHAUSTED.
const WAITING_MAX: usize = 1024;
/// Maximum number of waiting hashes: monitoring requests one per minute and member at most.
const HASHES_WAITING_MAX: usize = 64;
/// Maximum wait of a read: far above the needs of a busy member, and the deadline of most clients.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Time that a read with another form waits before it takes that: enough for other responses of its client
/// to leave. The other form reads everything twice.
const OTHER_FORM_DELAY: Duration = Duration::from_millis(100);
/// Maximum memory of a read in the calling task.
pub const SMALL_BYTES: u64 = 1 << 20;
/// Memory of a pair in addition to its key and value while it is read and encoded.
pub const PAIR_BYTES: u64 = 256;
/// Step in which a growing read takes memory.
const STEP_BYTES: u64 = 1 << 20;

/// Commands above this length are large: see [`Admission::command`].
const LARGE_COMMAND_BYTES: usize = 4 << 10;
/// Large commands that are proposed and not yet complete. The proposal budget of `raft-node` is 16 MiB: at
/// least 4 MiB of it are left to small commands.
const COMMAND_BYTES: u64 = 12 << 20;
/// Large commands that wait to be proposed, in bytes; they are in memory already.
const COMMAND_BYTES_WAITING_MAX: u64 = 64 << 20;

/// Keys in the requests of streamed ranges, each held until its client has taken the last chunk.
const STREAM_KEY_BYTES: usize = 32 << 20;
/// Part of it that each connection may always use.
const STREAM_KEY_BYTES_ALWAYS: usize = 64 << 10;

/// Gates of a member.
#[derive(Debug)]
pub struct Admission {
    pub memory: Arc<MemoryLimit>,
    stream_keys: Arc<Shares>,
    pub answers: Arc<Gate>,
    pub places: Arc<Gate>,
    pub windows: Arc<Gate>,
    pub turns: Arc<Gate>,
    pub hashes: Arc<Gate>,
    pub recounts: Arc<Gate>,
    pub snapshots: Arc<Gate>,
    conversions: Arc<Gate>,
    txns: Arc<Gate>,
    pub commands: Arc<Gate>,
}

impl Admission {
    /// Returns the gates. `command_wait_max` is the maximum wait of a large command before it is proposed.
    pub fn new(command_wait_max: Duration, memory: Arc<MemoryLimit>) -> Self {
        // Gates for memory held by clients that do not read have a reserve. This member releases all other
        // kinds by itself.
        let alike = |capacity| Bounds {
            capacity,
            reserve: 0,
            light_max: capacity,
            waiting_max: WAITING_MAX,
            waiting_weight_max: u64::MAX,
            wait_max: WAIT_MAX,
        };
        let with_reserve = |capacity, reserve, light_max| Bounds { reserve, light_max, ..alike(capacity) };
        Admission {
            stream_keys: Shares::new(STREAM_KEY_BYTES, STREAM_KEY_BYTES_ALWAYS),
            answers: Gate::of_memory(with_reserve(ANSWER_BYTES, ANSWER_RESERVE, ANSWER_LIGHT_MAX), &memory),
            places: Gate::of_memory(with_reserve(PLACE_BYTES, PLACE_RESERVE, PLACE_LIGHT_MAX), &memory),
            windows: Gate::new(Bounds {
                waiting_max: usize::MAX, // Streams are bounded, and so are the places that each holds.
                wait_max: WINDOW_WAIT_MAX,
                ..alike(MAX_CONCURRENT_WINDOWS)
            }),
            turns: Gate::new(alike(MAX_CONCURRENT_READS)),
            hashes: Gate::new(Bounds { waiting_max: HASHES_WAITING_MAX, ..alike(MAX_CONCURRENT_HASHES) }),
            recounts: Gate::new(Bounds { waiting_max: HASHES_WAITING_MAX, ..alike(MAX_CONCURRENT_RECOUNTS) }),
            conversions: Gate::new(alike(MAX_CONCURRENT_CONVERSIONS)),
            txns: Gate::of_memory(with_reserve(TXN_BYTES, TXN_RESERVE, TXN_LIGHT_MAX), &memory),
            snapshots: Gate::new(Bounds {
                waiting_max: SNAPSHOTS_WAITING_MAX,
                ..alike(MAX_CONCURRENT_SNAPSHOTS)
            }),
            commands: Gate::new(Bounds {
                waiting_max: usize::MAX, // Their bytes are bounded.
                waiting_weight_max: COMMAND_BYTES_WAITING_MAX,
                wait_max: command_wait_max,
                ..alike(COMMAND_BYTES)
            }),
            memory,
        }
    }

    /// Serves the waiters for memory.
    pub fn look_again(&self) {
        self.answers.look_again();
        self.places.look_again();
        self.txns.look_again();
    }

    /// Returns a pass for a command of this length. Small ones need none. Large ones wait instead of
    /// filling the shared proposal budget.
    pub async fn command(&self, client: ClientId, bytes: usize) -> Result<Option<Pass>, Status> {
        if bytes <= LARGE_COMMAND_BYTES {
            return Ok(None);
        }
        let entering = timed(Stage::Admission, self.commands.enter(client, bytes as u64));
        let pass = Box::pin(entering).await;
        pass.map(Some).map_err(|_| grpc_errors::refused(api::Error::TooManyRequests))
    }

    /// Returns a pass for a transaction with `fields` fields, to be held from before decoding until the
    /// response.
    pub async fn txn(&self, client: ClientId, fields: usize) -> Result<Pass, Status> {
        let entering = self.txns.enter(client, fields as u64 * TXN_FIELD_BYTES);
        let pass = timed(Stage::Admission, entering).await;
        pass.map_err(|_| grpc_errors::refused(api::Error::TooManyRequests))
    }

    /// Returns a share for the keys of a streamed range, to be held until its last chunk was taken.
    pub fn stream_keys(&self, client: ClientId, bytes: usize) -> Result<Share, Status> {
        self.stream_keys.take(client, bytes).ok_or_else(grpc_errors::reads_exhausted)
    }

    /// Grants bytes for a window of a large range: `wanted`, or fewer if little memory is left, but at
    /// least `least`. Three windows and the other grants between two samples fit into the rest.
    pub fn window(&self, wanted: usize, least: usize) -> usize {
        let left =
            self.memory.left().map_or(usize::MAX, |left| usize::try_from(left / 8).unwrap_or(usize::MAX));
        let bytes = wanted.min(left.max(least));
        self.memory.grant(bytes as u64);
        bytes
    }

    /// Runs `read` on a blocking thread, with as much memory as it needs; `estimate` saves attempts.
    /// Returns the memory with the response, to be held as long as the response is.
    pub async fn read<T: Send + 'static>(
        &self,
        client: ClientId,
        estimate: u64,
        read: impl Fn(&dyn Meter) -> Result<T, Failure> + Send + Sync + 'static,
    ) -> Result<(T, Pass), Status> {
        let answered = self.read_up_to(None, client, estimate, read).await?;
        answered.ok_or_else(|| self.too_large())
    }

    /// Returns the error for a response above the maximum.
    pub fn too_large(&self) -> Status {
        grpc_errors::answer_too_large(self.answers.weight_max())
    }

    /// Like [`Admission::read`]. With `bytes_max`, returns None if it needs more than that, or would wait
    /// for other calls' memory; its own is released then. Otherwise, returns None if it needs more than the
    /// maximum of a response.
    pub async fn read_up_to<T: Send + 'static>(
        &self,
        bytes_max: Option<u64>,
        client: ClientId,
        estimate: u64,
        read: impl Fn(&dyn Meter) -> Result<T, Failure> + Send + Sync + 'static,
    ) -> Result<Option<(T, Pass)>, Status> {
        let has_another_form = bytes_max.is_some();
        let bytes_max = bytes_max.unwrap_or(u64::MAX).min(self.answers.weight_max());
        let read = Arc::new(read);
        let mut wanted = estimate.clamp(STEP_BYTES, ESTIMATE_MAX);
        loop {
            let entering = timed(Stage::Admission, self.answers.enter(client, wanted));
            let memory = if has_another_form && !self.memory.is_short() {
                let Ok(Ok(memory)) = timeout(OTHER_FORM_DELAY, entering).await else { return Ok(None) };
                memory
            } else {
                entering.await.map_err(|_| grpc_errors::reads_exhausted())?
            };
            let turn = timed(Stage::Admission, self.turns.enter(client, 1)).await;
            let turn = turn.map_err(|_| grpc_errors::reads_exhausted())?;
            let caller = ReadGuard::default();
            let (meter, read) = (Allowance::new(memory, bytes_max, &caller), Arc::clone(&read));
            let done = in_turn(turn, move || {
                let answer = read(&meter);
                (answer, meter.wanted.get(), meter.memory.into_inner())
            });
            match timed(Stage::Read, done).await? {
                (Ok(answer), _, memory) => return Ok(Some((answer, memory))),
                (Err(Failure::Interrupted), more, _) if more > bytes_max => return Ok(None),
                (Err(Failure::Interrupted), more, memory) => {
                    wanted = more.max(2 * memory.weight()).min(bytes_max);
                }
                (Err(failure), ..) => return Err(grpc_errors::read(failure)),
            }
        }
    }

    /// Runs a long decoding or encoding on a blocking thread, with a permit.
    pub async fn convert<T: Send + 'static>(
        &self,
        client: ClientId,
        convert: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        let turn = timed(Stage::Admission, self.conversions.enter(client, 1)).await;
        let turn = turn.map_err(|_| grpc_errors::refused(api::Error::TooManyRequests))?;
        in_turn(turn, convert).await
    }

    /// Runs `work` without a response on a blocking thread, with a permit of `gate`.
    pub async fn within<T: Send + 'static>(
        &self,
        gate: &Arc<Gate>,
        client: ClientId,
        work: impl FnOnce(&dyn Meter) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Status> {
        let turn = timed(Stage::Admission, gate.enter(client, 1)).await;
        let turn = turn.map_err(|_| grpc_errors::reads_exhausted())?;
        let caller = ReadGuard::default();
        let gone = caller.gone();
        let done = in_turn(turn, move || work(&gone));
        timed(Stage::Read, done).await?.map_err(grpc_errors::read)
    }
}

/// Runs `work` on a blocking thread. The permit is released after it, even if its caller was cancelled.
async fn in_turn<T: Send + 'static>(
    turn: Pass,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    blocking(move || {
        let _turn = turn;
        work()
    })
    .await
}

/// Runs `work` on a blocking thread, so that it delays no other task.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    tokio::task::spawn_blocking(work).await.map_err(|error| grpc_errors::task(&error))
}

/// A response with its memory.
pub struct CountedAnswer<T> {
    pub response: T,
    /// None for small responses.
    pub memory: Option<Pass>,
}

impl<T> CountedAnswer<T> {
    pub fn small(response: T) -> Self {
        CountedAnswer { response, memory: None }
    }
}

/// Returns a frame that releases its memory when its last byte was sent.
pub fn charged(frame: Bytes, memory: Option<Pass>) -> Bytes {
    struct CountedFrame {
        frame: Bytes,
        _memory: Pass,
    }
    impl AsRef<[u8]> for CountedFrame {
        fn as_ref(&self) -> &[u8] {
            &self.frame
        }
    }
    let Some(mut memory) = memory else { return frame };
    memory.shrink_to(frame.len() as u64);
    Bytes::from_owner(CountedFrame { frame, _memory: memory })
}

/// Held by the task waiting for a read; dropping it cancels the read.
#[derive(Default)]
pub struct ReadGuard {
    gone: Arc<AtomicBool>,
}

impl ReadGuard {
    pub fn gone(&self) -> ReadCancelled {
        ReadCancelled(Arc::clone(&self.gone))
    }
}

impl Drop for ReadGuard {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}

/// A meter that cancels a read when its caller was dropped, without limiting its memory.
pub struct ReadCancelled(Arc<AtomicBool>);

impl Meter for ReadCancelled {
    fn hold(&self, _pairs: u64, _bytes: u64) -> mvcc::Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// Memory of a read on a blocking thread.
struct Allowance {
    memory: RefCell<Pass>,
    bytes_max: u64,
    used: Cell<u64>,
    /// Maximum amount needed so far.
    wanted: Cell<u64>,
    gone: ReadCancelled,
}

impl Allowance {
    fn new(memory: Pass, bytes_max: u64, caller: &ReadGuard) -> Self {
        let (used, wanted) = (Cell::new(0), Cell::new(0));
        Allowance { memory: RefCell::new(memory), bytes_max, used, wanted, gone: caller.gone() }
    }
}

impl Meter for Allowance {
    fn hold(&self, pairs: u64, bytes: u64) -> mvcc::Result<()> {
        self.gone.check()?;
        self.used.set(self.used.get() + bytes + pairs * PAIR_BYTES);
        let used = self.used.get();
        self.wanted.set(self.wanted.get().max(used));
        let mut memory = self.memory.borrow_mut();
        let more = used.saturating_sub(memory.weight());
        let mut has_grown = || memory.try_grow(more.max(STEP_BYTES)) || memory.try_grow(more);
        if used <= self.bytes_max && (more == 0 || has_grown()) { Ok(()) } else { Err(Error::Interrupted) }
    }

    fn held(&self) -> u64 {
        self.used.get()
    }

    fn release_to(&self, held: u64) {
        self.used.set(held);
    }
}

/// Limits a read in the calling task.
#[derive(Default)]
pub struct Small {
    used: Cell<u64>,
    holds: Cell<u32>,
}

/// Lock acquisitions of a read in the calling task, of 1000 steps each: half a millisecond. A connection
/// may cause 32 of them before other ones are served. Longer reads continue as wide ones: a page after many
/// deleted keys, a count of hundreds of thousands.
const HOLDS_IN_TASK_MAX: u32 = 4;

impl Meter for Small {
    fn hold(&self, pairs: u64, bytes: u64) -> mvcc::Result<()> {
        self.used.set(self.used.get() + bytes + pairs * PAIR_BYTES);
        if self.used.get() > SMALL_BYTES { Err(Error::Interrupted) } else { Ok(()) }
    }

    fn check(&self) -> mvcc::Result<()> {
        self.holds.set(self.holds.get() + 1);
        if self.holds.get() > HOLDS_IN_TASK_MAX { Err(Error::Interrupted) } else { Ok(()) }
    }

    fn held(&self) -> u64 {
        self.used.get()
    }

    fn release_to(&self, held: u64) {
        self.used.set(held);
    }
}

#[cfg(test)]
#[path = "reads_tests.rs"]
mod tests;
