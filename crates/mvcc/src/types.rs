//! Plain values of the store's API.

use std::fmt;
use std::time::Duration;

pub use base::{LogIndex, LogPosition};
use bytes::Bytes;

/// A key after its change at `mod_revision`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    pub key: Bytes,
    pub value: Bytes,
    /// Main revision of the put that created this generation of the key.
    pub create_revision: i64,
    /// Main revision of the latest put included in this value.
    pub mod_revision: i64,
    /// Number of puts in this generation, including this one.
    pub version: i64,
    /// Lease attached by the latest put, or 0.
    pub lease: i64,
}

/// A borrowed pair, with the same fields as `KeyValue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyValueRef<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub create_revision: i64,
    pub mod_revision: i64,
    pub version: i64,
    pub lease: i64,
}

/// Extent of the pairs that a range returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fetch {
    #[default]
    Full,
    /// Keys with empty `value` and `lease` 0, from the index without reading blocks.
    KeysOnly,
    /// The count without pairs.
    CountOnly,
}

/// Options of a range read. The default returns all pairs in full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeOptions {
    /// Maximum number of pairs; 0 means all. It does not limit the count.
    pub limit: usize,
    pub fetch: Fetch,
}

/// Result of a range read, in ascending key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeResult {
    pub kvs: Vec<KeyValue>,
    /// Number of keys of the range at `at`, ignoring the limit.
    pub count: i64,
    /// Current revision of the store at the time of the read.
    pub revision: i64,
    /// Revision that was read.
    pub at: i64,
}

/// Result of a read of a single key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetResult {
    /// `None` if the key does not exist at `at`.
    pub kv: Option<KeyValue>,
    /// Current revision of the store at the time of the read.
    pub revision: i64,
    /// Revision that was read.
    pub at: i64,
}

/// Whether a delete returns the deleted pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Previous {
    Skip,
    Return,
}

/// Result of a delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteResult {
    pub count: i64,
    /// Deleted pairs in key order; empty with `Previous::Skip`.
    pub previous: Vec<KeyValue>,
}

/// Hash of history. Members can compare it if both revisions are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvHash {
    pub hash: u32,
    /// Compact revision of the hash; -1 means none.
    pub compact_revision: i64,
    /// Latest revision included in the hash.
    pub hash_revision: i64,
    /// Current revision of the store.
    pub revision: i64,
}

/// Space usage of the store. An empty store has none: the fixed part of sled, some MiB on disk and in
/// memory, and the block cache do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The larger of `memory` and the stored bytes: block files, catalogue entries, and raw records to be
    /// stored by the next checkpoint. The quota applies to this value.
    pub allocated: u64,
    /// Part of `allocated` that remains after all possible space was reclaimed. For stored bytes it is
    /// estimated per block, assuming that all records of a block have the same size.
    pub in_use: u64,
    /// Memory that grows with clients' data: keys, histories, locations of blocks, items, and raw records
    /// to be stored by the next checkpoint. Computed from the contents, so members with the same contents
    /// have the same value.
    pub memory: u64,
}

/// Urgency of the next checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    Calm,
    /// A checkpoint is pending: the owner of the `Maintainer` should call `persist`.
    Due,
    /// Too much is in memory: no entry may be applied until `Maintainer::persist` has returned.
    Full,
}

/// Result of `Maintainer::persist`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PersistResult {
    /// Position up to which the store no longer needs the log.
    pub applied: LogPosition,
    /// Main revision of the durable state.
    pub revision: i64,
    /// Number of blocks written by this call.
    pub blocks: usize,
    /// Bytes appended to block files by this call.
    pub bytes_written: u64,
}

/// Bytes written since the store was opened. The sum without `records`, divided by `records`, is the
/// write amplification. It is below 1 unless compaction moves much, because blocks are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BytesWritten {
    /// Raw size of the caller's records, counted when they are persisted.
    pub records: u64,
    /// Blocks appended by checkpoints.
    pub checkpoints: u64,
    /// Blocks appended by compaction: live records that were moved.
    pub compaction: u64,
    /// Entries put into the catalogue, without sled's overhead.
    pub catalogue: u64,
    /// Blocks of received and installed stores.
    pub installed: u64,
}

/// Progress of physical compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactProgress {
    /// No work is pending.
    Idle,
    /// Call again.
    More,
    /// A read in progress still needs the next records, or the compaction is part of an unfinished entry.
    /// Call again after a pause.
    Waiting,
    /// History below this revision is durably removed.
    Finished { revision: i64 },
}

/// Limits of the store. The server uses `Options::default()`. No value can cause a loss of data.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Raw size at which the open block is sealed. 64 KiB: a cold read costs one read of this size, and a
    /// hundred or more records share a checksum and a catalogue entry.
    pub block_bytes: usize,
    /// Size of a block file. 64 MiB: an 8 GiB store needs 128 open files. Space is freed in steps of this
    /// size.
    pub block_file_bytes: u64,
    /// Size of the cache of decoded blocks.
    pub cache_bytes: u64,
    /// Unpersisted bytes at which the end of an entry makes a checkpoint pending.
    pub checkpoint_due_bytes: usize,
    /// Maximum number of superseded records that a compaction lists, at 16 bytes each. For further ones it
    /// records only their blocks, and looks up every record of such a block in the index.
    pub dropped_max: usize,
    /// Unpersisted bytes at which the caller must wait. It limits memory when the disk is slow.
    pub checkpoint_full_bytes: usize,
    /// Number of keys that a request changes per lock hold. 256: some 200 µs, the maximum delay of a read
    /// by a large request. Tests use fewer, to interleave readers.
    pub changes_per_hold: usize,
    /// Monotonic clock to measure lock holds, without effect on results. `None` disables the measurement.
    pub lock_clock: Option<fn() -> Duration>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            block_bytes: 64 << 10,
            block_file_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            checkpoint_due_bytes: 8 << 20,
            checkpoint_full_bytes: 64 << 20,
            dropped_max: 2 << 20,
            changes_per_hold: 256,
            lock_clock: None,
        }
    }
}

/// Last main revision. One below the maximum integer, so that the next revision, which watchers
/// request, does not overflow. No request may start at this revision.
pub const REVISION_MAX: i64 = i64::MAX - 1;

/// Revision of a change: the logical clock of the store. Ordered by `main`, then `sub`.
///
/// `main` counts requests that changed something; `sub` numbers the changes inside a request, from 0.
/// An empty store is at main revision 1, so the first change is 2.0. Clients see `main` only; `sub`
/// orders records in blocks and is part of the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    pub main: i64,
    pub sub: i64,
}

impl Revision {
    /// Greater than every revision that can be written.
    pub(crate) const MAX: Revision = Revision { main: i64::MAX, sub: i64::MAX };

    /// Returns the first change of request `main`.
    pub const fn first_of(main: i64) -> Self {
        Revision { main, sub: 0 }
    }

    /// Returns the next change of the same request. There is no revision between the two.
    pub(crate) const fn next(self) -> Self {
        Revision { main: self.main, sub: self.sub + 1 }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.main, self.sub)
    }
}
