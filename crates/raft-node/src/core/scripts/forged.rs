//! Hand-written messages: `forge 2>1 append term=3 index=4 log=2 entries=2,3`.
//!
//! Fields: `term`, `index`, `log` (term of `index`), `commit`, `commit-term`, `hint`, `request` (a
//! snapshot), `from`, `name` (of a read), `context`, `entries` (terms of entries after `index`),
//! `snapshot=INDEX@TERM`. Words: `reject`, `conf-change` (kind of the entries), `no-batch` and `no-payload`
//! (their payload), `of-others` (the snapshot's voters). `max` is the largest number. `garbage` is an
//! invalid kind.

use bytes::Bytes;
use raft::eraftpb::{ConfState, Entry, EntryType, Message, MessageType};

use super::commands::batch;
use super::show;
use crate::wire::written;

pub(super) fn bytes(from: u64, to: u64, words: &[&str]) -> Bytes {
    let (kind, fields) = words.split_first().expect("a message has a kind");
    if *kind == "garbage" {
        return Bytes::from_static(b"\x01\xff garbage");
    }
    let kinds = (0..=19).filter_map(<MessageType as protobuf::ProtobufEnum>::from_i32);
    let mut kinds = kinds.filter(|known| is_between_members(*known));
    let msg_type = kinds.find(|known| show::kind(*known) == *kind).expect("a known kind");
    let mut message = Message { msg_type, from, to, ..Message::default() };
    fields.iter().for_each(|field| set(&mut message, field));
    if matches!(msg_type, MessageType::MsgReadIndex | MessageType::MsgReadIndexResp)
        && message.entries.is_empty()
    {
        message.entries = vec![Entry::default()].into();
    }
    written(&message)
}

fn is_between_members(kind: MessageType) -> bool {
    use MessageType::*;
    !matches!(kind, MsgHup | MsgBeat | MsgUnreachable | MsgSnapStatus | MsgCheckQuorum | MsgTransferLeader)
}

fn number(value: &str) -> u64 {
    if value == "max" { u64::MAX } else { value.parse().expect("a number") }
}

fn set(message: &mut Message, field: &str) {
    let (name, value) = field.split_once('=').unwrap_or((field, ""));
    match name {
        "term" => message.term = number(value),
        "index" => message.index = number(value),
        "log" => message.log_term = number(value),
        "commit" => message.commit = number(value),
        "commit-term" => message.commit_term = number(value),
        "hint" => message.reject_hint = number(value),
        "request" => message.request_snapshot = number(value),
        "from" => message.from = number(value),
        "reject" => message.reject = true,
        "context" => message.context = Bytes::copy_from_slice(value.as_bytes()),
        "name" => {
            let data = Bytes::copy_from_slice(value.as_bytes());
            message.entries = vec![Entry { data, ..Entry::default() }].into();
        }
        "entries" => {
            let first = message.index.wrapping_add(1);
            let entry = |(index, term): (u64, &str)| Entry {
                index: if message.msg_type == MessageType::MsgPropose { 0 } else { index },
                term: number(term),
                data: batch("forged", 1),
                ..Entry::default()
            };
            message.entries = (first..).zip(value.split(',')).map(entry).collect();
        }
        "no-batch" => {
            message.entries.iter_mut().for_each(|entry| entry.data = Bytes::from_static(b"no batch"))
        }
        "no-payload" => message.entries.iter_mut().for_each(|entry| entry.data = Bytes::new()),
        "conf-change" => {
            message.entries.iter_mut().for_each(|entry| entry.entry_type = EntryType::EntryConfChangeV2);
        }
        "snapshot" => {
            let (index, term) = value.split_once('@').expect("INDEX@TERM");
            let metadata = message.mut_snapshot().mut_metadata();
            (metadata.index, metadata.term) = (number(index), number(term));
            metadata.set_conf_state(ConfState { voters: vec![1, 2, 3], ..ConfState::default() });
        }
        "of-others" => message.mut_snapshot().mut_metadata().mut_conf_state().voters = vec![1, 2, 9],
        other => panic!("no such field: {other}"),
    }
}
