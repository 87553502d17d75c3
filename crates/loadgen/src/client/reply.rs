//! The parts of a reply that a load generator needs: whether it is a well-formed gRPC message (or a stream
//! of them), its length, and the revision in its header.
//!
//! Only the first bytes of a body are buffered, so memory does not grow with the reply.

use crate::client::failure::{CallFailure, Code};
use api::etcdserverpb::LeaseKeepAliveResponse;
use api::grpc::{PREFIX_BYTES, Prefix};
use http::HeaderMap;
use prost::Message;

/// Maximum length of the prefix, tag and length of the header, its four numbers, and the two numbers of a
/// renewed lease.
const HEAD_BYTES: usize = PREFIX_BYTES + 2 + 4 * 11 + 2 * 11;

/// The received part of a reply.
#[derive(Debug)]
pub struct PartialReply {
    head: [u8; HEAD_BYTES],
    head_len: u8,
    body_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompleteReply {
    /// Revision of the response header; 0 for streams, which are not decoded.
    pub revision: i64,
    /// Length of the body with its prefix.
    pub body_bytes: u64,
}

impl PartialReply {
    pub fn new() -> Self {
        Self { head: [0; HEAD_BYTES], head_len: 0, body_bytes: 0 }
    }

    /// Adds the next piece of the body.
    pub fn push(&mut self, piece: &[u8]) {
        let filled = usize::from(self.head_len);
        let wanted = piece.len().min(HEAD_BYTES - filled);
        self.head[filled..filled + wanted].copy_from_slice(&piece[..wanted]);
        self.head_len += wanted as u8;
        self.body_bytes += piece.len() as u64;
    }

    /// Checks a unary reply with status OK in its trailers.
    pub fn finish(&self) -> Result<CompleteReply, CallFailure> {
        let head = &self.head[..usize::from(self.head_len)];
        let Some(prefix) = Prefix::of(head) else {
            return Err(CallFailure::protocol(format!(
                "reply of {} bytes holds no message",
                self.body_bytes
            )));
        };
        if prefix.format != 0 {
            return Err(CallFailure::protocol("reply is compressed, which was not asked for"));
        }
        let (length, got) = (prefix.message_bytes, self.body_bytes);
        if (PREFIX_BYTES + length) as u64 != got {
            return Err(CallFailure::protocol(format!(
                "reply says {length} bytes and has {got} with its prefix"
            )));
        }
        let revision = header_revision(&head[PREFIX_BYTES..]).filter(|revision| *revision > 0);
        let Some(revision) = revision else {
            return Err(CallFailure::protocol("reply without a revision in its header"));
        };
        Ok(CompleteReply { revision, body_bytes: self.body_bytes })
    }

    /// Checks a `LeaseKeepAliveResponse`, which has status OK even if the lease does not exist.
    pub fn finish_renewal(&self) -> Result<CompleteReply, CallFailure> {
        let reply = self.finish()?;
        let message = &self.head[PREFIX_BYTES..usize::from(self.head_len)];
        let response = LeaseKeepAliveResponse::decode(message);
        let response = response.map_err(|error| CallFailure::protocol(format!("renewal: {error}")))?;
        if response.ttl <= 0 {
            return Err(CallFailure::new(Code::NOT_FOUND, "etcdserver: requested lease not found"));
        }
        Ok(reply)
    }

    /// Completes a streamed reply with status OK in its trailers: any number of messages.
    pub fn finish_stream(&self) -> CompleteReply {
        CompleteReply { revision: 0, body_bytes: self.body_bytes }
    }
}

/// Returns the status in the trailers, or in the headers of a reply without a body.
pub fn verdict(trailers: &HeaderMap) -> Result<(), CallFailure> {
    let Some(status) = trailers.get("grpc-status") else {
        return Err(CallFailure::protocol("reply ended without grpc-status"));
    };
    let code = status.to_str().ok().and_then(|text| text.parse().ok()).map_or(Code::UNKNOWN, Code);
    if code == Code::OK {
        return Ok(());
    }
    let message =
        trailers.get("grpc-message").map_or_else(String::new, |raw| percent_decoded(raw.as_bytes()));
    Err(CallFailure::new(code, message))
}

/// Decodes gRPC's percent encoding of a status message; invalid sequences stay unchanged.
fn percent_decoded(raw: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((&first, tail)) = rest.split_first() {
        let escaped = (first == b'%').then(|| tail.get(..2)).flatten();
        let decoded =
            escaped.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(decoded.unwrap_or(first));
        rest = if decoded.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns field 3 of the message in field 1, the header of every KV response.
fn header_revision(message: &[u8]) -> Option<i64> {
    const HEADER: u8 = 0x0a; // field 1, length-delimited
    const REVISION: u64 = 3 << 3; // field 3, varint
    let mut rest = message;
    if *rest.first()? != HEADER {
        return None;
    }
    rest = &rest[1..];
    let length = usize::try_from(read_varint(&mut rest)?).ok()?;
    let mut header = rest.get(..length)?;
    while !header.is_empty() {
        let tag = read_varint(&mut header)?;
        let value = read_varint(&mut header)?;
        if tag == REVISION {
            return Some(value as i64);
        }
    }
    None
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::frame::Template;
    use api::etcdserverpb::{PutResponse, RangeResponse, ResponseHeader};
    use api::mvccpb::KeyValue;

    fn body(message: &impl Message) -> Vec<u8> {
        Template::constant(message).fill(|_, _, _| ()).to_vec()
    }

    fn header(revision: i64) -> Option<ResponseHeader> {
        Some(ResponseHeader { cluster_id: u64::MAX, member_id: u64::MAX, revision, raft_term: u64::MAX })
    }

    #[test]
    fn the_revision_is_found_however_the_body_is_split() {
        for revision in [1, 300, i64::MAX] {
            let body = body(&PutResponse { header: header(revision), prev_kv: None });
            for cut in 0..body.len() {
                let mut reply = PartialReply::new();
                reply.push(&body[..cut]);
                reply.push(&body[cut..]);
                let answer = CompleteReply { revision, body_bytes: body.len() as u64 };
                assert_eq!(reply.finish(), Ok(answer), "cut at {cut}");
            }
        }
    }

    #[test]
    fn a_long_reply_is_counted_but_not_kept() {
        let kv = KeyValue { value: vec![1; 100_000].into(), ..Default::default() };
        let body = body(&RangeResponse { header: header(7), kvs: vec![kv], more: false, count: 1 });
        let mut reply = PartialReply::new();
        body.chunks(16_384).for_each(|piece| reply.push(piece));
        assert_eq!(reply.finish(), Ok(CompleteReply { revision: 7, body_bytes: body.len() as u64 }));
    }

    #[test]
    fn a_body_that_is_not_one_message_is_refused_with_the_reason() {
        for (body, reason) in [
            (&b""[..], "reply of 0 bytes holds no message"),
            (&b"\0\0\0\0"[..], "reply of 4 bytes holds no message"),
            (&b"\0\0\0\0\x02a"[..], "reply says 2 bytes and has 6 with its prefix"),
            (&b"\x01\0\0\0\0"[..], "reply is compressed, which was not asked for"),
        ] {
            let mut reply = PartialReply::new();
            reply.push(body);
            assert_eq!(reply.finish(), Err(CallFailure::protocol(reason)));
        }
    }

    #[test]
    fn a_renewal_of_a_lease_that_is_gone_is_a_failure() {
        let gone = CallFailure::new(Code::NOT_FOUND, "etcdserver: requested lease not found");
        for (ttl, expected) in [(i64::MAX, Ok(7)), (60, Ok(7)), (0, Err(gone.clone())), (-1, Err(gone))] {
            let mut reply = PartialReply::new();
            reply.push(&body(&LeaseKeepAliveResponse { header: header(7), id: i64::MIN, ttl }));
            assert_eq!(reply.finish_renewal().map(|reply| reply.revision), expected, "{ttl}");
        }
    }

    #[test]
    fn a_reply_without_a_positive_revision_is_a_protocol_failure() {
        let messages = [
            body(&PutResponse::default()),
            body(&PutResponse { header: header(0), prev_kv: None }),
            body(&PutResponse { header: header(-1), prev_kv: None }),
            b"\0\0\0\0\x04\xff\xff\xff\xff".to_vec(),
        ];
        for message in messages {
            let mut reply = PartialReply::new();
            reply.push(&message);
            let expected = CallFailure::protocol("reply without a revision in its header");
            assert_eq!(reply.finish(), Err(expected), "{message:?}");
        }
    }

    #[test]
    fn trailers_distinguish_success_from_failure() {
        let trailers = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter().map(|&(name, value)| {
                (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))
            });
            verdict(&pairs.collect())
        };
        assert_eq!(trailers(&[("grpc-status", "0")]), Ok(()));
        assert_eq!(
            trailers(&[("grpc-status", "14"), ("grpc-message", "etcdserver: 100%25 %C3%BC%zz")]),
            Err(CallFailure::unavailable("etcdserver: 100% ü%zz"))
        );
        assert_eq!(trailers(&[]), Err(CallFailure::protocol("reply ended without grpc-status")));
        assert_eq!(trailers(&[("grpc-status", "x")]), Err(CallFailure::new(Code::UNKNOWN, "")));
    }
}
