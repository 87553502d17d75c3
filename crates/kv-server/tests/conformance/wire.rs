//! Masking of fields in encoded messages, so that responses can be compared as bytes.
//!
//! A masked field remains in place: a number other than 0 becomes 1, bytes become a star. All other bytes and
//! their order are unchanged.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

/// Field numbers to mask, as a tree; a node without children is masked.
#[derive(Default)]
pub struct Paths(BTreeMap<u32, Self>);

impl Paths {
    /// Parses paths such as `1.4`.
    pub fn new<'a>(paths: impl Iterator<Item = &'a str>) -> Self {
        let mut root = Self::default();
        for path in paths {
            let mut node = &mut root;
            for number in path.split('.') {
                node = node.0.entry(number.parse().expect("field numbers between the dots")).or_default();
            }
        }
        root
    }

    /// Masks the fields. Returns an invalid message unchanged.
    pub fn mask(&self, message: &Bytes) -> Bytes {
        let mut masked = BytesMut::with_capacity(message.len());
        match self.walk(message.clone(), &mut masked) {
            Some(()) => masked.freeze(),
            None => message.clone(),
        }
    }

    fn walk(&self, mut message: Bytes, out: &mut BytesMut) -> Option<()> {
        while message.has_remaining() {
            let (number, kind) = decode_key(&mut message).ok()?;
            encode_key(number, kind, out);
            let child = self.0.get(&number);
            match kind {
                WireType::Varint => {
                    let value = decode_varint(&mut message).ok()?;
                    let hidden = value != 0 && child.is_some_and(|child| child.0.is_empty());
                    encode_varint(if hidden { 1 } else { value }, out);
                }
                WireType::LengthDelimited => {
                    let length = usize::try_from(decode_varint(&mut message).ok()?).ok()?;
                    let value = (length <= message.len()).then(|| message.split_to(length))?;
                    let value = match child {
                        None => value,
                        Some(child) => child.mask_value(value),
                    };
                    encode_varint(value.len() as u64, out);
                    out.put(value);
                }
                WireType::ThirtyTwoBit => out.put((message.len() >= 4).then(|| message.split_to(4))?),
                WireType::SixtyFourBit => out.put((message.len() >= 8).then(|| message.split_to(8))?),
                WireType::StartGroup | WireType::EndGroup => return None,
            }
        }
        Some(())
    }

    fn mask_value(&self, value: Bytes) -> Bytes {
        match (self.0.is_empty(), value.is_empty()) {
            (true, true) => value,
            (true, false) => Bytes::from_static(b"*"),
            (false, _) => self.mask(&value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(paths: &[&str], message: &'static [u8]) -> Bytes {
        Paths::new(paths.iter().copied()).mask(&Bytes::from_static(message))
    }

    #[test]
    fn a_masked_number_is_1_and_nothing_else_moves() {
        assert_eq!(mask(&["2"], b"\x08\x07\x10\xff\x01\x18\x05"), &b"\x08\x07\x10\x01\x18\x05"[..]);
        assert_eq!(mask(&["2"], b"\x10\x00"), &b"\x10\x00"[..]);
    }

    #[test]
    fn a_path_leads_into_messages() {
        assert_eq!(
            mask(&["1.1", "1.4"], b"\x0a\x06\x08\x63\x10\x62\x20\x61"),
            &b"\x0a\x06\x08\x01\x10\x62\x20\x01"[..]
        );
    }

    #[test]
    fn masked_bytes_are_a_star() {
        assert_eq!(mask(&["3"], b"\x1a\x03abc\x1a\x00"), &b"\x1a\x01*\x1a\x00"[..]);
    }

    #[test]
    fn what_is_no_message_stays() {
        assert_eq!(mask(&["1"], b"\x0a\x05a"), &b"\x0a\x05a"[..]);
    }
}
