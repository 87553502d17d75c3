//! Superseded records that are still in a block, as packed deltas between revisions.
//!
//! A block is rewritten only when most of its records are dead. Until then the catalogue lists the dead
//! records, because the index is rebuilt from blocks. Without the list a deleted key would reappear if
//! its put is in a retained block, and its tombstone in a rewritten one.
//!
//! Example: revisions 100.0 101.0 101.1 105.0 are packed as (100,0) (1,0) (0,1) (4,0), usually two
//! bytes each. `sub` is not a delta, because it starts at 0 for every main revision.

use bytes::BufMut;

use crate::cursor::{Cursor, put_varint};
use crate::types::Revision;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeadList {
    len: u32,
    packed: Box<[u8]>,
}

impl DeadList {
    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn packed_bytes(&self) -> u64 {
        self.packed.len() as u64
    }

    pub fn pack(revisions: &[Revision]) -> Self {
        let mut packed = Vec::with_capacity(revisions.len() * 2);
        let mut before = Revision { main: 0, sub: 0 };
        for revision in revisions {
            assert!(*revision > before, "dead records ascend");
            put_varint(&mut packed, (revision.main - before.main) as u64);
            put_varint(&mut packed, revision.sub as u64);
            before = *revision;
        }
        let len = u32::try_from(revisions.len()).expect("fewer than the records of a block");
        DeadList { len, packed: packed.into_boxed_slice() }
    }

    /// Returns all revisions in ascending order: at most a few thousand, which callers drop after one
    /// block.
    pub fn unpack(&self) -> Vec<Revision> {
        Self::decode(self.len, &self.packed).expect("packed by this type, or checked by `read`")
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        out.put_u32_le(self.len);
        out.put_slice(&self.packed);
    }

    /// Reads the packed form from the rest of `cursor`. `None` if it is not a valid list.
    pub fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        let len = cursor.u32_le()?;
        let packed = cursor.take(cursor.bytes.len() - cursor.at)?;
        Self::decode(len, packed)?;
        Some(DeadList { len, packed: packed.into() })
    }

    /// Decodes `len` deltas, which must take all bytes.
    fn decode(len: u32, packed: &[u8]) -> Option<Vec<Revision>> {
        let mut cursor = Cursor::new(packed);
        // A record takes at least two bytes, so a wrong length cannot cause a large allocation.
        let mut revisions = Vec::with_capacity((len as usize).min(packed.len() / 2));
        let mut before = Revision { main: 0, sub: 0 };
        for _ in 0..len {
            let main = before.main.checked_add_unsigned(cursor.varint()?)?;
            let revision = Revision { main, sub: i64::try_from(cursor.varint()?).ok()? };
            if revision <= before {
                return None;
            }
            revisions.push(revision);
            before = revision;
        }
        (cursor.at == packed.len()).then_some(revisions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revisions(pairs: &[(i64, i64)]) -> Vec<Revision> {
        pairs.iter().map(|&(main, sub)| Revision { main, sub }).collect()
    }

    #[test]
    fn a_list_unpacks_and_reads_back_as_it_was_packed() {
        for pairs in [&[][..], &[(2, 0)], &[(2, 0), (2, 1), (3, 0)], &[(2, 7), (900, 3), (i64::MAX, 0)]] {
            let list = DeadList::pack(&revisions(pairs));
            assert_eq!(list.unpack(), revisions(pairs));
            assert_eq!(list.len() as usize, pairs.len());
            let mut written = Vec::new();
            list.write(&mut written);
            assert_eq!(DeadList::read(&mut Cursor::new(&written)), Some(list));
        }
    }

    #[test]
    fn bytes_that_are_no_list_are_refused() {
        for bytes in
            [&[][..], &[1, 0, 0, 0], &[1, 0, 0, 0, 0, 0], &[2, 0, 0, 0, 5, 1, 0, 1], &[0, 0, 0, 0, 9]]
        {
            assert_eq!(DeadList::read(&mut Cursor::new(bytes)), None, "{bytes:?}");
        }
    }

    #[test]
    fn neighbouring_revisions_take_two_bytes() {
        let list = DeadList::pack(&revisions(&[(1000, 0), (1001, 0), (1002, 0)]));
        assert!(list.packed.len() <= 2 + 3 * 2);
    }
}
