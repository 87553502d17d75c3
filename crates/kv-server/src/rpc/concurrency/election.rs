//! Campaign, Proclaim, Leader, Observe and Resign.

use std::pin::Pin;
use std::sync::Arc;

use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{TxnRequest, TxnResponse};
use api::v3electionpb::election_server::Election as ElectionMethods;
use api::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse,
};
use bytes::Bytes;
use futures_util::stream::Stream;
use tonic::{Request, Response as Reply, Status};

use super::attended::{Attendance, attended};
use super::inner::{Inner, created, found};
use super::keys::{self, Prefix};
use super::observe;
use super::waiting::{WaitingPlaces, until_owned};
use crate::rpc::guard::ServedCall;
use crate::rpc::reply;
use admission::CountedAnswer;

/// The methods of the service, for one call.
pub struct Election {
    inner: Inner,
    waiting: WaitingPlaces,
}

impl Election {
    pub fn new(call: ServedCall, waiting: WaitingPlaces) -> Election {
        Election { inner: Inner(call), waiting }
    }

    fn parts<T>(&self, request: Request<T>) -> (Inner, T) {
        (self.inner.clone(), request.into_inner())
    }
}

fn put_unless_there(key: &Bytes, value: Bytes, lease: i64) -> TxnRequest {
    TxnRequest {
        compare: vec![keys::created_at(key, 0)],
        success: vec![keys::op(Op::RequestPut(keys::put(key, value, lease)))],
        failure: vec![keys::op(Op::RequestRange(keys::get(key)))],
    }
}

/// Puts the caller's key, and waits until it leads. An existing key of the lease gets the new value.
async fn campaign(
    inner: Inner,
    mut attendance: Attendance,
    request: CampaignRequest,
) -> Result<CampaignResponse, Status> {
    let CampaignRequest { mut name, lease, value } = request;
    // A slice would pin the whole message, which may be long, while the call waits.
    name = Bytes::copy_from_slice(&name);
    let prefix = Prefix::of(&name);
    let put = |lease| put_unless_there(&prefix.key(lease), value.clone(), lease);
    let (lease, txn) = inner.lease(lease, put).await?;
    let key = prefix.key(lease);
    let response = inner.txn(txn).await?;
    let created = created(&response);
    let has_other_value = !response.succeeded && found(&response, 0).is_some_and(|kv| kv.value != value);
    let leader = LeaderKey { name, key: key.clone(), rev: created, lease };
    let proclaimed = match has_other_value {
        true => proclaim(&inner, replace(&leader, lease, value.clone())).await.map(drop),
        false => Ok(()),
    };
    drop(value);
    // Drops the rest, which may contain the previous value.
    let TxnResponse { header, succeeded, .. } = response;
    let leads = match proclaimed {
        Ok(()) => attendance.during(until_owned(&inner, &prefix, &key, created)).await.map(drop),
        Err(status) => Err(status),
    };
    let known = match leads {
        // A key that existed before this call is left to its owner.
        Ok(()) if succeeded => attendance.check(),
        leads => leads,
    };
    if let Err(status) = known {
        attendance.finish(|| inner.delete_created(&key, created)).await;
        return Err(status);
    }
    Ok(CampaignResponse { header, leader: Some(leader) })
}

/// Replaces the value of the key if it was created at the leader's revision.
fn replace(leader: &LeaderKey, lease: i64, value: Bytes) -> TxnRequest {
    TxnRequest {
        compare: vec![keys::created_at(&leader.key, leader.rev)],
        success: vec![keys::op(Op::RequestPut(keys::put(&leader.key, value, lease)))],
        failure: Vec::new(),
    }
}

/// Executes a transaction of [`replace`].
async fn proclaim(inner: &Inner, replace: TxnRequest) -> Result<TxnResponse, Status> {
    let response = inner.txn(replace).await?;
    if response.succeeded { Ok(response) } else { Err(grpc_errors::not_elected()) }
}

#[tonic::async_trait]
impl ElectionMethods for Election {
    type ObserveStream = Pin<Box<dyn Stream<Item = Result<LeaderResponse, Status>> + Send>>;

    async fn campaign(&self, request: Request<CampaignRequest>) -> Result<Reply<CampaignResponse>, Status> {
        let (inner, request) = self.parts(request);
        let place = self.waiting.enter(inner.client(), &request.name)?;
        let campaigning = attended(
            self.waiting.stop.clone(),
            Arc::clone(&self.inner.0.member.fence),
            async move |attendance| {
                let _place = place;
                campaign(inner, attendance, request).await
            },
        );
        campaigning.await.map(Reply::new)
    }

    async fn proclaim(&self, request: Request<ProclaimRequest>) -> Result<Reply<ProclaimResponse>, Status> {
        let (inner, request) = self.parts(request);
        let leader = request.leader.ok_or_else(grpc_errors::leader_missing)?;
        let (_, txn) = inner.lease(leader.lease, |lease| replace(&leader, lease, request.value)).await?;
        let response = proclaim(&inner, txn).await?;
        Ok(Reply::new(ProclaimResponse { header: response.header }))
    }

    async fn leader(&self, request: Request<LeaderRequest>) -> Result<Reply<LeaderResponse>, Status> {
        let (inner, request) = self.parts(request);
        let CountedAnswer { response: first, memory } = inner.leader(&Prefix::of(&request.name)).await?;
        let Some(kv) = first.kvs.into_iter().next() else { return Err(grpc_errors::no_elected_leader()) };
        let response = LeaderResponse { header: first.header, kv: Some(kv) };
        Ok(reply(CountedAnswer { response, memory }))
    }

    async fn observe(&self, request: Request<LeaderRequest>) -> Result<Reply<Self::ObserveStream>, Status> {
        let (inner, request) = self.parts(request);
        let place = self.waiting.enter(inner.client(), &request.name)?;
        Ok(Reply::new(Box::pin(observe::leaders(inner, place, Prefix::of(&request.name)))))
    }

    /// Leaves a key unchanged if it was created at another revision, which is no error.
    async fn resign(&self, request: Request<ResignRequest>) -> Result<Reply<ResignResponse>, Status> {
        let (inner, request) = self.parts(request);
        let leader = request.leader.ok_or_else(grpc_errors::leader_missing)?;
        if leader.lease == 0 {
            // etcd grants an unused lease here, which is rejected first.
            inner.check_named().await?;
        }
        let response = inner.delete_created(&leader.key, leader.rev).await?;
        Ok(Reply::new(ResignResponse { header: response.header }))
    }
}
