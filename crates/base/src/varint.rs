//! Varints (LEB128): seven bits per byte, low group first, the top bit set on all bytes but the last.
//!
//! Decoders live with their formats because these differ in strictness: protobuf and the store accept
//! overlong encodings of small numbers, peer messages do not.

use bytes::BufMut;

/// Appends the encoding of `value`.
pub fn put_varint(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Returns the number of bytes that `put_varint` appends: 1 to 10.
pub fn varint_bytes(value: u64) -> usize {
    // 7 bits each; 0 takes one byte.
    (70 - (value | 1).leading_zeros() as usize) / 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_shortest_form() {
        let cases: [(u64, &[u8]); 5] = [
            (0, &[0]),
            (127, &[0x7f]),
            (128, &[0x80, 1]),
            (300, &[0xac, 2]),
            (u64::MAX, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        ];
        for (value, expected) in cases {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!((&bytes[..], varint_bytes(value)), (expected, expected.len()), "{value}");
        }
    }
}
