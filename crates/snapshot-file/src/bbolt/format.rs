//! Constants and layouts of the file. All integers are little endian.
//!
//! ```text
//!   page     id u64 │ flags u16 │ count u16 │ overflow u32 │ elements │ keys and values
//!   leaf     flags u32 │ pos u32 │ key bytes u32 │ value bytes u32         one element
//!   branch   pos u32 │ key bytes u32 │ page u64                            one element
//!   bucket   root page u64 │ sequence u64 │ [a page, if root is 0]       the value of a bucket's element
//!   meta     magic u32 │ version u32 │ page bytes u32 │ flags u32 │ root bucket │ freelist u64 │ pages u64
//!            │ txid u64 │ FNV-1a u64
//! ```
//!
//! `pos` is the offset of the key from the start of its element; a value follows its key. Content
//! larger than a page continues in `overflow` pages, which have no header.

/// Page size of written files: the size on x86-64, and of every file that etcd writes there.
pub const PAGE_BYTES: usize = 4096;
/// Longest key that bbolt accepts.
pub const KEY_BYTES_MAX: usize = 32768;
/// Longest value that bbolt accepts.
pub const VALUE_BYTES_MAX: usize = (1 << 31) - 2;

pub(crate) const PAGE_HEADER_BYTES: usize = 16;
pub(crate) const ELEMENT_BYTES: usize = 16;
pub(crate) const BUCKET_BYTES: usize = 16;
pub(crate) const META_BYTES: usize = 64;

pub(crate) const BRANCH: u16 = 0x01;
pub(crate) const LEAF: u16 = 0x02;
pub(crate) const META: u16 = 0x04;
pub(crate) const FREELIST: u16 = 0x10;

/// Leaf element flag: the value is a bucket.
pub(crate) const IS_BUCKET: u32 = 0x01;
/// Marks a file without a freelist.
const NO_FREELIST: u64 = u64::MAX;
/// Number of meta pages: pages 0 and 1.
pub(crate) const META_PAGES: u64 = 2;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageHeader {
    pub id: u64,
    pub flags: u16,
    pub count: u16,
    pub overflow: u32,
}

impl PageHeader {
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.flags.to_le_bytes());
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.overflow.to_le_bytes());
    }

    pub fn read(bytes: &[u8; PAGE_HEADER_BYTES]) -> Self {
        let id = u64_at(bytes, 0);
        let flags = u16::from_le_bytes([bytes[8], bytes[9]]);
        let count = u16::from_le_bytes([bytes[10], bytes[11]]);
        PageHeader { id, flags, count, overflow: u32_at(bytes, 12) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub page_bytes: u32,
    pub root: u64,
    pub freelist: u64,
    /// Number of pages that may be in use.
    pub pages: u64,
    /// Transaction number. The valid meta page with the larger number is current.
    pub txid: u64,
}

impl Meta {
    pub fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        for number in [MAGIC, VERSION, self.page_bytes, 0] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.root, 0, self.freelist, self.pages, self.txid] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let checksum = fnv_1a(&out[start..]);
        out.extend_from_slice(&checksum.to_le_bytes());
    }

    /// Decodes a meta page, or returns `None` if it is invalid.
    pub fn read(bytes: &[u8; META_BYTES]) -> Option<Self> {
        let is_bbolt = u32_at(bytes, 0) == MAGIC && u32_at(bytes, 4) == VERSION;
        if !is_bbolt || u64_at(bytes, 56) != fnv_1a(&bytes[..56]) {
            return None;
        }
        Some(Meta {
            page_bytes: u32_at(bytes, 8),
            root: u64_at(bytes, 16),
            freelist: u64_at(bytes, 32),
            pages: u64_at(bytes, 40),
            txid: u64_at(bytes, 48),
        })
    }

    /// Reports whether the page numbers are consistent.
    pub fn is_sane(&self) -> bool {
        let is_page = |page| (META_PAGES..self.pages).contains(&page);
        is_page(self.root) && (self.freelist == NO_FREELIST || is_page(self.freelist))
    }
}

/// Reads an integer. The caller has checked the length of `bytes`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("checked by the caller"))
}

/// Reads an integer. The caller has checked the length of `bytes`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("checked by the caller"))
}

fn fnv_1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_fnv_1a() {
        assert_eq!(fnv_1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv_1a(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_meta_page_reads_back_and_any_changed_byte_is_found() {
        let meta = Meta { page_bytes: 4096, root: 3, freelist: 2, pages: 4, txid: 1 };
        let mut bytes = Vec::new();
        meta.write(&mut bytes);
        let bytes: [u8; META_BYTES] = bytes.try_into().unwrap();
        assert_eq!(Meta::read(&bytes), Some(meta));
        for at in 0..META_BYTES {
            let mut changed = bytes;
            changed[at] ^= 1;
            assert_eq!(Meta::read(&changed), None, "byte {at}");
        }
    }
}
