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
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};

use api::command::Command;
pub use api::command::command::Kind;
pub use api::command::member_change::Change;
pub use api::command::{AuthChange, Caller, LeaseExpire, LeaseRenew, MemberAdd, MemberChange};
pub use api::command::{MemberUpdate, PublishMember, RaiseLevel, SetDowngrade};
use api::etcdserverpb::TxnRequest;

mod decode;

pub use self::decode::{DecodeError, TXN_LEVELS_MAX};

/// Fields of `Command` and `Caller` in `proto/command.proto`.
const CALLER: u32 = 13;
const CALLER_USER: u32 = 1;
const CALLER_AUTH_REVISION: u32 = 2;
/// A caller without the name: three keys and three numbers.
const CALLER_BYTES: usize = 33;

/// The bytes to propose. Their length is what `--max-request-bytes` limits.
pub fn encode(kind: Kind) -> Bytes {
    encode_for(kind, None)
}

/// As `encode`, for a user: its name and the auth revision at which it was looked at. Without one the bytes
/// are those of `encode`. The name is not copied but into the bytes.
pub fn encode_for(kind: Kind, caller: Option<(&str, u64)>) -> Bytes {
    let command = Command { kind: Some(kind), caller: None };
    let Some((user, auth_revision)) = caller else { return Bytes::from(command.encode_to_vec()) };
    let mut bytes = Vec::with_capacity(command.encoded_len() + user.len() + CALLER_BYTES);
    command.encode_raw(&mut bytes);
    let revision_bytes = if auth_revision == 0 { 0 } else { 1 + encoded_len_varint(auth_revision) };
    let user_bytes = if user.is_empty() { 0 } else { 1 + encoded_len_varint(user.len() as u64) + user.len() };
    encode_key(CALLER, WireType::LengthDelimited, &mut bytes);
    encode_varint((user_bytes + revision_bytes) as u64, &mut bytes);
    if !user.is_empty() {
        encode_key(CALLER_USER, WireType::LengthDelimited, &mut bytes);
        encode_varint(user.len() as u64, &mut bytes);
        bytes.extend_from_slice(user.as_bytes());
    }
    if auth_revision != 0 {
        encode_key(CALLER_AUTH_REVISION, WireType::Varint, &mut bytes);
        encode_varint(auth_revision, &mut bytes);
    }
    Bytes::from(bytes)
}

/// The command in an entry. Its byte fields are slices of `command`.
pub fn decode(command: &Bytes) -> Result<Kind, DecodeError> {
    decode::command(command.clone()).map(|(kind, _)| kind)
}

/// A command, with the user who asks.
pub type DecodedCommand = (Kind, Option<Caller>);

/// As `decode`, with the user who asks.
pub fn decode_with_caller(command: &Bytes) -> Result<DecodedCommand, DecodeError> {
    decode::command(command.clone())
}

/// A transaction as a client sends it, decoded as apply will decode it. One with a list of more than
/// `ops_max` is refused before more of it is built, as is one of too many on all levels together.
pub fn decode_txn(message: Bytes, ops_max: usize) -> Result<TxnRequest, DecodeError> {
    decode::txn(message, ops_max)
}

/// Operations of a transaction, counted twice, and compares, on all levels: more are refused.
pub fn txn_fields_max(ops_max: usize) -> usize {
    decode::fields_max(ops_max)
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
        let bytes = encode_for(put("k", "vv"), Some(("u", 7)));
        assert_eq!(&bytes[..], b"\x0a\x07\x0a\x01k\x12\x02vv\x6a\x05\x0a\x01u\x10\x07");
        assert_eq!(decode_with_caller(&bytes).unwrap(), (put("k", "vv"), Some(caller)));
        assert_eq!(decode_with_caller(&encode(put("k", "vv"))).unwrap(), (put("k", "vv"), None));
        for (user, auth_revision) in [("", 0), ("", 5), ("long".repeat(99).as_str(), u64::MAX), ("u", 0)] {
            let caller = Some(Caller { user: user.to_owned(), auth_revision });
            let wanted = Command { kind: Some(put("k", "vv")), caller }.encode_to_vec();
            assert_eq!(
                encode_for(put("k", "vv"), Some((user, auth_revision))),
                wanted,
                "{user} {auth_revision}"
            );
        }
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
