//! The replicated command: what a client call becomes inside a log entry, and back.
//!
//! * One call is one command. Commands that waited together may share one log entry.
//! * A command contains everything that apply needs. The proposer adds ids, times and random numbers.
//! * The bytes are protobuf (`proto/command.proto`): an old log stays readable as long as no field number is
//!   reused.
//! * Decoding is total. Apply refuses bytes that are not a command, with the same outcome on every member.
//!
//! Encoding a put copies key and value once. Decoding copies neither: they are slices of the entry.

use bytes::Bytes;
use prost::Message;

use api::command::Command;
pub use api::command::command::Kind;
pub use api::command::member_change::Change;
pub use api::command::{AuthChange, Caller, LeaseExpire, LeaseRenew, MemberAdd, MemberChange};
pub use api::command::{MemberUpdate, PublishMember};
use api::etcdserverpb::TxnRequest;

mod decode;

pub use self::decode::{DecodeError, TXN_LEVELS_MAX};

/// The bytes to propose. Their length is what `--max-request-bytes` limits.
pub fn encode(kind: Kind) -> Bytes {
    encode_for(kind, None)
}

/// As `encode`, for a user. Without one the bytes are those of `encode`.
pub fn encode_for(kind: Kind, caller: Option<Caller>) -> Bytes {
    Bytes::from(Command { kind: Some(kind), caller }.encode_to_vec())
}

/// The command in an entry. Its byte fields are slices of `command`.
pub fn decode(command: &Bytes) -> Result<Kind, DecodeError> {
    decode::command(command.clone()).map(|(kind, _)| kind)
}

/// As `decode`, with the user who asks.
pub fn decode_with_caller(command: &Bytes) -> Result<(Kind, Option<Caller>), DecodeError> {
    decode::command(command.clone())
}

/// A transaction as a client sends it, decoded as apply will decode it.
pub fn decode_txn(message: Bytes) -> Result<TxnRequest, DecodeError> {
    decode::txn(message)
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
    fn a_caller_follows_the_command() {
        let caller = Caller { user: "u".to_owned(), auth_revision: 7 };
        let bytes = encode_for(put("k", "vv"), Some(caller.clone()));
        assert_eq!(&bytes[..], b"\x0a\x07\x0a\x01k\x12\x02vv\x6a\x05\x0a\x01u\x10\x07");
        assert_eq!(decode_with_caller(&bytes).unwrap(), (put("k", "vv"), Some(caller)));
        assert_eq!(decode_with_caller(&encode(put("k", "vv"))).unwrap(), (put("k", "vv"), None));
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
        // Field 90 with an empty message: well-formed, but unknown to this version.
        assert!(matches!(decode(&Bytes::from_static(b"\xd2\x05\x00")), Err(DecodeError::UnknownKind)));
        assert!(matches!(decode(&Bytes::new()), Err(DecodeError::UnknownKind)));
    }
}
