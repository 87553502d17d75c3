//! Callers of Kubernetes' operations, and the watchers of its API servers, through tonic.
//!
//! Operations are distributed round-robin over the endpoints. All calls of an operation use the same member.

use crate::client::admin::{self, Channel};
use crate::client::endpoint::Endpoint;
use crate::client::failure::{CallFailure, Code};
use crate::run::callers::pages::list;
use crate::run::callers::round_robin::{RoundRobin, kv};
use crate::run::callers::tasks::{AnsweredCall, CallerTask};
use crate::stats::progress::WorkerCounters;
use crate::workload::kubernetes::{
    CACHE_PAGE, Change, EVENT_SECONDS, EVENTS, EVENTS_PER_LEASE, Kubernetes, KubernetesStep, Object,
    RESOURCES,
};
use api::etcdserverpb::kv_client::KvClient;
use api::etcdserverpb::lease_client::LeaseClient;
use api::etcdserverpb::response_op::Response;
use api::etcdserverpb::watch_client::WatchClient;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    CompactionRequest, LeaseGrantRequest, RangeRequest, RangeResponse, TxnRequest, TxnResponse,
    WatchCreateRequest, WatchRequest, WatchResponse,
};
use api::mvccpb::event::EventType;
use prost::Message;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::Streaming;

/// Attempts of a write; more conflicts in a row indicate a fault.
const ATTEMPTS_MAX: u64 = 1000;

/// Timeout after the last operation: watchers without an event for this long have missed one.
const EVENTS_AWAITED: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);
/// Maximum age of a lease that gets new events, like in kube-apiserver.
const LEASE_USED: Duration = Duration::from_secs(60);
/// Delay before a broken stream is reopened.
const REST: Duration = Duration::from_millis(200);

/// A caller. Its operations are sequential.
pub struct KubernetesCaller {
    cluster: Kubernetes,
    members: RoundRobin,
    lease: Option<EventLease>,
}

struct EventLease {
    id: i64,
    events: u64,
    granted: Instant,
}

/// The watcher of a resource, like a reflector of Kubernetes: a broken stream is reopened at the next
/// endpoint from its last revision. If that was compacted, the resource is listed first.
struct Reflector {
    cluster: Kubernetes,
    endpoints: Arc<[Endpoint]>,
    /// Index of its endpoint.
    place: usize,
    channel: Channel,
    counters: Arc<WorkerCounters>,
    api_server: usize,
    resource: usize,
    /// Next revision to receive; 0 starts with the next write.
    next: i64,
}

/// Opens the watchers of these API servers, which receive until the runtime of this thread stops.
pub async fn watch(
    cluster: &Kubernetes,
    endpoints: &[Endpoint],
    api_servers: impl Iterator<Item = usize>,
    counters: &Arc<WorkerCounters>,
) -> Result<(), String> {
    let endpoints: Arc<[Endpoint]> = endpoints.into();
    for place in api_servers {
        let channel = opened(&endpoints[place % endpoints.len()], counters).await?;
        for resource in 0..RESOURCES.len() {
            let mut reflector = Reflector {
                cluster: cluster.clone(),
                endpoints: endpoints.clone(),
                place,
                channel: channel.clone(),
                counters: counters.clone(),
                api_server: place,
                resource,
                next: 0,
            };
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
    let client = admin::connect(endpoint, None, Some(counters.clone())).await;
    client.map(|client| client.channel()).map_err(|error| error.to_string())
}

/// Watches a resource from a revision; 0 means now. Also returns the revision of the store.
async fn open(
    channel: Channel,
    cluster: &Kubernetes,
    resource: &str,
    start_revision: i64,
) -> Result<(Streaming<WatchResponse>, i64), tonic::Status> {
    let (key, range_end) = cluster.resource(resource);
    let create = WatchCreateRequest {
        key,
        range_end,
        start_revision,
        prev_kv: true,
        progress_notify: true,
        ..Default::default()
    };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
    // The request stream stays open.
    let requests = tokio_stream::StreamExt::chain(tokio_stream::once(request), tokio_stream::pending());
    let mut responses = client.watch(requests).await?.into_inner();
    let created = responses.message().await?.unwrap_or_default();
    if created.canceled && created.compact_revision == 0 {
        return Err(tonic::Status::permission_denied(created.cancel_reason));
    }
    Ok((responses, created.header.map_or(0, |header| header.revision)))
}

impl Reflector {
    async fn open(&mut self) -> Result<Streaming<WatchResponse>, String> {
        let opened = open(self.channel.clone(), &self.cluster, RESOURCES[self.resource], self.next).await;
        let (responses, revision) = opened.map_err(|status| status.to_string())?;
        if self.next == 0 {
            self.next = revision + 1;
        }
        Ok(responses)
    }

    /// Receives until the stream breaks, or the server cancels the watcher.
    async fn follow(&mut self, mut responses: Streaming<WatchResponse>) {
        while let Ok(Some(response)) = responses.message().await {
            if response.compact_revision > 0 {
                return self.list().await;
            }
            if response.canceled {
                return;
            }
            let (received, repeated) = take(&response, RESOURCES[self.resource], &mut self.next);
            self.cluster.received(self.api_server, self.resource, received, repeated);
        }
    }

    /// Tries the endpoints round-robin.
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

    /// Lists the resource after its history was compacted, and continues from there. A failure is retried
    /// after the next stream.
    async fn list(&mut self) {
        let range = self.cluster.list(RESOURCES[self.resource], CACHE_PAGE);
        self.cluster.lists(self.api_server, self.resource);
        if let Ok((_, revision)) = list(&mut kv(self.channel.clone()), range).await {
            self.next = revision + 1;
            self.cluster.listed_again(self.api_server, self.resource, revision);
        }
    }
}

/// Counts new events from the revision `next` on, and repeated ones: each write has a distinct revision and
/// a single event. Advances `next`. Expired objects, a thousand at one revision, do not count, because
/// callers do not delete events.
fn take(response: &WatchResponse, resource: &str, next: &mut i64) -> (u64, u64) {
    let (mut received, mut repeated) = (0, 0);
    for event in &response.events {
        let revision = event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
        let has_expired = resource == EVENTS && event.r#type() == EventType::Delete;
        let count = if revision >= *next { &mut received } else { &mut repeated };
        *count += u64::from(!has_expired);
        *next = revision.max(*next - 1) + 1;
    }
    let is_progress = response.events.is_empty() && !response.created;
    let progress = response.header.as_ref().filter(|_| is_progress).map_or(0, |header| header.revision);
    *next = progress.max(*next - 1) + 1;
    (received, repeated)
}

impl CallerTask for KubernetesCaller {
    async fn call(&mut self, position: u64) -> Result<AnsweredCall, CallFailure> {
        let channel = self.members.next();
        let mut client = kv(channel.clone());
        match self.cluster.step(position) {
            KubernetesStep::Write(object, change) => self.write(&mut client, object, 0, change).await,
            KubernetesStep::Event(object, value) => {
                let lease = self.lease(channel).await?;
                self.write(&mut client, object, lease, Change::Create(value)).await
            }
            KubernetesStep::Get(range) => {
                let answer = client.range(range).await?;
                Ok(AnsweredCall::of(answer.get_ref(), 0))
            }
            KubernetesStep::List(range) => list(&mut client, range).await.map(|(answered, _)| answered),
            KubernetesStep::Stream(range) => stream(&mut client, range).await,
            KubernetesStep::StartApiServer => self.start_api_server(channel).await,
            KubernetesStep::Compact(api_server) => self.compact(&mut client, api_server).await,
        }
    }

    fn endpoint(&self) -> usize {
        self.members.upcoming()
    }

    async fn close(&mut self) {
        let begin = Instant::now();
        let lags = || {
            let events = self.cluster.events();
            events.received < events.expected
        };
        while lags() && begin.elapsed() < EVENTS_AWAITED {
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

    /// Retries a change until it does not conflict, or there is nothing to change.
    async fn write(
        &self,
        client: &mut KvClient<Channel>,
        object: Object,
        lease: i64,
        change: Change,
    ) -> Result<AnsweredCall, CallFailure> {
        let mut revision = self.cluster.revision(object);
        for retries in 0..ATTEMPTS_MAX {
            let txn = self.cluster.transaction(object, revision, change.clone(), lease);
            let answer = transact(client, txn).await?;
            if answer.succeeded {
                let header = answer.header.map_or(0, |header| header.revision);
                self.cluster.wrote(object, &change, header);
                return Ok(AnsweredCall::of(&answer, retries));
            }
            revision = read(&answer)?.kvs.first().map_or(0, |kv| kv.mod_revision);
            self.cluster.found(object, revision);
            if matches!(change, Change::Create(_)) == (revision > 0) {
                return Ok(AnsweredCall::of(&answer, retries));
            }
        }
        Err(CallFailure::new(Code::UNKNOWN, format!("{ATTEMPTS_MAX} attempts met another write")))
    }

    /// Starts an API server: fills the cache of each resource and watches it.
    async fn start_api_server(&self, channel: Channel) -> Result<AnsweredCall, CallFailure> {
        let mut all = AnsweredCall::default();
        for resource in RESOURCES {
            let range = self.cluster.list(resource, CACHE_PAGE);
            let (listed, revision) = list(&mut kv(channel.clone()), range).await?;
            all.body_bytes += listed.body_bytes;
            open(channel.clone(), &self.cluster, resource, revision + 1).await?;
        }
        Ok(all)
    }

    /// Compacts like an API server does every five minutes; the first of them compacts for all.
    async fn compact(
        &self,
        client: &mut KvClient<Channel>,
        api_server: usize,
    ) -> Result<AnsweredCall, CallFailure> {
        let (txn, revision) = self.cluster.compaction(api_server);
        let answer = transact(client, txn).await?;
        let lost = if answer.succeeded { None } else { Some(read(&answer)?) };
        let count = lost.map(|key| key.kvs.first().map_or(0, |kv| kv.version));
        self.cluster.compactor_learns(api_server, count, answer.header.map_or(0, |header| header.revision));
        if answer.succeeded && revision > 0 {
            client.compact(CompactionRequest { revision, physical: false }).await?;
        }
        Ok(AnsweredCall::of(&answer, 0))
    }

    async fn lease(&mut self, channel: Channel) -> Result<i64, CallFailure> {
        if let Some(lease) = self.lease.as_mut().filter(|lease| lease.takes_more()) {
            lease.events += 1;
            return Ok(lease.id);
        }
        let request = LeaseGrantRequest { ttl: EVENT_SECONDS, id: 0 };
        let granted = Instant::now();
        let id = LeaseClient::new(channel).lease_grant(request).await?.into_inner().id;
        self.lease = Some(EventLease { id, events: 1, granted });
        Ok(id)
    }
}

impl EventLease {
    fn takes_more(&self) -> bool {
        self.events < EVENTS_PER_LEASE && self.granted.elapsed() < LEASE_USED
    }
}

async fn transact(client: &mut KvClient<Channel>, txn: TxnRequest) -> Result<TxnResponse, CallFailure> {
    client.txn(txn).await.map(tonic::Response::into_inner).map_err(CallFailure::from)
}

/// Returns the read result of a transaction that did not write.
fn read(answer: &TxnResponse) -> Result<&RangeResponse, CallFailure> {
    match answer.responses.first().and_then(|op| op.response.as_ref()) {
        Some(Response::ResponseRange(range)) => Ok(range),
        _ => Err(CallFailure::protocol("a transaction answers a range with something else")),
    }
}

/// Reads a range as a stream and discards it.
async fn stream(client: &mut KvClient<Channel>, range: RangeRequest) -> Result<AnsweredCall, CallFailure> {
    let mut parts = client.range_stream(range).await?.into_inner();
    let mut all = AnsweredCall::default();
    while let Some(part) = parts.message().await? {
        all.body_bytes += part.encoded_len() as u64;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::etcdserverpb::ResponseHeader;
    use api::mvccpb::{Event, KeyValue};

    #[test]
    fn an_event_counts_once_however_often_it_comes() {
        let mut next = 5;
        for (revisions, header, counts, then) in [
            (&[5, 6][..], 6, (2, 0), 7),
            (&[5, 6], 6, (0, 2), 7),
            // No writes to this resource at 7 and 8.
            (&[], 8, (0, 0), 9),
            (&[8, 9, 9, 12], 12, (2, 2), 13),
        ] {
            let event = |&mod_revision: &i64| {
                let kv = Some(KeyValue { mod_revision, ..Default::default() });
                Event { kv, ..Default::default() }
            };
            let response = WatchResponse {
                header: Some(ResponseHeader { revision: header, ..Default::default() }),
                events: revisions.iter().map(event).collect(),
                ..Default::default()
            };
            assert_eq!((take(&response, "pods", &mut next), next), (counts, then), "{revisions:?}");
        }
    }

    #[test]
    fn what_expires_counts_only_where_callers_delete() {
        let deleted = |mod_revision| Event {
            r#type: EventType::Delete as i32,
            kv: Some(KeyValue { mod_revision, ..Default::default() }),
            ..Default::default()
        };
        let response =
            WatchResponse { events: vec![deleted(5), deleted(5), deleted(5)], ..Default::default() };
        let mut next = 5;
        assert_eq!((take(&response, EVENTS, &mut next), next), ((0, 0), 6));
        next = 5;
        assert_eq!((take(&response, "pods", &mut next), next), ((1, 2), 6));
    }

    #[test]
    fn a_lease_takes_no_more_events_long_before_it_expires() {
        let granted = Instant::now();
        let lease = |events, granted| EventLease { id: 1, events, granted }.takes_more();
        assert!(lease(EVENTS_PER_LEASE - 1, granted));
        assert!(!lease(EVENTS_PER_LEASE, granted));
        assert!(granted.checked_sub(LEASE_USED).is_none_or(|before| !lease(1, before)));
    }
}
