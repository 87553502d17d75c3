//! Plain values in and out of the store.

use std::fmt;
use std::time::Duration;

pub use base::{LogIndex, LogPosition};
use bytes::Bytes;

/// One key as it was after its change at `mod_revision`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    pub key: Bytes,
    pub value: Bytes,
    /// Main revision of the put that began this generation of the key.
    pub create_revision: i64,
    /// Main revision of the newest put that this value reflects.
    pub mod_revision: i64,
    /// Puts since the generation began, this one included.
    pub version: i64,
    /// Lease attached by the newest put, or 0.
    pub lease: i64,
}

/// A borrowed pair. The fields are those of `KeyValue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyValueRef<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub create_revision: i64,
    pub mod_revision: i64,
    pub version: i64,
    pub lease: i64,
}

/// How much of each key-value pair a range returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fetch {
    #[default]
    Full,
    /// `value` is empty and `lease` is 0: answered from the index, no block is read.
    KeysOnly,
    /// No pairs at all, only the count.
    CountOnly,
}

/// How to read a range. The default is everything, in full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeOptions {
    /// Maximum number of pairs; 0 means all. It does not limit the count.
    pub limit: usize,
    pub fetch: Fetch,
}

/// The result of a range read, in ascending key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeResult {
    pub kvs: Vec<KeyValue>,
    /// Keys of the range at `at`. The limit does not apply.
    pub count: i64,
    /// The store's current revision when the range was read.
    pub revision: i64,
    /// The revision that was read.
    pub at: i64,
}

/// The result of a read of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetResult {
    /// `None` if the key does not exist at `at`.
    pub kv: Option<KeyValue>,
    /// The store's current revision when the key was read.
    pub revision: i64,
    /// The revision that was read.
    pub at: i64,
}

/// Whether a delete returns the deleted pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Previous {
    Skip,
    Return,
}

/// The result of a delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteResult {
    pub count: i64,
    /// The deleted pairs, in key order; empty with `Previous::Skip`.
    pub previous: Vec<KeyValue>,
}

/// Hash of history. Members can compare it if both revisions are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvHash {
    pub hash: u32,
    /// The compaction that the hash reflects; -1 means none.
    pub compact_revision: i64,
    /// The newest revision that entered the hash.
    pub hash_revision: i64,
    /// The store's current revision.
    pub revision: i64,
}

/// Space that the store takes. An empty store takes none: the fixed part of sled, some MiB on disk and in
/// memory, and the block cache are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The larger of `memory` and the stored bytes: block files, entries of the catalogue, and raw records
    /// that the next checkpoint will store. The quota is compared with this.
    pub allocated: u64,
    /// The part of `allocated` that remains after all possible space was reclaimed. For stored bytes it is
    /// estimated per block, as if all records of a block had the same size.
    pub in_use: u64,
    /// Bytes of memory that grow with what clients store: keys, histories, locations of blocks, items, and
    /// raw records that the next checkpoint will store. Computed from the contents, so members with the same
    /// content have the same number.
    pub memory: u64,
}

/// How urgent the next checkpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    Calm,
    /// A checkpoint is pending: the owner of the `Maintainer` should call `persist`.
    Due,
    /// Too much is in memory: no entry may be applied until `Maintainer::persist` has returned.
    Full,
}

/// What one call of `Maintainer::persist` made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PersistResult {
    /// The store no longer needs the log up to here.
    pub applied: LogPosition,
    /// Main revision of the durable state.
    pub revision: i64,
    /// Blocks written by this call.
    pub blocks: usize,
    /// Bytes appended to block files by this call.
    pub bytes_written: u64,
}

/// Bytes written since the store was opened. The sum without `records`, divided by `records`, is the write
/// amplification. It is below 1 unless compaction moves much, because blocks are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BytesWritten {
    /// Raw bytes of the caller's records. Counted when they are persisted.
    pub records: u64,
    /// Blocks appended by checkpoints.
    pub checkpoints: u64,
    /// Blocks appended by compaction: live records that were moved.
    pub compaction: u64,
    /// Entries put into the catalogue, without sled's overhead.
    pub catalogue: u64,
    /// Blocks of stores that were received and installed.
    pub installed: u64,
}

/// Progress of physical compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactProgress {
    /// Nothing to do.
    Idle,
    /// Call again.
    More,
    /// A read in progress still needs the next records, or the compaction is part of an entry that has not
    /// ended. Call again after a pause.
    Waiting,
    /// History below this revision is durably removed.
    Finished { revision: i64 },
}

/// Sizes that bound the store. The server uses `Options::default()`. No value can lose data.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Raw bytes after which the open block is sealed. 64 KiB: a cold read costs one read of this size, and a
    /// hundred or more records share one checksum and one entry of the catalogue.
    pub block_bytes: usize,
    /// Size of a block file. 64 MiB: an 8 GiB store needs 128 open files. Space is freed in steps of this
    /// size.
    pub block_file_bytes: u64,
    /// Decoded blocks kept for readers.
    pub cache_bytes: u64,
    /// Bytes not persisted from which the end of an entry makes a checkpoint pending.
    pub checkpoint_due_bytes: usize,
    /// Superseded records that one compaction lists at most, at 16 bytes each. Beyond that it only notes
    /// their blocks, and looks every record of such a block up in the index.
    pub dropped_max: usize,
    /// Bytes not persisted from which the caller must wait. It bounds memory when the disk is slow.
    pub checkpoint_full_bytes: usize,
    /// Keys that one request changes under one hold of the lock. 256: some 200 µs, the longest that a read
    /// waits for a large request. Tests use fewer, to let readers in between.
    pub changes_per_hold: usize,
    /// A monotonic clock to measure how long the lock is held. It affects no result. `None`: not measured.
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

/// The last main revision. One below the largest number, so that the revision after any one, which watchers
/// ask for, is a number. No request is to be begun at this revision.
pub const REVISION_MAX: i64 = i64::MAX - 1;

/// Revision of one change: the logical clock of the store. Ordered by `main`, then `sub`.
///
/// `main` counts requests that changed something; `sub` numbers the changes inside one request, from 0. An
/// empty store is at main revision 1, so the first change is 2.0. Clients see `main` only; `sub` orders
/// records in blocks and enters the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    pub main: i64,
    pub sub: i64,
}

impl Revision {
    /// Greater than every revision that can be written.
    pub(crate) const MAX: Revision = Revision { main: i64::MAX, sub: i64::MAX };

    /// The first change of request `main`.
    pub const fn first_of(main: i64) -> Self {
        Revision { main, sub: 0 }
    }

    /// The next change of the same request. No revision is between the two.
    pub(crate) const fn next(self) -> Self {
        Revision { main: self.main, sub: self.sub + 1 }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.main, self.sub)
    }
}
