//! gRPC message framing (a five-byte prefix per message) and the names of gRPC codes.

use bytes::{Buf, Bytes, BytesMut};

/// Length of the prefix: a compression flag (1 byte) and the message length (4 bytes).
pub const PREFIX_BYTES: usize = 5;

/// Returns the prefix of an uncompressed message, or `None` if its length does not fit in four bytes.
pub fn prefix(message_bytes: usize) -> Option<[u8; PREFIX_BYTES]> {
    let [a, b, c, d] = u32::try_from(message_bytes).ok()?.to_be_bytes();
    Some([0, a, b, c, d])
}

/// Decoded message prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// Payload format: 0 for an uncompressed message, 1 for a compressed one. No others are defined.
    pub format: u8,
    pub message_bytes: usize,
}

impl Prefix {
    /// Decodes the prefix at the start of `bytes`, if it is complete.
    pub fn of(bytes: &[u8]) -> Option<Prefix> {
        let &[format, a, b, c, d] = bytes.first_chunk::<PREFIX_BYTES>()?;
        Some(Prefix { format, message_bytes: u32::from_be_bytes([a, b, c, d]) as usize })
    }
}

/// Removes the first message from `buffer`, if it is complete, and returns it with its prefix.
pub fn take(buffer: &mut BytesMut) -> Option<(Prefix, Bytes)> {
    let prefix = Prefix::of(buffer)?;
    if buffer.len() - PREFIX_BYTES < prefix.message_bytes {
        return None;
    }
    buffer.advance(PREFIX_BYTES);
    Some((prefix, buffer.split_to(prefix.message_bytes).freeze()))
}

/// Names of the codes in numeric order, in Go's spelling, which etcd uses in metrics, reports and
/// errors.
pub const CODE_NAMES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn a_prefix_has_the_length_of_its_message() {
        assert_eq!(prefix(0), Some([0; 5]));
        assert_eq!(prefix(0x0102_0304), Some([0, 1, 2, 3, 4]));
        assert_eq!(prefix(1 << 32), None);
    }

    #[test]
    fn messages_are_taken_when_they_are_complete() {
        let body = [&prefix(3).unwrap()[..], b"abc", &[1, 0, 0, 0, 0], &[0, 0]].concat();
        for at in 0..=body.len() {
            let (mut buffer, mut taken) = (BytesMut::new(), Vec::new());
            for piece in [&body[..at], &body[at..]] {
                buffer.extend_from_slice(piece);
                taken.extend(std::iter::from_fn(|| take(&mut buffer)));
            }
            let of = |format, message_bytes| Prefix { format, message_bytes };
            assert_eq!(taken, [(of(0, 3), Bytes::from("abc")), (of(1, 0), Bytes::new())]);
            assert_eq!(buffer[..], [0, 0]);
        }
    }

    #[test]
    fn names_stand_at_the_number_of_their_code() {
        for (number, name) in CODE_NAMES.iter().enumerate() {
            let code = Code::from_i32(number as i32);
            let expected = if code == Code::Ok { "OK".to_owned() } else { format!("{code:?}") };
            // tonic spells this one differently.
            assert_eq!(name.replace("Canceled", "Cancelled"), expected, "code {number}");
        }
    }
}
