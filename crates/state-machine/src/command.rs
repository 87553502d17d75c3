//! The replicated command: what a client call becomes inside a log entry, and back.
//!
//! * One call is one command; commands that waited together may share one log entry.
//! * A command carries everything that apply needs. Ids, times and random numbers are put in by the proposer.
//! * The bytes are protobuf (`proto/command.proto`): an old log stays readable as long as no number is reused.
//!
//! One put: encoding copies key and value once, decoding copies neither (they are slices of the entry).

use bytes::Bytes;
use prost::Message;

use api::command::Command;
pub use api::command::PublishMember;
pub use api::command::command::Kind;

/// Why bytes from the log are not a command. Every member reads the same bytes, so every member stops here.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not a protobuf message of this shape.
    #[error("not a command")]
    Malformed(#[source] prost::DecodeError),
    /// A kind that this version does not know: it was proposed by a newer one.
    #[error("a command of a kind that this version does not know")]
    UnknownKind,
}

/// The bytes to propose. Their length is what `--max-request-bytes` limits.
pub fn encode(kind: Kind) -> Bytes {
    Bytes::from(Command { kind: Some(kind) }.encode_to_vec())
}

/// The command in an entry. Its byte fields are slices of `command`.
pub fn decode(command: &Bytes) -> Result<Kind, DecodeError> {
    let decoded = Command::decode(command.clone()).map_err(DecodeError::Malformed)?;
    decoded.kind.ok_or(DecodeError::UnknownKind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::etcdserverpb::PutRequest;

    fn put(key: &'static str, value: &'static str) -> Kind {
        Kind::Put(PutRequest {
            key: Bytes::from_static(key.as_bytes()),
            value: Bytes::from_static(value.as_bytes()),
            ..PutRequest::default()
        })
    }

    #[test]
    fn the_bytes_of_a_put_are_frozen() {
        let bytes = encode(put("k", "vv"));
        assert_eq!(&bytes[..], b"\x0a\x07\x0a\x01k\x12\x02vv");
    }

    #[test]
    fn decoding_gives_back_what_was_encoded_without_copying_it() {
        let bytes = encode(put("key", "value"));
        let Kind::Put(decoded) = decode(&bytes).unwrap() else { panic!("a put was encoded") };
        assert_eq!((&decoded.key[..], &decoded.value[..]), (&b"key"[..], &b"value"[..]));
        let memory = bytes.as_ptr_range();
        assert!(memory.contains(&decoded.key.as_ptr()) && memory.contains(&decoded.value.as_ptr()));
    }

    #[test]
    fn bytes_that_are_no_command_are_refused() {
        assert!(matches!(decode(&Bytes::from_static(b"\xff\xff")), Err(DecodeError::Malformed(_))));
    }

    #[test]
    fn a_kind_from_the_future_is_refused_rather_than_skipped() {
        // Field 90 with an empty message: well-formed, but nothing that this version can apply.
        assert!(matches!(decode(&Bytes::from_static(b"\xd2\x05\x00")), Err(DecodeError::UnknownKind)));
        assert!(matches!(decode(&Bytes::new()), Err(DecodeError::UnknownKind)));
    }
}
