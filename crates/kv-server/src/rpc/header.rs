//! What an answer begins with: gRPC's frame, and ResponseHeader: who answers, at which revision and term.
//!
//! The state machine knows the revision only; ids and term are this member's and are filled in here. Cluster
//! answers carry no revision, and Defragment, MoveLeader and Snapshot carry no header at all.

use api::etcdserverpb::ResponseHeader;
use api::grpc::{self, PREFIX_BYTES};
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint};
use tonic::Status;

use crate::member::Member;

/// Completes the header of a response. A revision that is not set becomes the store's newest.
pub fn fill(member: &Member, header: &mut Option<ResponseHeader>) {
    let header = header.get_or_insert_default();
    if header.revision == 0 {
        header.revision = member.store.revision();
    }
    identify(member, header);
}

/// A separate header, at the store's newest revision.
pub fn newest(member: &Member) -> Option<ResponseHeader> {
    let mut header = None;
    fill(member, &mut header);
    header
}

/// The header of a Cluster answer.
pub fn without_revision(member: &Member) -> Option<ResponseHeader> {
    let mut header = ResponseHeader::default();
    identify(member, &mut header);
    Some(header)
}

/// The revision in the header of an encoded answer, which has its prefix before it. The header is its first
/// field. None where the answer has none, or not yet.
pub fn revision_in(framed: &[u8]) -> Option<i64> {
    let mut message = framed.get(PREFIX_BYTES..)?;
    let (number, kind) = decode_key(&mut message).ok()?;
    if (number, kind) != (1, WireType::LengthDelimited) {
        return None;
    }
    let length = usize::try_from(decode_varint(&mut message).ok()?).ok()?;
    let header = ResponseHeader::decode(message.get(..length)?).ok()?;
    (header.revision != 0).then_some(header.revision)
}

/// gRPC's frame: not compressed, the length in four bytes, the message.
pub fn framed(message: &impl Message) -> Result<Bytes, Status> {
    let bytes = message.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + bytes);
    frame.put_slice(&prefix(bytes)?);
    message.encode(&mut frame).expect("the buffer was made for this message");
    Ok(frame.freeze())
}

/// The frame's first five bytes, for a message of `bytes`.
pub fn prefix(bytes: usize) -> Result<[u8; PREFIX_BYTES], Status> {
    grpc::prefix(bytes).ok_or_else(|| grpc_errors::too_large_to_send(bytes))
}

fn identify(member: &Member, header: &mut ResponseHeader) {
    header.cluster_id = member.ids.cluster;
    header.member_id = member.ids.member;
    header.raft_term = member.status().term.0;
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::etcdserverpb::PutResponse;

    #[test]
    fn the_revision_of_an_encoded_answer_is_found() {
        let header = ResponseHeader { cluster_id: 7, revision: 300, raft_term: 2, ..Default::default() };
        let answer = PutResponse { header: Some(header), prev_kv: None };
        let framed = [&[0; PREFIX_BYTES][..], &answer.encode_to_vec()].concat();
        assert_eq!(revision_in(&framed), Some(300));
        for cut in 0..framed.len() {
            assert_eq!(revision_in(&framed[..cut]), None, "{cut} bytes");
        }
    }

    #[test]
    fn a_frame_carries_its_length() {
        let header = Some(ResponseHeader { revision: 2, ..ResponseHeader::default() });
        let frame = framed(&PutResponse { header, prev_kv: None }).unwrap();
        assert_eq!(&frame[..], b"\0\0\0\0\x04\x0a\x02\x18\x02");
        assert_eq!(&framed(&PutResponse::default()).unwrap()[..], b"\0\0\0\0\0");
    }
}
