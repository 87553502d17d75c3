//! gRPC's frame of one message.

use api::grpc::{self, PREFIX_BYTES};
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use tonic::Status;

/// gRPC's frame: not compressed, the length in four bytes, the message.
pub fn framed(message: &impl Message) -> Result<Bytes, Status> {
    let bytes = message.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + bytes);
    frame.put_slice(&prefix(bytes)?);
    message.encode(&mut frame).expect("the buffer was made for this message");
    Ok(frame.freeze())
}

/// The frame's first five bytes, for a message of `bytes`.
pub(super) fn prefix(bytes: usize) -> Result<[u8; PREFIX_BYTES], Status> {
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
