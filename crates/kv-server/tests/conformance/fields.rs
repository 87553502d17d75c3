//! Access to single fields of encoded messages, by path: search, replace, sort.
//!
//! A value is in encoded form: a varint, or a length with its bytes.

use bytes::{Buf, Bytes, BytesMut};
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

/// Maximum seconds that a lease may lose between two steps, on a busy machine.
const COUNTED_MAX: u64 = 10;

/// Replaces each value on the path. Returns an invalid message unchanged.
pub fn replace(message: &Bytes, path: &str, with: &mut dyn FnMut(&Bytes, WireType) -> Bytes) -> Bytes {
    let mut replaced = BytesMut::with_capacity(message.len());
    match walk(message.clone(), path, with, &mut replaced) {
        Some(()) => replaced.freeze(),
        None => message.clone(),
    }
}

fn walk(
    mut message: Bytes,
    path: &str,
    with: &mut dyn FnMut(&Bytes, WireType) -> Bytes,
    out: &mut BytesMut,
) -> Option<()> {
    let (number, deeper) = match path.split_once('.') {
        Some((number, deeper)) => (number, Some(deeper)),
        None => (path, None),
    };
    let number: u32 = number.parse().expect("field numbers between the dots");
    while message.has_remaining() {
        let (found, kind) = decode_key(&mut message).ok()?;
        encode_key(found, kind, out);
        let length = value_length(&message, kind)?;
        let value = (length <= message.len()).then(|| message.split_to(length))?;
        let value = match deeper {
            _ if found != number => value,
            None => with(&value, kind),
            Some(deeper) if kind == WireType::LengthDelimited => {
                encoded_bytes(&replace(&inner(&value)?, deeper, with))
            }
            Some(_) => value,
        };
        out.extend_from_slice(&value);
    }
    Some(())
}

fn value_length(message: &Bytes, kind: WireType) -> Option<usize> {
    let mut rest = message.clone();
    match kind {
        WireType::Varint => {
            decode_varint(&mut rest).ok()?;
            Some(message.len() - rest.len())
        }
        WireType::LengthDelimited => {
            let length = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
            (message.len() - rest.len()).checked_add(length)
        }
        WireType::ThirtyTwoBit => Some(4),
        WireType::SixtyFourBit => Some(8),
        WireType::StartGroup | WireType::EndGroup => None,
    }
}

fn inner(value: &Bytes) -> Option<Bytes> {
    let mut inner = value.clone();
    decode_varint(&mut inner).ok()?;
    Some(inner)
}

fn encoded_bytes(bytes: &[u8]) -> Bytes {
    let mut encoded = BytesMut::new();
    encode_varint(bytes.len() as u64, &mut encoded);
    encoded.extend_from_slice(bytes);
    encoded.freeze()
}

/// Returns the masked form of a value: 1 for a number, a star for bytes.
pub fn masked(kind: WireType) -> Bytes {
    match kind {
        WireType::LengthDelimited => encoded_bytes(b"*"),
        _ => Bytes::from_static(&[1]),
    }
}

pub fn first(message: &Bytes, path: &str) -> Option<Bytes> {
    let mut first = None;
    replace(message, path, &mut |value, _| {
        first.get_or_insert_with(|| value.clone());
        value.clone()
    });
    first
}

/// Replaces a number that counts down by its initial value.
pub fn mask_counted(message: &Bytes, path: &str, from: &str) -> Bytes {
    let Some(start) = first(message, from) else { return message.clone() };
    let number = |value: &Bytes| decode_varint(&mut value.clone()).unwrap_or_default();
    replace(message, path, &mut |value, kind| {
        let lost = number(&start).checked_sub(number(value));
        let counted = kind == WireType::Varint && lost.is_some_and(|lost| lost <= COUNTED_MAX);
        if counted { start.clone() } else { value.clone() }
    })
}

/// Sorts the values on the path by their bytes.
pub fn sorted(message: &Bytes, path: &str) -> Bytes {
    let mut values = Vec::new();
    replace(message, path, &mut |value, _| {
        values.push(value.clone());
        value.clone()
    });
    values.sort();
    let mut values = values.into_iter();
    replace(message, path, &mut |value, _| values.next().unwrap_or_else(|| value.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_and_replaced_inside_messages() {
        let message = Bytes::from_static(b"\x0a\x04\x08\x63\x10\x62\x18\x05");
        assert_eq!(first(&message, "1.2").as_deref(), Some(&b"\x62"[..]));
        assert_eq!(first(&message, "2"), None);
        let replaced = replace(&message, "1.2", &mut |_, _| Bytes::from_static(b"\xff\x01"));
        assert_eq!(replaced, &b"\x0a\x05\x08\x63\x10\xff\x01\x18\x05"[..]);
    }

    #[test]
    fn a_time_that_is_left_is_masked_only_close_below_the_whole() {
        for (left, masked) in [(60, 60), (50, 60), (49, 49), (61, 61)] {
            let message = Bytes::copy_from_slice(&[0x18, left, 0x20, 60]);
            assert_eq!(mask_counted(&message, "3", "4"), &[0x18, masked, 0x20, 60][..], "{left} left");
        }
    }

    #[test]
    fn a_list_without_an_order_is_sorted_in_its_places() {
        let message = Bytes::from_static(b"\x2a\x01b\x08\x01\x2a\x01a");
        assert_eq!(sorted(&message, "5"), &b"\x2a\x01a\x08\x01\x2a\x01b"[..]);
    }
}
