//! Splits large values of the catalogue into parts.
//!
//!   K                     first 4 KiB of the value
//!   00 70 K 0001 (BE)     next 4 KiB
//!   00 70 K 0002          …
//!
//! sled stores up to some twenty entries in a leaf node and writes nodes as a whole. A node above a
//! quarter of a segment (128 KiB) is written to a separate file in `blobs/`, which sled never syncs.
//! Parts and keys are small enough that every node stays below that.
//!
//! * All parts of a value change in one batch.
//! * A value that fits into one part is stored unchanged. A missing part is detected by the checksum at
//!   the end of the value.

use std::collections::BTreeMap;

use super::OWN;

/// Size of a part. A node has 17 entries before it splits, and three more after a merge: some 90 KiB.
pub(super) const PART_BYTES: usize = 4 << 10;
/// Maximum size of a key: an inner node holds some 256 of them.
pub(super) const KEY_BYTES_MAX: usize = 300;
const PREFIX: [u8; 2] = [OWN, b'p'];

/// Number of further parts, for keys that have any.
#[derive(Debug, Default)]
pub(super) struct ValueParts(BTreeMap<Vec<u8>, u16>);

impl ValueParts {
    pub fn keys() -> std::ops::Range<[u8; 2]> {
        PREFIX..[OWN, PREFIX[1] + 1]
    }

    pub fn put(&mut self, batch: &mut sled::Batch, key: Vec<u8>, value: &[u8]) {
        assert!(key.len() <= KEY_BYTES_MAX, "a key that makes sled's nodes too large");
        let mut parts = value.chunks(PART_BYTES);
        batch.insert(key.as_slice(), parts.next().unwrap_or_default());
        let mut count = 0;
        for piece in parts {
            count += 1;
            batch.insert(part_key(&key, count), piece);
        }
        self.remove_from(batch, &key, count + 1);
        if count > 0 {
            self.0.insert(key, count);
        }
    }

    pub fn remove(&mut self, batch: &mut sled::Batch, key: &[u8]) {
        batch.remove(key);
        self.remove_from(batch, key, 1);
    }

    /// Appends a part read from the catalogue to its entry in `entries`. Parts arrive in key order. `None`
    /// if the part does not continue an entry.
    pub fn join(&mut self, entries: &mut BTreeMap<Vec<u8>, Vec<u8>>, key: &[u8], piece: &[u8]) -> Option<()> {
        let (key, number) = key.strip_prefix(&PREFIX)?.split_last_chunk::<2>()?;
        let value = entries.get_mut(key)?;
        let count = self.0.entry(key.to_vec()).or_default();
        *count = count.checked_add(1).filter(|count| *count == u16::from_be_bytes(*number))?;
        value.extend_from_slice(piece);
        Some(())
    }

    /// Removes the parts of an older value, starting at number `from`.
    fn remove_from(&mut self, batch: &mut sled::Batch, key: &[u8], from: u16) {
        for number in from..=self.0.remove(key).unwrap_or(0) {
            batch.remove(part_key(key, number));
        }
    }
}

fn part_key(key: &[u8], number: u16) -> Vec<u8> {
    [&PREFIX, key, &number.to_be_bytes()].concat()
}
