//! Administrative calls outside of the load, through tonic: status, hash, compaction, single keys,
//! authentication.

use crate::client::dial;
use crate::client::endpoint::Endpoint;
use crate::stats::progress::WorkerCounters;
use api::etcdserverpb::{
    CompactionRequest, HashKvRequest, LeaseGrantRequest, PutRequest, RangeRequest, RangeResponse,
    StatusResponse,
};
use bytes::Bytes;
pub use client::{Channel, leads};
use client::{Client, Token};
use hyper_util::rt::TokioIo;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tonic::Response;
use tonic::transport;

/// A server with a slower Status cannot be measured.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Shorter timeout for an unnamed member, because its address may not be reachable from here.
const OTHER_TIMEOUT: Duration = Duration::from_secs(2);
/// Enough to share log syncs, and far below any limit of streams.
const MAX_CONCURRENT_GRANTS: usize = 64;

/// Error of a survey or a call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("endpoint {endpoint}: {reason}")]
    Unreachable { endpoint: Endpoint, reason: String },
    #[error("endpoint {endpoint}: {call}: {}: {}", status.code(), status.message())]
    Call { endpoint: Endpoint, call: &'static str, status: Box<tonic::Status> },
    #[error("endpoints {first} and {second} belong to different clusters")]
    MixedClusters { first: Endpoint, second: Endpoint },
    #[error("no member of the cluster that can be reached leads it")]
    NoLeader,
}

#[derive(Clone, Debug)]
pub struct MemberInfo {
    pub endpoint: Endpoint,
    pub status: StatusResponse,
}

impl MemberInfo {
    pub fn leads(&self) -> bool {
        leads(&self.status)
    }

    fn id(&self) -> u64 {
        client::member_id(&self.status)
    }

    pub fn cluster_id(&self) -> u64 {
        self.status.header.as_ref().map_or(0, |header| header.cluster_id)
    }
}

/// Returns the status of every endpoint; fails if they belong to different clusters.
pub async fn survey(endpoints: &[Endpoint]) -> Result<Vec<MemberInfo>, Error> {
    let mut members: Vec<MemberInfo> = Vec::with_capacity(endpoints.len());
    for endpoint in endpoints {
        let member = MemberInfo {
            endpoint: endpoint.clone(),
            status: AdminClient::connect(endpoint).await?.status().await?,
        };
        if let Some(first) = members.first().filter(|first| first.cluster_id() != member.cluster_id()) {
            return Err(Error::MixedClusters { first: first.endpoint.clone(), second: endpoint.clone() });
        }
        members.push(member);
    }
    Ok(members)
}

/// Members of a cluster: named endpoints, and further members found by MemberList.
#[derive(Clone, Debug, Default)]
pub struct ClusterView {
    /// Named members without duplicates, in endpoint order.
    pub named: Vec<MemberInfo>,
    /// Further members, reachable at one of their advertised addresses.
    pub others: Vec<MemberInfo>,
    /// Number of all members, reachable or not; `None` if unknown.
    pub members_len: Option<usize>,
}

impl ClusterView {
    /// Iterates over the reachable members.
    pub fn members(&self) -> impl Iterator<Item = &MemberInfo> {
        self.named.iter().chain(&self.others)
    }

    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.members().map(|member| member.endpoint.clone()).collect()
    }

    pub fn leader(&self) -> Result<&Endpoint, Error> {
        self.members().find(|member| member.leads()).map(|member| &member.endpoint).ok_or(Error::NoLeader)
    }
}

/// Removes duplicates, because several endpoints may lead to the same member. A server without IDs reports
/// 0.
fn once(mut members: Vec<MemberInfo>) -> (Vec<MemberInfo>, HashSet<u64>) {
    let mut known = HashSet::new();
    members.retain(|member| known.insert(member.id()) || member.id() == 0);
    (members, known)
}

/// Surveys the named endpoints and the remaining members.
pub async fn cluster(named: &[Endpoint]) -> Result<ClusterView, Error> {
    let (named, known) = once(survey(named).await?);
    let Some(first) = named.first() else { return Ok(ClusterView::default()) };
    // Without MemberList, or without the permission to call it, only the named endpoints are known.
    let list = async { AdminClient::connect(&first.endpoint).await?.members().await };
    let list = list.await.unwrap_or_default();
    if list.is_empty() {
        return Ok(ClusterView { named, ..ClusterView::default() });
    }
    let mut others = Vec::new();
    for member in list.iter().filter(|member| !known.contains(&member.id)) {
        for url in &member.client_ur_ls {
            let Ok(endpoint) = first.endpoint.sibling(url) else { continue };
            let asked = async { AdminClient::connect(&endpoint).await?.status().await };
            let Ok(Ok(status)) = tokio::time::timeout(OTHER_TIMEOUT, asked).await else { continue };
            let other = MemberInfo { endpoint, status };
            // An address such as 0.0.0.0 may lead to another member.
            if other.id() == member.id {
                others.push(other);
                break;
            }
        }
    }
    Ok(ClusterView { named, others, members_len: Some(list.len()) })
}

/// Client of a single endpoint.
pub struct AdminClient {
    endpoint: Endpoint,
    client: Client,
}

impl AdminClient {
    pub async fn connect(endpoint: &Endpoint) -> Result<Self, Error> {
        Ok(Self { endpoint: endpoint.clone(), client: connect(endpoint, Some(TIMEOUT), None).await? })
    }

    pub async fn status(&self) -> Result<StatusResponse, Error> {
        self.reply("Status", self.client.status().await)
    }

    /// Lists the members of the cluster according to this one.
    async fn members(&self) -> Result<Vec<api::etcdserverpb::Member>, Error> {
        self.reply("MemberList", self.client.members(false).await)
    }

    /// Returns the hash of the key space at its latest revision.
    pub async fn hash_kv(&self) -> Result<u32, Error> {
        let reply = self.client.maintenance().hash_kv(HashKvRequest { revision: 0 }).await;
        self.answer("HashKV", reply).map(|reply| reply.hash)
    }

    /// Writes a key and returns the revision of the write.
    pub async fn put(&self, key: Bytes, value: Bytes) -> Result<i64, Error> {
        let request = PutRequest { key, value, ..Default::default() };
        let reply = self.answer("Put", self.client.kv().put(request).await)?;
        Ok(reply.header.map_or(0, |header| header.revision))
    }

    /// Grants `count` leases with limited concurrency.
    pub async fn grant_leases(&self, count: usize, ttl_seconds: i64) -> Result<Vec<i64>, Error> {
        let mut leases = Vec::with_capacity(count);
        while leases.len() < count {
            let mut calls = tokio::task::JoinSet::new();
            for _ in leases.len()..count.min(leases.len() + MAX_CONCURRENT_GRANTS) {
                let mut client = self.client.lease();
                let request = LeaseGrantRequest { ttl: ttl_seconds, id: 0 };
                calls.spawn(async move { client.lease_grant(request).await });
            }
            for reply in calls.join_all().await {
                leases.push(self.answer("LeaseGrant", reply)?.id);
            }
        }
        Ok(leases)
    }

    /// Returns the current value of the key, or `None` if it does not exist.
    pub async fn get(&self, key: Bytes) -> Result<Option<Bytes>, Error> {
        let reply = self.range(RangeRequest { key, ..Default::default() }).await?;
        Ok(reply.kvs.into_iter().next().map(|kv| kv.value))
    }

    pub async fn count_keys(&self) -> Result<i64, Error> {
        let key = Bytes::from_static(b"\0");
        let range_end = key.clone();
        let all = RangeRequest { key, range_end, count_only: true, ..Default::default() };
        self.range(all).await.map(|reply| reply.count)
    }

    /// Returns the latest revision.
    pub async fn revision(&self) -> Result<i64, Error> {
        let any = RangeRequest { key: Bytes::from_static(b"foo"), ..Default::default() };
        self.range(any).await.map(|reply| reply.header.map_or(0, |header| header.revision))
    }

    /// Drops history older than `delta` revisions. An already compacted store is not an error: it may not
    /// have been written since the previous compaction.
    pub async fn compact(&self, delta: i64) -> Result<(), Error> {
        let revision = (self.revision().await? - delta).max(0);
        match self.client.kv().compact(CompactionRequest { revision, physical: false }).await {
            Err(status) if status.message() == api::Error::Compacted.message() => Ok(()),
            result => self.answer("Compact", result).map(drop),
        }
    }

    /// Requests a user's token for all later calls.
    pub async fn authenticate(&self, name: &str, password: &str) -> Result<Token, Error> {
        self.reply("Authenticate", self.client.authenticate(name, password).await)
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Error> {
        self.answer("Range", self.client.kv().range(request).await)
    }

    fn answer<T>(&self, call: &'static str, result: Result<Response<T>, tonic::Status>) -> Result<T, Error> {
        self.reply(call, result.map(Response::into_inner))
    }

    fn reply<T>(&self, call: &'static str, result: Result<T, tonic::Status>) -> Result<T, Error> {
        result.map_err(|status| failed(&self.endpoint, call, status))
    }
}

/// Connects to an endpoint.
///
/// A call fails after `timeout`, if given. `counters` count the bytes of the connection.
pub async fn connect(
    endpoint: &Endpoint,
    timeout: Option<Duration>,
    counters: Option<Arc<WorkerCounters>>,
) -> Result<Client, Error> {
    let unreachable = |reason: String| Error::Unreachable { endpoint: endpoint.clone(), reason };
    // The connector handles TLS, so tonic must not see an https address.
    let address = format!("http://{}", endpoint.authority());
    let channel = transport::Channel::from_shared(address).map_err(|error| unreachable(error.to_string()))?;
    let to = endpoint.clone();
    let connector = tower::service_fn(move |_| {
        let (to, counters) = (to.clone(), counters.clone());
        async move {
            let stream = dial::connect(&to, dial::HTTP2).await?;
            let stream = match counters {
                Some(counters) => dial::counted(stream, counters),
                None => stream,
            };
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    });
    let channel = channel.connect_timeout(TIMEOUT);
    let channel = match timeout {
        Some(timeout) => channel.timeout(timeout),
        None => channel,
    };
    let channel = channel.connect_with_connector(connector).await;
    let channel = channel.map_err(|error| unreachable(innermost(&error)))?;
    Ok(Client::new(channel).with_token(endpoint.token().cloned()))
}

fn failed(endpoint: &Endpoint, call: &'static str, status: tonic::Status) -> Error {
    match std::error::Error::source(&status) {
        // There was no reply.
        Some(source) => {
            let source = innermost(source);
            // A TLS 1.3 server rejects a client after the handshake by closing the connection.
            let reason = match endpoint.tls() {
                Some(_) => format!(
                    "no answer inside TLS ({source}); does it want a client certificate (--cert, --key)?"
                ),
                None => format!("speaks no gRPC ({source})"),
            };
            Error::Unreachable { endpoint: endpoint.clone(), reason }
        }
        None => Error::Call { endpoint: endpoint.clone(), call, status: Box::new(status) },
    }
}

/// Returns the text of the innermost error; outer ones carry no information.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::etcdserverpb::ResponseHeader;

    #[test]
    fn a_member_that_two_endpoints_name_is_one() {
        let member = |(endpoint, member_id): (&str, u64)| MemberInfo {
            endpoint: endpoint.parse().unwrap(),
            status: StatusResponse {
                header: Some(ResponseHeader { member_id, ..Default::default() }),
                ..Default::default()
            },
        };
        let named = [("a:1", 7), ("b:1", 9), ("c:1", 7), ("d:1", 0), ("e:1", 0)].map(member);
        let left: Vec<_> = once(named.into()).0.iter().map(|member| member.endpoint.to_string()).collect();
        assert_eq!(left, ["a:1", "b:1", "d:1", "e:1"]);
    }
}
