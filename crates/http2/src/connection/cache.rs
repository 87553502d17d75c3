//! Cache of decoded heads, keyed by the bytes of their header blocks.
//!
//! A client repeats the few blocks of the methods it calls, and in its steady state they only refer to
//! tables. Such a block has one meaning until the dynamic table changes, so the cache holds blocks for a
//! single version of the table and is emptied when the version changes. It also holds block shapes, which
//! are valid for all versions.

use std::sync::Arc;

use crate::head::Head;
use crate::hpack::{Shape, VALUE_BYTES_MAX};
use crate::limits::Limits;

#[derive(Debug)]
pub(super) struct HeaderBlockCache {
    version: u64,
    entries: Vec<CachedBlock>,
    /// Index of the last hit, so that a client with one method costs one comparison.
    last: usize,
    /// The next entry to replace.
    next: usize,
    /// Cached heads by shape.
    shaped: Vec<ShapedHead>,
    last_shaped: usize,
    next_shaped: usize,
    blocks_max: usize,
    block_bytes_max: usize,
    list_bytes_max: usize,
    /// Largest head for the owner, in header list bytes.
    head_bytes_max: usize,
}

#[derive(Debug)]
struct ShapedHead {
    fields: Box<[u64]>,
    head: Arc<Head>,
}

#[derive(Debug)]
struct CachedBlock {
    block: Box<[u8]>,
    head: Arc<Head>,
}

impl HeaderBlockCache {
    pub(super) fn new(limits: &Limits) -> HeaderBlockCache {
        HeaderBlockCache {
            version: 0,
            entries: Vec::new(),
            last: 0,
            next: 0,
            shaped: Vec::new(),
            last_shaped: 0,
            next_shaped: 0,
            blocks_max: limits.cached_blocks_max,
            block_bytes_max: limits.cached_block_bytes_max,
            list_bytes_max: limits.cached_list_bytes_max,
            head_bytes_max: limits.header_list_bytes_max,
        }
    }

    pub(super) fn get(&mut self, version: u64, block: &[u8]) -> Option<&Arc<Head>> {
        if self.version != version {
            return None;
        }
        if self.entries.get(self.last).is_none_or(|entry| *entry.block != *block) {
            self.last = self.entries.iter().position(|entry| *entry.block == *block)?;
        }
        self.entries.get(self.last).map(|entry| &entry.head)
    }

    /// Caches `head` for `block`, which left the table at `version` and has `list_bytes` of fields.
    pub(super) fn insert(&mut self, version: u64, block: &[u8], list_bytes: usize, head: &Arc<Head>) {
        if self.version != version {
            self.clear_blocks();
            self.version = version;
        }
        if self.blocks_max == 0 || block.len() > self.block_bytes_max || list_bytes > self.list_bytes_max {
            return;
        }
        let entry = CachedBlock { block: block.into(), head: Arc::clone(head) };
        if self.entries.len() < self.blocks_max {
            self.entries.push(entry);
        } else {
            self.entries[self.next] = entry;
            self.next = (self.next + 1) % self.blocks_max;
        }
    }

    pub(super) fn get_shaped(&mut self, shape: &Shape) -> Option<&Arc<Head>> {
        if self.shaped.get(self.last_shaped).is_none_or(|entry| *entry.fields != *shape.fields) {
            self.last_shaped = self.shaped.iter().position(|entry| *entry.fields == *shape.fields)?;
        }
        self.shaped.get(self.last_shaped).map(|entry| &entry.head)
    }

    /// Caches `head` for its shape. `list_bytes` includes the varying field.
    pub(super) fn insert_shaped(&mut self, shape: &Shape, list_bytes: usize, head: &Arc<Head>) {
        let list_bytes_max = self.list_bytes_max.min(self.head_bytes_max);
        if self.blocks_max == 0 || list_bytes + VALUE_BYTES_MAX > list_bytes_max {
            return;
        }
        let entry = ShapedHead { fields: shape.fields[..].into(), head: Arc::clone(head) };
        if self.shaped.len() < self.blocks_max {
            self.shaped.push(entry);
        } else {
            self.shaped[self.next_shaped] = entry;
            self.next_shaped = (self.next_shaped + 1) % self.blocks_max;
        }
    }

    pub(super) fn clear(&mut self) {
        self.clear_blocks();
        self.shaped = Vec::new();
        self.last_shaped = 0;
        self.next_shaped = 0;
    }

    fn clear_blocks(&mut self) {
        self.entries = Vec::new();
        self.last = 0;
        self.next = 0;
    }

    /// An upper bound of the memory held: the bytes of names and values are at most the list's.
    pub(super) fn bytes(&self) -> usize {
        let head_bytes =
            |head: &Head| self.list_bytes_max + size_of::<Head>() + size_of_val(&head.fields[..]);
        let blocks = self.entries.iter().map(|entry| entry.block.len() + head_bytes(&entry.head));
        let shaped = self.shaped.iter().map(|entry| size_of_val(&entry.fields[..]) + head_bytes(&entry.head));
        blocks.chain(shaped).sum()
    }
}
