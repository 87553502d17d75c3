//! The inner calls, with errors as returned by etcd's own client.

use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::response_op::Response as Done;
use api::etcdserverpb::{
    DeleteRangeRequest, LeaseGrantRequest, RangeRequest, RangeResponse, ResponseHeader, TxnRequest,
    TxnResponse,
};
use api::mvccpb::KeyValue;
use bytes::Bytes;
use tonic::Status;

use super::keys::{self, Prefix};
use crate::rpc::guard::ServedCall;
use crate::rpc::{kv, lease};
use admission::{ClientId, CountedAnswer};

/// Time to live in seconds of leases that these services grant, as in etcd. They are not kept alive.
const LEASE_TTL: i64 = 60;

/// Inner calls on behalf of the client of a call. Cheap to clone.
#[derive(Clone)]
pub struct Inner(pub ServedCall);

impl Inner {
    /// Returns the connection of the call.
    pub fn client(&self) -> ClientId {
        self.0.requester.client()
    }

    /// Executes a linearizable range.
    pub async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        let answered = kv::range(&self.0.member, &self.0.requester, request, None).await;
        answered.map(|answered| answered.response).map_err(grpc_errors::passed_on)
    }

    /// Returns the first created key below a name, for the client: read when its connection has capacity.
    pub async fn leader(&self, prefix: &Prefix) -> Result<CountedAnswer<RangeResponse>, Status> {
        let room = Some(self.0.room());
        let answered = kv::range(&self.0.member, &self.0.requester, prefix.first_created(), room).await;
        answered.map_err(grpc_errors::passed_on)
    }

    pub async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Status> {
        let answered = kv::txn(&self.0.member, &self.0.requester, request, None).await;
        answered.map(|answered| answered.response).map_err(grpc_errors::passed_on)
    }

    /// Deletes one key.
    pub async fn delete(&self, key: Bytes) -> Result<Option<ResponseHeader>, Status> {
        let request = DeleteRangeRequest { key, ..DeleteRangeRequest::default() };
        let answered = kv::delete_range(&self.0.member, &self.0.requester, request).await;
        answered.map(|answered| answered.response.header).map_err(grpc_errors::passed_on)
    }

    /// Deletes a key if it was created at this revision.
    pub async fn delete_created(&self, key: &Bytes, created: i64) -> Result<TxnResponse, Status> {
        let delete = DeleteRangeRequest { key: key.clone(), ..DeleteRangeRequest::default() };
        let request = TxnRequest {
            compare: vec![keys::created_at(key, created)],
            success: vec![keys::op(Op::RequestDeleteRange(delete))],
            failure: Vec::new(),
        };
        self.txn(request).await
    }

    /// Rejects a caller that may not grant a lease.
    pub async fn check_named(&self) -> Result<(), Status> {
        let caller = self.0.member.caller(&self.0.requester).await.map_err(grpc_errors::passed_on)?;
        caller.check_named().map_err(grpc_errors::refused).map_err(grpc_errors::passed_on)
    }

    /// Returns the named lease, or else a new one, and the transaction that uses it. A caller without
    /// permission for the transaction is granted no lease: each grant is an entry of the log.
    pub async fn lease(
        &self,
        named: i64,
        txn: impl FnOnce(i64) -> TxnRequest,
    ) -> Result<(i64, TxnRequest), Status> {
        if named != 0 {
            return Ok((named, txn(named)));
        }
        // Direct calls of the method check the caller before.
        self.check_named().await?;
        let id = rand::random_range(1..=i64::MAX);
        let txn = txn(id);
        kv::check_txn(&self.0.member, &self.0.requester, &txn).await.map_err(grpc_errors::passed_on)?;
        let request = LeaseGrantRequest { ttl: LEASE_TTL, id };
        lease::grant(&self.0.member, &self.0.requester, request).await.map_err(grpc_errors::passed_on)?;
        Ok((id, txn))
    }
}

/// Returns the first key of the n-th operation of a transaction, a range.
pub fn found(response: &TxnResponse, operation: usize) -> Option<&KeyValue> {
    match response.responses.get(operation).and_then(|done| done.response.as_ref()) {
        Some(Done::ResponseRange(range)) => range.kvs.first(),
        _ => None,
    }
}

/// Returns the revision at which the key of a first transaction was created: the transaction's own, or that
/// of the existing key.
pub fn created(response: &TxnResponse) -> i64 {
    match found(response, 0) {
        Some(kv) if !response.succeeded => kv.create_revision,
        _ => revision(response.header.as_ref()),
    }
}

/// Returns the revision of a response.
pub fn revision(header: Option<&ResponseHeader>) -> i64 {
    header.expect("every response of the key space has a header").revision
}
