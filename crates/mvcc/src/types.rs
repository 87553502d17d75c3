//! What goes in and comes out of the store: plain values, no behaviour.

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

/// A pair where it lies, for somebody who only looks. The fields are those of `KeyValue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyValueRef<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub create_revision: i64,
    pub mod_revision: i64,
    pub version: i64,
    pub lease: i64,
}

/// Place in the replicated log up to which the store has applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Applied {
    pub index: u64,
    pub term: u64,
}

/// How much of each key-value pair a range returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fetch {
    #[default]
    Full,
    /// `value` empty and `lease` 0: answered from the index alone, no block is read.
    KeysOnly,
    /// No pairs at all, only the count.
    CountOnly,
}

/// How to read a range. The default is everything, in full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeOptions {
    /// Pairs returned at most; 0 means all. The count is of the whole range regardless.
    pub limit: usize,
    pub fetch: Fetch,
}

/// The answer to a range, in ascending key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeResult {
    pub kvs: Vec<KeyValue>,
    /// Keys of the range at `at`, whatever the limit.
    pub count: i64,
    /// The store's current revision when the range was read.
    pub revision: i64,
    /// The revision that was read.
    pub at: i64,
}

/// Whether a delete should hand back what it deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Previous {
    Skip,
    Return,
}

/// What a delete did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    pub count: i64,
    /// The pairs as they were, in key order; empty with `Previous::Skip`.
    pub previous: Vec<KeyValue>,
}

/// Hash of history, comparable between members whenever both revisions agree.
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

/// What the store occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Bytes of block files and catalogue, plus what waits in memory for the next checkpoint. Never 0.
    pub allocated: u64,
    /// The part of it that live records are estimated to need.
    pub in_use: u64,
}

/// How urgently the next checkpoint is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    Calm,
    /// A checkpoint is ready to be persisted: tell whoever owns the `Maintainer`.
    Due,
    /// Too much is held in memory: apply nothing more until `Maintainer::persist` returned.
    Full,
}

/// What one `Maintainer::persist` made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Persisted {
    /// The log up to here is no longer needed for this store.
    pub applied: Applied,
    /// Main revision of the durable state.
    pub revision: i64,
    /// Blocks written by this call.
    pub blocks: usize,
    /// Bytes appended to block files by this call.
    pub bytes_written: u64,
}

/// Bytes handed to the disk since the store was opened. All but `records` over `records` is the store's write
/// amplification; below 1, since blocks are compressed, unless compaction moves much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The caller's records, raw: what the others are measured against. Counted when they are persisted.
    pub records: u64,
    /// Blocks appended by checkpoints.
    pub checkpoints: u64,
    /// Blocks appended by compaction: live records that were moved.
    pub compaction: u64,
    /// Entries put into the catalogue. Its engine writes them with some overhead of its own.
    pub catalogue: u64,
    /// Blocks of stores that were received and installed.
    pub installed: u64,
}

/// How far physical compaction got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactProgress {
    /// Nothing to do.
    Idle,
    /// Call again.
    More,
    /// History below this revision is physically gone, durably.
    Finished { revision: i64 },
}

/// Sizes that bound the store. `Options::default()` is what production uses; no choice here can lose data.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Raw bytes after which the open block is sealed. 64 KiB: a cold read costs one such read, and a hundred or more
    /// records share one checksum and one entry of the catalogue.
    pub block_bytes: usize,
    /// A block file is cut at this size. 64 MiB: an 8 GiB store needs 128 open files, and space returns in such steps.
    pub block_file_bytes: u64,
    /// Decoded blocks kept for readers.
    pub cache_bytes: u64,
    /// Unpersisted bytes from which on the end of an entry offers a checkpoint.
    pub checkpoint_due_bytes: usize,
    /// Unpersisted bytes from which on the caller must wait: bounds memory when the disk is slow.
    pub checkpoint_full_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            block_bytes: 64 << 10,
            block_file_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            checkpoint_due_bytes: 8 << 20,
            checkpoint_full_bytes: 64 << 20,
        }
    }
}
