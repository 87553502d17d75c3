//! The shape of a header block: its fields, independent of their current table indices.
//!
//! A client that sends another value with each request, such as a deadline, adds an entry to the dynamic
//! table each time. All other entries shift by one index, so the bytes of its blocks never repeat, although
//! the referenced entries do. The shape of a block is the list of these entries, each by a unique number,
//! with a mark for the varying field.

use std::fmt;

use bytes::Bytes;

use super::table::{DynamicTable, ENTRY_OVERHEAD};
use super::{huffman, integer};

/// Maximum length of a varying value. A gRPC timeout has nine bytes at most.
pub(crate) const VALUE_BYTES_MAX: usize = 15;
/// Maximum number of fields of a block with a shape.
const FIELDS_MAX: usize = 32;
/// Number of the varying field; no entry has it.
const MARK: u64 = 0;

/// A short value, stored inline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Varying {
    bytes: [u8; VALUE_BYTES_MAX],
    length: u8,
}

impl Varying {
    /// Returns None if the value is too long, or contains more than visible ASCII characters.
    fn new(value: &[u8]) -> Option<Varying> {
        let mut bytes = [0; VALUE_BYTES_MAX];
        bytes.get_mut(..value.len())?.copy_from_slice(value);
        let is_plain = value.iter().all(u8::is_ascii_graphic);
        is_plain.then_some(Varying { bytes, length: value.len() as u8 })
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl fmt::Debug for Varying {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Shape {
    /// The numbers of the fields, in order.
    pub(crate) fields: Vec<u64>,
    pub(crate) value: Option<Varying>,
    /// Where the name of the value is, if the block adds both to the dynamic table.
    added_name: Option<u32>,
    /// Number of previous table entries that are not evicted.
    kept: usize,
}

impl Shape {
    /// Reads a block without side effects. Returns None if it has no shape: it adds another field, or
    /// refers to an entry that it adds itself.
    pub(crate) fn read(
        &mut self,
        block: &[u8],
        varying: &str,
        table: &DynamicTable,
        scratch: &mut Vec<u8>,
    ) -> Option<()> {
        self.fields.clear();
        (self.value, self.added_name) = (None, None);
        let mut rest = block;
        while let Some(&first) = rest.first() {
            if self.fields.len() == FIELDS_MAX {
                return None;
            }
            if first & 0x80 != 0 {
                let index;
                (index, rest) = integer::read(rest, 7)?;
                self.indexed(index, varying, table)?;
            } else if first & 0xe0 == 0x20 {
                return None; // Changes the table's size.
            } else {
                rest = self.literal(rest, varying, table, scratch)?;
            }
        }
        Some(())
    }

    fn indexed(&mut self, index: u32, varying: &str, table: &DynamicTable) -> Option<()> {
        let place = match (DynamicTable::place(index), self.added_name) {
            // All entries have shifted by one, and the last may be evicted.
            (Some(place), Some(_)) => Some(place.checked_sub(1).filter(|place| *place < self.kept)?),
            (place, _) => place,
        };
        let Some(place) = place else {
            self.fields.push(u64::from(index));
            return (index > 0).then_some(());
        };
        let (name, value) = table.entry(place)?;
        if *name == varying {
            self.mark(value)?;
        } else {
            self.fields.push(table.number(place));
        }
        Some(())
    }

    fn literal<'a>(
        &mut self,
        block: &'a [u8],
        varying: &str,
        table: &DynamicTable,
        scratch: &mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        let is_added = block[0] & 0x40 != 0;
        let (index, rest) = integer::read(block, if is_added { 6 } else { 4 })?;
        let (name, _) = table.entry(DynamicTable::place(index)?)?;
        if *name != varying || self.added_name.is_some() {
            return None;
        }
        let is_coded = rest.first()? & 0x80 != 0;
        let (length, rest) = integer::read(rest, 7)?;
        let (value, rest) = rest.split_at_checked(length as usize)?;
        if is_coded {
            scratch.clear();
            huffman::decode(value, scratch).ok()?;
            self.mark(scratch)?;
        } else {
            self.mark(value)?;
        }
        if is_added {
            self.added_name = Some(index);
            self.kept = table.kept_with(varying.len() + self.value?.as_bytes().len() + ENTRY_OVERHEAD)?;
        }
        Some(rest)
    }

    fn mark(&mut self, value: &[u8]) -> Option<()> {
        self.fields.push(MARK);
        // A block with two varying fields has no shape.
        self.value.replace(Varying::new(value)?).is_none().then_some(())
    }

    /// Changes the table like decoding the block would.
    pub(crate) fn apply(&self, table: &mut DynamicTable) {
        if let (Some(index), Some(value)) = (self.added_name, self.value)
            && let Some((name, _)) = table.field(index)
        {
            table.insert(name, Bytes::copy_from_slice(value.as_bytes()));
        }
    }
}
