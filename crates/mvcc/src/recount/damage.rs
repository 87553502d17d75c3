//! A bit of the state flipped on purpose: what a recount must find. For tests and simulations only.

use std::sync::Arc;

use bytes::Bytes;

use crate::block::{Block, Content, Decoded};
use crate::revision::Revision;
use crate::store::{LockPurpose, Store};

/// What is flipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flip {
    /// A bit of the last byte of the newest put's record: of its value, unless that is empty.
    Value,
    /// A bit of the version that the index has.
    Version,
    /// The index forgets that the key has a lease, or thinks that it has one.
    Lease,
}

impl Store {
    /// Flips a bit of what this member has in memory of `key`: the index, the open block, a sealed block, or
    /// the cached copy of a stored one. False if there is no such key, or the key has more than one record
    /// and the flip is one of the index.
    #[doc(hidden)]
    pub fn flip(&self, key: &[u8], flip: Flip) -> bool {
        let mut state = self.shared.state.write(LockPurpose::Change);
        let Some(put) = state.index.get(key).and_then(|history| history.newest()) else { return false };
        let at = put.revision;
        match flip {
            Flip::Version | Flip::Lease => return state.index.flip(key, flip == Flip::Lease),
            Flip::Value if state.open.find(at).is_some() => {
                state.open.flip(at);
                return true;
            }
            Flip::Value => {}
        }
        let Some(block) = state.block_table.find(at).cloned() else { return false };
        if block.location().is_some() {
            drop(state);
            return self.flip_cached(&block, at);
        }
        let Ok(decoded) = block.load() else { return false };
        let (identity, dead) = (block.identity, block.dead.clone());
        let content = Content::Memory(Arc::new(flipped(&decoded, at)));
        let position = state.block_table.position_from(at);
        state.block_table.replace(position..position + 1, vec![Arc::new(Block { identity, content, dead })]);
        true
    }

    fn flip_cached(&self, block: &Block, at: Revision) -> bool {
        let (Some(location), Ok(decoded)) = (block.location(), block.load()) else { return false };
        self.shared.cache.remove(location);
        self.shared.cache.insert(location, Arc::new(flipped(&decoded, at)));
        true
    }
}

/// A copy of a block with a bit flipped in the record at `at`.
fn flipped(block: &Decoded, at: Revision) -> Decoded {
    let mut raw = block.raw().to_vec();
    let end = block.end_of(at).expect("the index refers to a record of the block");
    raw[end - 1] ^= 1;
    Decoded::parse(Bytes::from(raw), block.first().main, block.len()).expect("a value may have any bytes")
}
