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
//!
//! # What a message must satisfy
//!
//! ```text
//!   bytes ──decode──▶ message ──validate──▶ raft-rs
//!                                  └ refused: logged at a bounded rate, otherwise as if it had been lost
//! ```
//!
//! raft-rs trusts its peers: it panics, wraps around or loses committed entries if a message claims what no
//! honest member would. Here each claim is compared with what this member knows. The function is pure: a view
//! of the core, a message, a verdict.
//!
//! | claim | without the check |
//! |---|---|
//! | a sender that is this member, or no member and neither leads nor stands | raft-rs panics on some paths |
//! | a heartbeat's commit index beyond the log | panic: `to_commit is out of range` |
//! | a term near the maximum | the next election overflows; all members follow the term |
//! | an append after an entry without term, or terms that go back | a gap in the log; a panic in the writer |
//! | a second leader in one term | entries that a follower acknowledged are replaced |
//! | an acknowledgement of what this leader does not have | entries commit without a majority |
//! | a read context of any length | followers refuse the heartbeats that carry it: the leader is deposed |
//! | a snapshot that contradicts the log | committed entries are dropped, or the log begins too early |
//! | an order to campaign from a member that does not lead | an election without pre-vote |
//! | a vote before the request for it was sent | panic: a candidate wins with entries that are not durable |
//!
//! What remains possible until peers are authenticated: docs/internals/membership.md, "Messages of a faulty
//! or hostile member".

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
/// Longest payload of one entry. Equal to what the log accepts.
pub(super) const PAYLOAD_BYTES_MAX: usize = wal::PAYLOAD_BYTES_MAX;
/// A read context or the mark of a forced election: both are short.
const CONTEXT_BYTES_MAX: usize = 64;
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

/// Read rounds that a leader has under way for others. A member has two at most, and asks for a lost one
/// again after half a second, which counts once more. Others are refused until a quorum confirms what waits.
const READS_PENDING_MAX: usize = 1024;

/// What a member with a forced election writes into its request for votes (raft-rs' `CAMPAIGN_TRANSFER`).
const TRANSFER: &[u8] = b"CampaignTransfer";

/// What the core knows, as far as messages are judged by it.
pub(crate) struct CoreView<'a> {
    pub id: NodeId,
    pub role: Role,
    pub leader: Option<NodeId>,
    pub term: u64,
    pub commit: u64,
    pub last: u64,
    /// By how much the term may be raised now.
    pub term_room: u64,
    /// Read rounds under way, as raft-rs counts them.
    pub reads_pending: usize,
    /// The log and the own vote are durable. A candidate sends its requests for votes only then.
    pub is_durable: bool,
    pub is_member: &'a dyn Fn(NodeId) -> bool,
    /// It was removed since this member started.
    pub was_member: &'a dyn Fn(NodeId) -> bool,
    /// Term of an entry of the log, or of the place before its first one.
    pub term_at: &'a dyn Fn(u64) -> Option<u64>,
}

/// Judges a decoded message that arrived on the stream of `peer`. [`decode`] has checked what can be seen
/// without a view: kinds, lengths, consecutive entries.
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
        return Ok(()); // raft-rs answers with its own term, or ignores it; it reads no further.
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

/// Forwarded for another member: without a term, and perhaps on behalf of a third one.
fn is_forwarded(message: &Message) -> bool {
    matches!(message.msg_type, MessageType::MsgPropose | MessageType::MsgReadIndex)
}

fn is_normal(entry: &Entry) -> bool {
    entry.entry_type == EntryType::EntryNormal
}

/// No number of a message overflows when raft-rs adds to it.
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

/// A leader that was removed hands over with its last message.
fn leaves_office(view: &CoreView<'_>, peer: NodeId, message: &Message) -> bool {
    message.msg_type == MessageType::MsgTimeoutNow && peer == message.from && is_own_leader(view, message)
}

/// What a leader or a candidate says is taken from any sender that the process admits: the entry that adds it
/// may not be applied here yet. What counts for a majority is taken from members only.
fn may_be_new(view: &CoreView<'_>, peer: NodeId, message: &Message) -> bool {
    use MessageType::*;
    let leads_or_stands = match message.msg_type {
        MsgAppend | MsgHeartbeat | MsgSnapshot | MsgRequestVote | MsgRequestPreVote => true,
        MsgTimeoutNow | MsgReadIndexResp => is_own_leader(view, message),
        _ => false,
    };
    leads_or_stands && peer == message.from && peer != raft::INVALID_ID && !(view.was_member)(peer)
}

/// A term has one leader. Who it is, this member learned from its first message.
fn of_leader(view: &CoreView<'_>, message: &Message) -> Result<(), &'static str> {
    let same_term = message.term == view.term;
    let another = view.role == Role::Leader || view.leader.is_some_and(|leader| leader != message.from);
    require(!(same_term && another), "another member leads this term")
}

/// Terms only grow along a log, and only the place before the first entry has none.
fn check_append(message: &Message) -> Result<(), &'static str> {
    require((message.index == 0) == (message.log_term == 0), "an append after an entry without term")?;
    require(message.log_term <= message.term, "an append after an entry of a later term")?;
    let terms = message.entries.iter().map(|entry| entry.term);
    let before = std::iter::once(message.log_term).chain(terms.clone());
    require(before.zip(terms).all(|(before, term)| before <= term), "the terms of entries go back")?;
    let is_supported = |entry: &Entry| entry.entry_type != EntryType::EntryConfChangeV2;
    require(message.entries.iter().all(is_supported), "an entry of an unsupported kind")
}

/// A leader names at most what this member acknowledged to it as synced. If the leader is honest, this log
/// has lost entries; the member then gets them again from the next leader, and takes no part in commits until
/// then.
fn check_heartbeat(view: &CoreView<'_>, message: &Message) -> Result<(), &'static str> {
    require(
        message.commit <= view.last,
        "a commit index beyond this log: the sender is no leader, or this member lost synced entries",
    )
}

/// A snapshot is of a committed entry. It agrees with what is committed here.
fn check_fits_log(view: &CoreView<'_>, message: &Message) -> Result<(), &'static str> {
    let metadata = message.get_snapshot().get_metadata();
    let agrees = if metadata.index <= view.commit {
        (view.term_at)(metadata.index).is_none_or(|term| term == metadata.term)
    } else {
        (view.term_at)(view.commit).is_none_or(|term| term <= metadata.term)
    };
    require(agrees, "a snapshot that contradicts this log")
}

/// A leader has everything that its followers acknowledge or have applied, and everything that they refuse to
/// append after.
fn check_acknowledgement(view: &CoreView<'_>, message: &Message) -> Result<(), &'static str> {
    if view.role != Role::Leader || message.term != view.term {
        return Ok(()); // raft-rs ignores it, or takes its term only.
    }
    if message.request_snapshot != 0 {
        // A member that gave its state up asks for a later one than it had.
        let wanted_max = view.last + 1;
        return require(message.request_snapshot <= wanted_max, "a request for a snapshot beyond this log");
    }
    require(message.index <= view.last, "an acknowledgement of entries that this leader does not have")?;
    let hint = !message.reject || (message.reject_hint <= message.index && message.log_term <= message.term);
    require(hint, "a rejection whose hint is after what it rejects")
}

/// A candidate's log ends in an earlier term than the one it asks votes for, and is committed at most to its
/// end.
fn check_candidate(message: &Message) -> Result<(), &'static str> {
    let Message { term, log_term, index, commit, commit_term, context, .. } = message;
    require(
        log_term < term && (*index == 0) == (*log_term == 0),
        "a candidate's log ends in no earlier term",
    )?;
    require(commit <= index && commit_term <= log_term, "a candidate has committed more than its log")?;
    require(context.is_empty() || context == TRANSFER, "an unknown reason to campaign")
}

/// The name of a read round travels on in heartbeats, where decoding bounds it.
fn check_read(view: &CoreView<'_>, message: &Message) -> Result<(), &'static str> {
    let named = |entry: &Entry| {
        let name = 1..=CONTEXT_BYTES_MAX;
        is_normal(entry) && name.contains(&entry.data.len()) && (entry.index, entry.term) == (0, 0)
    };
    require(message.entries.len() == 1 && message.entries.iter().all(named), "a read round without a name")?;
    let asks = message.msg_type == MessageType::MsgReadIndex && view.role == Role::Leader;
    require(!asks || view.reads_pending < READS_PENDING_MAX, "too many read rounds are under way")
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
#[cfg(test)]
mod validate_tests;
