//! Multi-version key-value store: every change has a revision, and every revision since the last compaction can be read.
//!
//!   Writer ──▶ index (keys, histories) + open block ──seal──▶ blocks ──Maintainer──▶ block files + catalogue
//!   Store  ──▶ index: key → revision ──▶ block: revision → record
//!
//! * One writer, any number of readers, one maintainer, each with its own handle. Readers never wait for a disk that the
//!   maintainer writes to.
//! * What is durable is a checkpoint: a state between two entries of the replicated log, with the index of that log up to
//!   which it reaches. After a crash the log's rest is applied again.
//! * Damaged bytes are an error that names file, offset and reason. They are never served.
//!
//! Knows no clock, thread, randomness, network or consensus. Same calls, same state.

#[cfg(all(not(debug_assertions), any(feature = "mutant-applied-apart", feature = "mutant-unsynced-blocks")))]
compile_error!("a mutant breaks a promise on purpose: it is built with debug assertions, and never ships");

mod error; // what can go wrong
mod range; // which keys a request means
mod revision; // the logical clock
mod types; // plain values in and out

mod block; // records that are kept together
mod dead; // superseded records of a block
mod frame; // a block's stored form
mod record; // one change

mod history; // what happened to one key
mod index; // all keys in order
mod leaf; // a packed run of keys

mod directory; // which block holds a revision
mod state; // everything behind the lock

mod hash; // what members compare
mod held; // a range found once and read piece by piece
mod store; // the reader's handle
mod view; // how a range is read
mod writer; // the writer's handle

mod backend; // where checkpoints live
mod block_file; // how blocks are appended to files
mod catalogue; // what one checkpoint says
mod compaction; // superseded history leaves
mod maintainer; // the background half
mod recovery; // how a store is opened
mod restoring; // records find their way into the index
mod tidying; // space comes back

mod export; // a checkpoint leaves
mod install; // and becomes another member's state
mod staging; // a checkpoint arrives
mod stream; // its form on the way

pub mod inspect; // a store looked at, untouched

pub use backend::{
    Backend, BlockFile, MemoryBackend, SledBackend, Update, discard_staged, finish_install, staged_at,
};
pub use error::{Error, Result};
pub use export::Export;
#[doc(hidden)]
pub use frame::fuzzed_block;
pub use held::Held;
pub use maintainer::Maintainer;
pub use range::KeyRange;
pub use recovery::open;
pub use revision::Revision;
pub use staging::{Staged, Staging};
pub use store::Store;
pub use types::{
    Applied, CompactProgress, Deleted, Fetch, KeyValue, KeyValueRef, KvHash, Options, Persisted, Pressure,
    Previous, RangeOptions, RangeResult, Size, Written,
};
pub use writer::{ITEM_BYTES_MAX, RevisionWriter, Writer};
