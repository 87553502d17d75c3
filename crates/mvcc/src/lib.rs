//! Multi-version key-value store: every change has a revision, and every revision since the last compaction
//! can be read.
//!
//!   Writer ──▶ index (keys, histories) + open block ──seal──▶ blocks ──Maintainer──▶ block files + catalogue
//!   Store  ──▶ index: key → revision ──▶ block: revision → record
//!
//! * There is one writer, one maintainer, and any number of readers, each with its own handle. Readers never
//!   wait for a disk that the maintainer writes to.
//! * Only checkpoints are durable. A checkpoint is the state between two entries of the replicated log, with
//!   the index of the last entry applied. After a crash the later entries are applied again.
//! * Damaged bytes are an error that names file, offset and reason. They are never served.
//!
//! The crate uses no clock, thread, randomness or network. The same calls give the same state.

mod error; // errors
mod meter; // bounds a read while it runs
mod range; // key ranges
mod types; // plain values in and out

mod backend; // where the catalogue and block files are stored
mod cursor; // varints and fixed-width numbers in bytes

mod block; // records, blocks and block files
mod digest; // what entries changed, in one number
mod index; // keys and their histories
mod store; // the state, its lock, the reader and the writer

mod changes; // events read back in revision order

mod checkpoint; // how the state becomes durable and is read back
mod compaction; // superseded records are dropped, space is reclaimed

mod recount; // the digest of the state as it is now

mod maintainer; // opens a store; the handle that writes checkpoints and compacts
mod transfer; // a checkpoint is sent to another member, a history to another kind of store

pub mod inspect; // reads a store without changing it

pub use backend::{
    Backend, BlockFile, MemoryBackend, SledBackend, Update, discard_staged, finish_install, staged_at,
};
#[doc(hidden)]
pub use block::codec::fuzzed_block;
pub use changes::{Change, Changes, Follower, RevisionPart};
pub use digest::SpanDigest;
pub use error::{Error, Result};
pub use maintainer::{Maintainer, open};
pub use meter::Meter;
pub use range::KeyRange;
#[doc(hidden)]
pub use recount::Flip;
pub use recount::{RecountAnswer, RecountBounds, RecountPass, RecountSpan};
pub use store::{
    ITEM_BYTES_MAX, ITEM_KEY_BYTES_MAX, LockPurpose, LockStats, PinnedRange, RevisionWriter, Store, Writer,
};
pub use transfer::{Export, History, HistoryPart, Import, ImportedState, Present, StagedStore, Staging};
pub use types::{
    BytesWritten, CompactProgress, DeleteResult, Fetch, GetResult, KeyValue, KeyValueRef, KvHash, LogIndex,
    LogPosition, PersistResult, Pressure, Previous, REVISION_MAX, RangeOptions, RangeResult, Revision, Size,
    StoreOptions,
};
