//! A sealed block and the source of its records: memory until a checkpoint stores it, then a block
//! file.

use std::sync::Arc;

use bytes::Bytes;

use super::codec::{self, BlockIdentity};
use super::dead_list::DeadList;
use super::files::BlockLocation;
use super::records::DecodedBlock;
use crate::error::{Error, Result};

pub(crate) struct Block {
    pub identity: BlockIdentity,
    pub content: BlockSource,
    /// Superseded records that compaction has found but not removed. Only stored blocks have any.
    pub dead: DeadList,
}

/// Source of a block's records. A block stays in memory until a checkpoint stores it. A stored block is
/// read on demand, and may be in the cache.
pub(crate) enum BlockSource {
    Memory(Arc<DecodedBlock>),
    Stored(BlockLocation),
}

impl Block {
    pub fn in_memory(decoded: DecodedBlock) -> Self {
        let identity = BlockIdentity::of(&decoded);
        Block { identity, content: BlockSource::Memory(Arc::new(decoded)), dead: DeadList::default() }
    }

    /// Returns the location of a stored block, or `None` if it is only in memory.
    pub fn location(&self) -> Option<&BlockLocation> {
        match &self.content {
            BlockSource::Memory(_) => None,
            BlockSource::Stored(location) => Some(location),
        }
    }

    /// Reports whether `other` has the same records in the same store, even if compaction has moved the
    /// block. A block in memory is assumed to be from the same store.
    pub fn has_records_of(&self, other: &Block) -> bool {
        let store = |block: &Block| block.location().map(|location| location.file_name().0);
        self.identity == other.identity && (store(other).is_none() || store(self) == store(other))
    }

    /// Returns the size on disk, or an upper estimate, the raw size, before the block is stored.
    pub fn stored_bytes(&self) -> u64 {
        u64::from(self.location().map_or(self.identity.raw_bytes, |location| location.bytes))
    }

    /// Returns the live share of `stored_bytes`, assuming that all records have the same size.
    pub fn live_bytes(&self) -> u64 {
        self.stored_bytes() * u64::from(self.live_records()) / u64::from(self.identity.records)
    }

    /// Returns the number of records that are not listed as dead.
    pub fn live_records(&self) -> u32 {
        let live = self.identity.records.checked_sub(self.dead.len());
        live.expect("a block has no more dead records than records")
    }

    pub fn load(&self) -> Result<Arc<DecodedBlock>> {
        match &self.content {
            BlockSource::Memory(decoded) => Ok(decoded.clone()),
            BlockSource::Stored(location) => {
                let stored = location.read()?;
                let decoded = codec::load(&stored, self.identity).map_err(|what| location.damaged(what))?;
                Ok(Arc::new(decoded))
            }
        }
    }

    /// Reads the encoded records without parsing them, for callers with known offsets.
    pub fn load_raw(&self) -> Result<Bytes> {
        match &self.content {
            BlockSource::Memory(decoded) => Ok(decoded.raw().clone()),
            BlockSource::Stored(location) => {
                let stored = location.read()?;
                codec::load_raw(&stored, self.identity).map_err(|what| location.damaged(what))
            }
        }
    }

    /// Reads the frame of a stored block and verifies its checksum, without decompressing it.
    pub fn read_frame(&self) -> Result<Vec<u8>> {
        let location = self.location().expect("only stored blocks have a frame");
        let stored = location.read()?;
        codec::check_as(&stored, self.identity).map_err(|what| location.damaged(what))?;
        Ok(stored)
    }

    pub fn lacks_record(&self) -> Error {
        match &self.content {
            BlockSource::Memory(_) => {
                Error::Corrupt { file: "memory".into(), offset: 0, what: "a record is missing" }
            }
            BlockSource::Stored(location) => location.damaged("a record is missing"),
        }
    }
}

pub(crate) fn live_records(blocks: &[Arc<Block>]) -> u64 {
    blocks.iter().map(|block| u64::from(block.live_records())).sum()
}
