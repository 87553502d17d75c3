use super::*;

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
