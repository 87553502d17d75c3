//! Byte source, errors, and pages that are validated before their contents are used.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::format::{BRANCH, ELEMENT_BYTES, IS_BUCKET, LEAF, META_PAGES, PAGE_HEADER_BYTES, PageHeader};
use super::format::{u32_at, u64_at};

pub type Result<T> = std::result::Result<T, Error>;

/// Faults of a file, and I/O errors.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not a bbolt file: neither of its meta pages is valid")]
    NoMeta,
    #[error("page {page}: {what}")]
    Page { page: u64, what: &'static str },
    #[error("page {page}: the file ends at byte {bytes}, and has {pages} pages according to its meta page")]
    Truncated { page: u64, bytes: u64, pages: u64 },
    #[error("read page {page}")]
    Io { page: u64, source: io::Error },
}

impl Error {
    pub(crate) fn page(page: u64, what: &'static str) -> Self {
        Error::Page { page, what }
    }
}

/// Random-access source of bytes.
pub trait PageSource {
    /// Fills `buffer` from `offset`.
    ///
    /// Errors: `UnexpectedEof` if the source is too short.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

impl PageSource for File {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }
}

impl PageSource for [u8] {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)?.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl<S: PageSource + ?Sized> PageSource for &S {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_exact_at(buffer, offset)
    }
}

/// Maximum size of a branch with its overflow pages, which limits a reader's memory per level of a
/// corrupt file. bbolt splits a branch that is larger than a page and has four keys, so it takes at
/// most 128 KiB and a page.
const BRANCH_BYTES_MAX: u64 = 1 << 20;
/// Maximum size of a leaf with its overflow pages; larger ones are rejected to limit a reader's memory.
/// bbolt splits a leaf that is larger than a page and has more than four keys. This allows four values
/// of 64 MiB, 40 times etcd's default limit.
const LEAF_BYTES_MAX: u64 = 256 << 20;

#[derive(Clone, Copy, Debug)]
pub(crate) struct PageExtent {
    pub page_bytes: u64,
    pub pages: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageKind {
    Branch,
    Leaf,
}

/// A leaf or branch with its overflow pages.
#[derive(Debug)]
pub(crate) struct Page {
    pub id: u64,
    pub kind: PageKind,
    pub count: usize,
    /// Number of pages, including overflow.
    pub pages: u64,
    bytes: Vec<u8>,
}

impl Page {
    /// Reads a page into `buffer` and validates its header.
    pub fn read<S: PageSource>(source: &S, extent: PageExtent, id: u64, mut buffer: Vec<u8>) -> Result<Self> {
        if !(META_PAGES..extent.pages).contains(&id) {
            return Err(Error::page(id, "referred to, but not a page of the file"));
        }
        let read = |buffer: &mut [u8], skipped: usize| {
            let offset = id * extent.page_bytes + skipped as u64;
            source.read_exact_at(buffer, offset).map_err(|source| Error::Io { page: id, source })
        };
        let first_bytes = extent.page_bytes as usize; // At most 64 KiB.
        buffer.resize(first_bytes, 0);
        read(&mut buffer, 0)?;
        let header = buffer.first_chunk().expect("a page is larger than its header");
        let PageHeader { id: own, flags, count, overflow } = PageHeader::read(header);
        if own != id {
            return Err(Error::page(id, "has the number of another page"));
        }
        let pages = u64::from(overflow) + 1;
        if pages > extent.pages - id {
            return Err(Error::page(id, "continues after the last page"));
        }
        let bytes = pages * extent.page_bytes;
        let kind = match flags {
            BRANCH if bytes > BRANCH_BYTES_MAX.max(extent.page_bytes) => {
                return Err(Error::page(id, "a branch that is too large"));
            }
            BRANCH => PageKind::Branch,
            LEAF if bytes > LEAF_BYTES_MAX => return Err(Error::page(id, "a leaf that is too large")),
            LEAF => PageKind::Leaf,
            _ => return Err(Error::page(id, "neither a branch nor a leaf")),
        };
        // The file has these bytes: `open` compared its length with the number of pages.
        buffer.resize(usize::try_from(bytes).expect("below the bounds above"), 0);
        read(&mut buffer[first_bytes..], first_bytes)?;
        Self::of(id, kind, count, pages, buffer)
    }

    /// Parses the page of an inline bucket. `id` is the page that contains the bucket.
    pub fn inline(id: u64, bytes: &[u8]) -> Result<Self> {
        let header = bytes.first_chunk().ok_or(Error::page(id, "an inline bucket is cut"))?;
        let PageHeader { flags, count, overflow, .. } = PageHeader::read(header);
        if flags != LEAF || overflow != 0 {
            return Err(Error::page(id, "an inline bucket is not one leaf"));
        }
        Self::of(id, PageKind::Leaf, count, 0, bytes.to_vec())
    }

    fn of(id: u64, kind: PageKind, count: u16, pages: u64, bytes: Vec<u8>) -> Result<Self> {
        let count = usize::from(count);
        if PAGE_HEADER_BYTES + count * ELEMENT_BYTES > bytes.len() {
            return Err(Error::page(id, "has more elements than fit on it"));
        }
        if kind == PageKind::Branch && count == 0 {
            return Err(Error::page(id, "a branch without a child"));
        }
        Ok(Page { id, kind, count, pages, bytes })
    }

    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }

    pub fn child(&self, number: usize) -> Result<(&[u8], u64)> {
        let at = PAGE_HEADER_BYTES + number * ELEMENT_BYTES;
        let key = self.range(at, u32_at(&self.bytes, at), u32_at(&self.bytes, at + 4))?;
        Ok((self.key(key)?, u64_at(&self.bytes, at + 8)))
    }

    /// Returns key and value of a leaf element, and whether the value is a bucket.
    pub fn pair(&self, number: usize) -> Result<(&[u8], &[u8], bool)> {
        let at = PAGE_HEADER_BYTES + number * ELEMENT_BYTES;
        let [flags, pos, key_bytes, value_bytes] =
            [0, 4, 8, 12].map(|offset| u32_at(&self.bytes, at + offset));
        let key = self.range(at, pos, key_bytes)?;
        let value = self.range(key.end, 0, value_bytes)?;
        Ok((self.key(key)?, &self.bytes[value], flags & IS_BUCKET != 0))
    }

    /// Returns the range of `length` bytes at `pos` after `base`. It must lie after the elements.
    fn range(&self, base: usize, pos: u32, length: u32) -> Result<Range<usize>> {
        let start = base + pos as usize;
        let end = start + length as usize;
        let first = PAGE_HEADER_BYTES + self.count * ELEMENT_BYTES;
        if start < first || end > self.bytes.len() {
            return Err(Error::page(self.id, "a key or value is not inside of it"));
        }
        Ok(start..end)
    }

    fn key(&self, range: Range<usize>) -> Result<&[u8]> {
        if range.is_empty() {
            return Err(Error::page(self.id, "an empty key"));
        }
        Ok(&self.bytes[range])
    }
}
