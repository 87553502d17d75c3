//! Multi-version key-value store: every change has a revision, and all revisions since the last
//! compaction are readable.
//!
//!   Writer ──▶ index (keys, histories) + open block ──seal──▶ blocks ──Maintainer──▶ block files + catalogue
//!   Store  ──▶ index: key → revision ──▶ block: revision → record
//!
//! * There is one writer, one maintainer, and any number of readers, each with a handle. Readers never
//!   wait for the maintainer's disk writes.
//! * Only checkpoints are durable. A checkpoint is the state between two entries of the replicated log,
//!   with the index of the last applied entry. After a crash the later entries are applied again.
//! * Corruption is an error with file, offset and reason. Corrupt bytes are never served.
//!
//! The crate uses no clock, thread, randomness or network. The same calls result in the same state.

mod error; // errors
mod meter; // limits of a read in progress
mod range; // key ranges
mod types; // plain values of the API

mod backend; // storage of the catalogue and block files
mod cursor; // varints and fixed-width numbers in bytes

mod block; // records, blocks and block files
mod digest; // digest of the changes by log entries
mod index; // keys and their histories
mod store; // the state, its lock, the reader and the writer

mod changes; // events read back in revision order

mod checkpoint; // making the state durable, and loading it
mod compaction; // removal of superseded records and unused space

mod recount; // digest of the current state

mod maintainer; // opens a store; handle for checkpoints and compaction
mod transfer; // transfer of checkpoints between members, and of histories to other stores

pub mod inspect; // read-only inspection of a store

pub use backend::{
    Backend, BlockFile, MemoryBackend, SledBackend, Update, discard_staged, finish_install, staged_at,
};
#[doc(hidden)]
pub use block::codec::fuzzed_block;
pub use changes::{Change, ChangeReader, Changes, RevisionPart};
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
pub use transfer::{
    Export, HistoryPart, HistoryReader, Import, ImportedState, Present, StagedStore, Staging,
};
pub use types::{
    BytesWritten, CompactProgress, DeleteResult, Fetch, GetResult, KeyValue, KeyValueRef, KvHash, LogIndex,
    LogPosition, PersistResult, Pressure, Previous, REVISION_MAX, RangeOptions, RangeResult, Revision, Size,
    StoreOptions,
};
