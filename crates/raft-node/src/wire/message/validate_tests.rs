//! Each rejection separately, against a view of a follower or a leader with a log.

use bytes::Bytes;
use raft::eraftpb::ConfState;

use super::*;

const NEWEST: u64 = 7;
const TERM_ROOM: u64 = 1 << 32;

/// Entries 1 to 8 of terms 1 to 4, two each; committed up to 6, in term 7 of leader 2.
fn judge(role: Role, peer: u64, message: &Message) -> Result<(), &'static str> {
    let view = CoreView {
        id: 1,
        role,
        leader: Some(if role == Role::Leader { 1 } else { 2 }),
        term: NEWEST,
        commit: 6,
        last: 8,
        term_room: TERM_ROOM,
        reads_pending: READS_PENDING_MAX,
        is_durable: false,
        is_member: &|id| (1..=3).contains(&id),
        was_member: &|id| id == 8,
        term_at: &|index| (index <= 8).then_some(index.div_ceil(2)),
    };
    validate(&view, peer, message)
}

fn from_2(msg_type: MessageType) -> Message {
    Message { msg_type, from: 2, to: 1, term: NEWEST, ..Message::default() }
}

fn append(index: u64, log_term: u64, terms: &[u64]) -> Message {
    let entries =
        (index + 1..).zip(terms).map(|(index, term)| Entry { index, term: *term, ..Entry::default() });
    Message { index, log_term, entries: entries.collect(), ..from_2(MessageType::MsgAppend) }
}

fn snapshot(index: u64, term: u64) -> Message {
    let mut message = from_2(MessageType::MsgSnapshot);
    let metadata = message.mut_snapshot().mut_metadata();
    (metadata.index, metadata.term) = (index, term);
    metadata.set_conf_state(ConfState { voters: vec![1, 2, 3], ..ConfState::default() });
    message
}

fn read(msg_type: MessageType, name: &[u8]) -> Message {
    let entry = Entry { data: Bytes::copy_from_slice(name), ..Entry::default() };
    let term = if msg_type == MessageType::MsgReadIndex { 0 } else { NEWEST };
    Message { term, entries: vec![entry].into(), ..from_2(msg_type) }
}

fn conf_change(mut message: Message) -> Message {
    message.entries[0].entry_type = EntryType::EntryConfChangeV2;
    message
}

use MessageType::*;
use Role::{Candidate, Follower, Leader};

#[test]
fn what_honest_members_send_is_taken() {
    let ack = |index| Message { index, ..from_2(MsgAppendResponse) };
    let vote =
        Message { term: 8, log_term: 4, index: 8, commit: 6, commit_term: 3, ..from_2(MsgRequestVote) };
    for (role, message) in [
        (Follower, append(0, 0, &[1, 1, 2])),
        (Follower, append(8, 4, &[4, 5, NEWEST])),
        (Candidate, append(8, 4, &[NEWEST])),
        (Follower, append(80, 5, &[])),
        (Follower, Message { commit: 8, ..from_2(MsgHeartbeat) }),
        (Follower, Message { term: 3, commit: 80, ..from_2(MsgHeartbeat) }),
        (Leader, Message { term: 6, ..from_2(MsgHeartbeat) }),
        (Leader, Message { term: 8, ..from_2(MsgHeartbeat) }),
        (Follower, Message { term: NEWEST + TERM_ROOM, ..from_2(MsgHeartbeat) }),
        (Follower, snapshot(6, 3)),
        (Follower, snapshot(4, 2)),
        (Follower, snapshot(100, 5)),
        (Leader, ack(8)),
        (Leader, Message { reject: true, reject_hint: 5, log_term: 4, ..ack(7) }),
        (Leader, Message { reject: true, request_snapshot: 8, ..ack(20) }),
        (Leader, Message { reject: true, request_snapshot: 9, ..ack(20) }),
        (Follower, ack(80)),
        (Follower, vote.clone()),
        (Follower, Message { msg_type: MsgRequestPreVote, ..vote.clone() }),
        (Leader, Message { context: Bytes::from_static(TRANSFER), ..vote }),
        (Follower, from_2(MsgTimeoutNow)),
        (Follower, from_2(MsgRequestVoteResponse)),
        (Candidate, Message { term: 8, ..from_2(MsgRequestPreVoteResponse) }),
        (Follower, read(MsgReadIndexResp, b"round")),
        (Follower, read(MsgReadIndex, b"round")),
        (Follower, Message { from: 3, ..read(MsgReadIndex, b"relayed") }),
        (Follower, Message { from: 1, ..read(MsgReadIndex, b"came round") }),
    ] {
        assert_eq!(judge(role, 2, &message), Ok(()), "{role:?} {message:?}");
    }
}

type RefusedCase = (Role, Message, &'static str);

fn all_refused(cases: impl IntoIterator<Item = RefusedCase>) {
    for (role, message, reason) in cases {
        let peer = if message.from == 3 { 3 } else { 2 };
        assert_eq!(judge(role, peer, &message), Err(reason), "{role:?} {message:?}");
    }
}

fn ack(index: u64) -> Message {
    Message { index, ..from_2(MsgAppendResponse) }
}

#[test]
fn what_no_honest_leader_sends_is_refused() {
    let far = |message: Message| Message { index: 1 << 62, ..message };
    let leap = NEWEST + TERM_ROOM + 1;
    all_refused([
        (Follower, Message { from: 9, ..from_2(MsgHeartbeat) }, "the sender is not another member"),
        (Follower, Message { from: 9, ..read(MsgReadIndex, b"x") }, "the sender is not another member"),
        (Follower, Message { from: 1, ..from_2(MsgHeartbeat) }, "the sender claims to be this member"),
        (Follower, Message { term: u64::MAX, ..from_2(MsgHeartbeat) }, "a number beyond all bounds"),
        (Follower, Message { term: 1 << 62, ..from_2(MsgRequestPreVote) }, "a number beyond all bounds"),
        (Leader, Message { reject_hint: u64::MAX, ..ack(1) }, "a number beyond all bounds"),
        (Follower, far(append(1, 1, &[])), "a number beyond all bounds"),
        (Follower, snapshot(u64::MAX, 5), "a number beyond all bounds"),
        (Follower, Message { term: leap, ..from_2(MsgHeartbeat) }, "the term is too far ahead"),
        (Follower, Message { term: leap, ..from_2(MsgRequestVote) }, "the term is too far ahead"),
        (Follower, Message { term: leap, ..ack(1) }, "the term is too far ahead"),
        (
            Follower,
            Message { commit: 9, ..from_2(MsgHeartbeat) },
            "a commit index beyond this log: the sender is not a leader, or this member lost synced entries",
        ),
        (Leader, from_2(MsgHeartbeat), "another member leads this term"),
        (Leader, append(8, 4, &[7]), "another member leads this term"),
        (Follower, Message { from: 3, ..append(8, 4, &[7]) }, "another member leads this term"),
        (Follower, Message { from: 3, ..snapshot(100, 5) }, "another member leads this term"),
        (Follower, append(100, 0, &[7]), "an append after an entry without term"),
        (Follower, append(0, 1, &[7]), "an append after an entry without term"),
        (Follower, append(8, 8, &[]), "an append after an entry of a later term"),
        (Follower, append(8, 4, &[3]), "the terms of entries go back"),
        (Follower, append(8, 4, &[5, 4]), "the terms of entries go back"),
        (Follower, conf_change(append(8, 4, &[7])), "an entry of an unsupported kind"),
        (
            Follower,
            conf_change(Message { msg_type: MsgPropose, term: 0, ..append(8, 4, &[7]) }),
            "an entry of an unsupported kind",
        ),
        (Follower, snapshot(6, 4), "a snapshot that contradicts this log"),
        (Follower, snapshot(2, 2), "a snapshot that contradicts this log"),
        (Follower, snapshot(100, 2), "a snapshot that contradicts this log"),
    ]);
}

#[test]
fn what_no_honest_voter_sends_is_refused() {
    let vote = |log_term, index| Message { log_term, index, ..from_2(MsgRequestVote) };
    all_refused([
        (Leader, ack(9), "an acknowledgement of entries that this leader does not have"),
        (
            Leader,
            Message { reject: true, ..ack(9) },
            "an acknowledgement of entries that this leader does not have",
        ),
        (
            Leader,
            Message { reject: true, reject_hint: 6, ..ack(5) },
            "a rejection whose hint is after what it rejects",
        ),
        (
            Leader,
            Message { reject: true, log_term: 8, ..ack(5) },
            "a rejection whose hint is after what it rejects",
        ),
        (
            Leader,
            Message { reject: true, request_snapshot: 10, ..ack(5) },
            "a request for a snapshot beyond this log",
        ),
        (Follower, vote(7, 1), "a candidate's log ends in no earlier term"),
        (Follower, vote(0, 1), "a candidate's log ends in no earlier term"),
        (Follower, Message { commit: 9, ..vote(4, 8) }, "a candidate has committed more than its log"),
        (
            Follower,
            Message { context: Bytes::from_static(b"why"), ..vote(4, 8) },
            "an unknown reason to campaign",
        ),
        (Candidate, from_2(MsgRequestVoteResponse), "a vote that was not requested yet"),
        (Follower, Message { from: 3, ..from_2(MsgTimeoutNow) }, "only the leader of this term may say so"),
        (Follower, Message { term: 8, ..from_2(MsgTimeoutNow) }, "only the leader of this term may say so"),
        (
            Follower,
            Message { from: 3, ..read(MsgReadIndexResp, b"x") },
            "only the leader of this term may say so",
        ),
        (Follower, read(MsgReadIndex, b""), "a read round without a name"),
        (Follower, read(MsgReadIndex, &[1; 65]), "a read round without a name"),
        (Follower, read(MsgReadIndexResp, &[1; 65]), "a read round without a name"),
        (Leader, read(MsgReadIndex, b"x"), "too many read rounds are under way"),
    ]);
    for peer in [0, 1] {
        let message = Message { from: peer, ..from_2(MsgHeartbeat) };
        assert_eq!(judge(Follower, peer, &message), Err("the sender is not another member"));
    }
}

/// It may have been added by an entry that is not applied here. Its messages do not count towards a
/// majority.
#[test]
fn a_sender_that_is_no_member_may_lead_or_stand_and_nothing_else() {
    let later = NEWEST + 1;
    let kinds = (0..=19).filter_map(<MessageType as protobuf::ProtobufEnum>::from_i32);
    for msg_type in kinds {
        let message = Message { msg_type, from: 9, to: 1, term: later, ..Message::default() };
        let is_heard = judge(Follower, 9, &message) != Err("the sender is not another member");
        let speaks = [MsgAppend, MsgHeartbeat, MsgSnapshot, MsgRequestVote, MsgRequestPreVote];
        assert_eq!(is_heard, speaks.contains(&msg_type), "{msg_type:?}");
        let removed = Message { from: 8, ..message };
        assert_eq!(judge(Follower, 8, &removed), Err("the sender is not another member"), "{msg_type:?}");
    }
}
