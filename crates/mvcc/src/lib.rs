//! Multi-version key-value store.

mod error;
mod range;
mod revision;
mod types;

mod backend;
mod maintainer;
mod store;
mod writer;

pub use backend::{Backend, MemoryBackend, SledBackend};
pub use error::{Error, Result};
pub use maintainer::Maintainer;
pub use range::KeyRange;
pub use revision::Revision;
pub use store::Store;
pub use types::{
    Applied, CompactProgress, Deleted, Fetch, KeyValue, KvHash, Options, Persisted, Pressure, Previous,
    RangeOptions, RangeResult, Size,
};
pub use writer::{RevisionWriter, Writer};

/// Opens a store as its backend last persisted it.
///
/// Errors: `Corrupt` if anything durable is damaged, `Io` or `Catalogue` if the disk refuses.
pub fn open(_backend: Box<dyn Backend>, _options: Options) -> Result<(Writer, Store, Maintainer)> {
    todo!()
}
