//! Questions asked of servers beside the load: who leads, at which revision, what hash. Rare, so through tonic.

use crate::access::TOKEN;
use crate::dial::{self, Speech};
use crate::endpoint::Endpoint;
use api::etcdserverpb::auth_client::AuthClient;
use api::etcdserverpb::kv_client::KvClient;
use api::etcdserverpb::maintenance_client::MaintenanceClient;
use api::etcdserverpb::{
    AuthenticateRequest, CompactionRequest, HashKvRequest, PutRequest, RangeRequest, StatusRequest,
    StatusResponse,
};
use bytes::Bytes;
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport;

/// A server that takes longer to say who it is cannot be measured.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Why a server was refused, or an order to it failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("endpoint {endpoint}: {reason}")]
    Unreachable { endpoint: Endpoint, reason: String },
    #[error("endpoint {endpoint}: {call}: {}: {}", status.code(), status.message())]
    Call { endpoint: Endpoint, call: &'static str, status: Box<tonic::Status> },
    #[error("endpoints {first} and {second} belong to different clusters")]
    MixedClusters { first: Endpoint, second: Endpoint },
    #[error("none of the endpoints leads its cluster")]
    NoLeader,
}

/// What a member says of itself.
#[derive(Clone, Debug)]
pub struct Member {
    pub endpoint: Endpoint,
    pub status: StatusResponse,
}

impl Member {
    pub fn leads(&self) -> bool {
        let id = self.status.header.as_ref().map_or(0, |header| header.member_id);
        id != 0 && id == self.status.leader
    }

    fn cluster_id(&self) -> u64 {
        self.status.header.as_ref().map_or(0, |header| header.cluster_id)
    }
}

/// Asks every endpoint who it is; refuses what is no server and endpoints that do not belong together.
pub async fn survey(endpoints: &[Endpoint]) -> Result<Vec<Member>, Error> {
    let mut members: Vec<Member> = Vec::with_capacity(endpoints.len());
    for endpoint in endpoints {
        let member = Member { endpoint: endpoint.clone(), status: status(endpoint).await? };
        if let Some(first) = members.first().filter(|first| first.cluster_id() != member.cluster_id()) {
            return Err(Error::MixedClusters { first: first.endpoint.clone(), second: endpoint.clone() });
        }
        members.push(member);
    }
    Ok(members)
}

/// The endpoint of the member that leads.
pub fn leader(members: &[Member]) -> Result<&Endpoint, Error> {
    members.iter().find(|member| member.leads()).map(|member| &member.endpoint).ok_or(Error::NoLeader)
}

/// One member's view of itself and its cluster.
pub async fn status(endpoint: &Endpoint) -> Result<StatusResponse, Error> {
    let mut client = MaintenanceClient::new(channel(endpoint).await?);
    let response = client.status(StatusRequest {}).await;
    response.map(tonic::Response::into_inner).map_err(|status| failed(endpoint, "Status", status))
}

/// The hash of the key space at its newest revision.
pub async fn hash_kv(endpoint: &Endpoint) -> Result<u32, Error> {
    let mut client = MaintenanceClient::new(channel(endpoint).await?);
    let response = client.hash_kv(HashKvRequest { revision: 0 }).await;
    response.map(|response| response.into_inner().hash).map_err(|status| failed(endpoint, "HashKV", status))
}

/// Writes one key and returns its revision.
pub async fn put(endpoint: &Endpoint, key: Bytes, value: Bytes) -> Result<i64, Error> {
    let mut client = KvClient::new(channel(endpoint).await?);
    let response = client.put(PutRequest { key, value, ..Default::default() }).await;
    let response = response.map_err(|status| failed(endpoint, "Put", status))?;
    Ok(response.into_inner().header.map_or(0, |header| header.revision))
}

/// The key's value, or `None` if there is no such key, and the store's revision.
pub async fn get(endpoint: &Endpoint, key: Bytes) -> Result<(Option<Bytes>, i64), Error> {
    let mut client = KvClient::new(channel(endpoint).await?);
    let response = client.range(RangeRequest { key, ..Default::default() }).await;
    let response = response.map_err(|status| failed(endpoint, "Range", status))?.into_inner();
    let revision = response.header.map_or(0, |header| header.revision);
    Ok((response.kvs.into_iter().next().map(|kv| kv.value), revision))
}

/// A connection that reads keys one after the other.
pub struct Reader {
    endpoint: Endpoint,
    client: KvClient<Channel>,
}

impl Reader {
    pub async fn open(endpoint: Endpoint) -> Result<Self, Error> {
        let client = KvClient::new(channel(&endpoint).await?);
        Ok(Self { endpoint, client })
    }

    /// The key's value as of now, or `None` if there is no such key.
    pub async fn get(&mut self, key: Bytes) -> Result<Option<Bytes>, Error> {
        let response = self.client.range(RangeRequest { key, ..Default::default() }).await;
        let response = response.map_err(|status| failed(&self.endpoint, "Range", status))?;
        Ok(response.into_inner().kvs.into_iter().next().map(|kv| kv.value))
    }

    /// How many keys the store holds.
    pub async fn count_keys(&mut self) -> Result<i64, Error> {
        let every = Bytes::from_static(b"\0");
        let request =
            RangeRequest { key: every.clone(), range_end: every, count_only: true, ..Default::default() };
        let response = self.client.range(request).await;
        response
            .map(|response| response.into_inner().count)
            .map_err(|status| failed(&self.endpoint, "Range", status))
    }
}

/// Drops history below `delta` revisions before the newest. Nothing to drop is no error: the compaction before
/// this one may have left the store at the same revision.
pub async fn compact_behind(endpoint: &Endpoint, delta: i64) -> Result<(), Error> {
    let (_, newest) = get(endpoint, Bytes::from_static(b"foo")).await?;
    let revision = (newest - delta).max(0);
    let mut client = KvClient::new(channel(endpoint).await?);
    match client.compact(CompactionRequest { revision, physical: false }).await {
        Ok(_) => Ok(()),
        Err(status) if status.message() == api::Error::Compacted.message() => Ok(()),
        Err(status) => Err(failed(endpoint, "Compact", status)),
    }
}

/// The token of a user and a password, for all calls from then on.
pub async fn authenticate(endpoint: &Endpoint, name: &str, password: &str) -> Result<String, Error> {
    let request = AuthenticateRequest { name: name.into(), password: password.into() };
    let response = AuthClient::new(channel(endpoint).await?).authenticate(request).await;
    response
        .map(|response| response.into_inner().token)
        .map_err(|status| failed(endpoint, "Authenticate", status))
}

/// A channel whose calls carry the endpoint's token.
type Channel = InterceptedService<transport::Channel, Carry>;

struct Carry(Option<MetadataValue<Ascii>>);

impl Interceptor for Carry {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert(TOKEN, token.clone());
        }
        Ok(request)
    }
}

async fn channel(endpoint: &Endpoint) -> Result<Channel, Error> {
    let unreachable = |reason: String| Error::Unreachable { endpoint: endpoint.clone(), reason };
    let token = endpoint.token().map(MetadataValue::try_from).transpose();
    let token = token.map_err(|_| unreachable("the token it gave is no header".into()))?;
    // TLS is this connector's business, so the library must not see an address that asks it for TLS.
    let address = format!("http://{}", endpoint.authority());
    let channel = transport::Channel::from_shared(address).map_err(|error| unreachable(error.to_string()))?;
    let to = endpoint.clone();
    let connector = tower::service_fn(move |_| {
        let to = to.clone();
        async move { dial::connect(&to, Speech::Http2).await.map(TokioIo::new) }
    });
    let channel = channel.connect_timeout(TIMEOUT).timeout(TIMEOUT).connect_with_connector(connector).await;
    let channel = channel.map_err(|error| unreachable(innermost(&error)))?;
    Ok(InterceptedService::new(channel, Carry(token)))
}

fn failed(endpoint: &Endpoint, call: &'static str, status: tonic::Status) -> Error {
    match std::error::Error::source(&status) {
        // Never got as far as an answer.
        Some(source) => {
            let source = innermost(source);
            // A server of TLS 1.3 refuses a client after the handshake, by closing.
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

/// The text of the last error in a chain: the layers above it say only that something failed.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
