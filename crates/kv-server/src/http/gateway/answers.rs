//! The response messages of a call in order, and its final status.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api::grpc::{PREFIX_BYTES, Prefix};
use api::{Error, Method};
use bytes::{Buf, Bytes, BytesMut};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use tokio::time::timeout;
use tonic::Status;

use super::budget::{ANSWER_BYTES_MAX, Budget, BudgetPass};
use crate::rpc::Dispatcher;
use grpc_server::http2::{AnswerReader, CallHandler, ConnectionShared, CountedBody, LongAnswer};

type LongCall = <Dispatcher as CallHandler>::Long;

/// Interval at which a response waiting for memory checks whether other calls want the memory it holds.
const WANTED_CHECK_INTERVAL: Duration = Duration::from_secs(10);

pub(super) struct CallAnswers {
    source: AnswerSource,
    shared: Arc<ConnectionShared>,
}

pub(super) enum AnswerSource {
    /// At most one message; None after it was read.
    Once(Option<OneAnswer>),
    Parts(AnswerParts),
}

pub(super) enum OneAnswer {
    /// The message with its prefix.
    Whole(Bytes, Method),
    /// A response that is produced while it is read, and its request until it starts.
    Long(Box<LongCall>, CountedBody),
}

/// Messages in parts with arbitrary boundaries.
pub(super) struct AnswerParts {
    source: AnswerReader,
    read: BytesMut,
}

/// A message without its prefix, and its budget.
pub(super) struct AnswerMessage {
    pub bytes: Bytes,
    pub held: BudgetPass,
}

impl From<OneAnswer> for AnswerSource {
    fn from(answer: OneAnswer) -> AnswerSource {
        AnswerSource::Once(Some(answer))
    }
}

impl From<AnswerReader> for AnswerSource {
    fn from(source: AnswerReader) -> AnswerSource {
        AnswerSource::Parts(AnswerParts { source, read: BytesMut::new() })
    }
}

impl CallAnswers {
    pub fn new(source: impl Into<AnswerSource>, shared: &Arc<ConnectionShared>) -> CallAnswers {
        CallAnswers { source: source.into(), shared: Arc::clone(shared) }
    }

    /// Returns the next message, or the final status.
    pub async fn next(&mut self, budget: &Budget) -> Result<AnswerMessage, Status> {
        let next = async {
            match &mut self.source {
                AnswerSource::Parts(parts) => parts.next(budget).await,
                AnswerSource::Once(answer) => match answer.take() {
                    Some(answer) => answer.message(budget).await,
                    None => Err(Status::ok("")),
                },
            }
        };
        tokio::select! {
            biased;
            next = next => next,
            () = self.shared.stopped() => Err(grpc_errors::stopped()),
        }
    }
}

impl OneAnswer {
    async fn message(self, budget: &Budget) -> Result<AnswerMessage, Status> {
        match self {
            OneAnswer::Whole(message, method) => {
                let bytes = message.slice(PREFIX_BYTES..);
                match admitted(bytes.len(), budget).await {
                    Ok(held) => Ok(AnswerMessage { bytes, held }),
                    Err(status) => Err(refused_answer(method, bytes, status)),
                }
            }
            OneAnswer::Long(call, request) => long(*call, request, budget).await,
        }
    }
}

impl AnswerParts {
    async fn next(&mut self, budget: &Budget) -> Result<AnswerMessage, Status> {
        let length = loop {
            match Prefix::of(&self.read) {
                Some(prefix) => break prefix.message_bytes,
                None => self.receive().await?,
            }
        };
        let held = admitted(length, budget).await?;
        self.read.reserve((PREFIX_BYTES + length).saturating_sub(self.read.len()));
        while self.read.len() < PREFIX_BYTES + length {
            self.receive().await?;
        }
        self.read.advance(PREFIX_BYTES);
        Ok(AnswerMessage { bytes: self.read.split_to(length).freeze(), held })
    }

    /// Reads one part, or returns the final status.
    async fn receive(&mut self) -> Result<(), Status> {
        let part = self.source.next().await?;
        self.read.extend_from_slice(&part);
        Ok(())
    }
}

async fn admitted(bytes: usize, budget: &Budget) -> Result<BudgetPass, Status> {
    if bytes > ANSWER_BYTES_MAX {
        return Err(grpc_errors::answer_too_large(ANSWER_BYTES_MAX as u64));
    }
    budget.answer(bytes).await
}

/// Returns the status for a response that could not be delivered. If the call changed the state, the status
/// must not claim that it had no effect.
pub(super) fn refused_answer(method: Method, answer: Bytes, status: Status) -> Status {
    let has_changed = match method {
        Method::KvPut | Method::KvDeleteRange => true,
        Method::KvTxn => has_changed(answer),
        _ => false,
    };
    if has_changed { grpc_errors::refused(Error::Timeout) } else { status }
}

/// Reports whether the response of a transaction contains a put or delete, at any depth. Decoding it would
/// take ten times the memory for small pairs.
fn has_changed(mut answer: Bytes) -> bool {
    while !answer.is_empty() {
        let Some((tag, op)) = field(&mut answer) else { return true };
        let Some(mut op) = op.filter(|_| tag == RESPONSES) else { continue };
        match field(&mut op) {
            Some((RESPONSE_RANGE, _)) => {}
            Some((RESPONSE_TXN, Some(inner))) if !has_changed(inner.clone()) => {}
            _ => return true,
        }
    }
    false
}

/// Tags of TxnResponse and ResponseOp.
const RESPONSES: u32 = 3;
const RESPONSE_RANGE: u32 = 1;
const RESPONSE_TXN: u32 = 4;

/// Returns the tag of the first field, and its bytes if it is length-delimited. None for malformed
/// messages.
fn field(message: &mut Bytes) -> Option<(u32, Option<Bytes>)> {
    let (tag, wire_type) = decode_key(message).ok()?;
    if wire_type != WireType::LengthDelimited {
        skip_field(wire_type, tag, message, DecodeContext::default()).ok()?;
        return Some((tag, None));
    }
    let length = usize::try_from(decode_varint(message).ok()?).ok()?;
    (length <= message.len()).then(|| (tag, Some(message.split_to(length))))
}

/// Reads a long response into memory. While it waits for memory, it fails if other calls want the memory it
/// holds.
async fn long(mut call: LongCall, request: CountedBody, budget: &Budget) -> Result<AnswerMessage, Status> {
    let bytes = usize::try_from(call.begin().await?).unwrap_or(usize::MAX);
    drop(request);
    let held = {
        let mut admitted = pin!(admitted(bytes - PREFIX_BYTES, budget));
        loop {
            match timeout(WANTED_CHECK_INTERVAL, &mut admitted).await {
                Ok(held) => break held?,
                Err(_) if call.is_wanted() => {
                    call.unread();
                    return Err(grpc_errors::reads_exhausted());
                }
                Err(_) => {}
            }
        }
    };
    let mut read = BytesMut::with_capacity(bytes);
    while read.len() < bytes {
        let mut part = call.part(read.len() as u64).await?;
        while let Some(piece) = part.pieces.pop_front() {
            read.extend_from_slice(&piece);
        }
    }
    read.advance(PREFIX_BYTES);
    Ok(AnswerMessage { bytes: read.freeze(), held })
}

#[cfg(test)]
mod tests {
    use api::etcdserverpb::response_op::Response as Done;
    use api::etcdserverpb::{PutResponse, RangeResponse, ResponseHeader, ResponseOp, TxnResponse};
    use prost::Message;

    use super::*;

    #[test]
    fn an_answer_says_whether_its_transaction_has_changed_something() {
        let txn = |done: Vec<Done>| {
            let responses = done.into_iter().map(|done| ResponseOp { response: Some(done) }).collect();
            let header = Some(ResponseHeader { revision: 7, ..ResponseHeader::default() });
            TxnResponse { header, succeeded: true, responses }
        };
        let (range, put) =
            (Done::ResponseRange(RangeResponse::default()), Done::ResponsePut(PutResponse::default()));
        let nested = |done| Done::ResponseTxn(txn(vec![done]));
        for (done, wanted) in [
            (vec![], false),
            (vec![range.clone(), range.clone()], false),
            (vec![range.clone(), put.clone()], true),
            (vec![nested(range.clone()), range.clone()], false),
            (vec![range, nested(nested(put))], true),
        ] {
            assert_eq!(has_changed(txn(done.clone()).encode_to_vec().into()), wanted, "{done:?}");
        }
        assert!(has_changed(Bytes::from_static(b"\xff")), "what is no answer");
    }
}
