//! Lock and Unlock.

use std::sync::Arc;

use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{TxnRequest, TxnResponse};
use api::v3lockpb::lock_server::Lock as LockMethods;
use api::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};
use bytes::Bytes;
use tonic::{Request, Response as Reply, Status};

use super::attended::{Attendance, attended};
use super::inner::{Inner, created, found};
use super::keys::{self, Prefix};
use super::waiting::{WaitingPlaces, until_owned};
use crate::rpc::guard::ServedCall;

/// The methods of the service, for one call.
pub struct Lock {
    inner: Inner,
    waiting: WaitingPlaces,
}

impl Lock {
    pub fn new(call: ServedCall, waiting: WaitingPlaces) -> Lock {
        Lock { inner: Inner(call), waiting }
    }

    fn parts<T>(&self, request: Request<T>) -> (Inner, T) {
        (self.inner.clone(), request.into_inner())
    }
}

/// Puts the lease's key unless it is there, and finds the owner.
fn put_and_find_owner(prefix: &Prefix, lease: i64) -> TxnRequest {
    let key = prefix.key(lease);
    let owner = keys::op(Op::RequestRange(prefix.first_created()));
    TxnRequest {
        compare: vec![keys::created_at(&key, 0)],
        success: vec![keys::op(Op::RequestPut(keys::put(&key, Bytes::new(), lease))), owner.clone()],
        failure: vec![keys::op(Op::RequestRange(keys::get(&key))), owner],
    }
}

/// Takes the lock, or waits for it. A lease that owns the lock gets it again immediately.
async fn lock(
    inner: Inner,
    mut attendance: Attendance,
    prefix: Prefix,
    lease: i64,
) -> Result<LockResponse, Status> {
    let (lease, txn) = inner.lease(lease, |lease| put_and_find_owner(&prefix, lease)).await?;
    let key = prefix.key(lease);
    let response = inner.txn(txn).await?;
    let created = created(&response);
    let owns = found(&response, 1).is_none_or(|owner| owner.create_revision == created);
    // Drops the rest, which contains the owner's value and may be long.
    let TxnResponse { header, succeeded, .. } = response;
    let locked = match owns {
        true => Ok(LockResponse { header, key: key.clone() }),
        false => {
            let held = attendance.during(until_owned(&inner, &prefix, &key, created)).await;
            held.map(|held| LockResponse { header: held.header, key: key.clone() })
        }
    };
    let locked = match locked {
        // A key that existed before this call is left to the call that put it.
        Ok(locked) if succeeded => attendance.check().map(|()| locked),
        locked => locked,
    };
    if locked.is_err() {
        attendance.finish(|| inner.delete_created(&key, created)).await;
    }
    locked
}

#[tonic::async_trait]
impl LockMethods for Lock {
    async fn lock(&self, request: Request<LockRequest>) -> Result<Reply<LockResponse>, Status> {
        let (inner, request) = self.parts(request);
        let place = self.waiting.enter(inner.client(), &request.name)?;
        // A slice would pin the whole message, which may be long, while the call waits.
        let (prefix, lease) = (Prefix::of(&request.name), request.lease);
        drop(request);
        let locking = attended(
            self.waiting.stop.clone(),
            Arc::clone(&self.inner.0.member.fence),
            async move |attendance| {
                let _place = place;
                lock(inner, attendance, prefix, lease).await
            },
        );
        locking.await.map(Reply::new)
    }

    /// Deletes the given key. Does not check who owns the lock.
    async fn unlock(&self, request: Request<UnlockRequest>) -> Result<Reply<UnlockResponse>, Status> {
        let (inner, request) = self.parts(request);
        let header = inner.delete(request.key).await?;
        Ok(Reply::new(UnlockResponse { header }))
    }
}
