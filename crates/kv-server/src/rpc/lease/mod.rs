//! Lease: grant, revoke, keep-alive, time to live, list.
//!
//! * The member that proposes a grant chooses an id if the client gave none, and raises the TTL to the minimum.
//! * A keep-alive stream answers in the order of its requests. Up to [`AHEAD_MAX`] of them wait together, so
//!   that they share batches.
//! * The attached keys of a time-to-live answer are read here, after a read point.

use std::pin::Pin;
use std::sync::Arc;

use api::Error;
use api::etcdserverpb::lease_server::Lease as LeaseMethods;
use api::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
};
use bytes::Bytes;
use futures_util::stream::{Stream, StreamExt};
use state_machine::command::Kind;
use state_machine::{Response, TTL_MAX};
use tonic::{Request, Response as Reply, Status, Streaming};

use super::kv::check_quota;
use super::{guard, header};
use crate::errors;
use crate::member::{LeaseError, LeaseService, Member, ProposeError};

/// What a grant costs against the quota: etcd's figure.
const GRANT_COST: u64 = 64;
/// Renewals of one stream that wait together. Further requests wait in the stream.
const AHEAD_MAX: usize = 256;
/// Leases that are listed under one hold of the table's lock.
const LISTED: usize = 1_000;

/// The methods as tonic calls them.
pub struct Lease {
    pub member: Arc<Member>,
    pub leases: LeaseService,
}

/// Answers of a keep-alive stream.
type KeepAlives = Pin<Box<dyn Stream<Item = Result<LeaseKeepAliveResponse, Status>> + Send>>;

/// Grants a lease. Its id is chosen here where the request has none.
pub async fn grant(
    member: &Arc<Member>,
    mut request: LeaseGrantRequest,
) -> Result<LeaseGrantResponse, Status> {
    check_quota(member, GRANT_COST).await?;
    if request.ttl <= TTL_MAX {
        request.ttl = request.ttl.max(member.limits.lease_ttl_min);
    }
    let chooses = request.id == 0;
    loop {
        if chooses {
            request.id = rand::random_range(1..=i64::MAX);
        }
        let granted = member.propose(Kind::LeaseGrant(request)).await;
        // Another lease has the id that was chosen here: once in 2^63 divided by the number of leases.
        if chooses && matches!(&granted, Err(ProposeError::Refused(Error::LeaseExist))) {
            continue;
        }
        let Response::LeaseGrant(mut response) = granted.map_err(Status::from)? else {
            unreachable!("a grant is answered with a grant")
        };
        member.metrics.leases.ttl_seconds.observe(response.ttl as f64);
        header::fill(member, &mut response.header);
        return Ok(response);
    }
}

impl Lease {
    async fn revoke(&self, request: LeaseRevokeRequest) -> Result<LeaseRevokeResponse, Status> {
        let revoked = self.member.propose(Kind::LeaseRevoke(request)).await.map_err(Status::from)?;
        let Response::LeaseRevoke(mut response) = revoked else {
            unreachable!("a revoke is answered with a revoke")
        };
        header::fill(&self.member, &mut response.header);
        Ok(response)
    }

    async fn time_to_live(&self, request: LeaseTimeToLiveRequest) -> Result<LeaseTimeToLiveResponse, Status> {
        let remaining = self.leases.remaining(request.id).await.map_err(unanswered)?;
        let mut keys = Vec::new();
        if request.keys && remaining.granted_ttl > 0 {
            self.member.read_point().await.map_err(errors::read_point)?;
            keys = self.attached_keys(request.id).await?;
        }
        Ok(LeaseTimeToLiveResponse {
            header: header::newest(&self.member),
            id: request.id,
            ttl: remaining.ttl,
            granted_ttl: remaining.granted_ttl,
            keys,
        })
    }

    /// Not in the calling task: a lease may have a million keys.
    async fn attached_keys(&self, id: i64) -> Result<Vec<Bytes>, Status> {
        let store = self.member.store.clone();
        let keys = tokio::task::spawn_blocking(move || store.keys_of_lease(id));
        keys.await.map_err(|error| errors::task(&error))
    }

    /// The ids, by the time that is left.
    fn list(&self) -> Vec<LeaseStatus> {
        let (mut leases, mut after) = (Vec::new(), None);
        loop {
            let more = self.leases.table().scan(after, LISTED);
            let Some((last, _)) = more.last() else { break };
            after = Some(*last);
            leases.extend(more.iter().map(|(id, lease)| (lease.deadline.unwrap_or(i64::MAX), *id)));
        }
        leases.sort_unstable();
        leases.into_iter().map(|(_, id)| LeaseStatus { id }).collect()
    }
}

/// A renewal, or a question about a lease, that the leader did not answer.
fn unanswered(error: LeaseError) -> Status {
    errors::refused(match error {
        LeaseError::NoLeader => Error::NoLeader,
        LeaseError::NotLeader => Error::LeaderChanged,
        LeaseError::Unreachable | LeaseError::Timeout => Error::Timeout,
        LeaseError::TooManyRequests => Error::TooManyRequests,
        LeaseError::Stopped => Error::Stopped,
        LeaseError::Refused(error) => error,
    })
}

/// Answers one renewal. The revision is that of the moment when it was read.
async fn keep_alive(
    member: Arc<Member>,
    leases: LeaseService,
    request: Result<LeaseKeepAliveRequest, Status>,
) -> Result<LeaseKeepAliveResponse, Status> {
    let id = request?.id;
    let header = header::newest(&member);
    let ttl = leases.renew(id).await.map_err(unanswered)?;
    Ok(LeaseKeepAliveResponse { header, id, ttl })
}

#[tonic::async_trait]
impl LeaseMethods for Lease {
    type LeaseKeepAliveStream = KeepAlives;

    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Reply<LeaseGrantResponse>, Status> {
        guard::check(&self.member, request.metadata().as_ref()).map_err(errors::refused)?;
        grant(&self.member, request.into_inner()).await.map(Reply::new)
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Reply<LeaseRevokeResponse>, Status> {
        guard::check(&self.member, request.metadata().as_ref()).map_err(errors::refused)?;
        self.revoke(request.into_inner()).await.map(Reply::new)
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Reply<KeepAlives>, Status> {
        guard::check(&self.member, request.metadata().as_ref()).map_err(errors::refused)?;
        let (member, leases) = (Arc::clone(&self.member), self.leases.clone());
        let answers =
            request.into_inner().map(move |request| keep_alive(Arc::clone(&member), leases.clone(), request));
        // The first error ends the stream.
        let mut has_failed = false;
        let answers = answers.buffered(AHEAD_MAX).take_while(move |answer| {
            let goes_on = !has_failed;
            has_failed |= answer.is_err();
            std::future::ready(goes_on)
        });
        Ok(Reply::new(Box::pin(answers)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Reply<LeaseTimeToLiveResponse>, Status> {
        guard::check(&self.member, request.metadata().as_ref()).map_err(errors::refused)?;
        self.time_to_live(request.into_inner()).await.map(Reply::new)
    }

    async fn lease_leases(
        &self,
        request: Request<LeaseLeasesRequest>,
    ) -> Result<Reply<LeaseLeasesResponse>, Status> {
        guard::check(&self.member, request.metadata().as_ref()).map_err(errors::refused)?;
        let leases = self.list();
        Ok(Reply::new(LeaseLeasesResponse { header: header::newest(&self.member), leases }))
    }
}
