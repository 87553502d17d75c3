//! Opens a file and finds its buckets.

use super::cursor::{BucketCursor, TreeWalk};
use super::format::{BUCKET_BYTES, META_BYTES, Meta, PAGE_HEADER_BYTES, u64_at};
use super::page::{Error, Page, PageExtent, PageSource, Result};

/// Supported page sizes: those of etcd's platforms.
const PAGE_BYTES: std::ops::RangeInclusive<u32> = 1 << 10..=1 << 16;
/// Maximum number of buckets, because their names are held in memory. etcd has ten.
const BUCKETS_MAX: usize = 1024;
/// Maximum total size of inline buckets. bbolt inlines buckets smaller than a quarter of a page.
const INLINE_BYTES_MAX: usize = 1 << 20;

/// A file open for reading.
#[derive(Debug)]
pub struct Database<S> {
    source: S,
    extent: PageExtent,
    root: u64,
}

/// A bucket of the file.
#[derive(Debug)]
pub struct Bucket {
    name: Vec<u8>,
    root: Root,
}

#[derive(Debug)]
pub(crate) enum Root {
    Page(u64),
    /// The page that contains the bucket, and the bucket's own page.
    Inline(u64, Vec<u8>),
}

impl Bucket {
    pub fn name(&self) -> &[u8] {
        &self.name
    }
}

impl<S: PageSource> Database<S> {
    /// Opens a file of `bytes` bytes. Reads the meta pages only.
    ///
    /// Errors: `NoMeta` if it is not a bbolt file, `Truncated` if it is shorter than the meta page
    /// requires.
    pub fn open(source: S, bytes: u64) -> Result<Self> {
        let meta = newest_meta(&source, bytes)?.ok_or(Error::NoMeta)?;
        if !meta.is_sane() {
            return Err(Error::page(meta.txid % 2, "its numbers do not fit together"));
        }
        let page_bytes = u64::from(meta.page_bytes);
        let pages = meta.pages;
        if pages > bytes / page_bytes {
            return Err(Error::Truncated { page: bytes / page_bytes, bytes, pages });
        }
        Ok(Database { source, extent: PageExtent { page_bytes, pages }, root: meta.root })
    }

    /// Returns the buckets, by name.
    pub fn buckets(&self) -> Result<Vec<Bucket>> {
        let mut walk = TreeWalk::new(&self.source, self.extent, self.root)?;
        let (mut buckets, mut inline_bytes) = (Vec::new(), 0);
        while let Some((page, name, value, is_bucket)) = walk.next_pair()? {
            if !is_bucket {
                return Err(Error::page(page, "a key outside of every bucket"));
            }
            if buckets.len() == BUCKETS_MAX {
                return Err(Error::page(page, "too many buckets"));
            }
            if value.len() < BUCKET_BYTES {
                return Err(Error::page(page, "a bucket is cut"));
            }
            let root = match u64_at(value, 0) {
                0 => {
                    inline_bytes += value.len();
                    if inline_bytes > INLINE_BYTES_MAX {
                        return Err(Error::page(page, "inline buckets are too large"));
                    }
                    Root::Inline(page, value[BUCKET_BYTES..].to_vec())
                }
                root => Root::Page(root),
            };
            buckets.push(Bucket { name: name.to_vec(), root });
        }
        Ok(buckets)
    }

    /// Returns a cursor over all keys and values of a bucket.
    pub fn cursor(&self, bucket: &Bucket) -> Result<BucketCursor<'_, S>> {
        let walk = match &bucket.root {
            Root::Page(root) => TreeWalk::new(&self.source, self.extent, *root)?,
            Root::Inline(page, bytes) => {
                TreeWalk::inline(&self.source, self.extent, Page::inline(*page, bytes)?)
            }
        };
        Ok(BucketCursor::new(walk))
    }
}

/// Returns the valid meta page with the largest transaction number. The second page starts at the page
/// size, so all page sizes are tried if the first page is invalid.
fn newest_meta<S: PageSource>(source: &S, bytes: u64) -> Result<Option<Meta>> {
    let first = meta_at(source, bytes, 0)?;
    let mut newest = first;
    let sizes = (0..).map(|shift| PAGE_BYTES.start() << shift).take_while(|size| PAGE_BYTES.contains(size));
    for size in sizes.filter(|size| first.is_none_or(|first| first.page_bytes == *size)) {
        let second = meta_at(source, bytes, u64::from(size))?.filter(|meta| meta.page_bytes == size);
        newest = newest.into_iter().chain(second).max_by_key(|meta| meta.txid);
    }
    Ok(newest)
}

/// Reads the meta page at `offset`, if it is valid.
fn meta_at<S: PageSource>(source: &S, bytes: u64, offset: u64) -> Result<Option<Meta>> {
    const BYTES: usize = PAGE_HEADER_BYTES + META_BYTES;
    if bytes < offset + BYTES as u64 {
        return Ok(None);
    }
    let mut page = [0; BYTES];
    source.read_exact_at(&mut page, offset).map_err(|source| Error::Io { page: offset.min(1), source })?;
    let meta = Meta::read(page.last_chunk().expect("a meta follows the header"));
    Ok(meta.filter(|meta| PAGE_BYTES.contains(&meta.page_bytes) && meta.page_bytes.is_power_of_two()))
}
