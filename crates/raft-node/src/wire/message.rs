//! Raft messages on the wire, in this crate's own encoding: protobuf never parses what a peer sent.
//!
//! ```text
//!   version 1 │ kind │ flags │ from │ term │ log_term │ index │ commit │ commit_term │ hint │ context
//!     1 byte   1 byte  1 byte   numbers and byte strings as in `codec`
//!                                  │ entries │ request_snapshot, if flagged │ snapshot, if flagged
//!   entry: kind (1 byte) │ term │ index │ payload
//!   snapshot: index │ term │ membership as in `membership`
//!   flags: 1 reject, 2 a snapshot is requested, 4 a snapshot is here
//! ```
//!
//! | lane | messages | why |
//! |---|---|---|
//! | urgent | heartbeats, votes, read rounds, and the answers to them | elections and reads wait for them |
//! | bulk | entries, acknowledgements, forwarded batches | large and many; they must not delay heartbeats |
//! | none | a snapshot's message | it travels at the end of the snapshot's own stream |
//!
//! A new field gets a flag: a member that does not know it refuses the message, as if it had been lost,
//! instead of taking it for something else. Members of two versions so understand each other but for what is
//! new.
//!
//! * The receiver is not written: one encoding serves every peer that gets the same message.
//! * Decoding is total, bounds every length by [`PAYLOAD_BYTES_MAX`], and admits only kinds that a peer may
//!   send.
//! * A snapshot's message has no state: the process streams it separately.

use bytes::Bytes;
use protobuf::ProtobufEnum;
use raft::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};

use super::codec::{ByteReader, MalformedBytes, put_bytes, put_number};
use super::membership::{conf, put_conf};
use crate::types::{Lane, LogIndex, LogPosition, NodeId, Term};

const VERSION: u8 = 1;
const REJECT: u8 = 1;
const REQUESTS_SNAPSHOT: u8 = 2;
const HAS_SNAPSHOT: u8 = 4;
/// Longest payload of one entry. Equal to what the log accepts.
pub(super) const PAYLOAD_BYTES_MAX: usize = wal::PAYLOAD_BYTES_MAX;
/// A read context or the mark of a forced election: both are short.
pub(crate) const CONTEXT_BYTES_MAX: usize = 64;
/// The fewest bytes that an entry can take: kind, term, index, length.
const ENTRY_BYTES_MIN: usize = 4;

/// Entries in one message, in bytes: large enough that a follower catches up at disk speed, small enough that
/// one message never occupies a stream for long.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 1 << 20;

/// Entries in one message: raft-rs counts at least 4 bytes for each when it cuts a message at
/// [`MESSAGE_BYTES_MAX`], and lets one more in. A decoded entry takes some 30 times the bytes that an empty
/// one takes on the wire.
const ENTRIES_MAX: usize = MESSAGE_BYTES_MAX as usize / 4 + 1;

/// A message ready to leave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outbound {
    pub to: NodeId,
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

/// Only what a leader broadcasts may share its bytes. Its entries are compared by first and last: two
/// messages of one member and one turn are cut from one log. The entry of an answer to a read has no index:
/// it is the reader's context, and no two readers share that.
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

/// Whether this is the message of a snapshot: one per stream, small, and not sent again.
pub fn is_snapshot(bytes: &[u8]) -> bool {
    bytes.first() == Some(&VERSION) && bytes.get(1) == Some(&(MessageType::MsgSnapshot.value() as u8))
}

/// The entry that a snapshot's message from `peer` to this member `to` names; `None` if it is no such
/// message. For the process, which hands the message in only if it received a store that reaches exactly this
/// entry.
pub fn snapshot_position(peer: NodeId, to: NodeId, message: &Bytes) -> Option<LogPosition> {
    let message = decode(peer, to, message.clone()).ok()?;
    let metadata = message.snapshot.as_ref()?.get_metadata();
    Some(LogPosition::new(metadata.index, metadata.term))
}

pub(crate) fn encode(message: &Message) -> Bytes {
    assert!(is_between_members(message.msg_type), "{:?} is not for the wire", message.msg_type);
    assert_eq!(
        message.snapshot.is_some(),
        message.msg_type == MessageType::MsgSnapshot,
        "a snapshot's message, and no other, names one"
    );
    assert!(message.from != 0, "a message without a sender");
    for entry in &message.entries {
        assert!(entry.context.is_empty(), "entries of this crate carry no context");
        assert!(entry.data.len() <= PAYLOAD_BYTES_MAX, "an entry that no peer would take");
    }
    if let Some(snapshot) = message.snapshot.as_ref() {
        assert!(snapshot.data.is_empty(), "the state is sent separately");
    }
    written(message)
}

/// The bytes of a message, without a check of what it claims.
pub(crate) fn written(message: &Message) -> Bytes {
    let payloads: usize = message.entries.iter().map(|entry| entry.data.len() + 24).sum();
    let mut out = Vec::with_capacity(64 + message.context.len() + payloads);
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    let flags = flag(message.reject, REJECT)
        | flag(message.request_snapshot != 0, REQUESTS_SNAPSHOT)
        | flag(message.snapshot.is_some(), HAS_SNAPSHOT);
    out.extend_from_slice(&[VERSION, message.msg_type.value() as u8, flags]);
    fields(message).1.into_iter().for_each(|number| put_number(&mut out, number));
    put_bytes(&mut out, &message.context);
    put_number(&mut out, message.entries.len() as u64);
    for entry in &message.entries {
        out.push(entry_kind(entry));
        put_number(&mut out, entry.term);
        put_number(&mut out, entry.index);
        put_bytes(&mut out, &entry.data);
    }
    if message.request_snapshot != 0 {
        put_number(&mut out, message.request_snapshot);
    }
    if let Some(snapshot) = message.snapshot.as_ref() {
        let metadata = snapshot.get_metadata();
        put_number(&mut out, metadata.index);
        put_number(&mut out, metadata.term);
        put_conf(&mut out, metadata.get_conf_state());
    }
    out.into()
}

/// Decodes what peer `from` sent to member `to`. The peer may speak for itself only.
pub(crate) fn decode(from: NodeId, to: NodeId, bytes: Bytes) -> Result<Message, MalformedBytes> {
    let mut cursor = ByteReader::new(bytes);
    if cursor.byte("version")? != VERSION {
        return Err(MalformedBytes("version"));
    }
    let msg_type = MessageType::from_i32(i32::from(cursor.byte("kind")?)).ok_or(MalformedBytes("kind"))?;
    if !is_between_members(msg_type) {
        return Err(MalformedBytes("kind"));
    }
    let flags = cursor.byte("flags")?;
    if flags & !(REJECT | REQUESTS_SNAPSHOT | HAS_SNAPSHOT) != 0 {
        return Err(MalformedBytes("flags"));
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
    if flags & REQUESTS_SNAPSHOT != 0 {
        message.request_snapshot = cursor.number("requested index")?;
    }
    if flags & HAS_SNAPSHOT != 0 {
        message.set_snapshot(decode_snapshot(&mut cursor)?);
    }
    cursor.end("tail")?;
    check(from, &message)?;
    Ok(message)
}

/// For fuzzers: what is decoded survives being sent on.
#[doc(hidden)]
pub fn fuzzed_message(from: NodeId, to: NodeId, bytes: Bytes) {
    if let Ok(message) = decode(from, to, bytes) {
        assert_eq!(
            decode(from, to, encode(&message)).as_ref(),
            Ok(&message),
            "a message that changes on its way"
        );
    }
}

/// Payloads are slices of the message: it stays in memory as long as one of them does, which for entries is
/// as long as the log store's cache holds them.
fn decode_entries(cursor: &mut ByteReader) -> Result<Vec<Entry>, MalformedBytes> {
    let count = cursor.count(ENTRY_BYTES_MIN, "entry count")?;
    if count > ENTRIES_MAX {
        return Err(MalformedBytes("entry count"));
    }
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

fn decode_snapshot(cursor: &mut ByteReader) -> Result<Snapshot, MalformedBytes> {
    let mut snapshot = Snapshot::default();
    let metadata = snapshot.mut_metadata();
    metadata.index = cursor.number("snapshot index")?;
    metadata.term = cursor.number("snapshot term")?;
    metadata.set_conf_state(conf(cursor)?);
    Ok(snapshot)
}

/// What raft-rs takes for granted, and would panic without.
fn check(from: NodeId, message: &Message) -> Result<(), MalformedBytes> {
    // A forwarded proposal or read keeps the member where it began, so it may come from a third one.
    let forwarded = matches!(message.msg_type, MessageType::MsgPropose | MessageType::MsgReadIndex);
    if (message.from != from && !forwarded) || message.from == 0 {
        return Err(MalformedBytes("sender"));
    }
    let (needs_term, entries) = (!forwarded, &message.entries);
    if needs_term != (message.term != 0) {
        return Err(MalformedBytes("term"));
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
    if !consistent {
        return Err(MalformedBytes("entries"));
    }
    check_snapshot(message)
}

/// A request is a kind of rejection; a snapshot is of some entry, and of some members. One of a term beyond
/// the message's is for the core to ignore: a leader sent it that had been deposed meanwhile.
fn check_snapshot(message: &Message) -> Result<(), MalformedBytes> {
    let requests = message.msg_type == MessageType::MsgAppendResponse && message.reject;
    if message.request_snapshot != 0 && !requests {
        return Err(MalformedBytes("request"));
    }
    let sound = match message.snapshot.as_ref().map(Snapshot::get_metadata) {
        None => message.msg_type != MessageType::MsgSnapshot,
        Some(metadata) => {
            message.msg_type == MessageType::MsgSnapshot
                && metadata.index > 0
                && metadata.term > 0
                && !metadata.get_conf_state().voters.is_empty()
        }
    };
    if sound { Ok(()) } else { Err(MalformedBytes("snapshot")) }
}

/// Kinds that one member sends to another; the rest are raft-rs' notes to itself.
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
        | MsgRequestPreVoteResponse
        | MsgSnapshot => true,
        MsgHup | MsgBeat | MsgUnreachable | MsgSnapStatus | MsgCheckQuorum | MsgTransferLeader => false,
    }
}

/// Entries and their acknowledgements are bulk, with the proposals that become entries; everything else is
/// small, and a leader's office or a reader's patience depends on it.
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

pub(crate) fn entry_type(kind: u8) -> Result<EntryType, MalformedBytes> {
    match kind {
        0 => Ok(EntryType::EntryNormal),
        1 => Ok(EntryType::EntryConfChange),
        2 => Ok(EntryType::EntryConfChangeV2),
        _ => Err(MalformedBytes("entry kind")),
    }
}

/// How a snapshot's stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotOutcome {
    /// The follower has all of it, message included.
    Sent,
    /// It does not, for any reason; Raft asks again if it is still needed.
    Failed,
}

/// What a leader offers to a follower that needs its state.
///
/// A follower needs this member's state: the process streams its newest checkpoint and then owes
/// [`crate::Event::SnapshotReported`].
///
/// The checkpoint may be newer than the offer. What follows it is in the log as long as the stream lasts.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotOffer {
    pub to: NodeId,
    /// The leader's term: in a later one the follower will take no notice of the message.
    pub term: Term,
    /// The oldest checkpoint that will do.
    pub at: LogPosition,
    message: Message,
}

impl SnapshotOffer {
    pub(crate) fn new(message: Message, at: LogPosition) -> Self {
        assert_eq!(message.msg_type, MessageType::MsgSnapshot, "an offer of something else");
        let is_in_log = at.index > LogIndex::ZERO && at.term > Term(0);
        assert!(is_in_log && message.to != 0, "an offer without position or receiver");
        SnapshotOffer { to: message.to, term: Term(message.term), at, message }
    }

    /// The message that the follower hands to its own Raft once it has staged the checkpoint of `at`
    /// wholly. A checkpoint is committed state, so any that is not older than the offer is as good as the
    /// offer's.
    pub fn message(&self, at: LogPosition) -> Bytes {
        let is_newer = at.index >= self.at.index && at.term >= self.at.term;
        assert!(is_newer, "a checkpoint at {}, older than offered", at.index);
        let mut message = self.message.clone();
        let metadata = message.mut_snapshot().mut_metadata();
        (metadata.index, metadata.term) = (at.index.0, at.term.0);
        encode(&message)
    }
}

#[cfg(test)]
mod tests;
