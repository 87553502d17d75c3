//! Constant header blocks: encoded once, written to any connection at any time.
//!
//! Fields of the static table are indexed; all other fields are literals without indexing, Huffman-coded
//! where that is shorter. The dynamic table is never used, so a block depends on no state.

use bytes::Bytes;

use super::table::STATIC;
use super::{huffman, integer};

/// An encoded header block. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderBlock(Bytes);

impl HeaderBlock {
    /// Encodes the fields in the order given. Names must be lower case, and pseudo-header fields must come
    /// first.
    pub fn new<N: AsRef<[u8]>, V: AsRef<[u8]>>(fields: impl IntoIterator<Item = (N, V)>) -> HeaderBlock {
        let mut block = Vec::new();
        for (name, value) in fields {
            encode_field(&mut block, name.as_ref(), value.as_ref());
        }
        HeaderBlock(Bytes::from(block))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn encode_field(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let mut name_index = 0;
    for (index, (static_name, static_value)) in (1..).zip(STATIC) {
        if static_name.as_bytes() != name {
            continue;
        }
        if static_value.as_bytes() == value {
            return integer::write(block, 0x80, 7, index);
        }
        if name_index == 0 {
            name_index = index;
        }
    }
    integer::write(block, 0x00, 4, name_index);
    if name_index == 0 {
        encode_string(block, name);
    }
    encode_string(block, value);
}

fn encode_string(block: &mut Vec<u8>, string: &[u8]) {
    let coded = huffman::encoded_len(string);
    if coded < string.len() {
        integer::write(block, 0x80, 7, coded);
        huffman::encode(string, block);
    } else {
        integer::write(block, 0x00, 7, string.len());
        block.extend_from_slice(string);
    }
}
