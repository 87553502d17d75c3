//! A stream of renewals.
//!
//! * Answers come in the order of the requests. Up to [`AHEAD_ALWAYS`] renewals wait together, so that they
//!   share batches, and up to [`AHEAD_MAX`] while few others wait.
//! * While the client does not take answers, none of its requests is begun.
//! * The first error ends the stream, after the answers before it. So does the end of the requests.

use api::etcdserverpb::{LeaseKeepAliveRequest, LeaseKeepAliveResponse, ResponseHeader};
use api::grpc::PREFIX_BYTES;
use api::{Error, Method};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use futures_util::stream::{FuturesOrdered, StreamExt};
use prost::Message;
use state_machine::{KeyAccess, Need};
use tonic::{Code, Status};

use super::super::guard::Asker;
use crate::audit::AuditSubject;
use crate::member::{LeaseError, Member};
use crate::peer::{LeaseService, PendingLease};
use auth::CallerError;
use grpc_server::http2::{Replies, Requests, framed};

/// Renewals of one stream that wait together. Further requests wait in the stream: 300 streams that renew
/// without pause put 4,800 renewals before one of another stream, some 5 batches.
const AHEAD_ALWAYS: usize = 16;
/// The same while the renewals of all streams fit into the batches under way: so many that a stream alone is
/// not bound by the time of a sync.
const AHEAD_MAX: usize = 256;

/// Serves a stream until it ends.
pub async fn keep_alive(
    member: &Member,
    leases: &LeaseService,
    asker: &Asker,
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
                        let renewal = request.and_then(|bytes| KeepAlive::begin(member, leases, asker, bytes));
                        waiting.push_back(KeepAlive::answer(renewal));
                    }
                    None => has_ended = true,
                }
                continue;
            }
            else => return Status::new(Code::Ok, ""),
        };
        // With all that are ready: they leave in one frame.
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

/// Whether a stream in which so many renewals wait may begin another.
fn may_begin(waiting: usize, leases: &LeaseService) -> bool {
    waiting < AHEAD_ALWAYS || waiting < AHEAD_MAX && leases.has_room()
}

/// A renewal needs a user who may write every key that is attached to the lease, as in etcd.
fn check_renewal(member: &Member, asker: &Asker, id: i64) -> Result<(), Error> {
    let caller = member.auth.caller(&asker.credential).map_err(|unresolved| match unresolved {
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

/// A renewal that waits for its answer: small, since streams have many of them.
struct KeepAlive {
    id: i64,
    header: Option<ResponseHeader>,
    renewed: PendingLease,
}

impl KeepAlive {
    /// Begins it. The revision is that of this moment.
    fn begin(
        member: &Member,
        leases: &LeaseService,
        asker: &Asker,
        mut message: Bytes,
    ) -> Result<KeepAlive, Status> {
        message.advance(PREFIX_BYTES);
        let request = LeaseKeepAliveRequest::decode(message);
        let id = request.map_err(|_| grpc_errors::malformed(grpc_errors::RequestForm::Stream))?.id;
        let checked = check_renewal(member, asker, id).map_err(grpc_errors::refused);
        if let Some(call) = asker.audited(member, Method::LeaseKeepAlive) {
            call.end_of(AuditSubject::renewal(id), checked.as_ref().map(|()| None));
        }
        checked?;
        let header = member.header();
        let renewed = leases.renew(asker.client, id).map_err(unanswered)?;
        Ok(KeepAlive { id, header, renewed })
    }

    /// The answer, with its prefix.
    async fn answer(begun: Result<KeepAlive, Status>) -> Result<Bytes, Status> {
        let KeepAlive { id, header, renewed } = begun?;
        let ttl = renewed.remaining().await.map_err(unanswered)?.ttl;
        framed(&LeaseKeepAliveResponse { header, id, ttl })
    }
}

/// A renewal, or a question about a lease, that the leader did not answer.
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
