//! Decoder for commands and transactions: total, and iterative for nested messages.
//!
//! ```text
//!   Command { txn }     apply     ─┐
//!                                  ├─▶ txn: a stack of open transactions, at most TXN_LEVELS_MAX
//!   TxnRequest          service   ─┘        └─▶ compares, ranges, puts, deletes: prost, which does not recurse there
//! ```
//!
//! * The service and apply decode transactions with the same function and count levels from the same message.
//!   So a transaction that passes the service is never too deep for apply. (prost counts levels from the
//!   outermost message, and in the log a transaction is one level deeper.)
//! * It accepts all that prost accepts, with the same result. Like prost it copies no keys and no values.
//! * `TXN_LEVELS_MAX` bounds the recursion of validation, cost, apply, encoding and drop.
//! * The service refuses a transaction of too many operations while it reads it: an operation of two bytes
//!   would take 250 in memory. Apply has no such bound, so every entry of a log stays readable.

use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{Compare, RequestOp, TxnRequest};
use bytes::Bytes;
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use api::command::Caller;
use api::command::command::Kind;

/// Maximum depth of nested transactions, with the outermost one. etcd bounds nesting only by `--max-txn-ops`:
/// its default of 128 permits 129 levels, the innermost one empty. A larger `--max-txn-ops` permits longer
/// lists here, but not deeper nesting, because the recursion must fit into a thread's stack of 2 MiB.
///
/// Apply refuses deeper nesting, so this is a property of the log format: members with different values would
/// diverge.
pub const TXN_LEVELS_MAX: usize = 129;

/// Why bytes are not a command or a transaction. The same bytes give the same error on every member.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// A nested message does not match its field.
    #[error("not a command")]
    Malformed(#[source] prost::DecodeError),
    /// A field has the wrong wire type, or is longer than its message.
    #[error("a field that does not fit its message")]
    Field,
    /// A kind that this version does not know, proposed by a newer one.
    #[error("a command of a kind that this version does not know")]
    UnknownKind,
    /// More than [`TXN_LEVELS_MAX`] nested transactions.
    #[error("transactions nested deeper than {TXN_LEVELS_MAX} levels")]
    TooDeep,
    /// More operations than `--max-txn-ops` permits. Never returned to apply.
    #[error("more operations than a transaction may have")]
    TooMany,
}

impl From<prost::DecodeError> for DecodeError {
    fn from(error: prost::DecodeError) -> Self {
        DecodeError::Malformed(error)
    }
}

/// What is read of one transaction.
struct TxnBounds {
    /// Compares or operations of a branch, in the outermost transaction. Validation checks those of nested
    /// ones.
    list: usize,
    /// Fields left to be read, at all levels.
    fields: usize,
}

/// An operation is a field of its transaction, and has a field.
const OP_FIELDS: usize = 2;

/// All levels together may have as many operations as so many full lists have. etcd bounds each list alone:
/// its limit of 128 permits 76,000 operations on three levels, which is 20 MB here, and a million on four.
const LISTS_MAX: usize = 640;

pub(super) fn fields_max(ops_max: usize) -> usize {
    OP_FIELDS.saturating_mul(LISTS_MAX).saturating_mul(ops_max)
}

impl TxnBounds {
    fn none() -> TxnBounds {
        TxnBounds { list: usize::MAX, fields: usize::MAX }
    }

    fn of_txn(ops_max: usize) -> TxnBounds {
        TxnBounds { list: ops_max, fields: fields_max(ops_max) }
    }

    fn count_field(&mut self) -> Result<(), DecodeError> {
        self.fields = self.fields.checked_sub(1).ok_or(DecodeError::TooMany)?;
        Ok(())
    }
}

/// The field of the caller, which is none of the oneof.
const CALLER: u32 = 13;
/// The last field that this version knows.
const LAST: u32 = 15;

/// The command in an entry, and its caller. Their byte fields are slices of `bytes`.
pub(super) fn command(bytes: Bytes) -> Result<(Kind, Option<Caller>), DecodeError> {
    let mut caller: Option<Caller> = None;
    let field = last_field(bytes, LAST, &mut TxnBounds::none(), |tag, part| {
        if tag == CALLER {
            caller.get_or_insert_default().merge(part)?;
            return Ok(None);
        }
        Ok(Some(part))
    })?;
    let field = field.ok_or(DecodeError::UnknownKind)?;
    let kind = match field.tag {
        1 => Kind::Put(field.message()?),
        2 => Kind::DeleteRange(field.message()?),
        3 => Kind::Txn(nested(field, TxnBounds::none())?),
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

/// A transaction as a client sends it, of at most `ops_max` operations in a list. Its byte fields are slices
/// of `bytes`.
pub(super) fn txn(bytes: Bytes, ops_max: usize) -> Result<TxnRequest, DecodeError> {
    nested(CommandField { tag: 0, first: bytes, more: Vec::new() }, TxnBounds::of_txn(ops_max))
}

/// The field of a oneof that counts: the last one. Consecutive occurrences are parts of one message, in
/// order.
struct CommandField {
    tag: u32,
    first: Bytes,
    more: Vec<Bytes>,
}

impl CommandField {
    /// The message, of a type that is not recursive.
    fn message<M: Message + Default>(self) -> Result<M, prost::DecodeError> {
        let mut message = M::decode(self.first)?;
        self.more.into_iter().try_for_each(|part| message.merge(part))?;
        Ok(message)
    }
}

/// Reads a message that is a oneof of messages with tags from 1 to `tag_max`. Unknown fields are skipped.
/// `select` takes fields that are not of the oneof.
fn last_field(
    mut bytes: Bytes,
    tag_max: u32,
    bounds: &mut TxnBounds,
    mut select: impl FnMut(u32, Bytes) -> Result<Option<Bytes>, prost::DecodeError>,
) -> Result<Option<CommandField>, DecodeError> {
    let mut last: Option<CommandField> = None;
    while !bytes.is_empty() {
        bounds.count_field()?;
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

/// Reads a length-delimited field.
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

/// One of the two lists of operations.
#[derive(Clone, Copy)]
enum Branch {
    Success,
    Failure,
}

/// A transaction that is being read.
struct TxnLevel {
    txn: TxnRequest,
    /// The rest of the current part.
    rest: Bytes,
    /// Further parts of the same message.
    parts: std::vec::IntoIter<Bytes>,
    /// The list of the parent transaction that contains it.
    of: Branch,
}

/// The next field of a transaction.
enum TxnField {
    Op(Branch, RequestOp),
    Enter(Branch, CommandField),
    Nothing,
    End,
}

impl TxnLevel {
    fn new(field: CommandField, of: Branch) -> TxnLevel {
        TxnLevel { txn: TxnRequest::default(), rest: field.first, parts: field.more.into_iter(), of }
    }

    fn push(&mut self, branch: Branch, op: RequestOp) {
        match branch {
            Branch::Success => self.txn.success.push(op),
            Branch::Failure => self.txn.failure.push(op),
        }
    }

    /// The length of the longest list.
    fn longest(&self) -> usize {
        self.txn.compare.len().max(self.txn.success.len()).max(self.txn.failure.len())
    }

    /// Reads the next field.
    fn step(&mut self, bounds: &mut TxnBounds) -> Result<TxnField, DecodeError> {
        while self.rest.is_empty() {
            let Some(part) = self.parts.next() else { return Ok(TxnField::End) };
            self.rest = part;
        }
        bounds.count_field()?;
        let (tag, wire_type) = decode_key(&mut self.rest)?;
        match tag {
            1 => self.txn.compare.push(Compare::decode(message_bytes(&mut self.rest, wire_type)?)?),
            2 => return op(Branch::Success, message_bytes(&mut self.rest, wire_type)?, bounds),
            3 => return op(Branch::Failure, message_bytes(&mut self.rest, wire_type)?, bounds),
            _ => skip_field(wire_type, tag, &mut self.rest, DecodeContext::default())?,
        }
        Ok(TxnField::Nothing)
    }
}

/// Reads an operation; a nested transaction is not read yet.
fn op(branch: Branch, bytes: Bytes, bounds: &mut TxnBounds) -> Result<TxnField, DecodeError> {
    let Some(field) = last_field(bytes, 4, bounds, |_, part| Ok(Some(part)))? else {
        return Ok(TxnField::Op(branch, RequestOp { request: None }));
    };
    let request = match field.tag {
        1 => Request::RequestRange(field.message()?),
        2 => Request::RequestPut(field.message()?),
        3 => Request::RequestDeleteRange(field.message()?),
        _ => return Ok(TxnField::Enter(branch, field)),
    };
    Ok(TxnField::Op(branch, RequestOp { request: Some(request) }))
}

/// Reads a transaction and everything in it, with a stack on the heap.
fn nested(field: CommandField, mut bounds: TxnBounds) -> Result<TxnRequest, DecodeError> {
    let mut around: Vec<TxnLevel> = Vec::new();
    let mut level = TxnLevel::new(field, Branch::Success);
    loop {
        match level.step(&mut bounds)? {
            TxnField::Op(branch, op) => level.push(branch, op),
            TxnField::Enter(branch, field) => {
                around.push(std::mem::replace(&mut level, TxnLevel::new(field, branch)));
                if around.len() >= TXN_LEVELS_MAX {
                    return Err(DecodeError::TooDeep);
                }
            }
            TxnField::Nothing => {}
            TxnField::End => {
                let Some(outer) = around.pop() else { return Ok(level.txn) };
                let TxnLevel { txn, of, .. } = std::mem::replace(&mut level, outer);
                level.push(of, RequestOp { request: Some(Request::RequestTxn(txn)) });
            }
        }
        if around.is_empty() && level.longest() > bounds.list {
            return Err(DecodeError::TooMany);
        }
    }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
