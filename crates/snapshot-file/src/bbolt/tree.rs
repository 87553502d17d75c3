//! Builds the pages of one tree from sorted keys, leaves first.
//!
//! ```text
//!   add key ──▶ leaf ──full──▶ page ──(first key, page)──▶ branch ──full──▶ page ──▶ next level …
//! ```
//!
//! * A page is closed when the next element would exceed the page size. A larger element has a leaf to
//!   itself and continues in overflow pages. A branch has at least two children, except the last branch
//!   of a level.
//! * Keys ascend. Pages are numbered in closing order, so children precede their parents.
//! * Page boundaries depend on sizes only, so planning and writing share this code.

use super::format::{BRANCH, ELEMENT_BYTES, KEY_BYTES_MAX, LEAF, PAGE_BYTES, PAGE_HEADER_BYTES, PageHeader};
use super::format::{IS_BUCKET, VALUE_BYTES_MAX};

/// Page allocator and output.
pub(crate) struct Pages {
    pub next: u64,
    /// Output; `None` while planning, which only counts pages.
    pub out: Option<Vec<u8>>,
}

impl Pages {
    /// Numbers and writes a page. Returns its number.
    fn close(&mut self, flags: u16, page: &mut OpenPage) -> u64 {
        let (id, bytes) = (self.next, page.bytes());
        let pages = bytes.div_ceil(PAGE_BYTES).max(1);
        self.next += pages as u64;
        let overflow = u32::try_from(pages - 1).expect("an element is smaller than 2^32 pages");
        let count = u16::try_from(page.count).expect("elements of 16 bytes on a page");
        if let Some(out) = &mut self.out {
            PageHeader { id, flags, count, overflow }.write(out);
            page.write_elements(flags, out);
            out.extend_from_slice(&page.contents);
            out.resize(out.len() + pages * PAGE_BYTES - bytes, 0);
        }
        page.clear();
        id
    }
}

/// A value, or only its length while planning.
#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    Length(usize),
    Bytes(&'a [u8]),
}

impl Value<'_> {
    fn len(&self) -> usize {
        match self {
            Value::Length(length) => *length,
            Value::Bytes(bytes) => bytes.len(),
        }
    }
}

/// A page under construction. Planning tracks its sizes only.
#[derive(Default)]
struct OpenPage {
    first_key: Vec<u8>,
    count: usize,
    content_bytes: usize,
    elements: Vec<Element>,
    contents: Vec<u8>,
}

struct Element {
    key_bytes: u32,
    /// Flags and value length of a leaf element.
    flags: u32,
    value_bytes: u32,
    child: u64,
}

impl OpenPage {
    fn bytes(&self) -> usize {
        PAGE_HEADER_BYTES + self.count * ELEMENT_BYTES + self.content_bytes
    }

    fn is_room_for(&self, key: &[u8], value_bytes: usize) -> bool {
        self.bytes() + ELEMENT_BYTES + key.len() + value_bytes <= PAGE_BYTES
    }

    fn count_in(&mut self, key: &[u8], value_bytes: usize) {
        if self.count == 0 {
            self.first_key.extend_from_slice(key);
        }
        self.count += 1;
        self.content_bytes += key.len() + value_bytes;
    }

    fn write_elements(&self, flags: u16, out: &mut Vec<u8>) {
        let mut at = 0_usize;
        for (number, element) in self.elements.iter().enumerate() {
            let pos = (self.count - number) * ELEMENT_BYTES + at;
            let pos = u32::try_from(pos).expect("a key begins on the page");
            if flags == BRANCH {
                out.extend_from_slice(&pos.to_le_bytes());
                out.extend_from_slice(&element.key_bytes.to_le_bytes());
                out.extend_from_slice(&element.child.to_le_bytes());
            } else {
                for number in [element.flags, pos, element.key_bytes, element.value_bytes] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
            }
            at += element.key_bytes as usize + element.value_bytes as usize;
        }
    }

    fn clear(&mut self) {
        self.first_key.clear();
        (self.count, self.content_bytes) = (0, 0);
        self.elements.clear();
        self.contents.clear();
    }
}

#[derive(Default)]
pub(crate) struct Tree {
    leaf: OpenPage,
    /// Open branches, from level 1 upwards.
    branches: Vec<OpenPage>,
    last_key: Vec<u8>,
}

#[derive(Clone, Copy)]
pub(crate) enum ValueKind {
    Plain,
    Bucket,
}

impl Tree {
    pub fn add(&mut self, pages: &mut Pages, key: &[u8], value: Value<'_>, kind: ValueKind) {
        assert!(!key.is_empty() && key.len() <= KEY_BYTES_MAX, "a key of 1 to {KEY_BYTES_MAX} bytes");
        assert!(value.len() <= VALUE_BYTES_MAX, "a value of at most {VALUE_BYTES_MAX} bytes");
        assert!(self.last_key.is_empty() || self.last_key.as_slice() < key, "keys ascend");
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        if self.leaf.count > 0 && !self.leaf.is_room_for(key, value.len()) {
            self.close_leaf(pages);
        }
        self.leaf.count_in(key, value.len());
        if let Value::Bytes(bytes) = value {
            let flags = match kind {
                ValueKind::Plain => 0,
                ValueKind::Bucket => IS_BUCKET,
            };
            let (key_bytes, value_bytes) = (key.len() as u32, bytes.len() as u32);
            self.leaf.elements.push(Element { key_bytes, flags, value_bytes, child: 0 });
            self.leaf.contents.extend_from_slice(key);
            self.leaf.contents.extend_from_slice(bytes);
        }
    }

    /// Closes all pages and returns the number of the root. A tree without keys is an empty leaf.
    pub fn finish(mut self, pages: &mut Pages) -> u64 {
        if self.branches.is_empty() {
            return pages.close(LEAF, &mut self.leaf);
        }
        self.close_leaf(pages);
        let mut level = 0;
        loop {
            let mut branch = std::mem::take(&mut self.branches[level]);
            let first_key = branch.first_key.clone();
            let id = pages.close(BRANCH, &mut branch);
            level += 1;
            if level == self.branches.len() {
                return id;
            }
            self.add_child(pages, level, &first_key, id);
        }
    }

    fn close_leaf(&mut self, pages: &mut Pages) {
        let first_key = std::mem::take(&mut self.leaf.first_key);
        let id = pages.close(LEAF, &mut self.leaf);
        self.add_child(pages, 0, &first_key, id);
    }

    /// Adds a closed page to its parent branch.
    fn add_child(&mut self, pages: &mut Pages, level: usize, first_key: &[u8], child: u64) {
        if level == self.branches.len() {
            self.branches.push(OpenPage::default());
        }
        if self.branches[level].count >= 2 && !self.branches[level].is_room_for(first_key, 0) {
            let key = std::mem::take(&mut self.branches[level].first_key);
            let id = pages.close(BRANCH, &mut self.branches[level]);
            self.add_child(pages, level + 1, &key, id);
        }
        let branch = &mut self.branches[level];
        branch.count_in(first_key, 0);
        if pages.out.is_some() {
            let key_bytes = first_key.len() as u32;
            branch.elements.push(Element { key_bytes, flags: 0, value_bytes: 0, child });
            branch.contents.extend_from_slice(first_key);
        }
    }
}
