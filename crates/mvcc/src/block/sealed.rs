//! A sealed block and where its records are: in memory until a checkpoint stores it, then in a block file.

use std::sync::Arc;

use bytes::Bytes;

use super::codec::{self, BlockIdentity};
use super::dead_list::DeadList;
use super::files::BlockLocation;
use super::records::DecodedBlock;
use crate::error::{Error, Result};

/// A sealed block.
pub(crate) struct Block {
    pub identity: BlockIdentity,
    pub content: BlockSource,
    /// Records that compaction found superseded and did not remove. Only stored blocks have any.
    pub dead: DeadList,
}

/// Where a block's records are. A block stays in memory until a checkpoint stores it. A stored block is read
/// when it is needed, and may be in the cache.
pub(crate) enum BlockSource {
    Memory(Arc<DecodedBlock>),
    Stored(BlockLocation),
}

impl Block {
    /// A block that the writer has just sealed.
    pub fn in_memory(decoded: DecodedBlock) -> Self {
        let identity = BlockIdentity::of(&decoded);
        Block { identity, content: BlockSource::Memory(Arc::new(decoded)), dead: DeadList::default() }
    }

    /// Where it is stored; `None` while it is only in memory.
    pub fn location(&self) -> Option<&BlockLocation> {
        match &self.content {
            BlockSource::Memory(_) => None,
            BlockSource::Stored(location) => Some(location),
        }
    }

    /// Whether another block of the same store has the same records: compaction moves a block, or removes
    /// records of it. A block in memory is taken as one of the same store.
    pub fn has_records_of(&self, other: &Block) -> bool {
        let store = |block: &Block| block.location().map(|location| location.file_name().0);
        self.identity == other.identity && (store(other).is_none() || store(self) == store(other))
    }

    /// Bytes on disk. Before it is stored: its raw bytes, an upper estimate.
    pub fn stored_bytes(&self) -> u64 {
        u64::from(self.location().map_or(self.identity.raw_bytes, |location| location.bytes))
    }

    /// The share of live records in `stored_bytes`, as if all records had the same size.
    pub fn live_bytes(&self) -> u64 {
        self.stored_bytes() * u64::from(self.live_records()) / u64::from(self.identity.records)
    }

    /// Records that are not listed as dead.
    pub fn live_records(&self) -> u32 {
        let live = self.identity.records.checked_sub(self.dead.len());
        live.expect("a block has no more dead records than records")
    }

    /// Reads the block's records without the cache.
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

    /// Reads the encoded records without parsing them, for a caller that knows their offsets.
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

    /// The error for a record that the block must hold and does not.
    pub fn lacks_record(&self) -> Error {
        match &self.content {
            BlockSource::Memory(_) => {
                Error::Corrupt { file: "memory".into(), offset: 0, what: "a record is missing" }
            }
            BlockSource::Stored(location) => location.damaged("a record is missing"),
        }
    }
}

/// Live records of all these blocks.
pub(crate) fn live_records(blocks: &[Arc<Block>]) -> u64 {
    blocks.iter().map(|block| u64::from(block.live_records())).sum()
}
