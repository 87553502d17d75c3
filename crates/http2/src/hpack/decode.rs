//! Header blocks to fields (RFC 7541, section 6).
//!
//! A block is always decoded completely, even for a rejected request, since it may change the dynamic
//! table. An error leaves the table unusable, so it must close the connection.

use bytes::Bytes;

use super::shape::Shape;
use super::table::DynamicTable;
use super::{huffman, integer};

/// A decoding error. Closes the connection with COMPRESSION_ERROR.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Undecodable;

#[derive(Debug)]
pub(crate) struct Decoder {
    table: DynamicTable,
    /// What this side announced, once the peer has acknowledged it; the default of the RFC before.
    bytes_max: usize,
    /// The announced size is below the table's, so the next block must begin with an update (section 4.2).
    update_due: bool,
    scratch: Vec<u8>,
}

/// SETTINGS_HEADER_TABLE_SIZE before any is announced.
const BYTES_MAX_INITIAL: usize = 4096;

impl Decoder {
    pub(crate) fn new() -> Decoder {
        Decoder {
            table: DynamicTable::new(BYTES_MAX_INITIAL),
            bytes_max: BYTES_MAX_INITIAL,
            update_due: false,
            scratch: Vec::new(),
        }
    }

    /// Applies the announced size, which the peer has acknowledged.
    pub(crate) fn acknowledged(&mut self, bytes_max: usize) {
        self.update_due = bytes_max < self.bytes_max;
        self.bytes_max = bytes_max;
    }

    /// Changes with the content of the dynamic table. `None` while an update of its size is due.
    pub(crate) fn version(&self) -> Option<u64> {
        (!self.update_due).then(|| self.table.version())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.table.bytes() + self.scratch.capacity()
    }

    /// Releases memory that is only needed while decoding a block.
    pub(crate) fn shrink(&mut self) {
        self.scratch = Vec::new();
        self.table.shrink();
    }

    /// Reads the shape of `block` without side effects. Returns false if it has none, or if a table size
    /// update is due.
    pub(crate) fn shape(&mut self, block: &[u8], varying: &str, shape: &mut Shape) -> bool {
        !self.update_due && shape.read(block, varying, &self.table, &mut self.scratch).is_some()
    }

    /// Changes the dynamic table like decoding a block of this shape would.
    pub(crate) fn apply(&mut self, shape: &Shape) {
        shape.apply(&mut self.table);
    }

    /// Passes each field of `block` to `field`, in order.
    pub(crate) fn decode(
        &mut self,
        block: &[u8],
        mut field: impl FnMut(Bytes, Bytes),
    ) -> Result<(), Undecodable> {
        let mut rest = block;
        let mut at_start = true;
        while let Some(&first) = rest.first() {
            // 001xxxxx: a size update, only before the first field.
            if first & 0xe0 == 0x20 {
                rest = if at_start { self.update(rest)? } else { return Err(Undecodable) };
                continue;
            }
            if self.update_due {
                return Err(Undecodable);
            }
            at_start = false;
            let (name, value);
            (name, value, rest) = if first & 0x80 != 0 {
                let (index, rest) = integer::read(rest, 7).ok_or(Undecodable)?;
                let (name, value) = self.table.field(index).ok_or(Undecodable)?;
                (name, value, rest)
            } else {
                self.literal(rest)?
            };
            field(name, value);
        }
        Ok(())
    }

    fn update<'a>(&mut self, block: &'a [u8]) -> Result<&'a [u8], Undecodable> {
        let (bytes_max, rest) = integer::read(block, 5).ok_or(Undecodable)?;
        if bytes_max as usize > self.bytes_max {
            return Err(Undecodable);
        }
        self.table.resize(bytes_max as usize);
        self.update_due = false;
        Ok(rest)
    }

    /// 01: with an entry for the dynamic table; 0000 and 0001: without.
    fn literal<'a>(&mut self, block: &'a [u8]) -> Result<(Bytes, Bytes, &'a [u8]), Undecodable> {
        let indexed = block[0] & 0x40 != 0;
        let (index, rest) = integer::read(block, if indexed { 6 } else { 4 }).ok_or(Undecodable)?;
        let (name, rest) = match index {
            0 => self.string(rest)?,
            _ => (self.table.field(index).ok_or(Undecodable)?.0, rest),
        };
        let (value, rest) = self.string(rest)?;
        if indexed {
            self.table.insert(name.clone(), value.clone());
        }
        Ok((name, value, rest))
    }

    fn string<'a>(&mut self, block: &'a [u8]) -> Result<(Bytes, &'a [u8]), Undecodable> {
        let coded = block.first().ok_or(Undecodable)? & 0x80 != 0;
        let (length, rest) = integer::read(block, 7).ok_or(Undecodable)?;
        let (string, rest) = rest.split_at_checked(length as usize).ok_or(Undecodable)?;
        if !coded {
            return Ok((Bytes::copy_from_slice(string), rest));
        }
        self.scratch.clear();
        huffman::decode(string, &mut self.scratch).map_err(|huffman::Invalid| Undecodable)?;
        Ok((Bytes::copy_from_slice(&self.scratch), rest))
    }
}

#[cfg(test)]
mod tests;
