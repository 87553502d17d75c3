//! Opens a store and creates its handles.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::backend::{Backend, Update};
use crate::block::BlockCache;
use crate::checkpoint::{CheckpointWriter, DurableState, Marks, RecoveredStore, load};
use crate::error::Result;
use crate::maintainer::Maintainer;
use crate::store::{CountCache, Pins, StateLock, Store, StoreShared, Writer};
use crate::types::{BytesWritten, StoreOptions};

/// Opens a store at its last durable checkpoint. An empty backend becomes an empty store at revision 1.
///
/// Errors: `Corrupt` if anything durable is damaged, `Io` or `Catalogue` if the disk fails.
pub fn open(mut backend: Box<dyn Backend>, options: StoreOptions) -> Result<(Writer, Store, Maintainer)> {
    let RecoveredStore { is_new, files, marks, items, mut state } = load(&mut *backend, &options, 0)?;
    let (items, written) = (Arc::new(items), BytesWritten::default());
    let mut durable = DurableState { backend, files, marks, items, written };
    if is_new {
        // So that an empty store has a format version and a size as well.
        durable.update_marks(Marks::EMPTY, Update::default())?;
        state.stored_bytes = durable.allocated();
    }
    let shared = Arc::new(StoreShared {
        state: StateLock::new(state, options.lock_clock),
        cache: BlockCache::new(options.cache_bytes, options.block_bytes),
        hashes: Mutex::new(VecDeque::new()),
        counts: CountCache::default(),
        pins: Pins::default(),
        wake: OnceLock::new(),
        options,
    });
    let store = Store { shared: shared.clone() };
    let maintainer = Maintainer::new(CheckpointWriter { shared, durable });
    Ok((Writer::new(store.clone()), store, maintainer))
}
