//! Entries of the catalogue, which describe one checkpoint.
//!
//!   key                              value (every value ends in CRC-32C over key and value)
//!   "m"                              marks: the position of the state, and a digest of all other entries
//!   "b" first.main BE, first.sub BE  block: file number, offset, sizes, records, last revision, dead records
//!   "i" key                          item: the value as it was set
//!
//! Entries and marks change in one atomic update. The digest detects missing entries. It is a sum of
//! checksums, so an update needs only the entries that it changes.
//!
//! A checkpoint of 8 MiB adds some 130 block entries of 60 to 100 bytes: one batch of about 12 KiB.

use bytes::{BufMut, Bytes};

use crate::block::{Block, BlockIdentity, BlockLocation, DeadList, codec};
use crate::cursor::Cursor;
use crate::error::Error;
use crate::types::{LogPosition, Revision};

/// Version of the entries, stored in the marks of every store.
const VERSION: u32 = 1;
/// First bytes of the keys. The three kinds share a tree, because sled updates a single tree atomically
/// at low cost.
const MARKS: u8 = b'm';
const BLOCK: u8 = b'b';
const ITEM: u8 = b'i';

/// Count and sum of the checksums of some entries, independent of their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest {
    pub count: u64,
    pub sum: u64,
}

impl Digest {
    /// Adds an entry. The sum wraps. It fails to detect a missing or outdated entry once in 2^32, and does
    /// not protect against malicious changes.
    pub fn add(&mut self, crc: u32) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(u64::from(crc));
    }

    pub fn remove(&mut self, crc: u32) {
        self.count = self.count.checked_sub(1).expect("an entry is removed once");
        self.sum = self.sum.wrapping_sub(u64::from(crc));
    }
}

/// Position of the durable state, and digests of the other entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    pub applied: LogPosition,
    pub revision: i64,
    /// Minimum readable revision; -1: no limit.
    pub compact_revision: i64,
    /// Latest physically completed compaction; -1: none.
    pub compacted: i64,
    pub blocks: Digest,
    pub items: Digest,
}

impl Marks {
    /// Marks of an empty store, which is at revision 1 like in etcd.
    pub const EMPTY: Marks = Marks {
        applied: LogPosition::new(0, 0),
        revision: 1,
        compact_revision: -1,
        compacted: -1,
        blocks: Digest { count: 0, sum: 0 },
        items: Digest { count: 0, sum: 0 },
    };

    pub fn entry(&self) -> (Vec<u8>, Vec<u8>) {
        let mut value = Vec::with_capacity(80);
        value.put_u32_le(VERSION);
        value.put_u64_le(self.applied.index.0);
        value.put_u64_le(self.applied.term.0);
        value.put_i64_le(self.revision);
        value.put_i64_le(self.compact_revision);
        value.put_i64_le(self.compacted);
        for digest in [self.blocks, self.items] {
            value.put_u64_le(digest.count);
            value.put_u64_le(digest.sum);
        }
        seal(vec![MARKS], value)
    }

    /// Decodes the marks. `None` for another version, or too few bytes.
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        if cursor.u32_le()? != VERSION {
            return None;
        }
        let applied = LogPosition::new(cursor.u64_le()?, cursor.u64_le()?);
        let [revision, compact_revision, compacted] = [cursor.i64_le()?, cursor.i64_le()?, cursor.i64_le()?];
        let mut digest = || Some(Digest { count: cursor.u64_le()?, sum: cursor.u64_le()? });
        Some(Marks { applied, revision, compact_revision, compacted, blocks: digest()?, items: digest()? })
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BlockEntry {
    pub identity: BlockIdentity,
    pub file: u64,
    pub offset: u64,
    pub bytes: u32,
    pub dead: DeadList,
}

impl BlockEntry {
    /// Decodes the entry. Also rejects a last revision before the first one, and a block without a live
    /// record, which compaction never leaves.
    fn read(key: &[u8], cursor: &mut Cursor<'_>) -> Option<Self> {
        let (main, sub) = (key.get(1..9)?, key.get(9..17)?);
        let first = Revision {
            main: i64::from_be_bytes(main.try_into().ok()?),
            sub: i64::from_be_bytes(sub.try_into().ok()?),
        };
        let (file, offset, bytes) = (cursor.u64_le()?, cursor.u64_le()?, cursor.u32_le()?);
        let (raw_bytes, records) = (cursor.u32_le()?, cursor.u32_le()?);
        let last = Revision { main: cursor.i64_le()?, sub: i64::from(cursor.u32_le()?) };
        let dead = DeadList::read(cursor)?;
        let is_sane = key.len() == 17 && first <= last && dead.len() < records;
        let identity = BlockIdentity { first, last, records, raw_bytes };
        is_sane.then_some(BlockEntry { identity, file, offset, bytes, dead })
    }
}

pub(crate) fn block_key(first: Revision) -> Vec<u8> {
    let mut key = vec![BLOCK];
    key.put_i64(first.main);
    key.put_i64(first.sub);
    key
}

pub(crate) fn block_entry(block: &Block, location: &BlockLocation) -> (Vec<u8>, Vec<u8>) {
    assert!(block.dead.len() < block.identity.records, "a block without a live record is not named");
    let mut value = Vec::with_capacity(64);
    value.put_u64_le(location.number);
    value.put_u64_le(location.offset);
    value.put_u32_le(location.bytes);
    value.put_u32_le(block.identity.raw_bytes);
    value.put_u32_le(block.identity.records);
    codec::put_revision(&mut value, block.identity.last);
    block.dead.write(&mut value);
    seal(block_key(block.identity.first), value)
}

/// Returns the key of an item's entry. The prefix separates items from blocks.
pub(crate) fn item_key(key: &[u8]) -> Vec<u8> {
    [&[ITEM], key].concat()
}

pub(crate) fn item_entry(key: &[u8], value: &[u8]) -> (Vec<u8>, Vec<u8>) {
    seal(item_key(key), value.to_vec())
}

pub(crate) fn crc_of(value: &[u8]) -> u32 {
    let tail = value.last_chunk::<4>().expect("every value of the catalogue ends in its checksum");
    u32::from_le_bytes(*tail)
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CatalogueEntry {
    Marks(Marks),
    Block(BlockEntry),
    Item(Bytes, Bytes),
}

/// Decodes an entry. Any deviation from the written form is an error.
pub(crate) fn read(key: &[u8], value: &[u8]) -> Result<CatalogueEntry, Error> {
    let (content, tail) = value.split_last_chunk::<4>().ok_or_else(|| damaged("an entry is cut"))?;
    // Must precede any use of the entry.
    if u32::from_le_bytes(*tail) != checksum(key, content) {
        return Err(damaged("an entry's checksum does not match"));
    }
    let mut cursor = Cursor::new(content);
    let entry = match key.first() {
        Some(&MARKS) if key.len() == 1 => Marks::read(&mut cursor).map(CatalogueEntry::Marks),
        Some(&BLOCK) => BlockEntry::read(key, &mut cursor).map(CatalogueEntry::Block),
        Some(&ITEM) => {
            cursor.at = content.len();
            Some(CatalogueEntry::Item(Bytes::copy_from_slice(&key[1..]), Bytes::copy_from_slice(content)))
        }
        Some(_) | None => None,
    };
    entry
        .filter(|_| cursor.at == content.len())
        .ok_or_else(|| damaged("an entry is intact but not understood"))
}

pub(crate) fn damaged(what: &'static str) -> Error {
    Error::Corrupt { file: "catalogue".into(), offset: 0, what }
}

/// Appends the checksum, which covers the key too, so that a value under a wrong key is detected.
fn seal(key: Vec<u8>, mut value: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    let crc = checksum(&key, &value);
    value.put_u32_le(crc);
    (key, value)
}

fn checksum(key: &[u8], content: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks() -> Marks {
        Marks {
            applied: LogPosition::new(7, 3),
            revision: 900,
            compact_revision: 800,
            compacted: -1,
            blocks: Digest { count: 2, sum: 77 },
            items: Digest { count: 1, sum: u64::MAX },
        }
    }

    #[test]
    fn marks_and_items_read_back_as_written() {
        for marks in [marks(), Marks::EMPTY] {
            let (key, value) = marks.entry();
            assert_eq!(read(&key, &value).unwrap(), CatalogueEntry::Marks(marks));
        }
        for (item, content) in [(&b""[..], &b""[..]), (b"member/1", b"url"), (b"i", &[0; 300])] {
            let (key, value) = item_entry(item, content);
            let expected =
                CatalogueEntry::Item(Bytes::copy_from_slice(item), Bytes::copy_from_slice(content));
            assert_eq!(read(&key, &value).unwrap(), expected);
            assert_eq!(key, item_key(item));
        }
    }

    #[test]
    fn block_keys_sort_as_revisions_do() {
        let revisions = [(2, 0), (2, 1), (2, 255), (2, 256), (3, 0), (255, 9), (256, 0), (1 << 40, 3)];
        let keys: Vec<_> = revisions.iter().map(|&(main, sub)| block_key(Revision { main, sub })).collect();
        assert!(keys.is_sorted_by(|left, right| left < right));
    }

    #[test]
    fn an_intact_entry_with_invalid_contents_is_refused() {
        for (key, value) in [
            seal(b"m".to_vec(), vec![9; 84]),
            seal(b"m".to_vec(), marks().entry().1),
            seal(b"b".to_vec(), vec![0; 40]),
            seal(block_key(Revision::first_of(2)), vec![0; 44]),
            seal(b"x".to_vec(), vec![]),
            seal(vec![], vec![]),
        ] {
            let error = read(&key, &value).unwrap_err().to_string();
            assert!(error.contains("not understood"), "{error}");
        }
        assert!(read(b"m", &[1, 2]).unwrap_err().to_string().contains("cut"));
    }

    #[test]
    fn a_digest_ignores_order_and_removed_entries() {
        let (mut one, mut other) = (Digest::default(), Digest::default());
        for crc in [5, u32::MAX, 17] {
            one.add(crc);
        }
        for crc in [17, 99, 5, u32::MAX] {
            other.add(crc);
        }
        assert_ne!(one, other);
        other.remove(99);
        assert_eq!(one, other);
    }
}
