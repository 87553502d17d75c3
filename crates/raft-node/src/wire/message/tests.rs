use proptest::prelude::*;

use super::*;

const PEER: u64 = 2;
const SELF: u64 = 1;

fn entry(index: u64, term: u64, data: &'static [u8]) -> Entry {
    Entry { index, term, data: Bytes::from_static(data), ..Entry::default() }
}

fn message(msg_type: MessageType) -> Message {
    let mut message = Message { msg_type, to: SELF, from: PEER, term: 7, ..Message::default() };
    match msg_type {
        MessageType::MsgAppend => {
            message.index = 10;
            message.entries = vec![entry(11, 6, b"one"), entry(12, 7, b"")].into();
        }
        MessageType::MsgPropose => {
            message.term = 0;
            message.entries = vec![entry(0, 0, b"batch")].into();
        }
        MessageType::MsgReadIndex => {
            message.term = 0;
            message.entries = vec![entry(0, 0, b"context")].into();
        }
        MessageType::MsgReadIndexResp => message.entries = vec![entry(0, 0, b"context")].into(),
        MessageType::MsgSnapshot => message.set_snapshot(snapshot(20, 6)),
        _ => {}
    }
    message
}

fn snapshot(index: u64, term: u64) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (index, term);
    metadata.mut_conf_state().voters = vec![1, 2, 300];
    snapshot
}

fn wire_kinds() -> impl Iterator<Item = MessageType> {
    MessageType::values().iter().copied().filter(|kind| is_between_members(*kind))
}

#[test]
fn every_kind_comes_back_as_it_left() {
    assert_eq!(wire_kinds().count(), 13);
    for kind in wire_kinds() {
        let message = message(kind);
        assert_eq!(decode(PEER, SELF, encode(&message)), Ok(message), "{kind:?}");
    }
}

/// A message of 32 MiB would contain eight million of them, and take a gigabyte.
#[test]
fn a_message_has_no_more_entries_than_a_leader_sends() {
    let proposal = |count: usize| {
        let entries = vec![entry(0, 0, b""); count];
        let message = Message { entries: entries.into(), ..message(MessageType::MsgPropose) };
        decode(PEER, SELF, encode(&message)).map(|message| message.entries.len())
    };
    assert_eq!(proposal(ENTRIES_MAX), Ok(ENTRIES_MAX));
    assert_eq!(proposal(ENTRIES_MAX + 1), Err(MalformedBytes("entry count")));
    assert!(ENTRIES_MAX * size_of::<Entry>() <= 40 << 20, "{} bytes each", size_of::<Entry>());
    use protobuf::Message as _;
    let least = Entry { index: 1, term: 1, ..Entry::default() };
    assert_eq!(least.compute_size(), 4, "a leader cuts its messages by this size");
}

#[test]
fn the_layout_is_frozen() {
    let mut message = message(MessageType::MsgAppend);
    (message.log_term, message.commit, message.reject) = (6, 300, true);
    message.context = Bytes::from_static(b"c");
    let expected: &[u8] = &[
        1, 3, 1, // version, kind, flags
        2, 7, 6, 10, 0xac, 2, 0, 0, // from, term, log term, index, commit, commit term, hint
        1, b'c', // context
        2,    // entries
        0, 6, 11, 3, b'o', b'n', b'e', // kind, term, index, payload
        0, 7, 12, 0,
    ];
    assert_eq!(encode(&message), expected);
}

#[test]
fn the_layout_of_a_request_and_of_a_snapshot_is_frozen() {
    let mut request = message(MessageType::MsgAppendResponse);
    (request.reject, request.request_snapshot) = (true, 300);
    assert_eq!(encode(&request), [1, 4, 3, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0xac, 2].as_slice());
    assert_eq!(decode(PEER, SELF, encode(&request)), Ok(request));
    let expected: &[u8] = &[
        1, 7, 4, // version, kind, flags
        2, 7, 0, 0, 0, 0, 0, // from, term, log term, index, commit, commit term, hint
        0, 0, // context, entries
        20, 6, // snapshot: index, term
        3, 1, 2, 0xac, 2, 0, 0, 0, 0, // voters, learners, outgoing, next learners, auto leave
    ];
    let bytes = encode(&message(MessageType::MsgSnapshot));
    assert_eq!(bytes, expected);
    assert!(is_snapshot(&bytes) && !is_snapshot(&encode(&message(MessageType::MsgAppend))));
}

#[test]
fn a_snapshot_and_a_request_are_where_they_belong() {
    type Spoil = fn(&mut Message);
    let cases: [(MessageType, Spoil, &str); 5] = [
        (MessageType::MsgSnapshot, |m| m.mut_snapshot().mut_metadata().index = 0, "snapshot"),
        (MessageType::MsgSnapshot, |m| m.mut_snapshot().mut_metadata().term = 0, "snapshot"),
        (
            MessageType::MsgSnapshot,
            |m| m.mut_snapshot().mut_metadata().mut_conf_state().voters.clear(),
            "snapshot",
        ),
        (MessageType::MsgAppendResponse, |m| m.request_snapshot = 3, "request"),
        (MessageType::MsgHeartbeat, |m| m.request_snapshot = 3, "request"),
    ];
    for (at, (kind, spoil, what)) in cases.into_iter().enumerate() {
        let mut message = message(kind);
        spoil(&mut message);
        assert_eq!(decode(PEER, SELF, encode(&message)), Err(MalformedBytes(what)), "case {at}");
    }
    // The flag of a snapshot on another kind of message.
    let mut heartbeat = encode(&message(MessageType::MsgSnapshot)).to_vec();
    heartbeat[1] = MessageType::MsgHeartbeat.value() as u8;
    assert_eq!(decode(PEER, SELF, heartbeat.into()), Err(MalformedBytes("snapshot")));
    let mut bare = encode(&message(MessageType::MsgHeartbeat)).to_vec();
    bare[1] = MessageType::MsgSnapshot.value() as u8;
    assert_eq!(decode(PEER, SELF, bare.into()), Err(MalformedBytes("snapshot")));
}

#[test]
fn a_message_cut_anywhere_is_refused() {
    for kind in wire_kinds() {
        let whole = encode(&message(kind));
        for length in 0..whole.len() {
            assert!(decode(PEER, SELF, whole.slice(..length)).is_err(), "{kind:?} cut at {length}");
        }
        let longer = [&whole[..], &[0]].concat();
        assert_eq!(decode(PEER, SELF, longer.into()), Err(MalformedBytes("tail")), "{kind:?}");
    }
}

#[test]
fn notes_that_raft_writes_to_itself_are_refused_from_outside() {
    for kind in MessageType::values().iter().filter(|kind| !is_between_members(**kind)) {
        let mut bytes = encode(&message(MessageType::MsgHeartbeat)).to_vec();
        bytes[1] = kind.value() as u8;
        assert_eq!(decode(PEER, SELF, bytes.into()), Err(MalformedBytes("kind")), "{kind:?}");
    }
}

#[test]
fn a_peer_speaks_for_itself_only() {
    for kind in wire_kinds() {
        let forwards = matches!(kind, MessageType::MsgPropose | MessageType::MsgReadIndex);
        let bytes = encode(&message(kind));
        assert_eq!(decode(3, SELF, bytes).is_ok(), forwards, "{kind:?} of member 2, brought by member 3");
    }
}

#[test]
fn what_raft_takes_for_granted_is_checked() {
    type Spoil = fn(&mut Message);
    let cases: [(MessageType, Spoil, &str); 7] = [
        (MessageType::MsgHeartbeat, |m| m.term = 0, "term"),
        (MessageType::MsgPropose, |m| m.term = 3, "term"),
        (MessageType::MsgHeartbeat, |m| m.entries.push(entry(1, 1, b"")), "entries"),
        (MessageType::MsgAppend, |m| m.index = 11, "entries"),
        (MessageType::MsgAppend, |m| m.entries[0].term = 8, "entries"),
        (MessageType::MsgPropose, |m| m.entries.clear(), "entries"),
        (MessageType::MsgReadIndex, |m| m.entries.clear(), "entries"),
    ];
    for (at, (kind, spoil, what)) in cases.into_iter().enumerate() {
        let mut message = message(kind);
        spoil(&mut message);
        assert_eq!(decode(PEER, SELF, encode(&message)), Err(MalformedBytes(what)), "case {at}");
    }
    let mut to_none = encode(&message(MessageType::MsgHeartbeat)).to_vec();
    to_none[3] = 0;
    assert_eq!(decode(0, SELF, to_none.into()), Err(MalformedBytes("sender")));
}

#[test]
fn equal_messages_to_several_peers_share_one_buffer() {
    let to = |to| Message { to, ..message(MessageType::MsgAppend) };
    let out = encode_all(vec![to(3), to(4), Message { commit: 1, ..to(5) }]);
    assert_eq!(out[0].bytes.as_ptr(), out[1].bytes.as_ptr());
    assert_ne!(out[1].bytes, out[2].bytes, "this one says something else");
    assert_eq!(out.iter().map(|o| o.to).collect::<Vec<_>>(), [3, 4, 5]);
}

#[test]
fn what_was_forwarded_may_be_forwarded_back_to_where_it_began() {
    // A follower sent a request to this member as its leader; by now this member follows that follower.
    let back = Message { to: PEER, ..message(MessageType::MsgReadIndex) };
    let out = encode_all(vec![back]).remove(0);
    assert_eq!(out.to, PEER);
    assert_eq!(decode(3, PEER, out.bytes).map(|message| message.from), Ok(PEER));
}

#[test]
fn two_forwarded_proposals_are_never_taken_for_the_same() {
    let mut other = message(MessageType::MsgPropose);
    other.entries[0].data = Bytes::from_static(b"other");
    let out = encode_all(vec![message(MessageType::MsgPropose), other]);
    assert_ne!(out[0].bytes, out[1].bytes);
    assert!(!out[0].may_arrive_twice());
}

#[test]
fn answers_to_readers_of_two_members_do_not_share_their_bytes() {
    let answer = |to: u64| Message {
        msg_type: MessageType::MsgReadIndexResp,
        from: 1,
        to,
        term: 3,
        index: 9,
        entries: vec![Entry { data: Bytes::from(vec![to as u8; 24]), ..Entry::default() }].into(),
        ..Message::default()
    };
    let sent = encode_all(vec![answer(2), answer(3)]);
    for outbound in sent {
        let read = decode(1, outbound.to, outbound.bytes).expect("it was encoded here");
        assert_eq!(read.entries[0].data[0], outbound.to as u8, "the context of another member's reader");
    }
}

#[test]
fn entries_and_their_acknowledgements_never_hold_up_the_rest() {
    let bulk = [MessageType::MsgPropose, MessageType::MsgAppend, MessageType::MsgAppendResponse];
    for kind in wire_kinds() {
        let expected = if bulk.contains(&kind) { Lane::Bulk } else { Lane::Urgent };
        assert_eq!(lane(kind), expected, "{kind:?}");
    }
}

proptest! {
    #[test]
    fn any_append_comes_back(
        term in 1..u64::MAX,
        index in 0..u64::MAX - 100,
        commit: u64,
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..20),
    ) {
        let entries: Vec<Entry> = (index + 1..).zip(payloads)
            .map(|(index, data)| Entry { index, term, data: data.into(), ..Entry::default() })
            .collect();
        let msg_type = MessageType::MsgAppend;
        let entries = entries.into();
        let message =
            Message { msg_type, to: SELF, from: PEER, term, index, commit, entries, ..Message::default() };
        prop_assert_eq!(decode(PEER, SELF, encode(&message)), Ok(message));
    }

    #[test]
    fn garbage_gives_an_error_or_a_message_but_never_a_panic(
        garbage in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let _ = decode(PEER, SELF, garbage.into());
    }

    #[test]
    fn a_damaged_message_never_panics(kind in 0usize..12, at in 0usize..40, byte: u8) {
        let mut bytes = encode(&message(wire_kinds().nth(kind).unwrap())).to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(decoded) = decode(PEER, SELF, bytes.into()) {
            prop_assert!(check(PEER, &decoded).is_ok());
        }
    }
}
