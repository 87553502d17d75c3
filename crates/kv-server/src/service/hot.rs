//! The hot methods: answered inside the connection's task, without tonic.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;
use prost::Message;
use tonic::Status;

use super::large::LargeAnswer;
use super::{errors, guard, kv};
use crate::front::{Answer, HotMethods, PREFIX_BYTES};
use crate::member::Member;

/// Put, Range, Txn, DeleteRange. Cheap to clone: one per connection.
#[derive(Clone)]
pub struct Hot {
    member: Arc<Member>,
}

impl Hot {
    pub fn new(member: Arc<Member>) -> Self {
        Hot { member }
    }

    /// Reads the request, and then what its metadata asks for: in this order, as etcd does.
    fn admit<T: Message + Default>(&self, metadata: &HeaderMap, message: Bytes) -> Result<T, Status> {
        let request = T::decode(message).map_err(|_| errors::malformed(errors::Reading::Unary))?;
        guard::check(&self.member, metadata).map_err(errors::refused)?;
        Ok(request)
    }
}

/// Names one hot method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HotMethod {
    Put,
    Range,
    Txn,
    DeleteRange,
}

impl HotMethods for Hot {
    type Method = HotMethod;
    type Long = LargeAnswer;

    fn find(&self, path: &str) -> Option<HotMethod> {
        match path {
            "/etcdserverpb.KV/Put" => Some(HotMethod::Put),
            "/etcdserverpb.KV/Range" => Some(HotMethod::Range),
            "/etcdserverpb.KV/Txn" => Some(HotMethod::Txn),
            "/etcdserverpb.KV/DeleteRange" => Some(HotMethod::DeleteRange),
            _ => None,
        }
    }

    async fn call(
        &self,
        method: HotMethod,
        headers: HeaderMap,
        message: Bytes,
    ) -> Result<Answer<LargeAnswer>, Status> {
        let member = &self.member;
        let frame = match method {
            HotMethod::Put => framed(&kv::put(member, self.admit(&headers, message)?).await?),
            HotMethod::Range => match kv::range_or_large(member, self.admit(&headers, message)?).await? {
                kv::Ranged::Whole(response) => framed(&response),
                kv::Ranged::Large(answer) => return Ok(Answer::Long(answer)),
            },
            HotMethod::Txn => framed(&kv::txn(member, self.admit(&headers, message)?).await?),
            HotMethod::DeleteRange => {
                framed(&kv::delete_range(member, self.admit(&headers, message)?).await?)
            }
        };
        frame.map(Answer::Whole)
    }
}

/// gRPC's frame: not compressed, the length in four bytes, the message.
fn framed(message: &impl Message) -> Result<Bytes, Status> {
    let bytes = message.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + bytes);
    frame.put_slice(&prefix(bytes)?);
    message.encode(&mut frame).expect("the buffer was made for this message");
    Ok(frame.freeze())
}

/// The frame's first five bytes, for a message of `bytes`.
pub(super) fn prefix(bytes: usize) -> Result<[u8; PREFIX_BYTES], Status> {
    let length = u32::try_from(bytes).map_err(|_| errors::too_large_to_send(bytes))?;
    let [a, b, c, d] = length.to_be_bytes();
    Ok([0, a, b, c, d])
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
