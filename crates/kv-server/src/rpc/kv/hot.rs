//! The hot methods: answered inside the connection's task, without tonic.

use std::pin::pin;
use std::sync::Arc;

use api::etcdserverpb::TxnRequest;
use api::{Error, Method};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use prost::Message;
use state_machine::command::{self, DecodeError};
use tokio::time::Instant;
use tonic::Status;

use super::large::LargeAnswer;
use super::{framed, methods, now};
use crate::member::Member;
use crate::rpc::guard::Asker;
use crate::rpc::metadata::KnownFields;
use crate::rpc::{deadline, guard, header};
use admission::{CountedAnswer, blocking, charged};
use auth::Origin;
use grpc_server::client_port::PerConnection;
use grpc_server::http2::{HotAnswer, HotMethods, Room, SendNow};
use grpc_server::methods::{HotMethod, Serving};

/// A longer transaction is decoded on a blocking thread: it may have thousands of operations. Other messages
/// are a few fields.
const DECODED_HERE_BYTES_MAX: usize = 64 << 10;

/// Put, Range, Txn, DeleteRange. Cheap to clone: one per connection.
#[derive(Clone)]
pub struct Hot {
    member: Arc<Member>,
    origin: Origin,
}

impl PerConnection for Hot {
    fn of(&self, origin: &Origin) -> Self {
        Hot { member: Arc::clone(&self.member), origin: origin.clone() }
    }
}

impl Hot {
    pub fn new(member: Arc<Member>) -> Self {
        Hot { member, origin: Origin::default() }
    }

    /// Reads the request, and then judges its metadata: in this order, as etcd does.
    fn admit<T: Message + Default>(metadata: Result<(), Error>, message: Bytes) -> Result<T, Status> {
        let request =
            T::decode(message).map_err(|_| grpc_errors::malformed(grpc_errors::RequestForm::Unary))?;
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
}

/// One call, before its message is looked at.
#[derive(Debug)]
pub struct HotCall {
    method: HotMethod,
    deadline: Result<Option<Instant>, Box<Status>>,
    /// Whether this member can satisfy the metadata.
    metadata: Result<(), Error>,
    /// Whose call it is.
    asker: Asker,
}

impl HotMethods for Hot {
    type Call = HotCall;
    type Long = LargeAnswer;

    /// A compressed request goes to the services, which answer UNIMPLEMENTED and name the encodings they
    /// accept.
    fn find(&self, path: &str, headers: &HeaderMap, timeout: Option<&[u8]>) -> Option<HotCall> {
        let Serving::Hot(method) = grpc_server::methods::of(Method::of_path(path)?).serving else {
            return None;
        };
        let known = KnownFields::of(headers);
        if known.encoding.is_some_and(|encoding| encoding != "identity") {
            return None;
        }
        let deadline =
            deadline::of_text(timeout.or(known.timeout.map(HeaderValue::as_bytes))).map_err(Box::new);
        let metadata = match method {
            HotMethod::Range => guard::check_any(&self.member, &known), // The rest depends on the request.
            HotMethod::Put | HotMethod::Txn | HotMethod::DeleteRange => {
                guard::check_known(&self.member, &known)
            }
        };
        let metadata = metadata.and_then(|()| guard::check_intact(&self.member, of_hot(method)));
        let asker = Asker::new(&self.member, &self.origin, headers, &known);
        Some(HotCall { method, deadline, metadata, asker })
    }

    fn deadline(call: &HotCall) -> Option<Instant> {
        call.deadline.as_ref().ok().copied().flatten()
    }

    fn user(call: &HotCall) -> Option<u64> {
        call.asker.user()
    }

    /// A serializable range of one key. One that is audited or sampled is left to `call`.
    fn answer_now(&self, call: &HotCall, message: &Bytes, send: &mut SendNow<'_>) -> bool {
        let HotCall { method, deadline, metadata, asker } = call;
        let is_in_time =
            deadline.as_ref().is_ok_and(|deadline| deadline.is_none_or(|deadline| Instant::now() < deadline));
        *method == HotMethod::Range
            && is_in_time
            && metadata.is_ok()
            && self.member.audit.is_none()
            && self.member.usage.is_none()
            && now::range(&self.member, asker, message, send).is_some()
    }

    async fn call(
        &self,
        HotCall { method, deadline, metadata, asker }: HotCall,
        message: Bytes,
        room: Room<'_>,
    ) -> Result<HotAnswer<LargeAnswer>, Status> {
        let deadline = deadline.map_err(|status| *status)?;
        let audited =
            asker.audited(&self.member, of_hot(method)).map(|call| call.with_request(message.clone()));
        let usage = self.member.usage.as_ref();
        let sampled = usage.and_then(|usage| usage.sample(of_hot(method), &message));
        let answering = pin!(self.answer(&asker, method, metadata, message, room));
        let mut answer = deadline::within(deadline, answering).await;
        if let Some(call) = audited {
            call.end(match &answer {
                Ok(HotAnswer::Whole(bytes)) => Ok(header::revision_in(bytes)),
                Ok(HotAnswer::Long(_)) => Ok(None),
                Err(status) => Err(status),
            });
        }
        if let Some(sample) = sampled {
            let frame = if let Ok(HotAnswer::Whole(frame)) = &answer { Some(frame) } else { None };
            sample.end(&self.client(&asker), frame);
        }
        if let Ok(HotAnswer::Long(long)) = &mut answer {
            long.deadline = deadline;
        }
        answer
    }
}

fn of_hot(method: HotMethod) -> Method {
    match method {
        HotMethod::Put => Method::KvPut,
        HotMethod::Range => Method::KvRange,
        HotMethod::Txn => Method::KvTxn,
        HotMethod::DeleteRange => Method::KvDeleteRange,
    }
}

impl Hot {
    /// The user of a call; without one, the address that it came from.
    fn client(&self, asker: &Asker) -> String {
        let caller = self.member.auth.user_of(&asker.credential);
        let address = || asker.address.map_or_else(String::new, |address| address.ip().to_string());
        caller.user().map_or_else(address, str::to_owned)
    }

    async fn answer(
        &self,
        asker: &Asker,
        method: HotMethod,
        metadata: Result<(), Error>,
        message: Bytes,
        room: Room<'_>,
    ) -> Result<HotAnswer<LargeAnswer>, Status> {
        let member = &self.member;
        let frame = match method {
            HotMethod::Put => answer(methods::put(member, asker, Self::admit(metadata, message)?).await?),
            HotMethod::Range => {
                match methods::range_or_large(member, asker, Self::admit(metadata, message)?, room).await? {
                    methods::RangedRequest::Whole(answered) => answer(answered),
                    methods::RangedRequest::Large(answer) => return Ok(HotAnswer::Long(answer)),
                }
            }
            HotMethod::Txn => {
                let request = Self::admit_txn(metadata, message, member.limits.txn_ops_max).await?;
                answer(methods::txn(member, asker, request, Some(room)).await?)
            }
            HotMethod::DeleteRange => {
                answer(methods::delete_range(member, asker, Self::admit(metadata, message)?).await?)
            }
        };
        frame.map(HotAnswer::Whole)
    }
}

/// The frame of an answer, which holds the answer's memory until it was sent.
fn answer<T: Message>(answered: CountedAnswer<T>) -> Result<Bytes, Status> {
    let CountedAnswer { response, memory } = answered;
    let frame = framed(&response)?;
    drop(response);
    Ok(charged(frame, memory))
}
