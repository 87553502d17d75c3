//! Cache of decoded blocks with a size limit in bytes.

use std::sync::Arc;

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::files::BlockLocation;
use super::records::DecodedBlock;
use super::sealed::Block;
use crate::error::Result;

pub(crate) struct BlockCache {
    blocks: Cache<(u64, u64, u64), Arc<DecodedBlock>, ByWeight>,
}

#[derive(Clone)]
struct ByWeight;

impl Weighter<(u64, u64, u64), Arc<DecodedBlock>> for ByWeight {
    fn weight(&self, _place: &(u64, u64, u64), block: &Arc<DecodedBlock>) -> u64 {
        block.weight() as u64
    }
}

impl BlockCache {
    /// Creates a cache. `block_bytes`, the usual block size, determines the size of its tables only.
    pub fn new(cache_bytes: u64, block_bytes: usize) -> Self {
        let blocks = cache_bytes as usize / block_bytes.max(1) + 1;
        BlockCache { blocks: Cache::with_weighter(blocks, cache_bytes, ByWeight) }
    }

    /// Reports whether blocks of `raw_bytes` in total usually fit in the cache. Each takes slightly more
    /// than its raw bytes.
    pub fn fits(&self, raw_bytes: u64) -> bool {
        raw_bytes <= self.blocks.capacity() / 4 * 3
    }

    /// Returns the block's records, from memory if possible.
    pub fn load(&self, block: &Block) -> Result<Arc<DecodedBlock>> {
        let Some(location) = block.location() else { return block.load() };
        assert!(location.bytes > 0, "a stored block takes bytes");
        let name = location.name();
        if let Some(decoded) = self.blocks.get(&name) {
            return Ok(decoded);
        }
        let decoded = block.load()?;
        self.blocks.insert(name, decoded.clone());
        Ok(decoded)
    }

    /// Like `load`, without adding the block to the cache: scans would evict blocks in use.
    pub fn load_without_caching(&self, block: &Block) -> Result<Arc<DecodedBlock>> {
        self.get(block).map_or_else(|| block.load(), Ok)
    }

    /// Like `load_without_caching`, without the offsets of the records.
    pub fn load_raw_without_caching(&self, block: &Block) -> Result<Bytes> {
        self.get(block).map_or_else(|| block.load_raw(), |decoded| Ok(decoded.raw().clone()))
    }

    fn get(&self, block: &Block) -> Option<Arc<DecodedBlock>> {
        block.location().and_then(|location| self.blocks.get(&location.name()))
    }

    /// Adds a block that was just written: the latest records are the most likely to be read.
    pub fn insert(&self, location: &BlockLocation, decoded: Arc<DecodedBlock>) {
        self.blocks.insert(location.name(), decoded);
    }

    pub fn remove(&self, location: &BlockLocation) {
        self.blocks.remove(&location.name());
    }
}
