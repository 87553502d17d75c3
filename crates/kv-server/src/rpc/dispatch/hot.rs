//! The hot methods: one message for another inside the connection's task, without tonic.

use api::etcdserverpb::TxnRequest;
use api::grpc::PREFIX_BYTES;
use api::{Error, Method};
use bytes::Bytes;
use http::HeaderMap;
use prost::Message;
use state_machine::command::{self, DecodeError};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::super::metadata::KnownFields;
use super::super::{header, kv};
use super::{Call, Dispatcher};
use crate::rpc::guard::{self, Asker};
use admission::{CountedAnswer, blocking, charged};
use grpc_server::http2::{HotAnswer, HotMethods, LongAnswer, Part, Room, SendNow};
use grpc_server::methods::{self, HotMethod, Serving};
use telemetry::metrics::CallInProgress;

/// A longer transaction is decoded on a blocking thread: it may have thousands of operations. Other messages
/// are a few fields.
const DECODED_HERE_BYTES_MAX: usize = 64 << 10;

/// A call, before its message is looked at.
#[derive(Debug)]
pub struct HotCall {
    which: HotMethod,
    call: Call,
}

impl HotMethods for Dispatcher {
    type Call = HotCall;
    type Long = LongCall;

    /// A compressed request goes to the services, which answer UNIMPLEMENTED and name the encodings they
    /// accept.
    fn find(&self, path: &str, headers: &HeaderMap, timeout: Option<&[u8]>) -> Option<HotCall> {
        let method = Method::of_path(path)?;
        let Serving::Hot(which) = methods::of(method).serving else { return None };
        let known = KnownFields::of(headers);
        if known.compression().is_some() {
            return None;
        }
        let metadata = match which {
            HotMethod::Range => guard::check_any(self.member(), &known), // The rest depends on the request.
            HotMethod::Put | HotMethod::Txn | HotMethod::DeleteRange => {
                guard::check_known(self.member(), &known)
            }
        };
        Some(HotCall { which, call: self.begin(method, headers, &known, timeout, metadata) })
    }

    fn deadline(HotCall { call, .. }: &HotCall) -> Option<Instant> {
        call.deadline.as_ref().ok().copied().flatten()
    }

    fn user(HotCall { call, .. }: &HotCall) -> Option<u64> {
        call.asker.user()
    }

    /// A serializable range of one key. One that is audited, sampled or traced is left to `call`.
    fn answer_now(&self, HotCall { which, call }: &HotCall, message: &Bytes, send: &mut SendNow<'_>) -> bool {
        let member = self.member();
        let may_be_now = *which == HotMethod::Range
            && call.metadata.is_ok()
            && call.span.is_none()
            && member.audit.is_none()
            && member.usage.is_none();
        let Some(Ok(deadline)) = may_be_now.then_some(call.deadline.as_ref()) else { return false };
        let began = Instant::now();
        if deadline.is_some_and(|deadline| deadline <= began) {
            return false;
        }
        let mut answer_bytes = 0;
        let answered = kv::range_now(member, &call.asker, message, &mut |answer| {
            answer_bytes = answer.len().saturating_sub(PREFIX_BYTES);
            send(answer)
        });
        if answered.is_some() {
            let took = began.elapsed();
            self.shared.metrics.calls.answered(call.method, [message.len(), answer_bytes], took);
            self.shared.slow.ended(call.method, Some(message.len()), took);
        }
        answered.is_some()
    }

    async fn call(
        &self,
        HotCall { which, call }: HotCall,
        message: Bytes,
        room: Room<'_>,
    ) -> Result<HotAnswer<LongCall>, Status> {
        let mut counted = self.count(&call);
        self.shared.metrics.calls.received(call.method, message.len());
        let (method, request_bytes, span) = (call.method, Some(message.len()), call.span.clone());
        let answering = self.audited(which, &call, message, room);
        match self.shared.slow.watch(method, request_bytes, span, answering).await {
            Ok(HotAnswer::Whole(bytes)) => {
                self.shared.metrics.calls.sent(method, bytes.len().saturating_sub(PREFIX_BYTES));
                counted.end(Code::Ok);
                Ok(HotAnswer::Whole(bytes))
            }
            Ok(HotAnswer::Long(mut inner)) => {
                inner.deadline = call.deadline()?;
                Ok(HotAnswer::Long(Box::new(LongCall { inner: *inner, counted, bytes: 0 })))
            }
            Err(status) => {
                counted.end(status.code());
                Err(status)
            }
        }
    }
}

impl Dispatcher {
    /// Answers a call that the audit log and the samples of usage may have.
    async fn audited(
        &self,
        which: HotMethod,
        call: &Call,
        message: Bytes,
        room: Room<'_>,
    ) -> Result<HotAnswer<kv::LargeAnswer>, Status> {
        let member = self.member();
        call.deadline()?;
        let audited = call.asker.audited(member, call.method).map(|line| line.with_request(message.clone()));
        let usage = member.usage.as_ref();
        let sampled = usage.and_then(|usage| usage.sample(call.method, &message));
        let answer = self.guarded(call, self.answer(which, call, message, room)).await;
        if let Some(line) = audited {
            line.end(match &answer {
                Ok(HotAnswer::Whole(bytes)) => Ok(header::revision_in(bytes)),
                Ok(HotAnswer::Long(_)) => Ok(None),
                Err(status) => Err(status),
            });
        }
        if let Some(sample) = sampled {
            let frame = if let Ok(HotAnswer::Whole(frame)) = &answer { Some(frame) } else { None };
            sample.end(&self.client(&call.asker), frame);
        }
        answer
    }

    /// The user of a call; without one, the address that it came from.
    fn client(&self, asker: &Asker) -> String {
        let caller = self.member().auth.user_of(&asker.credential);
        let address = || asker.address.map_or_else(String::new, |address| address.ip().to_string());
        caller.user().map_or_else(address, str::to_owned)
    }

    async fn answer(
        &self,
        which: HotMethod,
        Call { metadata, asker, .. }: &Call,
        message: Bytes,
        room: Room<'_>,
    ) -> Result<HotAnswer<kv::LargeAnswer>, Status> {
        let (member, metadata) = (self.member(), *metadata);
        let frame = match which {
            HotMethod::Put => frame(kv::put(member, asker, admit(metadata, message)?).await?),
            HotMethod::Range => {
                match kv::range_or_large(member, asker, admit(metadata, message)?, room).await? {
                    kv::RangedRequest::Whole(answered) => frame(answered),
                    kv::RangedRequest::Large(answer) => return Ok(HotAnswer::Long(answer)),
                }
            }
            HotMethod::Txn => {
                let request = admit_txn(metadata, message, member.limits.txn_ops_max).await?;
                frame(kv::txn(member, asker, request, Some(room)).await?)
            }
            HotMethod::DeleteRange => {
                frame(kv::delete_range(member, asker, admit(metadata, message)?).await?)
            }
        };
        frame.map(HotAnswer::Whole)
    }
}

/// Reads the request, and then judges its metadata: in this order, as etcd does.
fn admit<T: Message + Default>(metadata: Result<(), Error>, message: Bytes) -> Result<T, Status> {
    let request = T::decode(message).map_err(|_| grpc_errors::malformed(grpc_errors::RequestForm::Unary))?;
    metadata.map_err(grpc_errors::refused)?;
    Ok(request)
}

/// As `admit`, with the decoder that apply uses, which bounds nesting. It refuses what has too many
/// operations while it reads, which etcd does after it has looked at the metadata.
async fn admit_txn(
    metadata: Result<(), Error>,
    message: Bytes,
    ops_max: usize,
) -> Result<TxnRequest, Status> {
    let decoded = match message.len() <= DECODED_HERE_BYTES_MAX {
        true => command::decode_txn(message, ops_max),
        // In a box, so that the future of every other call stays small.
        false => Box::pin(blocking(move || command::decode_txn(message, ops_max))).await?,
    };
    if !matches!(decoded, Err(DecodeError::Malformed(_) | DecodeError::Field)) {
        metadata.map_err(grpc_errors::refused)?;
    }
    decoded.map_err(|error| grpc_errors::undecodable(&error))
}

/// The frame of an answer, which holds the answer's memory until it was sent.
fn frame<T: Message>(answered: CountedAnswer<T>) -> Result<Bytes, Status> {
    let CountedAnswer { response, memory } = answered;
    let frame = kv::framed(&response)?;
    drop(response);
    Ok(charged(frame, memory))
}

/// A call that ends when the last bytes of its answer are made.
pub struct LongCall {
    inner: kv::LargeAnswer,
    counted: CallInProgress,
    /// Of the whole message, prefix included; 0 before it has begun.
    bytes: u64,
}

impl LongAnswer for LongCall {
    async fn begin(&mut self) -> Result<u64, Status> {
        let begun = self.inner.begin().await;
        match &begun {
            Ok(bytes) => self.bytes = *bytes,
            Err(status) => self.counted.end(status.code()),
        }
        begun
    }

    async fn part(&mut self, position: u64) -> Result<Part, Status> {
        let part = self.inner.part(position).await;
        match &part {
            Ok(part) if position + part.len() as u64 == self.bytes => {
                let bytes = usize::try_from(self.bytes).expect("a message is at most 4 GiB");
                self.counted.sent(bytes.saturating_sub(PREFIX_BYTES));
                self.counted.end(Code::Ok);
            }
            Ok(_) => {}
            Err(status) => self.counted.end(status.code()),
        }
        part
    }

    async fn room(&self) {
        self.inner.room().await;
    }

    fn counted(&self, sent: Bytes) -> Bytes {
        self.inner.counted(sent)
    }

    fn is_wanted(&self) -> bool {
        self.inner.is_wanted()
    }

    fn unread(&mut self) {
        self.counted.end(Code::Cancelled);
        self.inner.unread();
    }
}
