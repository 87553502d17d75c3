//! Formats a line per effect. A position is `INDEX@TERM`, a message `FROM>TO KIND tTERM …`.

use raft::StateRole;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};

use super::super::hold::OTHER_OF_TWO;
use super::super::notices::NOT_ANSWERED;
use crate::LogPosition;
use crate::log::{DurableState, PersistJob};
use crate::wire::{Batch, Outbound, change_batch, decode};

pub(super) fn position(at: LogPosition) -> String {
    format!("{}@{}", at.index, at.term)
}

/// Formats the command of an entry, its length if it is long, `-` for an entry without payload.
pub(super) fn payload(data: &bytes::Bytes) -> String {
    if data.is_empty() {
        return "-".to_owned();
    }
    let Ok(commands) = Batch::parse(data).and_then(|batch| batch.commands()) else {
        return format!("<{} bytes that are no batch>", data.len());
    };
    let shown = commands.iter().map(|command| match command.len() {
        0..=12 => command.escape_ascii().to_string(),
        bytes => format!("<{bytes} bytes>"),
    });
    shown.collect::<Vec<_>>().join("+")
}

pub(super) fn entries(entries: &[Entry]) -> String {
    let shown = entries.iter().map(|entry| {
        let at = LogPosition::new(entry.index, entry.term);
        let is_change = entry.entry_type == EntryType::EntryConfChange;
        let data = if is_change { change_batch(&entry.data).expect("a change") } else { entry.data.clone() };
        format!("{} {}", position(at), payload(&data))
    });
    shown.collect::<Vec<_>>().join(", ")
}

pub(super) fn role(role: StateRole) -> &'static str {
    match role {
        StateRole::Leader => "leader",
        StateRole::Follower => "follower",
        StateRole::Candidate => "candidate",
        StateRole::PreCandidate => "pre-candidate",
    }
}

/// Returns the name of a kind in `deliver 1>2 KIND`.
pub(super) fn kind(kind: MessageType) -> &'static str {
    use MessageType::*;
    match kind {
        MsgAppend => "append",
        MsgAppendResponse => "ack",
        MsgHeartbeat => "heartbeat",
        MsgHeartbeatResponse => "heartbeat-ack",
        MsgRequestVote => "vote-request",
        MsgRequestVoteResponse => "vote",
        MsgRequestPreVote => "pre-vote-request",
        MsgRequestPreVoteResponse => "pre-vote",
        MsgTimeoutNow => "campaign-now",
        MsgPropose => "propose",
        MsgReadIndex => "read",
        MsgReadIndexResp => "read-answer",
        MsgSnapshot => "snapshot",
        other => panic!("{other:?} is not sent between members"),
    }
}

pub(super) fn decoded(from: u64, sent: &Outbound) -> Message {
    decode(from, sent.to, sent.bytes.clone()).expect("a core sends what its peers understand")
}

pub(super) fn message(message: &Message) -> String {
    use MessageType::*;
    let Message { from, to, term, index, log_term, commit, msg_type, .. } = message;
    let term = if *term == 0 { String::new() } else { format!(" t{term}") };
    let at = position(LogPosition::new(*index, *log_term));
    let name = || message.entries[0].data.escape_ascii().to_string();
    let unanswered = match msg_type {
        MsgAppend | MsgHeartbeat if message.reject_hint == NOT_ANSWERED => " unanswered",
        _ => "",
    };
    let details = match msg_type {
        MsgAppend => {
            format!(" after {at} [{}] commit {commit}{unanswered}", entries(&message.entries))
        }
        MsgAppendResponse if message.request_snapshot != 0 => {
            format!(" asks for a snapshot of {}", message.request_snapshot)
        }
        MsgAppendResponse if message.reject => {
            let hint = position(LogPosition::new(message.reject_hint, *log_term));
            format!(" rejects {index}, has {hint}")
        }
        MsgAppendResponse => format!(" {index}"),
        MsgHeartbeat => format!(" commit {commit}{}{unanswered}", context(message)),
        MsgHeartbeatResponse => context(message),
        MsgRequestVote | MsgRequestPreVote => {
            let of_two = if message.reject_hint == OTHER_OF_TWO { " of two" } else { "" };
            format!(" log {at}{}{of_two}", context(message))
        }
        MsgRequestVoteResponse | MsgRequestPreVoteResponse => {
            if message.reject {
                " refused".to_owned()
            } else {
                " granted".to_owned()
            }
        }
        MsgPropose => format!(" {}", proposals(&message.entries)),
        MsgReadIndex => format!(" {}", name()),
        MsgReadIndexResp => format!(" {} at {index}", name()),
        _ => String::new(),
    };
    format!("{from}>{to} {}{term}{details}", kind(*msg_type))
}

fn context(message: &Message) -> String {
    match <[u8; 8]>::try_from(&message.context[..]) {
        Ok(number) => format!(" round {}", u64::from_le_bytes(number)),
        Err(_) if message.context.is_empty() => String::new(),
        Err(_) => format!(" {}", message.context.escape_ascii()),
    }
}

/// Formats entries without a position.
fn proposals(entries: &[Entry]) -> String {
    entries.iter().map(|entry| payload(&entry.data)).collect::<Vec<_>>().join(", ")
}

fn durable_state(state: &[u8]) -> String {
    let DurableState { hard, catch_up, .. } = DurableState::decode(state).expect("the core's own state");
    let vote = if hard.vote == 0 { "-".to_owned() } else { hard.vote.to_string() };
    let held = catch_up.map(|until| format!(", held until {}", position(until)));
    format!("t{} vote {vote} commit {}{}", hard.term, hard.commit, held.unwrap_or_default())
}

/// Formats the data that a job makes durable, and the messages that it releases.
pub(super) fn job(job: &PersistJob) -> String {
    let mut parts = Vec::new();
    if let Some(restart) = &job.restart {
        parts.push(format!("a log that begins after {}", position(restart.at)));
    }
    let mut shown = 0;
    for (before, state) in &job.early_states {
        if *before > shown {
            parts.push(entries(&job.entries[shown..*before]));
            shown = *before;
        }
        parts.push(durable_state(state));
    }
    if job.entries.len() > shown {
        parts.push(entries(&job.entries[shown..]));
    }
    parts.extend(job.state.as_deref().map(durable_state));
    let synced = if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") };
    let release = job.release.map(|index| format!(", then releases entries before {index}"));
    synced + &release.unwrap_or_default()
}
