//! Protobuf fields. Values of 0 are left out, as in proto3.

use base::varint::put_varint;
pub(super) use base::varint::varint_bytes;

/// Wire type of varints.
const VARINT: u8 = 0;
/// Wire type of bytes, strings and messages.
const COUNTED: u8 = 2;

/// Bytes of a number with its tag.
pub(super) fn number_bytes(value: u64) -> usize {
    if value == 0 { 0 } else { 1 + varint_bytes(value) }
}

/// A number. Negative values of int64 are passed as their two's complement.
pub(super) fn put_number(out: &mut Vec<u8>, field: u8, value: u64) {
    if value != 0 {
        out.push(field << 3 | VARINT);
        put_varint(out, value);
    }
}

/// Bytes of a counted field with its tag.
pub(super) fn counted_bytes(bytes: usize) -> usize {
    1 + varint_bytes(bytes as u64) + bytes
}

/// Tag and length of a counted field. Its bytes must follow.
pub(super) fn put_counted(out: &mut Vec<u8>, field: u8, bytes: usize) {
    out.push(field << 3 | COUNTED);
    put_varint(out, bytes as u64);
}

/// Bytes of a bytes or string field; empty ones are left out.
pub(super) fn bytes_bytes(bytes: &[u8]) -> usize {
    if bytes.is_empty() { 0 } else { counted_bytes(bytes.len()) }
}

pub(super) fn put_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_counted(out, field, bytes.len());
        out.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_varint_takes_as_many_bytes_as_are_counted() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX >> 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out.len(), varint_bytes(value), "{value}");
        }
    }
}
