//! Callers of Kubernetes' operations, and the watchers of its API servers, through tonic.
//!
//! Operations go to the endpoints in turn. All calls of one operation go to one member.

use crate::client::admin::{self, Channel};
use crate::client::endpoint::Endpoint;
use crate::client::failure::{CallFailure, Code};
use crate::run::callers::pages::list;
use crate::run::callers::round_robin::{RoundRobin, kv};
use crate::run::callers::tasks::{AnsweredCall, CallerTask};
use crate::stats::progress::WorkerCounters;
use crate::workload::kubernetes::{
    EVENT_SECONDS, EVENTS_PER_LEASE, Kubernetes, KubernetesStep, Object, PAGE, RESOURCES,
};
use api::etcdserverpb::kv_client::KvClient;
use api::etcdserverpb::lease_client::LeaseClient;
use api::etcdserverpb::response_op::Response;
use api::etcdserverpb::watch_client::WatchClient;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    LeaseGrantRequest, RangeRequest, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse,
};
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::Streaming;

/// Attempts of one write: more than others can win in a row, unless something is wrong.
const ATTEMPTS_MAX: u64 = 1000;

/// After the last operation. Watchers that receive nothing for so long have missed something.
const EVENTS_AWAITED: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);
/// Between a broken stream and the next one.
const REST: Duration = Duration::from_millis(200);

/// One caller. Its operations follow one another.
pub struct KubernetesCaller {
    cluster: Kubernetes,
    members: RoundRobin,
    /// The lease of the next event, and how many events have it.
    lease: Option<(i64, u64)>,
}

/// The watcher of a resource, as a reflector of Kubernetes keeps it: a stream that breaks is opened again at
/// the next endpoint where it was, and where history was compacted, the resource is listed first.
struct Reflector {
    cluster: Kubernetes,
    endpoints: Arc<[Endpoint]>,
    /// The place of its endpoint.
    place: usize,
    channel: Channel,
    counters: Arc<WorkerCounters>,
    resource: &'static str,
    /// It has received everything before this revision; 0: it begins with what is written next.
    next: i64,
}

/// Opens the watchers of these API servers, which receive until this thread's runtime ends.
pub async fn watch(
    cluster: &Kubernetes,
    endpoints: &[Endpoint],
    api_servers: impl Iterator<Item = usize>,
    counters: &Arc<WorkerCounters>,
) -> Result<(), String> {
    let endpoints: Arc<[Endpoint]> = endpoints.into();
    for place in api_servers {
        let channel = opened(&endpoints[place % endpoints.len()], counters).await?;
        for resource in RESOURCES {
            let (cluster, endpoints) = (cluster.clone(), endpoints.clone());
            let (channel, counters) = (channel.clone(), counters.clone());
            let mut reflector = Reflector { cluster, endpoints, place, channel, counters, resource, next: 0 };
            // Created before the first write.
            let mut responses = reflector.open().await?;
            tokio::spawn(async move {
                loop {
                    reflector.follow(responses).await;
                    responses = reflector.reopened().await;
                }
            });
        }
    }
    Ok(())
}

async fn opened(endpoint: &Endpoint, counters: &Arc<WorkerCounters>) -> Result<Channel, String> {
    admin::channel(endpoint, None, Some(counters.clone())).await.map_err(|error| error.to_string())
}

impl Reflector {
    async fn open(&mut self) -> Result<Streaming<WatchResponse>, String> {
        let (key, range_end) = self.cluster.resource(self.resource);
        let create = WatchCreateRequest {
            key,
            range_end,
            start_revision: self.next,
            prev_kv: true,
            progress_notify: true,
            ..Default::default()
        };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let mut client = WatchClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        // The stream of requests stays open.
        let requests = tokio_stream::StreamExt::chain(tokio_stream::once(request), tokio_stream::pending());
        let opened = client.watch(requests).await;
        let mut responses = opened.map_err(|status| status.to_string())?.into_inner();
        let created = responses.message().await.map_err(|status| status.to_string())?;
        if self.next == 0 {
            self.next = created.and_then(|created| created.header).map_or(0, |header| header.revision + 1);
        }
        Ok(responses)
    }

    /// Receives until the stream breaks.
    async fn follow(&mut self, mut responses: Streaming<WatchResponse>) {
        while let Ok(Some(response)) = responses.message().await {
            if response.compact_revision > 0 {
                return self.list().await;
            }
            self.cluster.received(response.events.len() as u64);
            let event = response.events.last().and_then(|event| event.kv.as_ref()).map(|kv| kv.mod_revision);
            let progress = response.header.filter(|_| response.events.is_empty() && !response.created);
            let received = event.or(progress.map(|header| header.revision)).unwrap_or(0);
            self.next = self.next.max(received + 1);
        }
    }

    /// Tries one endpoint after the other.
    async fn reopened(&mut self) -> Streaming<WatchResponse> {
        loop {
            tokio::time::sleep(REST).await;
            self.place += 1;
            let endpoint = &self.endpoints[self.place % self.endpoints.len()];
            let Ok(channel) = opened(endpoint, &self.counters).await else { continue };
            self.channel = channel;
            if let Ok(responses) = self.open().await {
                return responses;
            }
        }
    }

    /// Reads the resource, of which events are gone, and goes on from there. If that fails, it is tried again
    /// after the next stream.
    async fn list(&mut self) {
        let (key, range_end) = self.cluster.resource(self.resource);
        let range = RangeRequest { key, range_end, limit: PAGE, ..Default::default() };
        if let Ok((_, revision)) = list(&mut kv(self.channel.clone()), range).await {
            self.next = revision + 1;
        }
    }
}

impl CallerTask for KubernetesCaller {
    async fn call(&mut self, position: u64) -> Result<AnsweredCall, CallFailure> {
        let channel = self.members.next();
        let mut client = kv(channel.clone());
        match self.cluster.step(position) {
            KubernetesStep::Write(object, value) => {
                self.write(&mut client, object, 0, |_| Some(value.clone())).await
            }
            KubernetesStep::Toggle(object, value) => {
                self.write(&mut client, object, 0, |revision| (revision == 0).then(|| value.clone())).await
            }
            KubernetesStep::Event(object, value) => {
                let lease = self.lease(channel).await?;
                self.write(&mut client, object, lease, |_| Some(value.clone())).await
            }
            KubernetesStep::Get(range) => {
                let answer = client.range(range).await?;
                Ok(AnsweredCall::of(answer.get_ref(), 0))
            }
            KubernetesStep::List(range) => list(&mut client, range).await.map(|(answered, _)| answered),
        }
    }

    fn endpoint(&self) -> usize {
        self.members.upcoming()
    }

    async fn close(&mut self) {
        let begin = Instant::now();
        let is_behind = || {
            let (expected, received) = self.cluster.events();
            received < expected
        };
        while is_behind() && begin.elapsed() < EVENTS_AWAITED {
            tokio::time::sleep(LOOK).await;
        }
    }

    fn kind(&self, position: u64) -> usize {
        self.cluster.operation(position) as usize
    }
}

impl KubernetesCaller {
    pub fn new(cluster: &Kubernetes, members: RoundRobin) -> Self {
        Self { cluster: cluster.clone(), members, lease: None }
    }

    /// Puts what `value` is for the object's revision, or deletes the object, until nothing has changed it in
    /// between.
    async fn write(
        &self,
        client: &mut KvClient<Channel>,
        object: Object,
        lease: i64,
        value: impl Fn(i64) -> Option<Bytes>,
    ) -> Result<AnsweredCall, CallFailure> {
        let mut revision = self.cluster.revision(object);
        for retries in 0..ATTEMPTS_MAX {
            let wanted = value(revision);
            let txn = match wanted.clone() {
                Some(value) => self.cluster.put(object, revision, value, lease),
                None => self.cluster.delete(object, revision),
            };
            let answer = transact(client, txn).await?;
            if answer.succeeded {
                let header = answer.header.map_or(0, |header| header.revision);
                self.cluster.wrote(object, if wanted.is_some() { header } else { 0 });
                return Ok(AnsweredCall::of(&answer, retries));
            }
            revision = match answer.responses.first().and_then(|op| op.response.as_ref()) {
                Some(Response::ResponseRange(range)) => range.kvs.first().map_or(0, |kv| kv.mod_revision),
                _ => return Err(CallFailure::protocol("a transaction answers a range with something else")),
            };
            self.cluster.found(object, revision);
        }
        Err(CallFailure::new(Code::UNKNOWN, format!("{ATTEMPTS_MAX} attempts met another write")))
    }

    /// A lease for one more event.
    async fn lease(&mut self, channel: Channel) -> Result<i64, CallFailure> {
        if let Some((id, events)) = self.lease.as_mut().filter(|(_, events)| *events < EVENTS_PER_LEASE) {
            *events += 1;
            return Ok(*id);
        }
        let request = LeaseGrantRequest { ttl: EVENT_SECONDS, id: 0 };
        let granted = LeaseClient::new(channel).lease_grant(request).await?;
        let id = granted.into_inner().id;
        self.lease = Some((id, 1));
        Ok(id)
    }
}

async fn transact(client: &mut KvClient<Channel>, txn: TxnRequest) -> Result<TxnResponse, CallFailure> {
    client.txn(txn).await.map(tonic::Response::into_inner).map_err(CallFailure::from)
}
