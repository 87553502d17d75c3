//! Decoded heads by the bytes of their header blocks.
//!
//! A client repeats the few blocks of the methods it calls, and in its steady state they only refer to
//! tables. Such a block has one meaning as long as the dynamic table does not change. The cache holds blocks
//! of one version of the table, and is empty again when the version changes.

use std::sync::Arc;

use crate::head::Head;
use crate::limits::Limits;

#[derive(Debug)]
pub(super) struct BlockCache {
    version: u64,
    entries: Vec<Entry>,
    /// Where the last hit was, so that a client with one method costs one comparison.
    last: usize,
    /// The next entry to replace.
    next: usize,
    blocks_max: usize,
    block_bytes_max: usize,
    list_bytes_max: usize,
}

#[derive(Debug)]
struct Entry {
    block: Box<[u8]>,
    head: Arc<Head>,
}

impl BlockCache {
    pub(super) fn new(limits: &Limits) -> BlockCache {
        BlockCache {
            version: 0,
            entries: Vec::new(),
            last: 0,
            next: 0,
            blocks_max: limits.cached_blocks_max,
            block_bytes_max: limits.cached_block_bytes_max,
            list_bytes_max: limits.cached_list_bytes_max,
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

    /// `block` left the table at `version`, and has `list_bytes` of fields.
    pub(super) fn insert(&mut self, version: u64, block: &[u8], list_bytes: usize, head: &Arc<Head>) {
        if self.version != version {
            self.clear();
            self.version = version;
        }
        if self.blocks_max == 0 || block.len() > self.block_bytes_max || list_bytes > self.list_bytes_max {
            return;
        }
        let entry = Entry { block: block.into(), head: Arc::clone(head) };
        if self.entries.len() < self.blocks_max {
            self.entries.push(entry);
        } else {
            self.entries[self.next] = entry;
            self.next = (self.next + 1) % self.blocks_max;
        }
    }

    pub(super) fn clear(&mut self) {
        self.entries = Vec::new();
        self.last = 0;
        self.next = 0;
    }

    /// An upper bound of the memory held: the bytes of names and values are at most the list's.
    pub(super) fn bytes(&self) -> usize {
        let entry_bytes = |entry: &Entry| {
            entry.block.len() + self.list_bytes_max + size_of::<Head>() + size_of_val(&entry.head.fields[..])
        };
        self.entries.iter().map(entry_bytes).sum()
    }
}
