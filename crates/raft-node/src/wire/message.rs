//! Raft messages on the wire, in this crate's encoding: protobuf never parses input from peers.
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
//! | lane | messages | reason |
//! |---|---|---|
//! | urgent | heartbeats, votes, read rounds, and their responses | elections and reads wait for them |
//! | bulk | entries, acknowledgements, forwarded batches | large and many; they must not delay heartbeats |
//! | none | a snapshot's message | sent at the end of the snapshot's stream |
//!
//! A new field gets a flag: a member that does not support it rejects the message, as if it had been lost,
//! instead of misinterpreting it. Members of two versions thus interoperate except for new features.
//!
//! * The receiver is not encoded: one encoding serves every peer that gets the same message.
//! * Decoding is total, limits every length by [`PAYLOAD_BYTES_MAX`], and accepts only kinds that a peer may
//!   send.
//! * A snapshot's message has no state: the process streams it separately.
//!
//! # Validation
//!
//! ```text
//!   bytes ──decode──▶ message ──validate──▶ raft-rs
//!                                  └ rejected: logged at a bounded rate, otherwise as if it had been lost
//! ```
//!
//! raft-rs trusts its peers: it panics, overflows or loses committed entries if a message makes claims that
//! no honest member would. Each claim is compared with this member's state. The function is pure: a view of
//! the core and a message give a verdict.
//!
//! | claim | without the check |
//! |---|---|
//! | a sender that is this member, or a non-member that neither leads nor campaigns | panic on some paths |
//! | a heartbeat's commit index beyond the log | panic: `to_commit is out of range` |
//! | a term near the maximum | the next election overflows; all members follow the term |
//! | an append after an entry without term, or decreasing terms | a gap in the log; a panic in the writer |
//! | a second leader in the same term | entries that a follower acknowledged are replaced |
//! | an acknowledgement of entries that this leader does not have | entries commit without a majority |
//! | a read context of any length | followers reject the heartbeats that carry it: the leader is deposed |
//! | a snapshot that contradicts the log | committed entries are dropped, or the log starts too early |
//! | an order to campaign from a member that does not lead | an election without pre-vote |
//! | a vote before the request for it was sent | panic: a candidate wins with entries that are not durable |
//!
//! docs/internals/membership.md, "Messages of a faulty or hostile member", lists attacks that remain
//! possible until peers are authenticated.

use bytes::Bytes;
use protobuf::ProtobufEnum;
use raft::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};

use super::codec::{ByteReader, MalformedBytes, put_bytes, put_number};
use super::membership::{conf, put_conf};
use crate::types::{Lane, LogIndex, LogPosition, NUMBER_MAX, NodeId, Role, Term};

const VERSION: u8 = 1;
const REJECT: u8 = 1;
const REQUESTS_SNAPSHOT: u8 = 2;
const HAS_SNAPSHOT: u8 = 4;
/// Maximum payload of an entry. Equal to the limit of the log.
pub(super) const PAYLOAD_BYTES_MAX: usize = wal::PAYLOAD_BYTES_MAX;
/// Maximum length of a read context or of the mark of a forced election.
const CONTEXT_BYTES_MAX: usize = 64;
/// Minimum length of an entry: kind, term, index, length.
const ENTRY_BYTES_MIN: usize = 4;

/// Maximum bytes of entries in a message: large enough that a follower catches up at disk speed, small
/// enough that a message does not occupy a stream for long.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 1 << 20;

/// Maximum entries in a message: raft-rs counts at least 4 bytes for each when it limits a message to
/// [`MESSAGE_BYTES_MAX`], and admits one more. A decoded entry takes some 30 times the bytes of an empty one
/// on the wire.
const ENTRIES_MAX: usize = MESSAGE_BYTES_MAX as usize / 4 + 1;

/// An encoded message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outbound {
    pub to: NodeId,
    pub lane: Lane,
    pub bytes: Bytes,
}

impl Outbound {
    /// Reports whether a duplicate delivery is harmless. A forwarded proposal would be applied twice.
    pub fn may_arrive_twice(&self) -> bool {
        self.bytes[1] != MessageType::MsgPropose.value() as u8
    }
}

/// Encodes messages for sending; equal ones to several peers share a buffer.
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

/// Reports whether two messages share an encoding, which is limited to a leader's broadcasts. Entries are
/// compared by first and last: two messages of the same poll come from the same log. The entry in a read
/// response has no index: it is the reader's context, which is unique.
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

/// Returns the numbers of a message in encoding order.
fn fields(message: &Message) -> (MessageType, [u64; 7]) {
    let Message { msg_type, from, term, log_term, index, commit, commit_term, reject_hint, .. } = message;
    (*msg_type, [*from, *term, *log_term, *index, *commit, *commit_term, *reject_hint])
}

/// Reports whether this is a snapshot message: one per stream, small, and never resent.
pub fn is_snapshot(bytes: &[u8]) -> bool {
    bytes.first() == Some(&VERSION) && bytes.get(1) == Some(&(MessageType::MsgSnapshot.value() as u8))
}

/// Returns the position in a snapshot message from `peer` to this member `to`; `None` for other messages.
/// The process passes the message on only if it received a store that reaches exactly this position.
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

/// Encodes a message without validating it.
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

/// Decodes a message from peer `from` to member `to`. The peer may only speak for itself.
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

/// For fuzzers: a decoded message survives re-encoding.
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

/// Decodes entries. Payloads are slices of the message: it stays in memory as long as one of them does, for
/// entries as long as they are in the log store's cache.
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

/// Checks preconditions of raft-rs, which would panic otherwise.
fn check(from: NodeId, message: &Message) -> Result<(), MalformedBytes> {
    // A forwarded proposal or read retains its original sender, so it may come from a third member.
    let forwarded = is_forwarded(message);
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

/// Checks snapshot fields: a request is a kind of rejection; a snapshot has a position and members. A
/// snapshot with a term beyond the message's is ignored by the core: it comes from a leader that was deposed
/// in the meantime.
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

/// Reports whether members exchange this kind; the remaining kinds are internal to raft-rs.
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

/// Returns the lane: entries, their acknowledgements, and proposals are bulk; all other messages are small,
/// and leadership or reads depend on them.
fn lane(kind: MessageType) -> Lane {
    match kind {
        MessageType::MsgPropose | MessageType::MsgAppend | MessageType::MsgAppendResponse => Lane::Bulk,
        _ => Lane::Urgent,
    }
}

/// Returns the tag of an entry in messages and in the log.
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

/// Maximum pending read rounds of other members on a leader. A member has at most two, and retries a lost
/// one after half a second, which counts once more. Further ones are rejected until a quorum confirms the
/// pending ones.
const READS_PENDING_MAX: usize = 1024;

/// Context of a vote request in a forced election (raft-rs' `CAMPAIGN_TRANSFER`).
const TRANSFER: &[u8] = b"CampaignTransfer";

/// The core's state for validating messages.
pub(crate) struct CoreView<'a> {
    pub id: NodeId,
    pub role: Role,
    pub leader: Option<NodeId>,
    pub term: u64,
    pub commit: u64,
    pub last: u64,
    /// Permitted increase of the term.
    pub term_room: u64,
    /// Pending read rounds in raft-rs.
    pub reads_pending: usize,
    /// True if the log and the member's vote are durable. A candidate sends its vote requests only then.
    pub is_durable: bool,
    pub is_member: &'a dyn Fn(NodeId) -> bool,
    /// Reports whether a member was removed since this one started.
    pub was_member: &'a dyn Fn(NodeId) -> bool,
    /// Returns the term of an entry in the log, or of the position before its first one.
    pub term_at: &'a dyn Fn(u64) -> Option<u64>,
}

/// Validates a decoded message from the stream of `peer`. [`decode`] has checked the properties that need no
/// view: kinds, lengths, consecutive entries.
pub(crate) fn validate(view: &CoreView<'_>, peer: NodeId, message: &Message) -> Result<(), &'static str> {
    let known = |id| (view.is_member)(id);
    let is_heard = (known(peer) && known(message.from))
        || leaves_office(view, peer, message)
        || may_be_new(view, peer, message);
    if peer == view.id || !is_heard {
        return Err("the sender is not another member");
    }
    if message.from == view.id && !is_forwarded(message) {
        return Err("the sender claims to be this member");
    }
    check_numbers(message)?;
    if message.term > view.term && message.term - view.term > view.term_room {
        return Err("the term is too far ahead");
    }
    if message.term < view.term && !is_forwarded(message) {
        return Ok(()); // raft-rs responds with its own term, or ignores it.
    }
    use MessageType::*;
    match message.msg_type {
        MsgAppend => of_leader(view, message).and_then(|()| check_append(message)),
        MsgHeartbeat => of_leader(view, message).and_then(|()| check_heartbeat(view, message)),
        MsgSnapshot => of_leader(view, message).and_then(|()| check_fits_log(view, message)),
        MsgAppendResponse => check_acknowledgement(view, message),
        MsgRequestVote | MsgRequestPreVote => check_candidate(message),
        MsgRequestVoteResponse => {
            require(view.role != Role::Candidate || view.is_durable, "a vote that was not requested yet")
        }
        MsgTimeoutNow | MsgReadIndexResp if !is_own_leader(view, message) => {
            Err("only the leader of this term may say so")
        }
        MsgReadIndex | MsgReadIndexResp => check_read(view, message),
        MsgPropose => require(message.entries.iter().all(is_normal), "an entry of an unsupported kind"),
        _ => Ok(()),
    }
}

fn require(holds: bool, reason: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(reason) }
}

/// Reports whether the message is forwarded for another member: without a term, and possibly on behalf of a
/// third one.
fn is_forwarded(message: &Message) -> bool {
    matches!(message.msg_type, MessageType::MsgPropose | MessageType::MsgReadIndex)
}

fn is_normal(entry: &Entry) -> bool {
    entry.entry_type == EntryType::EntryNormal
}

/// Checks that raft-rs can add to all numbers without overflow.
fn check_numbers(message: &Message) -> Result<(), &'static str> {
    let Message { term, log_term, index, commit, commit_term, reject_hint, request_snapshot, .. } = message;
    let numbers = [term, log_term, index, commit, commit_term, reject_hint, request_snapshot];
    let snapshot = message.snapshot.as_ref().map(Snapshot::get_metadata);
    let snapshot = snapshot.map_or([0, 0], |metadata| [metadata.index, metadata.term]);
    let sound = numbers.into_iter().chain(&snapshot).all(|number| *number < NUMBER_MAX);
    require(sound, "a number beyond all bounds")
}

fn is_own_leader(view: &CoreView<'_>, message: &Message) -> bool {
    message.term == view.term && view.leader == Some(message.from)
}

/// Reports whether a removed leader transfers leadership with its last message.
fn leaves_office(view: &CoreView<'_>, peer: NodeId, message: &Message) -> bool {
    message.msg_type == MessageType::MsgTimeoutNow && peer == message.from && is_own_leader(view, message)
}

/// Accepts messages of leaders and candidates from any sender admitted by the process: the entry that adds
/// it may not be applied here yet. Only members count towards a majority.
fn may_be_new(view: &CoreView<'_>, peer: NodeId, message: &Message) -> bool {
    use MessageType::*;
    let leads_or_stands = match message.msg_type {
        MsgAppend | MsgHeartbeat | MsgSnapshot | MsgRequestVote | MsgRequestPreVote => true,
        MsgTimeoutNow | MsgReadIndexResp => is_own_leader(view, message),
        _ => false,
    };
    leads_or_stands && peer == message.from && peer != raft::INVALID_ID && !(view.was_member)(peer)
}

/// Checks that the sender is the only leader of its term, known from its first message.
fn of_leader(view: &CoreView<'_>, message: &Message) -> Result<(), &'static str> {
    let same_term = message.term == view.term;
    let another = view.role == Role::Leader || view.leader.is_some_and(|leader| leader != message.from);
    require(!(same_term && another), "another member leads this term")
}

/// Checks that terms only increase along the log; only the position before the first entry has none.
fn check_append(message: &Message) -> Result<(), &'static str> {
    require((message.index == 0) == (message.log_term == 0), "an append after an entry without term")?;
    require(message.log_term <= message.term, "an append after an entry of a later term")?;
    let terms = message.entries.iter().map(|entry| entry.term);
    let before = std::iter::once(message.log_term).chain(terms.clone());
    require(before.zip(terms).all(|(before, term)| before <= term), "the terms of entries go back")?;
    let is_supported = |entry: &Entry| entry.entry_type != EntryType::EntryConfChangeV2;
    require(message.entries.iter().all(is_supported), "an entry of an unsupported kind")
}

/// Checks a heartbeat: a leader's commit index is at most the index that this member acknowledged as synced.
/// If the leader is honest, this log has lost entries; the member then gets them again from the next leader,
/// and does not take part in commits until then.
fn check_heartbeat(view: &CoreView<'_>, message: &Message) -> Result<(), &'static str> {
    require(
        message.commit <= view.last,
        "a commit index beyond this log: the sender is not a leader, or this member lost synced entries",
    )
}

/// Checks that a snapshot, which covers committed entries, agrees with the local committed entries.
fn check_fits_log(view: &CoreView<'_>, message: &Message) -> Result<(), &'static str> {
    let metadata = message.get_snapshot().get_metadata();
    let agrees = if metadata.index <= view.commit {
        (view.term_at)(metadata.index).is_none_or(|term| term == metadata.term)
    } else {
        (view.term_at)(view.commit).is_none_or(|term| term <= metadata.term)
    };
    require(agrees, "a snapshot that contradicts this log")
}

/// Checks that the leader has all entries that its followers acknowledge or have applied, and all entries
/// that they reject to append after.
fn check_acknowledgement(view: &CoreView<'_>, message: &Message) -> Result<(), &'static str> {
    if view.role != Role::Leader || message.term != view.term {
        return Ok(()); // raft-rs ignores it, or uses only its term.
    }
    if message.request_snapshot != 0 {
        // A member that discarded its state requests a later one than it had.
        let wanted_max = view.last + 1;
        return require(message.request_snapshot <= wanted_max, "a request for a snapshot beyond this log");
    }
    require(message.index <= view.last, "an acknowledgement of entries that this leader does not have")?;
    let hint = !message.reject || (message.reject_hint <= message.index && message.log_term <= message.term);
    require(hint, "a rejection whose hint is after what it rejects")
}

/// Checks a candidate: the last entry of its log has an earlier term than the requested one, and its commit
/// index is within the log.
fn check_candidate(message: &Message) -> Result<(), &'static str> {
    let Message { term, log_term, index, commit, commit_term, context, .. } = message;
    require(
        log_term < term && (*index == 0) == (*log_term == 0),
        "a candidate's log ends in no earlier term",
    )?;
    require(commit <= index && commit_term <= log_term, "a candidate has committed more than its log")?;
    require(context.is_empty() || context == TRANSFER, "an unknown reason to campaign")
}

/// Checks a read round: its name is forwarded in heartbeats, where decoding limits it.
fn check_read(view: &CoreView<'_>, message: &Message) -> Result<(), &'static str> {
    let named = |entry: &Entry| {
        let name = 1..=CONTEXT_BYTES_MAX;
        is_normal(entry) && name.contains(&entry.data.len()) && (entry.index, entry.term) == (0, 0)
    };
    require(message.entries.len() == 1 && message.entries.iter().all(named), "a read round without a name")?;
    let asks = message.msg_type == MessageType::MsgReadIndex && view.role == Role::Leader;
    require(!asks || view.reads_pending < READS_PENDING_MAX, "too many read rounds are under way")
}

/// Result of a snapshot stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotOutcome {
    /// The follower has received everything, message included.
    Sent,
    /// Failed for any reason; Raft retries if it is still needed.
    Failed,
}

/// A leader's offer to a follower that needs its state.
///
/// The process streams its latest checkpoint and must then report [`crate::Event::SnapshotReported`].
///
/// The checkpoint may be later than the offer. The entries after it stay in the log during the stream.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotOffer {
    pub to: NodeId,
    /// The leader's term: in a later one the follower ignores the message.
    pub term: Term,
    /// The oldest acceptable checkpoint.
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

    /// Returns the message that the follower passes to its Raft once it has staged the complete checkpoint
    /// at `at`. A checkpoint is committed state, so any that is not older than the offer is valid.
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
#[cfg(test)]
mod validate_tests;
