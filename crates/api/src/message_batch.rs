//! `peer.MessageBatch`, decoded with a limit on the number of messages.
//!
//! An empty message takes 2 bytes on the wire and 32 in memory, so prost's generated code would expand
//! a batch of 32 MiB to a gigabyte. The wire format is defined in `proto/peer.proto`.

use bytes::{Buf, BufMut, Bytes};
use prost::DecodeError;
use prost::encoding::{self, DecodeContext, WireType};

use crate::peer::Hello;

const HELLO: u32 = 1;
const MESSAGES: u32 = 2;

/// Raft messages of a member, in sending order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MessageBatch {
    /// Present on the first batch of a stream only.
    pub hello: Option<Hello>,
    /// Encoded Raft messages.
    pub messages: Vec<Bytes>,
    /// True if more than [`MessageBatch::MESSAGES_MAX`] messages were received; `messages` omits the rest.
    /// Not on the wire.
    pub is_truncated: bool,
}

impl MessageBatch {
    /// Maximum number of messages decoded from a batch. A member sends at most 1 MiB in a batch of several
    /// messages, and a Raft message takes at least 12 bytes, so a valid batch has at most 87,381.
    pub const MESSAGES_MAX: usize = 1 << 17;
}

impl prost::Message for MessageBatch {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        if let Some(hello) = &self.hello {
            encoding::message::encode(HELLO, hello, buffer);
        }
        encoding::bytes::encode_repeated(MESSAGES, &self.messages, buffer);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            HELLO => {
                let hello = self.hello.get_or_insert_default();
                encoding::message::merge(wire_type, hello, buffer, context)
            }
            MESSAGES if self.messages.len() < Self::MESSAGES_MAX => {
                encoding::bytes::merge_repeated(wire_type, &mut self.messages, buffer, context)
            }
            _ => {
                self.is_truncated |= tag == MESSAGES;
                encoding::skip_field(wire_type, tag, buffer, context)
            }
        }
    }

    fn encoded_len(&self) -> usize {
        let hello = self.hello.as_ref().map_or(0, |hello| encoding::message::encoded_len(HELLO, hello));
        hello + encoding::bytes::encoded_len_repeated(MESSAGES, &self.messages)
    }

    fn clear(&mut self) {
        *self = MessageBatch::default();
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_proto_file() {
        let hello = Hello { cluster_id: 7, from: 1, to: 2, encoding: 1, ..Hello::default() };
        let messages = vec![Bytes::from_static(b"ab"), Bytes::new()];
        let batch = MessageBatch { hello: Some(hello), messages, is_truncated: false };
        let bytes = batch.encode_to_vec();
        assert_eq!(bytes, b"\x0a\x08\x08\x07\x10\x01\x18\x02\x20\x01\x12\x02ab\x12\x00");
        assert_eq!(batch.encoded_len(), bytes.len());
        let later_field = [&bytes[..], b"\x1a\x01x"].concat();
        assert_eq!(MessageBatch::decode(&later_field[..]).unwrap(), batch);
    }

    #[test]
    fn a_batch_of_countless_messages_is_decoded_within_its_bound() {
        let bytes = b"\x12\x00".repeat(16 << 20);
        let batch = MessageBatch::decode(Bytes::from(bytes)).unwrap();
        assert!(batch.is_truncated);
        assert_eq!(batch.messages.len(), MessageBatch::MESSAGES_MAX);
        assert!(batch.messages.capacity() <= 2 * MessageBatch::MESSAGES_MAX, "4 MiB of handles, or 8");
        let fitting = b"\x12\x00".repeat(MessageBatch::MESSAGES_MAX);
        assert!(!MessageBatch::decode(Bytes::from(fitting)).unwrap().is_truncated);
    }
}
