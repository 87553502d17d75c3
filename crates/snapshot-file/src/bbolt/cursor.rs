//! Ordered iteration over the keys of a bucket.
//!
//! * Keys must ascend strictly, across pages too. A key must lie within the range that its branch gives
//!   for the page; otherwise a search in bbolt would not find it.
//! * The walk counts the pages read. If it reads more pages than the file has, a page was reached
//!   twice, perhaps in a cycle, and the walk fails.
//! * Memory: a page per level, recycled page buffers, and a key.

use super::page::{Error, Page, PageExtent, PageKind, PageSource, Result};

/// Maximum height of a tree. A branch has at least two children, so a valid tree of 2^32 pages has 32
/// levels.
const LEVELS_MAX: usize = 32;

/// Keys and values of a bucket.
pub struct BucketCursor<'s, S>(TreeWalk<'s, S>);

impl<'s, S: PageSource> BucketCursor<'s, S> {
    pub(crate) fn new(walk: TreeWalk<'s, S>) -> Self {
        BucketCursor(walk)
    }

    /// Returns the next key and its value, or `None` after the last one. Must not be called after an error.
    pub fn next_pair(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        match self.0.next_pair()? {
            Some((page, _, _, true)) => Err(Error::page(page, "a bucket inside of a bucket")),
            Some((_, key, value, false)) => Ok(Some((key, value))),
            None => Ok(None),
        }
    }
}

pub(crate) struct TreeWalk<'s, S> {
    source: &'s S,
    extent: PageExtent,
    /// Path of branches to the leaf, each with the index of its next child and the end of its key range.
    branches: Vec<BranchLevel>,
    leaf: Option<Page>,
    next: usize,
    /// Key range of the leaf, from `from` inclusive to `before` exclusive.
    from: Vec<u8>,
    before: Option<Vec<u8>>,
    last: Vec<u8>,
    pages_read: u64,
}

struct BranchLevel {
    page: Page,
    next: usize,
    before: Option<Vec<u8>>,
}

/// Page, key, value, and whether the value is a bucket.
type FoundItem<'w> = (u64, &'w [u8], &'w [u8], bool);

impl<'s, S: PageSource> TreeWalk<'s, S> {
    pub fn new(source: &'s S, extent: PageExtent, root: u64) -> Result<Self> {
        let mut walk = Self::empty(source, extent);
        walk.descend(root, Vec::new(), None)?;
        Ok(walk)
    }

    pub fn inline(source: &'s S, extent: PageExtent, leaf: Page) -> Self {
        TreeWalk { leaf: Some(leaf), ..Self::empty(source, extent) }
    }

    fn empty(source: &'s S, extent: PageExtent) -> Self {
        let (branches, from, last) = (Vec::new(), Vec::new(), Vec::new());
        TreeWalk { source, extent, branches, leaf: None, next: 0, from, before: None, last, pages_read: 0 }
    }

    pub fn next_pair(&mut self) -> Result<Option<FoundItem<'_>>> {
        while self.leaf.as_ref().is_none_or(|leaf| self.next == leaf.count) {
            if !self.advance()? {
                return Ok(None);
            }
        }
        let leaf = self.leaf.as_ref().expect("advanced to a leaf");
        let (key, value, is_bucket) = leaf.pair(self.next)?;
        // Check the key against the range of the leaf and against the previous key.
        let is_ordered = (self.last.is_empty() || self.last.as_slice() < key)
            && self.from.as_slice() <= key
            && self.before.as_ref().is_none_or(|before| key < before.as_slice());
        if !is_ordered {
            return Err(Error::page(leaf.id, "keys do not ascend"));
        }
        self.last.clear();
        self.last.extend_from_slice(key);
        self.next += 1;
        Ok(Some((leaf.id, key, value, is_bucket)))
    }

    /// Moves to the next leaf; returns false if there is none.
    fn advance(&mut self) -> Result<bool> {
        while let Some(level) = self.branches.last_mut() {
            if level.next == level.page.count {
                self.branches.pop();
                continue;
            }
            let (key, child) = level.page.child(level.next)?;
            let key = key.to_vec();
            level.next += 1;
            let before = match level.next < level.page.count {
                true => Some(level.page.child(level.next)?.0.to_vec()),
                false => level.before.clone(),
            };
            if before.as_ref().is_some_and(|before| *before <= key) {
                return Err(Error::page(level.page.id, "keys do not ascend"));
            }
            self.descend(child, key, before)?;
            return Ok(true);
        }
        self.leaf = None;
        Ok(false)
    }

    /// Descends to the first leaf below `id`, with keys in `from..before`.
    fn descend(&mut self, mut id: u64, mut from: Vec<u8>, mut before: Option<Vec<u8>>) -> Result<()> {
        let mut buffer = self.leaf.take().map(Page::into_buffer).unwrap_or_default();
        loop {
            let page = Page::read(self.source, self.extent, id, std::mem::take(&mut buffer))?;
            self.pages_read += page.pages;
            if self.pages_read > self.extent.pages {
                return Err(Error::page(id, "reached twice"));
            }
            if page.kind == PageKind::Leaf {
                (self.leaf, self.next, self.from, self.before) = (Some(page), 0, from, before);
                return Ok(());
            }
            if self.branches.len() == LEVELS_MAX {
                return Err(Error::page(id, "too many levels of branches"));
            }
            let (key, child) = page.child(0)?;
            if key < from.as_slice() {
                return Err(Error::page(id, "keys do not ascend"));
            }
            let first = key.to_vec();
            let next = match page.count > 1 {
                true => Some(page.child(1)?.0.to_vec()),
                false => before.clone(),
            };
            if next.as_ref().is_some_and(|next| *next <= first) {
                return Err(Error::page(id, "keys do not ascend"));
            }
            self.branches.push(BranchLevel { page, next: 1, before });
            (id, from, before) = (child, first, next);
        }
    }
}
