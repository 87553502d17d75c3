//! The key space: KV's methods, as tonic calls them and as the connection's task does.

mod answers; // the memory of what writes answer
mod large; // ranges that are sent as they are made

mod width; // how much a read touches, and where it is made

mod methods; // each method
mod now; // ranges that wait for nothing

use api::grpc::{self, PREFIX_BYTES};
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use tonic::Status;

pub(super) use large::LargeAnswer;
pub(super) use methods::{Kv, RangedRequest, check_quota, delete_range, put, range, range_or_large, txn};
pub(super) use now::range as range_now;

/// gRPC's frame: not compressed, the length in four bytes, the message.
pub fn framed(message: &impl Message) -> Result<Bytes, Status> {
    let bytes = message.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + bytes);
    frame.put_slice(&prefix(bytes)?);
    message.encode(&mut frame).expect("the buffer was made for this message");
    Ok(frame.freeze())
}

/// The frame's first five bytes, for a message of `bytes`.
fn prefix(bytes: usize) -> Result<[u8; PREFIX_BYTES], Status> {
    grpc::prefix(bytes).ok_or_else(|| grpc_errors::too_large_to_send(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::etcdserverpb::{PutResponse, ResponseHeader};

    #[test]
    fn a_frame_carries_its_length() {
        let header = Some(ResponseHeader { revision: 2, ..ResponseHeader::default() });
        let frame = framed(&PutResponse { header, prev_kv: None }).unwrap();
        assert_eq!(&frame[..], b"\0\0\0\0\x04\x0a\x02\x18\x02");
        assert_eq!(&framed(&PutResponse::default()).unwrap()[..], b"\0\0\0\0\0");
    }
}
