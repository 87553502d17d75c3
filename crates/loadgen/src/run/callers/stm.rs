//! Callers of STM transactions, through tonic.
//!
//! * A transaction, with its lock, stays on the same member, so that a read at a given revision never
//!   reaches a member that has not applied it yet. The next transaction uses the next member.
//! * Locks need a session: a lease that is kept alive until the caller closes.

use crate::client::admin::Channel;
use crate::client::failure::{CallFailure, Code};
use crate::run::callers::round_robin::RoundRobin;
use crate::run::callers::tasks::{AnsweredCall, CallerTask};
use crate::workload::stm::{Stm, TxnNext};
use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::kv_client::KvClient;
use api::etcdserverpb::lease_client::LeaseClient;
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::response_op::Response;
use api::etcdserverpb::watch_client::WatchClient;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, PutRequest,
    RangeRequest, RequestOp, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest,
};
use api::mvccpb::KeyValue;
use api::mvccpb::event::EventType;
use api::v3lockpb::lock_client::LockClient;
use api::v3lockpb::{LockRequest, UnlockRequest};
use bench_report::model::Locker;
use bytes::Bytes;
use std::time::Duration;
use tokio_stream::StreamExt;

/// Name of the lock, like in etcd's tool.
const LOCK: &str = "stmlock";
/// Range end of the lock's keys: `/` is followed by `0`.
const LOCK_END: &str = "stmlock0";
/// TTL of a session, like in etcd's Go client.
const SESSION_SECONDS: i64 = 60;

/// A caller. Its transactions are sequential.
pub struct StmCaller {
    stm: Stm,
    members: RoundRobin,
    session: Option<LeaseSession>,
}

/// A lease that a task keeps alive.
struct LeaseSession {
    lease: i64,
    renewal: tokio::task::JoinHandle<()>,
}

impl Drop for LeaseSession {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

impl StmCaller {
    /// Opens a session if transactions need a lock.
    pub async fn open(stm: &Stm, members: RoundRobin) -> Result<Self, String> {
        let session = match stm.locker {
            Locker::None => None,
            Locker::Client | Locker::Rpc => {
                Some(LeaseSession::open(members.first()).await.map_err(|e| e.to_string())?)
            }
        };
        Ok(Self { stm: stm.clone(), members, session })
    }
}

impl LeaseSession {
    async fn open(channel: &Channel) -> Result<Self, CallFailure> {
        let mut client = LeaseClient::new(channel.clone());
        let grant = LeaseGrantRequest { ttl: SESSION_SECONDS, id: 0 };
        let lease = client.lease_grant(grant).await?.into_inner().id;
        let renewal = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(SESSION_SECONDS as u64 / 3)).await;
                let request = tokio_stream::once(LeaseKeepAliveRequest { id: lease });
                // If the lease is lost, the lock fails and is counted there.
                if let Ok(answers) = client.lease_keep_alive(request).await {
                    let _ = answers.into_inner().message().await;
                }
            }
        });
        Ok(Self { lease, renewal })
    }
}

impl CallerTask for StmCaller {
    async fn call(&mut self, position: u64) -> Result<AnsweredCall, CallFailure> {
        let channel = self.members.next();
        let key = self.lock(&channel).await?;
        let answer = self.transact(&channel, position).await;
        // Releases the lock whether the transaction succeeded or not.
        match key {
            None => answer,
            Some(key) => self.unlock(&channel, key).await.and(answer),
        }
    }

    fn endpoint(&self) -> usize {
        self.members.upcoming()
    }

    async fn close(&mut self) {
        if let Some(session) = &self.session {
            // A remaining lease expires by itself.
            let revoke = LeaseRevokeRequest { id: session.lease };
            let _ = LeaseClient::new(self.members.first().clone()).lease_revoke(revoke).await;
        }
    }
}

impl StmCaller {
    async fn transact(&self, channel: &Channel, position: u64) -> Result<AnsweredCall, CallFailure> {
        let mut transaction = self.stm.transaction(position);
        let mut request = transaction.begin();
        loop {
            let answer = txn(channel, request).await?;
            match transaction.answered(answer) {
                TxnNext::Send(next) => request = next,
                TxnNext::Committed => {
                    return Ok(AnsweredCall { body_bytes: 0, retries: transaction.retries });
                }
            }
        }
    }

    /// Acquires the lock, if there is one; returns its key.
    async fn lock(&self, channel: &Channel) -> Result<Option<Bytes>, CallFailure> {
        let Some(LeaseSession { lease, .. }) = self.session else { return Ok(None) };
        match self.stm.locker {
            Locker::None => Ok(None),
            Locker::Rpc => {
                let request = LockRequest { name: LOCK.into(), lease };
                let answer = LockClient::new(channel.clone()).lock(request).await?;
                Ok(Some(answer.into_inner().key))
            }
            Locker::Client => acquire(channel, lease).await.map(Some),
        }
    }

    async fn unlock(&self, channel: &Channel, key: Bytes) -> Result<(), CallFailure> {
        match self.stm.locker {
            Locker::None => Ok(()),
            Locker::Rpc => {
                let request = UnlockRequest { key };
                LockClient::new(channel.clone()).unlock(request).await.map(drop).map_err(CallFailure::from)
            }
            Locker::Client => {
                let request = DeleteRangeRequest { key, ..Default::default() };
                KvClient::new(channel.clone())
                    .delete_range(request)
                    .await
                    .map(drop)
                    .map_err(CallFailure::from)
            }
        }
    }
}

/// Acquires the mutex of etcd's Go client: the oldest key below the lock's name owns it. Any other key waits
/// until its predecessor is deleted, and checks again.
async fn acquire(channel: &Channel, lease: i64) -> Result<Bytes, CallFailure> {
    let mine = Bytes::from(format!("{LOCK}/{lease:x}"));
    let absent = Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: mine.clone(),
        target_union: Some(TargetUnion::CreateRevision(0)),
        ..Default::default()
    };
    let op = |request| RequestOp { request: Some(request) };
    let put = op(Request::RequestPut(PutRequest { key: mine.clone(), lease, ..Default::default() }));
    let get = op(Request::RequestRange(RangeRequest { key: mine.clone(), ..Default::default() }));
    let owner = op(Request::RequestRange(waiters(SortOrder::Ascend, 0)));
    let request =
        TxnRequest { compare: vec![absent], success: vec![put, owner.clone()], failure: vec![get, owner] };
    let answer = txn(channel, request).await?;
    let revision = match (answer.succeeded, first(&answer, 0)) {
        (false, Some(kv)) => kv.create_revision,
        (true, _) | (false, None) => answer.header.map_or(0, |header| header.revision),
    };
    if first(&answer, 1).is_none_or(|owner| owner.create_revision == revision) {
        return Ok(mine);
    }
    loop {
        let before = range(channel, waiters(SortOrder::Descend, revision - 1)).await?;
        match before.kvs.into_iter().next() {
            Some(kv) => deleted(channel, kv.key, before.header.map_or(0, |header| header.revision)).await?,
            None => break,
        }
    }
    let own = range(channel, RangeRequest { key: mine.clone(), ..Default::default() }).await?;
    if own.kvs.is_empty() {
        return Err(CallFailure::new(Code::UNKNOWN, "the session of the lock has expired"));
    }
    Ok(mine)
}

/// Returns a range for the oldest key of the lock, or for the latest one created at `created_max` or before.
fn waiters(order: SortOrder, created_max: i64) -> RangeRequest {
    RangeRequest {
        key: format!("{LOCK}/").into(),
        range_end: LOCK_END.into(),
        limit: 1,
        sort_order: order.into(),
        sort_target: SortTarget::Create.into(),
        max_create_revision: created_max,
        ..Default::default()
    }
}

/// Waits until the key is deleted at this revision or later.
async fn deleted(channel: &Channel, key: Bytes, start_revision: i64) -> Result<(), CallFailure> {
    let create = WatchCreateRequest { key, start_revision, ..Default::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = tokio_stream::once(create).chain(tokio_stream::pending());
    let mut answers = WatchClient::new(channel.clone()).watch(requests).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        if answer.canceled {
            return Err(CallFailure::protocol(format!("watcher canceled: {}", answer.cancel_reason)));
        }
        if answer.events.iter().any(|event| event.r#type() == EventType::Delete) {
            return Ok(());
        }
    }
    Err(CallFailure::unavailable("the server ended the watch stream"))
}

async fn txn(channel: &Channel, request: TxnRequest) -> Result<TxnResponse, CallFailure> {
    KvClient::new(channel.clone())
        .txn(request)
        .await
        .map(tonic::Response::into_inner)
        .map_err(CallFailure::from)
}

async fn range(
    channel: &Channel,
    request: RangeRequest,
) -> Result<api::etcdserverpb::RangeResponse, CallFailure> {
    KvClient::new(channel.clone())
        .range(request)
        .await
        .map(tonic::Response::into_inner)
        .map_err(CallFailure::from)
}

/// Returns the first key of the range at this index of a transaction.
fn first(answer: &TxnResponse, place: usize) -> Option<&KeyValue> {
    match answer.responses.get(place)?.response.as_ref()? {
        Response::ResponseRange(range) => range.kvs.first(),
        Response::ResponsePut(_) | Response::ResponseDeleteRange(_) | Response::ResponseTxn(_) => None,
    }
}
