//! What a peer's message must satisfy before raft-rs handles it.
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
//! What remains possible until peers are authenticated: ARCHITECTURE.md, "Messages that no honest member
//! sends".

use raft::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};

use crate::types::{NUMBER_MAX, NodeId, Role};
use crate::wire::CONTEXT_BYTES_MAX;

/// By how much messages may raise the term between two ticks. Elections raise it by one each. With ticks of
/// 100 ms a forger needs 3.4 years to reach [`NUMBER_MAX`]; a member that was away while a forger raised the
/// term catches up as fast as the forger was.
const TERM_LEAP_PER_TICK: u64 = 1 << 32;

/// Read rounds that a leader has under way for others. A member has two at most, and begins a lost one again
/// after half a second; more are forged. They are refused until a quorum confirms what waits.
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

/// Judges a decoded message that arrived on the stream of `peer`. [`crate::wire::decode`] has checked what
/// can be seen without a view: kinds, lengths, consecutive entries.
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
        MsgSnapshot => of_leader(view, message).and_then(|()| check_snapshot(view, message)),
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
fn check_snapshot(view: &CoreView<'_>, message: &Message) -> Result<(), &'static str> {
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

/// By how much the term may be raised, see [`TERM_LEAP_PER_TICK`].
pub(crate) struct TermBudget {
    pub room: u64,
    /// A message was refused since the last tick whose term lies ahead.
    is_behind: bool,
}

impl Default for TermBudget {
    fn default() -> Self {
        TermBudget { room: TERM_LEAP_PER_TICK, is_behind: false }
    }
}

impl TermBudget {
    pub fn spend(&mut self, raised: u64) {
        self.room = self.room.saturating_sub(raised);
    }

    pub fn note_behind(&mut self) {
        self.is_behind = true;
    }

    /// What is left is kept only while this member lags, so the total never exceeds one leap per tick.
    pub fn tick(&mut self) {
        let kept = if std::mem::take(&mut self.is_behind) { self.room } else { 0 };
        self.room = kept.saturating_add(TERM_LEAP_PER_TICK);
    }
}

/// Logs refusals at a bounded rate.
#[derive(Default)]
pub(crate) struct RefusalLog {
    quiet_ticks: u32,
    unlogged: u64,
    /// All of them, for golden scripts.
    #[cfg(test)]
    pub noted: Vec<String>,
}

impl RefusalLog {
    /// A refusal: the first in `quiet_ticks` is logged, with the number of those before it that were not.
    pub fn note(&mut self, peer: NodeId, reason: &str, quiet_ticks: u32) {
        #[cfg(test)]
        self.noted.push(reason.to_owned());
        if self.quiet_ticks > 0 {
            self.unlogged += 1;
            return;
        }
        let unlogged = std::mem::take(&mut self.unlogged);
        tracing::warn!(peer = format!("{peer:x}"), reason, unlogged, "refused a message");
        self.quiet_ticks = quiet_ticks;
    }

    pub fn tick(&mut self) {
        self.quiet_ticks = self.quiet_ticks.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests;
