//! The replicated command: encoding of a client call in a log entry.
//!
//! * Each call is a single command. Commands that queued together may share a log entry.
//! * A command contains all inputs of apply. The proposer adds ids, times and random numbers.
//! * The encoding is protobuf (`proto/command.proto`): old logs stay readable as long as field
//!   numbers are not reused.
//! * Decoding is total. Apply rejects bytes that are not a command, with the same outcome on every
//!   member.
//!
//! Encoding a put copies key and value once. Decoding copies neither: they are slices of the entry.
//!
//! # Decoding
//!
//! Total, and iterative for nested messages.
//!
//! ```text
//!   Command { txn }     apply     ─┐
//!                                  ├─▶ txn: a stack of open transactions, at most TXN_LEVELS_MAX
//!   TxnRequest          service   ─┘        └─▶ compares, ranges, puts, deletes: prost, which does not recurse there
//! ```
//!
//! * The service and apply decode transactions with the same function and count levels from the
//!   same message, so a transaction that the service accepts is never too deep for apply. (prost
//!   counts levels from the outermost message, and in the log a transaction is one level deeper.)
//! * It accepts every message that prost accepts, with the same result. Like prost it copies
//!   neither keys nor values.
//! * `TXN_LEVELS_MAX` bounds the recursion of validation, cost, apply, encoding and drop.
//! * The service rejects a transaction with too many operations while decoding it: an operation of
//!   two bytes would take 250 in memory. Apply has no such bound, so every log entry stays
//!   readable.

use api::command::Command;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{Compare, RequestOp, TxnRequest};
use bytes::Bytes;
use prost::Message;
use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, encoded_len_varint,
    skip_field,
};

pub use api::command::command::Kind;
pub use api::command::member_change::Change;
pub use api::command::{AuthChange, Caller, LeaseExpire, LeaseRenew, MemberAdd, MemberChange};
pub use api::command::{MemberUpdate, PublishMember, RaiseLevel, SetDowngrade};

/// Fields of `Command` and `Caller` in `proto/command.proto`.
const CALLER: u32 = 13;
const CALLER_USER: u32 = 1;
const CALLER_AUTH_REVISION: u32 = 2;
/// Encoded size of a caller without the name: three keys and three numbers.
const CALLER_BYTES: usize = 33;

/// Encodes a command. `--max-request-bytes` limits the encoded length.
pub fn encode(kind: Kind) -> Bytes {
    encode_for(kind, None)
}

/// Encodes a command on behalf of a user: its name and the auth revision at which it was
/// authenticated. Without a user the result equals that of `encode`. The name is copied only into
/// the result.
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

/// Decodes the command of an entry. Its byte fields are slices of `command`.
pub fn decode(command: &Bytes) -> Result<Kind, DecodeError> {
    decode_with_caller(command).map(|(kind, _)| kind)
}

pub type DecodedCommand = (Kind, Option<Caller>);

/// Maximum depth of nested transactions, including the outermost one. etcd bounds nesting only by
/// `--max-txn-ops`: its default of 128 permits 129 levels, the innermost one empty. A larger
/// `--max-txn-ops` permits longer lists here, but not deeper nesting, because the recursion must
/// fit into a thread's stack of 2 MiB.
///
/// Apply rejects deeper nesting, so this is a property of the log format: members with different
/// values would diverge.
pub const TXN_LEVELS_MAX: usize = 129;

/// Decoding error of a command or a transaction. The same bytes give the same error on every
/// member.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// A nested message does not match its field.
    #[error("not a command")]
    Malformed(#[source] prost::DecodeError),
    /// A field has the wrong wire type, or is longer than its message.
    #[error("a field does not match its message")]
    Field,
    /// A kind of command unknown to this version, proposed by a newer one.
    #[error("a command type unknown to this version")]
    UnknownKind,
    #[error("transactions nested deeper than {TXN_LEVELS_MAX} levels")]
    TooDeep,
    /// More operations than `--max-txn-ops` permits. Never returned to apply.
    #[error("too many operations in a transaction")]
    TooMany,
}

impl From<prost::DecodeError> for DecodeError {
    fn from(error: prost::DecodeError) -> Self {
        DecodeError::Malformed(error)
    }
}

/// Fields per operation: the operation in its transaction, and the request in the operation.
const OP_FIELDS: usize = 2;

/// Maximum operations on all levels, in full lists. etcd bounds each list separately: its limit of
/// 128 permits 76,000 operations on three levels, which take 20 MB here, and a million on four.
const LISTS_MAX: usize = 640;

/// Returns the maximum number of fields of a transaction: its compares, and twice its operations,
/// on all levels.
pub fn txn_fields_max(ops_max: usize) -> usize {
    OP_FIELDS.saturating_mul(LISTS_MAX).saturating_mul(ops_max)
}

/// Maximum number of fields of a short transaction: the compares and two full lists of etcd's
/// default size, with operations counted twice.
pub const SHORT_TXN_FIELDS_MAX: usize = 1000;

fn count_field(fields_left: &mut usize) -> Result<(), DecodeError> {
    *fields_left = fields_left.checked_sub(1).ok_or(DecodeError::TooMany)?;
    Ok(())
}

const LAST: u32 = 15;

pub fn decode_with_caller(command: &Bytes) -> Result<DecodedCommand, DecodeError> {
    let (mut caller, mut unbounded): (Option<Caller>, usize) = (None, usize::MAX);
    let field = last_field(command.clone(), LAST, &mut unbounded, |tag, part| {
        if tag == CALLER {
            caller.get_or_insert_default().merge(part)?;
            return Ok(None);
        }
        Ok(Some(part))
    })?;
    if field.is_none() && base::mutant("unknown-kinds-compact") {
        return Ok((Kind::Compact(Default::default()), caller));
    }
    let field = field.ok_or(DecodeError::UnknownKind)?;
    let kind = match field.tag {
        1 => Kind::Put(field.message()?),
        2 => Kind::DeleteRange(field.message()?),
        3 => Kind::Txn(nested(TxnReader::of(field, usize::MAX), usize::MAX)?),
        4 => Kind::Compact(field.message()?),
        5 => Kind::Alarm(field.message()?),
        6 => Kind::PublishMember(field.message()?),
        7 => Kind::LeaseGrant(field.message()?),
        8 => Kind::LeaseRevoke(field.message()?),
        9 => Kind::LeaseExpire(field.message()?),
        10 => Kind::LeaseRenew(field.message()?),
        11 => Kind::MemberChange(field.message()?),
        12 => Kind::Auth(field.message()?),
        14 => Kind::SetDowngrade(field.message()?),
        15 => Kind::RaiseLevel(field.message()?),
        _ => return Err(DecodeError::UnknownKind),
    };
    Ok((kind, caller))
}

/// Decodes a transaction of a client, with the same rules as apply. Byte fields are slices of
/// `message`. Decoding stops with an error if a list at any level has more than `ops_max` entries,
/// or if all levels together have too many.
pub fn decode_txn(message: Bytes, ops_max: usize) -> Result<TxnRequest, DecodeError> {
    decode_short_txn(message, ops_max, usize::MAX)
}

/// Decodes a transaction like [`decode_txn`], but with at most `fields_max` fields; more are
/// [`DecodeError::TooMany`].
pub fn decode_short_txn(
    message: Bytes,
    ops_max: usize,
    fields_max: usize,
) -> Result<TxnRequest, DecodeError> {
    nested(TxnReader::new(message, txn_fields_max(ops_max).min(fields_max)), ops_max)
}

/// Counts the fields of a transaction without storing it.
///
/// Errors: see [`decode_txn`].
pub fn txn_fields(message: Bytes, ops_max: usize) -> Result<usize, DecodeError> {
    let fields_max = txn_fields_max(ops_max);
    let mut reader = TxnReader::new(message, fields_max);
    // List lengths of this level, and of the enclosing ones.
    let (mut lists, mut around) = ([0; 3], Vec::new());
    while let Some(part) = reader.next_part()? {
        let list = match part {
            TxnPart::Begin(branch) => {
                around.push((std::mem::take(&mut lists), branch));
                continue;
            }
            TxnPart::End => {
                let (outer, branch) = around.pop().expect("what ends has begun");
                lists = outer;
                branch as usize
            }
            TxnPart::Op(branch, _) => branch as usize,
            TxnPart::Compare(_) => 2,
        };
        lists[list] += 1;
        if lists[list] > ops_max {
            return Err(DecodeError::TooMany);
        }
    }
    Ok(fields_max - reader.fields_left)
}

/// Last field of a oneof, which is the effective one. Consecutive occurrences are parts of a single
/// message, in order.
struct CommandField {
    tag: u32,
    first: Bytes,
    more: Vec<Bytes>,
}

impl CommandField {
    /// Decodes the message, which must have a non-recursive type.
    fn message<M: Message + Default>(self) -> Result<M, prost::DecodeError> {
        let mut message = M::decode(self.first)?;
        self.more.into_iter().try_for_each(|part| message.merge(part))?;
        Ok(message)
    }
}

/// Reads a message that is a oneof of messages with tags from 1 to `tag_max`. Unknown fields are
/// skipped. `select` handles fields that are not part of the oneof.
fn last_field(
    mut bytes: Bytes,
    tag_max: u32,
    fields_left: &mut usize,
    mut select: impl FnMut(u32, Bytes) -> Result<Option<Bytes>, prost::DecodeError>,
) -> Result<Option<CommandField>, DecodeError> {
    let mut last: Option<CommandField> = None;
    while !bytes.is_empty() {
        count_field(fields_left)?;
        let (tag, wire_type) = decode_key(&mut bytes)?;
        if tag > tag_max {
            skip_field(wire_type, tag, &mut bytes, DecodeContext::default())?;
            continue;
        }
        let Some(part) = select(tag, message_bytes(&mut bytes, wire_type)?)? else { continue };
        match &mut last {
            Some(field) if field.tag == tag => field.more.push(part),
            Some(_) | None => last = Some(CommandField { tag, first: part, more: Vec::new() }),
        }
    }
    Ok(last)
}

fn message_bytes(bytes: &mut Bytes, wire_type: WireType) -> Result<Bytes, DecodeError> {
    if wire_type != WireType::LengthDelimited {
        return Err(DecodeError::Field);
    }
    let length = usize::try_from(decode_varint(bytes)?).map_err(|_| DecodeError::Field)?;
    if length > bytes.len() {
        return Err(DecodeError::Field);
    }
    Ok(bytes.split_to(length))
}

#[derive(Clone, Copy)]
pub enum Branch {
    Success,
    Failure,
}

pub enum TxnPart {
    Compare(Compare),
    /// An operation other than a nested transaction.
    Op(Branch, RequestOp),
    /// Start of a nested transaction in this list of the enclosing one.
    Begin(Branch),
    End,
}

/// Streaming reader of a transaction, with an explicit stack on the heap. Does not retain the
/// parts.
pub struct TxnReader {
    level: TxnLevel,
    around: Vec<TxnLevel>,
    fields_left: usize,
}

struct TxnLevel {
    /// Rest of the current part.
    rest: Bytes,
    /// Further parts of the same message.
    parts: std::vec::IntoIter<Bytes>,
}

impl TxnLevel {
    fn new(field: CommandField) -> TxnLevel {
        TxnLevel { rest: field.first, parts: field.more.into_iter() }
    }
}

impl TxnReader {
    /// Creates a reader. It returns [`DecodeError::TooMany`] after `fields_max` fields.
    pub fn new(message: Bytes, fields_max: usize) -> TxnReader {
        TxnReader::of(CommandField { tag: 0, first: message, more: Vec::new() }, fields_max)
    }

    fn of(field: CommandField, fields_max: usize) -> TxnReader {
        TxnReader { level: TxnLevel::new(field), around: Vec::new(), fields_left: fields_max }
    }

    /// Returns the next part; `None` at the end of the outermost transaction.
    pub fn next_part(&mut self) -> Result<Option<TxnPart>, DecodeError> {
        loop {
            while self.level.rest.is_empty() {
                let Some(part) = self.level.parts.next() else {
                    let Some(outer) = self.around.pop() else { return Ok(None) };
                    self.level = outer;
                    return Ok(Some(TxnPart::End));
                };
                self.level.rest = part;
            }
            count_field(&mut self.fields_left)?;
            let rest = &mut self.level.rest;
            let (tag, wire_type) = decode_key(rest)?;
            let branch = match tag {
                1 => {
                    let compare = Compare::decode(message_bytes(rest, wire_type)?)?;
                    return Ok(Some(TxnPart::Compare(compare)));
                }
                2 => Branch::Success,
                3 => Branch::Failure,
                _ => {
                    skip_field(wire_type, tag, rest, DecodeContext::default())?;
                    continue;
                }
            };
            let op = message_bytes(rest, wire_type)?;
            return self.op(branch, op).map(Some);
        }
    }

    /// Reads an operation; of a nested transaction, only its start.
    fn op(&mut self, branch: Branch, bytes: Bytes) -> Result<TxnPart, DecodeError> {
        let Some(field) = last_field(bytes, 4, &mut self.fields_left, |_, part| Ok(Some(part)))? else {
            return Ok(TxnPart::Op(branch, RequestOp { request: None }));
        };
        let request = match field.tag {
            1 => Request::RequestRange(field.message()?),
            2 => Request::RequestPut(field.message()?),
            3 => Request::RequestDeleteRange(field.message()?),
            _ => {
                self.around.push(std::mem::replace(&mut self.level, TxnLevel::new(field)));
                let is_too_deep = self.around.len() >= TXN_LEVELS_MAX;
                return if is_too_deep { Err(DecodeError::TooDeep) } else { Ok(TxnPart::Begin(branch)) };
            }
        };
        Ok(TxnPart::Op(branch, RequestOp { request: Some(request) }))
    }
}

/// Reads a complete transaction. Each list is limited to `ops_max` entries.
fn nested(mut reader: TxnReader, ops_max: usize) -> Result<TxnRequest, DecodeError> {
    let mut around: Vec<(TxnRequest, Branch)> = Vec::new();
    let mut txn = TxnRequest::default();
    while let Some(part) = reader.next_part()? {
        match part {
            TxnPart::Compare(compare) => txn.compare.push(compare),
            TxnPart::Op(branch, op) => push(&mut txn, branch, op),
            TxnPart::Begin(branch) => around.push((std::mem::take(&mut txn), branch)),
            TxnPart::End => {
                let (outer, branch) = around.pop().expect("what ends has begun");
                let inner = std::mem::replace(&mut txn, outer);
                push(&mut txn, branch, RequestOp { request: Some(Request::RequestTxn(inner)) });
            }
        }
        if txn.compare.len().max(txn.success.len()).max(txn.failure.len()) > ops_max {
            return Err(DecodeError::TooMany);
        }
    }
    Ok(txn)
}

fn push(txn: &mut TxnRequest, branch: Branch, op: RequestOp) {
    match branch {
        Branch::Success => txn.success.push(op),
        Branch::Failure => txn.failure.push(op),
    }
}

#[cfg(test)]
mod tests {
    use api::etcdserverpb::PutRequest;

    use super::*;

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

#[cfg(test)]
mod decode_tests;
