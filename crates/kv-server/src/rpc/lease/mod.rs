//! Lease: grant, revoke, keep-alive, time to live, list.
//!
//! * The member that proposes a grant chooses an id if the client gave none, and raises the TTL to the
//!   minimum.
//! * The attached keys in a time-to-live response are read here, after a read point.
//! * Long lists of leases and keys are created within the bounds of `admission`, and hold their memory
//!   until they are sent.

mod keep_alive; // streams of renewals

use std::sync::Arc;

use api::Error;
use api::etcdserverpb::lease_server::Lease as LeaseMethods;
use api::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
};
use mvcc::{Meter, Store};
use state_machine::{Failure, KeyAccess, LeaseTable, Need, TTL_MAX};
use tonic::{Request, Response as Reply, Status, Streaming};

use super::guard::ServedCall;
use super::kv::check_quota;
use super::reply;
use crate::member::{Member, ProposeError};
use crate::peer::LeaseService;
use ::auth::Requester;
use admission::{CountedAnswer, Small};
use auth::Caller;
pub use keep_alive::keep_alive;
use keep_alive::unanswered;

/// Cost of a grant against the quota, as in etcd.
const GRANT_COST: u64 = 64;
/// Leases listed while the table's lock is held once.
const LISTED: usize = 1_000;
/// Memory of a listed lease: two numbers while it is collected, one in the response, and its encoded form.
const LISTED_BYTES: u64 = 16 + 8 + 14;

/// The methods of the service, for one call.
pub struct LeaseCalls {
    pub call: ServedCall,
    pub leases: LeaseService,
}

/// Required by tonic's trait.
type KeepAlives = futures_util::stream::Empty<Result<LeaseKeepAliveResponse, Status>>;

/// Grants a lease. Chooses an id if the request has none.
pub async fn grant(
    member: &Arc<Member>,
    requester: &Requester,
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
        let caller = member.caller(requester).await?;
        let granted = member.propose(&caller, request).await;
        // The chosen id is in use: probability 2^-63 times the number of leases.
        if chooses && matches!(&granted, Err(ProposeError::Refused(Error::LeaseExist))) {
            continue;
        }
        let mut response = granted?;
        member.metrics.leases.ttl_seconds.observe(response.ttl as f64);
        member.fill_header(&mut response.header);
        return Ok(response);
    }
}

impl LeaseCalls {
    async fn revoke(
        &self,
        requester: &Requester,
        request: LeaseRevokeRequest,
    ) -> Result<LeaseRevokeResponse, Status> {
        let caller = self.call.member.caller(requester).await?;
        let mut response = self.call.member.propose(&caller, request).await?;
        self.call.member.fill_header(&mut response.header);
        Ok(response)
    }

    async fn time_to_live(
        &self,
        requester: &Requester,
        request: LeaseTimeToLiveRequest,
    ) -> Result<CountedAnswer<LeaseTimeToLiveResponse>, Status> {
        let remaining = self.leases.remaining(requester.client(), request.id).await.map_err(unanswered)?;
        let (mut keys, mut memory) = (Vec::new(), None);
        if request.keys && remaining.granted_ttl > 0 {
            self.call.member.read_point().await.map_err(grpc_errors::read_point)?;
            let caller = self.call.member.caller(requester).await?;
            caller.check_named().map_err(grpc_errors::refused)?;
            let (store, id) = (self.call.member.store.clone(), request.id);
            // Checks a few keys first, so that a caller without permission does not cause a long list.
            caller.check(&store, Need::KeysOfLease(KeyAccess::Read, id)).map_err(grpc_errors::refused)?;
            let reader = caller.clone();
            let read = move |meter: &dyn Meter| {
                let keys = store.keys_of_lease(id, meter)?;
                // Keys may have been attached in the meantime, so the permission is checked for the
                // returned keys.
                if reader.may_read(&keys) { Ok(keys) } else { Err(Error::PermissionDenied.into()) }
            };
            let found = self.read(requester, read).await?;
            (keys, memory) = (found.response, found.memory);
            caller.check_unchanged(self.call.member.auth.table.revision()).map_err(grpc_errors::refused)?;
        }
        let response = LeaseTimeToLiveResponse {
            header: self.call.member.header(),
            id: request.id,
            ttl: remaining.ttl,
            granted_ttl: remaining.granted_ttl,
            keys,
        };
        Ok(CountedAnswer { response, memory })
    }

    /// Reads in the calling task if that is cheap, and as a wide read otherwise: a lease may have a million
    /// keys.
    async fn read<T: Send + 'static>(
        &self,
        requester: &Requester,
        read: impl Fn(&dyn Meter) -> Result<T, Failure> + Send + Sync + 'static,
    ) -> Result<CountedAnswer<T>, Status> {
        self.call.room().wait().await;
        match read(&Small::default()) {
            Err(Failure::Interrupted) => {}
            read => return read.map(CountedAnswer::small).map_err(grpc_errors::read),
        }
        let (response, memory) = self.call.member.admission.read(requester.client(), 0, read).await?;
        Ok(CountedAnswer { response, memory: Some(memory) })
    }
}

/// Returns the ids, ordered by remaining time. Fails if a key that the caller may not read is attached to
/// any of them.
fn list(
    store: &Store,
    caller: &Caller,
    table: &LeaseTable,
    meter: &dyn Meter,
) -> Result<Vec<LeaseStatus>, Failure> {
    let (mut leases, mut after) = (Vec::new(), None);
    loop {
        let more = table.scan(after, LISTED);
        let Some((last, _)) = more.last() else { break };
        after = Some(*last);
        meter.check()?;
        meter.hold(0, LISTED_BYTES * more.len() as u64)?;
        if !caller.is_root() {
            for (id, _) in &more {
                caller.check(store, Need::KeysOfLease(KeyAccess::Read, *id))?;
            }
        }
        leases.extend(more.iter().map(|(id, lease)| (lease.deadline.unwrap_or(i64::MAX), *id)));
    }
    leases.sort_unstable();
    Ok(leases.into_iter().map(|(_, id)| LeaseStatus { id }).collect())
}

#[tonic::async_trait]
impl LeaseMethods for LeaseCalls {
    type LeaseKeepAliveStream = KeepAlives;

    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Reply<LeaseGrantResponse>, Status> {
        let (requester, request) = self.call.parts(request);
        grant(&self.call.member, requester, request).await.map(Reply::new)
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Reply<LeaseRevokeResponse>, Status> {
        let (requester, request) = self.call.parts(request);
        self.revoke(requester, request).await.map(Reply::new)
    }

    /// Unused: the connection's task serves this method, see [`keep_alive()`].
    async fn lease_keep_alive(
        &self,
        _request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Reply<KeepAlives>, Status> {
        Err(grpc_errors::unknown_method("etcdserverpb.Lease", "LeaseKeepAlive"))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Reply<LeaseTimeToLiveResponse>, Status> {
        let (requester, request) = self.call.parts(request);
        self.time_to_live(requester, request).await.map(reply)
    }

    async fn lease_leases(
        &self,
        request: Request<LeaseLeasesRequest>,
    ) -> Result<Reply<LeaseLeasesResponse>, Status> {
        let (requester, _) = self.call.parts(request);
        let caller = self.call.member.caller(requester).await?;
        caller.check_named().map_err(grpc_errors::refused)?;
        let (store, table) = (self.call.member.store.clone(), self.leases.table().clone());
        let listed = self.read(requester, move |meter| list(&store, &caller, &table, meter)).await?;
        let response = LeaseLeasesResponse { header: self.call.member.header(), leases: listed.response };
        Ok(reply(CountedAnswer { response, memory: listed.memory }))
    }
}
