//! Encoded requests: one gRPC frame per request, built once as a template and patched per call.
//!
//! ```text
//!   0 | length, 4 bytes big endian | protobuf message
//!                                    … 0x0a len KEY 0x12 len VALUE …
//!                                               ^ patched per call, and the value if keys have their own
//! ```
//!
//! * Within a run every request of a workload has the same length, so a call costs one allocation and one
//!   copy.
//! * Keys and values of a completed request are read back from it: a call stores nothing else.

pub use api::grpc::PREFIX_BYTES;
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

/// A request with keys, and optionally values, that are filled in per call.
#[derive(Clone, Debug)]
pub struct Template {
    frame: Vec<u8>,
    key_offsets: Vec<usize>,
    key_bytes: usize,
    /// Distance from the first byte of a key to its value.
    value_distance: usize,
    value_bytes: usize,
}

impl Template {
    /// Creates a request that is the same for every call.
    pub fn constant(message: &impl Message) -> Self {
        let mut frame = prefix(message.encoded_len());
        message.encode(&mut frame).expect("a Vec grows");
        Self { frame, key_offsets: Vec::new(), key_bytes: 0, value_distance: 0, value_bytes: 0 }
    }

    /// Creates a Put with a key of `key_bytes` bytes.
    pub fn put(key_bytes: usize, value: &[u8]) -> Self {
        let mut message = Vec::new();
        let key_offset = append_put(&mut message, key_bytes, value);
        let mut frame = prefix(message.len());
        frame.extend_from_slice(&message);
        Self::of_puts(frame, vec![PREFIX_BYTES + key_offset], key_bytes, value.len())
    }

    /// Creates a Txn without compares and with puts of `ops` keys in its `then` branch.
    pub fn txn_put(ops: usize, key_bytes: usize, value: &[u8]) -> Self {
        const TXN_SUCCESS: u8 = 0x12; // field 2, length-delimited
        const OP_PUT: u8 = 0x12; // RequestOp.request_put, field 2
        let mut put = Vec::new();
        let key_in_put = append_put(&mut put, key_bytes, value);
        let mut op = vec![OP_PUT];
        append_varint(&mut op, put.len() as u64);
        let key_in_op = op.len() + key_in_put;
        op.extend_from_slice(&put);

        let mut message = Vec::new();
        let mut key_offsets = Vec::with_capacity(ops);
        for _ in 0..ops {
            message.push(TXN_SUCCESS);
            append_varint(&mut message, op.len() as u64);
            key_offsets.push(PREFIX_BYTES + message.len() + key_in_op);
            message.extend_from_slice(&op);
        }
        let mut frame = prefix(message.len());
        frame.extend_from_slice(&message);
        Self::of_puts(frame, key_offsets, key_bytes, value.len())
    }

    /// Creates a frame in which each key is followed by its value.
    fn of_puts(frame: Vec<u8>, key_offsets: Vec<usize>, key_bytes: usize, value_bytes: usize) -> Self {
        let mut length = Vec::new();
        append_varint(&mut length, value_bytes as u64);
        Self { frame, key_offsets, key_bytes, value_distance: key_bytes + 1 + length.len(), value_bytes }
    }

    /// Returns the number of keys in a request.
    pub fn keys_len(&self) -> usize {
        self.key_offsets.len()
    }

    /// Encodes a request; `fill(n, key, value)` overwrites its nth key, and may overwrite the value.
    pub fn fill(&self, mut fill: impl FnMut(usize, &mut [u8], &mut [u8])) -> Bytes {
        let mut frame = BytesMut::with_capacity(self.frame.len());
        frame.put_slice(&self.frame);
        for (nth, &offset) in self.key_offsets.iter().enumerate() {
            let (key, rest) = frame[offset..].split_at_mut(self.key_bytes);
            let value = self.value_distance - self.key_bytes;
            fill(nth, key, &mut rest[value..value + self.value_bytes]);
        }
        frame.freeze()
    }

    /// Returns the keys and values in `request`, which was made by this template: slices, not copies.
    pub fn pairs<'a>(&'a self, request: &'a Bytes) -> impl Iterator<Item = (Bytes, Bytes)> + 'a {
        assert_eq!(request.len(), self.frame.len(), "a request of another template");
        self.key_offsets.iter().map(|&offset| {
            let value = offset + self.value_distance;
            (request.slice(offset..offset + self.key_bytes), request.slice(value..value + self.value_bytes))
        })
    }
}

fn prefix(message_bytes: usize) -> Vec<u8> {
    let prefix = api::grpc::prefix(message_bytes).expect("settings bound a request to less than 4 GiB");
    let mut frame = Vec::with_capacity(PREFIX_BYTES + message_bytes);
    frame.extend_from_slice(&prefix);
    frame
}

/// Appends a PutRequest and returns the offset of its key.
fn append_put(message: &mut Vec<u8>, key_bytes: usize, value: &[u8]) -> usize {
    const PUT_KEY: u8 = 0x0a; // field 1, length-delimited
    const PUT_VALUE: u8 = 0x12; // field 2, length-delimited
    message.push(PUT_KEY);
    append_varint(message, key_bytes as u64);
    let key_offset = message.len();
    message.resize(key_offset + key_bytes, 0);
    message.push(PUT_VALUE);
    append_varint(message, value.len() as u64);
    message.extend_from_slice(value);
    key_offset
}

/// Appends protobuf's unsigned varint.
fn append_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::etcdserverpb::{PutRequest, RangeRequest, TxnRequest, request_op::Request};

    fn message<M: Message + Default>(frame: &[u8]) -> M {
        let length = u32::from_be_bytes(frame[1..5].try_into().unwrap()) as usize;
        assert_eq!((frame[0], length), (0, frame.len() - PREFIX_BYTES));
        M::decode(&frame[PREFIX_BYTES..]).unwrap()
    }

    #[test]
    fn a_put_decodes_to_the_key_and_value_that_went_in() {
        for (key_bytes, value_bytes) in [(1, 0), (8, 256), (127, 127), (128, 128), (300, 70_000)] {
            let value = vec![7; value_bytes];
            let template = Template::put(key_bytes, &value);
            let frame = template.fill(|_, key, _| key.fill(0xab));
            let put: PutRequest = message(&frame);
            assert_eq!(put.key, vec![0xab; key_bytes]);
            assert_eq!(put.value, value);
            assert_eq!(template.pairs(&frame).collect::<Vec<_>>(), [(put.key, put.value)]);
            let own: PutRequest = message(&template.fill(|_, _, value| value.fill(0xcd)));
            assert_eq!((own.key, own.value), (vec![0; key_bytes].into(), vec![0xcd; value_bytes].into()));
        }
    }

    #[test]
    fn a_txn_decodes_to_as_many_puts_as_asked_for() {
        let template = Template::txn_put(3, 150, &[9; 200]);
        let frame = template.fill(|nth, key, value| {
            key.fill(nth as u8);
            value[199] = nth as u8;
        });
        let txn: TxnRequest = message(&frame);
        assert!(txn.compare.is_empty() && txn.failure.is_empty());
        let pairs: Vec<_> = txn
            .success
            .into_iter()
            .map(|op| match op.request {
                Some(Request::RequestPut(put)) => (put.key, put.value),
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = |nth| (Bytes::from(vec![nth; 150]), Bytes::from([&[9; 199][..], &[nth]].concat()));
        assert_eq!(pairs, [0, 1, 2].map(expected));
        assert_eq!(template.pairs(&frame).collect::<Vec<_>>(), pairs);
    }

    #[test]
    fn a_constant_request_is_the_message_after_its_prefix() {
        let request = RangeRequest { key: "foo".into(), serializable: true, ..Default::default() };
        let template = Template::constant(&request);
        let frame = template.fill(|_, _, _| panic!("a constant request has no key to fill"));
        assert_eq!(message::<RangeRequest>(&frame), request);
    }
}
