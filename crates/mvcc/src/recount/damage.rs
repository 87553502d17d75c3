//! Bit flips that a recount must detect. For tests and simulations only.

use std::sync::Arc;

use bytes::BytesMut;

use crate::block::{Block, BlockSource, DecodedBlock, Record, RecordBody};
use crate::store::{LockPurpose, Store};
use crate::types::Revision;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flip {
    /// A bit of the last byte of the latest put's record: of its value, unless that is empty.
    Value,
    /// A bit of the version in the record.
    RecordVersion,
    /// A bit of the record's first byte, which makes the record invalid.
    Kind,
    /// A bit of the version in the index.
    Version,
    /// The lease flag in the index.
    Lease,
}

impl Store {
    /// Flips a bit of this member's memory of `key`: the index, the open block, a sealed block, or the
    /// cached copy of a stored one. Returns false if there is no such key, or if the key has more than one
    /// record and the flip is one of the index.
    #[doc(hidden)]
    pub fn flip(&self, key: &[u8], flip: Flip) -> bool {
        let mut state = self.shared.state.write(LockPurpose::Change);
        let Some(put) = state.index.get(key).and_then(|history| history.newest()) else { return false };
        let at = put.revision;
        if matches!(flip, Flip::Version | Flip::Lease) {
            return state.index.flip(key, flip == Flip::Lease);
        }
        if state.open.damage(at, |record, base| damage(record, base, flip)) {
            return true;
        }
        let Some(block) = state.block_table.find(at).cloned() else { return false };
        if block.location().is_some() {
            drop(state);
            return self.flip_cached(&block, at, flip);
        }
        let Ok(decoded) = block.load() else { return false };
        let (identity, dead) = (block.identity, block.dead.clone());
        let content = BlockSource::Memory(Arc::new(damaged(&decoded, at, flip)));
        let position = state.block_table.position_from(at);
        state.block_table.replace(position..position + 1, vec![Arc::new(Block { identity, content, dead })]);
        true
    }

    fn flip_cached(&self, block: &Block, at: Revision, flip: Flip) -> bool {
        let (Some(location), Ok(decoded)) = (block.location(), block.load()) else { return false };
        self.shared.cache.remove(location);
        self.shared.cache.insert(location, Arc::new(damaged(&decoded, at, flip)));
        true
    }
}

fn damaged(block: &DecodedBlock, at: Revision, flip: Flip) -> DecodedBlock {
    let copy = block.damaged(at, |record, base| damage(record, base, flip));
    copy.expect("the index refers to a record of the block")
}

fn damage(record: &mut [u8], base: i64, flip: Flip) {
    match flip {
        Flip::Value => record[record.len() - 1] ^= 1,
        Flip::Kind => record[0] ^= 1 << 7,
        Flip::RecordVersion => {
            let (mut put, _) = Record::decode(base, record).expect("it is not damaged yet");
            if let RecordBody::Put { version, .. } = &mut put.body {
                *version = if *version == 1 { 2 } else { *version - 1 };
            }
            let mut changed = BytesMut::new();
            put.encode(base, &mut changed);
            record.copy_from_slice(&changed);
        }
        Flip::Version | Flip::Lease => unreachable!("these are flipped in the index"),
    }
}
