//! Streams of lease renewals.
//!
//! * Responses are sent in the order of the requests. Up to [`AHEAD_ALWAYS`] renewals are in flight per
//!   stream, so that they share batches, and up to [`AHEAD_MAX`] while the load is low.
//! * While the client does not read responses, none of its requests is started.
//! * The first error closes the stream, after the responses before it. So does the close of the request
//!   side.

use api::etcdserverpb::{LeaseKeepAliveRequest, LeaseKeepAliveResponse, ResponseHeader};
use api::grpc::PREFIX_BYTES;
use api::{Error, Method};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use futures_util::stream::{FuturesOrdered, StreamExt};
use prost::Message;
use state_machine::{KeyAccess, Need};
use tonic::{Code, Status};

use crate::audit::AuditSubject;
use crate::member::{LeaseError, Member};
use crate::peer::{LeaseService, PendingLease};
use ::auth::Requester;
use auth::CallerError;
use grpc_server::http2::{Replies, Requests, framed};

/// Renewals of one stream in flight under load. Further requests wait in the stream: 300 streams that renew
/// without pause put 4,800 renewals before those from another stream, about 5 batches.
const AHEAD_ALWAYS: usize = 16;
/// The limit while the renewals of all streams fit into the batches in flight: high enough that a single
/// stream is not bound by the latency of a sync.
const AHEAD_MAX: usize = 256;

pub async fn keep_alive(
    member: &Member,
    leases: &LeaseService,
    requester: &Requester,
    mut requests: Requests,
    mut replies: Replies,
) -> Status {
    let mut waiting = FuturesOrdered::new();
    let mut has_ended = false;
    loop {
        let answer = tokio::select! {
            biased;
            Some(answer) = waiting.next(), if !waiting.is_empty() => answer,
            request = requests.next(), if !has_ended && may_begin(waiting.len(), leases) => {
                match request {
                    Some(request) => {
                        let renewal = request.and_then(|bytes| KeepAlive::begin(member, leases, requester, bytes));
                        waiting.push_back(KeepAlive::answer(renewal));
                    }
                    None => has_ended = true,
                }
                continue;
            }
            else => return Status::new(Code::Ok, ""),
        };
        // Includes all ready responses, so that they leave in one frame.
        let (mut answers, mut next) = (BytesMut::new(), Some(answer));
        let mut failed = None;
        while let Some(answer) = next {
            match answer {
                Ok(answer) => answers.extend_from_slice(&answer),
                Err(status) => {
                    failed = Some(status);
                    break;
                }
            }
            next = waiting.next().now_or_never().flatten();
        }
        if replies.send(answers.freeze()).await.is_err() {
            return grpc_errors::cancelled();
        }
        if let Some(status) = failed {
            return status;
        }
    }
}

/// Reports whether a stream with `waiting` renewals in flight may start one more.
fn may_begin(waiting: usize, leases: &LeaseService) -> bool {
    waiting < AHEAD_ALWAYS || waiting < AHEAD_MAX && leases.has_room()
}

/// Checks that the user may write every key attached to the lease, as in etcd.
fn check_renewal(member: &Member, requester: &Requester, id: i64) -> Result<(), Error> {
    let caller = member.auth.caller(&requester.identity).map_err(|unresolved| match unresolved {
        CallerError::Refused(error) => error,
        CallerError::Unknown { .. } => Error::InvalidAuthToken,
    })?;
    caller.check_named()?;
    if caller.is_root() {
        Ok(())
    } else {
        caller.check(&member.store, Need::KeysOfLease(KeyAccess::Write, id))
    }
}

/// A renewal in flight. Kept small, since streams have many of them.
struct KeepAlive {
    id: i64,
    header: Option<ResponseHeader>,
    renewed: PendingLease,
}

impl KeepAlive {
    /// Starts a renewal. The response has the current revision.
    fn begin(
        member: &Member,
        leases: &LeaseService,
        requester: &Requester,
        mut message: Bytes,
    ) -> Result<KeepAlive, Status> {
        message.advance(PREFIX_BYTES);
        let request = LeaseKeepAliveRequest::decode(message);
        let id = request.map_err(|_| grpc_errors::malformed(grpc_errors::RequestForm::Stream))?.id;
        let checked = check_renewal(member, requester, id).map_err(grpc_errors::refused);
        if let Some(call) = member.audited(requester, Method::LeaseKeepAlive) {
            call.end_of(AuditSubject::renewal(id), checked.as_ref().map(|()| None));
        }
        checked?;
        let header = member.header();
        let renewed = leases.renew(requester.client(), id).map_err(unanswered)?;
        Ok(KeepAlive { id, header, renewed })
    }

    /// Returns the response, with its prefix.
    async fn answer(begun: Result<KeepAlive, Status>) -> Result<Bytes, Status> {
        let KeepAlive { id, header, renewed } = begun?;
        let ttl = renewed.remaining().await.map_err(unanswered)?.ttl;
        framed(&LeaseKeepAliveResponse { header, id, ttl })
    }
}

/// Returns the status for a renewal or query that the leader did not complete.
pub(super) fn unanswered(error: LeaseError) -> Status {
    grpc_errors::refused(match error {
        LeaseError::NoLeader => Error::NoLeader,
        LeaseError::NotLeader => Error::LeaderChanged,
        LeaseError::Unreachable | LeaseError::Timeout => Error::Timeout,
        LeaseError::TooManyRequests => Error::TooManyRequests,
        LeaseError::Stopped => Error::Stopped,
        LeaseError::Refused(error) => error,
    })
}
