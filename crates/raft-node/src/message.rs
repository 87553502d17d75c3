//! Raft messages on the wire, in this crate's own encoding: protobuf never parses what a peer sent.
//!
//! ```text
//!   version 1 │ kind │ flags │ from │ term │ log_term │ index │ commit │ commit_term │ hint │ context │ entries
//!     1 byte   1 byte  1 byte   numbers and byte strings as in `codec`
//!   entry: kind (1 byte) │ term │ index │ payload
//! ```
//!
//! * The receiver is not written: one encoding serves every peer that gets the same message.
//! * Decoding is total, bounds every length by [`PAYLOAD_BYTES_MAX`], and admits only kinds that a peer may send.
//! * Nothing that asks for a Raft snapshot can be expressed: while no log is ever trimmed, none is needed.

use bytes::Bytes;
use protobuf::ProtobufEnum;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};

use crate::Lane;
use crate::codec::{Cursor, Malformed, put_bytes, put_number};

const VERSION: u8 = 1;
const REJECT: u8 = 1;
/// Longest payload of one entry. Equal to what the log accepts.
pub(crate) const PAYLOAD_BYTES_MAX: usize = wal::PAYLOAD_BYTES_MAX;
/// A read context or the mark of a forced election: both are short.
const CONTEXT_BYTES_MAX: usize = 64;
/// The fewest bytes that an entry can take: kind, term, index, length.
const ENTRY_BYTES_MIN: usize = 4;

/// A message ready to leave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outbound {
    pub to: u64,
    pub lane: Lane,
    pub bytes: Bytes,
}

impl Outbound {
    /// Whether delivering this twice is harmless. A forwarded proposal would be applied twice.
    pub fn may_arrive_twice(&self) -> bool {
        self.bytes[1] != MessageType::MsgPropose.value() as u8
    }
}

/// Encodes messages for sending; equal ones to several peers share one buffer.
pub(crate) fn encode_all(messages: Vec<Message>) -> Vec<Outbound> {
    let mut previous: Option<(Message, Bytes)> = None;
    let mut outbound = Vec::with_capacity(messages.len());
    for message in messages {
        assert!(message.to != 0, "a message that goes nowhere");
        let bytes = match &previous {
            Some((like, bytes)) if same_but_for_receiver(like, &message) => bytes.clone(),
            _ => encode(&message),
        };
        outbound.push(Outbound { to: message.to, lane: lane(message.msg_type), bytes: bytes.clone() });
        previous = Some((message, bytes));
    }
    outbound
}

/// Only what a leader broadcasts may share its bytes. Its entries are compared by first and last: two messages of one
/// member and one turn are cut from one log. The entry of an answer to a read has no index: it is the reader's context,
/// and no two readers share that.
fn same_but_for_receiver(a: &Message, b: &Message) -> bool {
    let broadcast = matches!(a.msg_type, MessageType::MsgAppend | MessageType::MsgHeartbeat);
    let entries =
        |m: &Message| (m.entries.len(), m.entries.first().map(position), m.entries.last().map(position));
    broadcast
        && fields(a) == fields(b)
        && a.reject == b.reject
        && a.context == b.context
        && entries(a) == entries(b)
}

fn position(entry: &Entry) -> (u64, u64) {
    (entry.index, entry.term)
}

/// The numbers of a message in the order in which they are written.
fn fields(message: &Message) -> (MessageType, [u64; 7]) {
    let Message { msg_type, from, term, log_term, index, commit, commit_term, reject_hint, .. } = message;
    (*msg_type, [*from, *term, *log_term, *index, *commit, *commit_term, *reject_hint])
}

fn encode(message: &Message) -> Bytes {
    assert!(is_between_members(message.msg_type), "{:?} is not for the wire", message.msg_type);
    assert!(message.snapshot.is_none() && message.request_snapshot == 0, "no Raft snapshots yet");
    assert!(message.from != 0, "a message without a sender");
    let payloads: usize = message.entries.iter().map(|entry| entry.data.len() + 24).sum();
    let mut out = Vec::with_capacity(64 + message.context.len() + payloads);
    let flags = if message.reject { REJECT } else { 0 };
    out.extend_from_slice(&[VERSION, message.msg_type.value() as u8, flags]);
    fields(message).1.into_iter().for_each(|number| put_number(&mut out, number));
    put_bytes(&mut out, &message.context);
    put_number(&mut out, message.entries.len() as u64);
    for entry in &message.entries {
        assert!(entry.context.is_empty(), "entries of this crate carry no context");
        assert!(entry.data.len() <= PAYLOAD_BYTES_MAX, "an entry that no peer would take");
        out.push(entry_kind(entry));
        put_number(&mut out, entry.term);
        put_number(&mut out, entry.index);
        put_bytes(&mut out, &entry.data);
    }
    out.into()
}

/// Decodes what peer `from` sent to member `to`. The peer may speak for itself only.
pub(crate) fn decode(from: u64, to: u64, bytes: Bytes) -> Result<Message, Malformed> {
    let mut cursor = Cursor::new(bytes);
    if cursor.byte("version")? != VERSION {
        return Err(Malformed("version"));
    }
    let msg_type = MessageType::from_i32(i32::from(cursor.byte("kind")?)).ok_or(Malformed("kind"))?;
    if !is_between_members(msg_type) {
        return Err(Malformed("kind"));
    }
    let flags = cursor.byte("flags")?;
    if flags & !REJECT != 0 {
        return Err(Malformed("flags"));
    }
    let mut message = Message { msg_type, to, reject: flags & REJECT != 0, ..Message::default() };
    message.from = cursor.number("from")?;
    message.term = cursor.number("term")?;
    message.log_term = cursor.number("log term")?;
    message.index = cursor.number("index")?;
    message.commit = cursor.number("commit")?;
    message.commit_term = cursor.number("commit term")?;
    message.reject_hint = cursor.number("hint")?;
    message.context = cursor.bytes(CONTEXT_BYTES_MAX, "context")?;
    message.entries = decode_entries(&mut cursor)?.into();
    cursor.end("tail")?;
    check(from, &message)?;
    Ok(message)
}

/// Payloads are slices of the message: it stays in memory as long as one of them does, which for entries is as long as
/// the log store's cache holds them.
fn decode_entries(cursor: &mut Cursor) -> Result<Vec<Entry>, Malformed> {
    let count = cursor.count(ENTRY_BYTES_MIN, "entry count")?;
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        entries.push(Entry {
            entry_type: entry_type(cursor.byte("entry kind")?)?,
            term: cursor.number("entry term")?,
            index: cursor.number("entry index")?,
            data: cursor.bytes(PAYLOAD_BYTES_MAX, "entry payload")?,
            ..Entry::default()
        });
    }
    Ok(entries)
}

/// What raft-rs takes for granted, and would panic without.
fn check(from: u64, message: &Message) -> Result<(), Malformed> {
    // A forwarded proposal or read keeps the member where it began, so it may come from a third one.
    let forwarded = matches!(message.msg_type, MessageType::MsgPropose | MessageType::MsgReadIndex);
    if (message.from != from && !forwarded) || message.from == 0 {
        return Err(Malformed("sender"));
    }
    let (needs_term, entries) = (!forwarded, &message.entries);
    if needs_term != (message.term != 0) {
        return Err(Malformed("term"));
    }
    let consistent = match message.msg_type {
        MessageType::MsgAppend => entries.iter().zip(1..).all(|(entry, offset)| {
            message.index.checked_add(offset) == Some(entry.index)
                && entry.term != 0
                && entry.term <= message.term
        }),
        MessageType::MsgPropose => !entries.is_empty() && entries.iter().all(|e| position(e) == (0, 0)),
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp => entries.len() == 1,
        _ => entries.is_empty(),
    };
    if consistent { Ok(()) } else { Err(Malformed("entries")) }
}

/// Kinds that one member sends to another; the rest are raft-rs' notes to itself, or need Raft snapshots.
fn is_between_members(kind: MessageType) -> bool {
    use MessageType::*;
    match kind {
        MsgPropose
        | MsgAppend
        | MsgAppendResponse
        | MsgRequestVote
        | MsgRequestVoteResponse
        | MsgHeartbeat
        | MsgHeartbeatResponse
        | MsgTimeoutNow
        | MsgReadIndex
        | MsgReadIndexResp
        | MsgRequestPreVote
        | MsgRequestPreVoteResponse => true,
        MsgHup | MsgBeat | MsgSnapshot | MsgUnreachable | MsgSnapStatus | MsgCheckQuorum
        | MsgTransferLeader => false,
    }
}

/// Entries and their acknowledgements are bulk, with the proposals that become entries; everything else is small, and a
/// leader's office or a reader's patience depends on it.
fn lane(kind: MessageType) -> Lane {
    match kind {
        MessageType::MsgPropose | MessageType::MsgAppend | MessageType::MsgAppendResponse => Lane::Bulk,
        _ => Lane::Urgent,
    }
}

/// The tag that an entry has in messages and in the log.
pub(crate) fn entry_kind(entry: &Entry) -> u8 {
    match entry.entry_type {
        EntryType::EntryNormal => 0,
        EntryType::EntryConfChange => 1,
        EntryType::EntryConfChangeV2 => 2,
    }
}

pub(crate) fn entry_type(kind: u8) -> Result<EntryType, Malformed> {
    match kind {
        0 => Ok(EntryType::EntryNormal),
        1 => Ok(EntryType::EntryConfChange),
        2 => Ok(EntryType::EntryConfChangeV2),
        _ => Err(Malformed("entry kind")),
    }
}

#[cfg(test)]
mod tests;
