//! Requests to the copied cluster.

use std::time::Duration;

use api::etcdserverpb::{
    AuthStatusRequest, HashKvRequest, LeaseLeasesRequest, LeaseTimeToLiveRequest, RangeRequest,
    ResponseHeader, SnapshotRequest, SnapshotResponse, StatusRequest, WatchCreateRequest, WatchRequest,
    WatchResponse, watch_request,
};
use api::mvccpb::KeyValue;
use bytes::Bytes;
use client::Client;
use futures_util::{StreamExt, TryStreamExt, stream};
use state_machine::{Lineage, LineageError};
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status, Streaming};

use super::revisions::REVISION_BYTES_MAX;
use crate::operator::OperatorClient;

/// Timeout of short requests.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a hash, which reads the whole history.
const HASH_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum number of concurrent TTL requests.
const MAX_CONCURRENT_LEASES: usize = 64;

/// Connection to one member of the source. Cheap to clone.
#[derive(Clone)]
pub struct Session {
    endless: Client,
    /// Client with a deadline of [`RESPONSE_TIMEOUT`].
    brief: Client,
}

/// Cluster ID and revision of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub cluster_id: u64,
    pub revision: i64,
}

/// HashKV at a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash {
    pub hash: u32,
    pub compact_revision: i64,
}

impl Session {
    /// Connects to the first endpoint that is reachable and has a leader.
    pub async fn open(client: &mut OperatorClient) -> Result<Session, Status> {
        let endless = client.reached().await?.within(None);
        Ok(Session { brief: endless.within(RESPONSE_TIMEOUT), endless })
    }

    /// Returns the current revision, by a linearizable read.
    pub async fn head(&self) -> Result<Head, Status> {
        let request = RangeRequest { key: vec![0].into(), count_only: true, ..RangeRequest::default() };
        let response = self.brief.kv().range(request).await?;
        let header = header(response.into_inner().header)?;
        Ok(Head { cluster_id: header.cluster_id, revision: header.revision })
    }

    /// Returns a pair at a revision. Fails with None if the revision is compacted.
    pub async fn pair(&self, key: Bytes, revision: i64) -> Result<Option<KeyValue>, Option<Status>> {
        let request = RangeRequest { key, revision, ..RangeRequest::default() };
        match self.brief.kv().range(request).await {
            Ok(response) => Ok(response.into_inner().kvs.pop()),
            Err(status) if is_compacted(&status) => Err(None),
            Err(status) => Err(Some(status)),
        }
    }

    /// Streams the database file and its checksum.
    pub async fn snapshot(&self) -> Result<Streaming<SnapshotResponse>, Status> {
        let mut client = self.endless.maintenance().max_decoding_message_size(REVISION_BYTES_MAX);
        Ok(client.snapshot(SnapshotRequest {}).await?.into_inner())
    }

    /// Watches all keys from a revision on. Large responses are fragmented.
    pub async fn watch(&self, from: i64) -> Result<Streaming<WatchResponse>, Status> {
        let all = vec![0];
        let create = WatchCreateRequest {
            key: all.clone().into(),
            range_end: all.into(),
            start_revision: from,
            fragment: true,
            ..WatchCreateRequest::default()
        };
        let create = WatchRequest { request_union: Some(watch_request::RequestUnion::CreateRequest(create)) };
        // Keep the request stream open: closing it would close the watch.
        let requests = stream::once(async { create }).chain(stream::pending());
        let mut request = Request::new(requests);
        // Close the watch if the member loses its leader.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let mut client = self.endless.watch().max_decoding_message_size(REVISION_BYTES_MAX);
        Ok(client.watch(request).await?.into_inner())
    }

    /// Returns the hash of the history up to a revision, or None if the revision is compacted.
    pub async fn hash(&self, revision: i64) -> Result<Option<Hash>, Status> {
        let client = self.endless.within(HASH_TIMEOUT);
        match client.maintenance().hash_kv(HashKvRequest { revision }).await {
            Ok(response) => {
                let response = response.into_inner();
                Ok(Some(Hash { hash: response.hash, compact_revision: response.compact_revision }))
            }
            Err(status) if is_compacted(&status) => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Returns all leases and their granted TTLs, sorted by ID.
    pub async fn leases(&self) -> Result<Vec<(i64, i64)>, Status> {
        // The list is local to this member. After a linearizable read it contains all leases granted before.
        self.head().await?;
        let listed = self.brief.lease().lease_leases(LeaseLeasesRequest {}).await?.into_inner().leases;
        let ids: Vec<i64> = listed.iter().map(|lease| lease.id).collect();
        self.ttls(&ids).await
    }

    /// Returns the granted TTLs of these leases, sorted by ID. Missing leases are omitted.
    pub async fn ttls(&self, ids: &[i64]) -> Result<Vec<(i64, i64)>, Status> {
        let ttls =
            stream::iter(ids.iter().copied()).map(|id| self.ttl(id)).buffer_unordered(MAX_CONCURRENT_LEASES);
        let mut leases: Vec<(i64, i64)> =
            ttls.try_filter_map(|lease| async move { Ok(lease) }).try_collect().await?;
        leases.sort_unstable();
        leases.dedup();
        Ok(leases)
    }

    /// Returns None if the lease does not exist.
    async fn ttl(&self, id: i64) -> Result<Option<(i64, i64)>, Status> {
        let request = LeaseTimeToLiveRequest { id, keys: false };
        match self.brief.lease().lease_time_to_live(request).await {
            Ok(response) => {
                let response = response.into_inner();
                Ok((response.ttl >= 0 && response.granted_ttl > 0).then_some((id, response.granted_ttl)))
            }
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Returns the lineage of the source, as far as this member has applied the log. etcd has none.
    pub async fn lineage(&self) -> Result<Lineage, Status> {
        let status = self.brief.maintenance().status(StatusRequest {}).await?;
        let Some(text) = status.metadata().get(Lineage::METADATA) else { return Ok(Lineage::default()) };
        let lineage = text.to_str().ok().and_then(|text| text.parse().ok());
        lineage.ok_or_else(|| Status::internal(format!("{}: {LineageError}", Lineage::METADATA)))
    }

    /// Reports whether authentication is enabled, and the auth revision.
    pub async fn auth(&self) -> Result<(bool, u64), Status> {
        let status = self.brief.auth().auth_status(AuthStatusRequest {}).await?.into_inner();
        Ok((status.enabled, status.auth_revision))
    }
}

fn header(header: Option<ResponseHeader>) -> Result<ResponseHeader, Status> {
    header.ok_or_else(|| Status::internal("a response without a header"))
}

fn is_compacted(status: &Status) -> bool {
    status.message().contains("has been compacted")
}

/// Failure of a connection.
pub enum Broken<E> {
    /// Another connection may succeed.
    Lost(String),
    Fatal(E),
}

/// Permanent error of the source, which other members would return as well.
#[derive(Debug, thiserror::Error)]
#[error("query the cluster: {0}")]
pub struct SourceRefusal(String);

impl<E> From<E> for Broken<E> {
    fn from(error: E) -> Broken<E> {
        Broken::Fatal(error)
    }
}

impl<E: From<SourceRefusal>> From<Status> for Broken<E> {
    fn from(status: Status) -> Broken<E> {
        let reason = status.message().to_owned();
        if may_pass(&status) { Broken::Lost(reason) } else { Broken::Fatal(SourceRefusal(reason).into()) }
    }
}

/// Error for a signed token that predates an update of the users. A new session gets a new token.
const OLD_TOKEN: &str = api::Error::AuthOldRevision.message();

/// Reports whether a retry, later or at another member, may succeed.
pub fn may_pass(status: &Status) -> bool {
    match status.code() {
        Code::InvalidArgument if status.message() == OLD_TOKEN => true,
        Code::PermissionDenied
        | Code::Unimplemented
        | Code::InvalidArgument
        | Code::OutOfRange
        | Code::NotFound => false,
        // Includes errors of a member that is starting, and of expired tokens.
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::AlreadyExists
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss
        | Code::Unauthenticated => true,
    }
}
