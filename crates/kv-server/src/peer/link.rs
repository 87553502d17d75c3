//! Keeps one stream to one peer open, on one lane. The queue of pending messages is bounded in bytes and
//! drained in batches.
//!
//! ```text
//!   dial ──▶ open stream ──▶ batches, until it breaks ──┐
//!    ▲                                                  ▼
//!    └── pause (longer each time) ◀── clear the queue, notify Raft
//! ```
//!
//! Each attempt dials the peer's next address. When the configured addresses change, an open stream stays
//! until the peer responds at a new one.
//!
//! The urgent lane also probes: it measures the round trip and verifies the peer's identity.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{self, Poll, Waker, ready};
use std::time::{Duration, Instant};

use api::peer::peer_client::PeerClient;
use api::peer::{
    Hello, MembersRequest, MembersResponse, MessageBatch, PeerMember, ProbeRequest, ProbeResponse,
};
use base::Addresses;
use bytes::Bytes;
use data_dir::bootstrap::{BootstrapError, RunningCluster};
use data_dir::{FirstMember, Identity};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use process::shutdown::Stop;
use prometheus_client::metrics::counter::Counter;
use raft_node::{Inbox, Lane};
use state_machine::CommandLevel;
use telemetry::metrics::{PeerLink, To};
use tokio::sync::{Notify, watch};
use tokio_stream::Stream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use transport::tls::Dialer;

use super::context::{BATCH_BYTES_MAX, CLUSTER_MISMATCH, Context, MESSAGE_BYTES_MAX, REMOVED, WINDOW_BYTES};

/// Connect timeout, ten times as long as a connect within a continent takes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between keep-alive pings on an idle connection. A member has two connections to each peer; at
/// two seconds, pings were the second largest cost of an idle cluster, after heartbeats.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of a keep-alive ping, after which the connection is closed.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum interval between two log lines with different reasons about the same broken link.
const REPEATED_LOG_INTERVAL: Duration = Duration::from_secs(30);
/// Interval between two round-trip measurements, as in etcd.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Response timeout of a peer, for a member with an empty directory or log.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum response size of a peer; the largest response is the member list.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Destination of a link.
#[derive(Clone, Debug)]
pub struct Route {
    pub to: u64,
    pub lane: Lane,
    pub addresses: Arc<watch::Sender<Addresses>>,
}

pub struct Link {
    context: Context,
    route: Route,
    queue: Arc<LaneQueue>,
    inbox: Arc<dyn Inbox>,
    activity: SharedActivity,
    /// Last logged reason of this link, and its time; a repeated reason is not logged again.
    said: Option<(String, Instant)>,
}

/// State of a peer that has responded to every probe since `since`.
pub struct Activity {
    pub since: Instant,
    /// Connection of the urgent lane, shared by frequent requests so that they need no connection of their
    /// own.
    pub connection: PeerConnection,
}

pub type SharedActivity = Arc<Mutex<Option<Activity>>>;

/// Reason a stream is closed.
enum LinkEnd {
    /// The stream was never established.
    Unreachable(String),
    /// The stream was open; messages may have been lost.
    Lost(String),
    /// The stream was open; the peer is redialled at its configured address.
    Moved,
}

impl Link {
    pub fn new(
        context: Context,
        route: Route,
        queue: Arc<LaneQueue>,
        activity: SharedActivity,
        inbox: Arc<dyn Inbox>,
    ) -> Link {
        Link { context, route, queue, inbox, activity, said: None }
    }

    /// Runs until `stop`. `heard` shortens a pause.
    pub async fn run(mut self, heard: Arc<Notify>, stop: Stop) {
        let mut backoff = Backoff::new();
        let mut addresses = self.route.addresses.subscribe();
        let mut attempt = 0;
        loop {
            let urls = addresses.borrow_and_update().all();
            let broken = match urls.get(attempt % urls.len().max(1)) {
                None => LinkEnd::Unreachable("the peer has no address".to_owned()),
                Some(url) => tokio::select! {
                    broken = self.carry(url) => {
                        self.note(&broken, url);
                        broken
                    }
                    () = stop.stopped() => return,
                },
            };
            self.give_up_what_waits();
            let is_urgent = self.route.lane == Lane::Urgent;
            let has_worked = !is_urgent || self.activity.lock().is_some();
            match broken {
                LinkEnd::Moved => {
                    attempt = 0;
                    continue;
                }
                LinkEnd::Lost(_) if has_worked => backoff.reset(),
                // A peer that accepts a connection and closes it is not dialled more often than any peer.
                LinkEnd::Lost(_) | LinkEnd::Unreachable(_) => {}
            }
            attempt += 1;
            if is_urgent {
                *self.activity.lock() = None;
                self.context.levels.forget(self.route.to);
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.pause(rand::random())) => {}
                () = heard.notified() => {}
                Ok(()) = addresses.changed() => {}
                () = stop.stopped() => return,
            }
        }
    }

    /// Opens a stream and feeds it until it breaks.
    async fn carry(&mut self, url: &String) -> LinkEnd {
        let dialer = &self.context.dialer;
        let is_of_list = self.route.addresses.borrow().is_of_list(url);
        let dialed = if is_of_list { dial(dialer, url).await } else { dial(&dialer.to_claimed(), url).await };
        let mut client = match dialed {
            Ok(client) => client,
            Err(error) => return LinkEnd::Unreachable(error),
        };
        let active = self.context.metrics.peers.active.get_or_create(&self.labels()).clone();
        let hello = self.context.hello(self.route.to);
        let to = To { To: self.context.label(self.route.to) };
        let sent = self.context.metrics.peers.sent_bytes.get_or_create(&to).clone();
        let batches = Batches { queue: Arc::clone(&self.queue), hello: Some(hello), sent };
        let (mut prober, context, route) = (client.clone(), self.context.clone(), self.route.clone());
        let streaming = client.messages(batches);
        active.inc();
        let ended = tokio::select! {
            ended = streaming => Some(ended.map(drop)),
            never = self.probe(&mut prober, url) => match never {},
            () = moved(&context, &route, url) => None,
        };
        active.dec();
        self.context.metrics.peers.disconnected.get_or_create(&self.labels()).inc();
        match ended {
            None => LinkEnd::Moved,
            Some(Ok(())) => LinkEnd::Lost("the peer ended the stream".to_owned()),
            // The peer rejected this member and would do so again.
            Some(Err(status)) if self.says_removed(&status, url) => LinkEnd::Unreachable(REMOVED.to_owned()),
            Some(Err(status)) if status.code() == Code::FailedPrecondition => {
                LinkEnd::Unreachable(status.message().to_owned())
            }
            Some(Err(status)) => LinkEnd::Lost(reason_of(&status)),
        }
    }

    /// Measures the round trip, and marks the link as working.
    async fn probe(&mut self, client: &mut PeerClient<Channel>, url: &String) -> Infallible {
        if self.route.lane != Lane::Urgent {
            return std::future::pending().await;
        }
        let to = To { To: self.context.label(self.route.to) };
        let seconds = self.context.metrics.peers.round_trip_seconds.get_or_create(&to).clone();
        let mut is_established = false;
        loop {
            let began = Instant::now();
            let hello = Some(self.context.hello(self.route.to));
            let probed = client.probe(ProbeRequest { hello }).await;
            if let Err(status) = &probed {
                self.says_removed(status, url);
            } else {
                self.route.addresses.send_if_modified(|addresses| addresses.note_answer(url));
                let mut activity = self.activity.lock();
                let since = activity.take().map_or_else(Instant::now, |before| before.since);
                *activity = Some(Activity { since, connection: client.clone() });
                drop(activity);
                let took = began.elapsed();
                seconds.observe(took.as_secs_f64());
                self.context.metrics.round_trips.lock().insert(self.route.to, took);
                if self.said.take().is_some() {
                    tracing::info!(peer = format!("{:x}", self.route.to), "peer became active");
                }
                if !std::mem::replace(&mut is_established, true) {
                    tracing::info!(
                        local_member_id = format!("{:x}", self.context.identity.member_id),
                        remote_peer_id = format!("{:x}", self.route.to),
                        "established TCP streaming connection with remote peer"
                    );
                }
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
    }

    /// Reports whether the peer rejected this member as removed; if so, the member stops. Without TLS any
    /// server may listen at an address that was never configured for the peer, so a rejection from there is
    /// ignored.
    fn says_removed(&self, status: &Status, url: &String) -> bool {
        let is_removed = status.code() == Code::FailedPrecondition && status.message() == REMOVED;
        let is_heeded = is_removed && self.route.addresses.borrow().is_of_list(url);
        if is_heeded {
            self.context.roster.note_removed();
        }
        is_heeded
    }

    /// Logs the reason of a broken link, once per change. Links to introduced peers are not logged.
    fn note(&mut self, broken: &LinkEnd, url: &String) {
        let (is_noted, reason) = {
            let addresses = self.route.addresses.borrow();
            match broken {
                LinkEnd::Unreachable(reason) => (addresses.listed().contains(url), reason),
                LinkEnd::Lost(reason) => (addresses.is_of_list(url), reason),
                LinkEnd::Moved => return,
            }
        };
        // One event can produce several texts alternately.
        let is_new = |(said, at): &(String, Instant)| said != reason && at.elapsed() > REPEATED_LOG_INTERVAL;
        if self.route.lane == Lane::Urgent && self.said.as_ref().is_none_or(is_new) && is_noted {
            let peer = format!("{:x}", self.route.to);
            if reason.starts_with(CLUSTER_MISMATCH) {
                tracing::warn!(
                    remote_peer_id = peer,
                    error = CLUSTER_MISMATCH,
                    reason,
                    "request sent was ignored by remote peer due to cluster ID mismatch"
                );
            } else {
                tracing::warn!(peer, error = reason, "peer became inactive (message send to peer failed)");
            }
            self.said = Some((reason.clone(), Instant::now()));
        }
    }

    fn give_up_what_waits(&self) {
        let lost = self.queue.clear() as u64;
        let to = To { To: self.context.label(self.route.to) };
        self.context.metrics.peers.send_failures.get_or_create(&to).inc_by(lost.max(1));
        self.inbox.report_unreachable(self.route.to);
    }

    fn labels(&self) -> PeerLink {
        PeerLink {
            Local: format!("{:x}", self.context.identity.member_id),
            Remote: self.context.label(self.route.to),
        }
    }
}

/// Returns when the stream to `url` must be closed: the peer responds at a newly configured address, or
/// `url` is not an address of the peer any more.
async fn moved(context: &Context, Route { to, lane, addresses }: &Route, url: &String) {
    let mut addresses = addresses.subscribe();
    loop {
        let (listed, is_known) = {
            let addresses = addresses.borrow_and_update();
            (addresses.listed().to_vec(), addresses.all().contains(url))
        };
        if !is_known {
            return;
        }
        let answers_elsewhere = async {
            if listed.is_empty() || listed.contains(url) {
                return std::future::pending().await;
            }
            let mut is_noted = *lane != Lane::Urgent;
            while !answers_as(&context.dialer, &listed, context.hello(*to)).await {
                if !std::mem::replace(&mut is_noted, true) {
                    let peer = format!("{to:x}");
                    tracing::info!(peer, ?listed, url, "peer not reachable at its configured URL yet");
                }
                tokio::time::sleep(PROBE_INTERVAL).await;
            }
        };
        tokio::select! {
            () = answers_elsewhere => return,
            changed = addresses.changed() => if changed.is_err() { return },
        }
    }
}

/// Client of a connected peer.
pub(super) type PeerConnection = PeerClient<Channel>;

/// Returns the peer's error message, or else the cause of the broken connection.
pub(super) fn reason_of(status: &Status) -> String {
    match std::error::Error::source(status) {
        None => status.message().to_owned(),
        Some(source) => transport::tls::broken(source),
    }
}

pub(super) async fn dial(dialer: &Dialer, url: &str) -> Result<PeerConnection, String> {
    dial_with(dialer, url, WINDOW_BYTES).await
}

/// Dials with flow control windows of `window_bytes`.
pub(super) async fn dial_with(
    dialer: &Dialer,
    url: &str,
    window_bytes: u32,
) -> Result<PeerConnection, String> {
    let limit = |endpoint: Endpoint| {
        endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .initial_stream_window_size(window_bytes)
            .initial_connection_window_size(window_bytes)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
    };
    let channel = dialer.channel_to(url, limit).await?;
    Ok(PeerClient::new(channel)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
        .max_decoding_message_size(ANSWER_BYTES_MAX))
}

/// The outgoing stream: a hello, then messages as soon as they are queued.
struct Batches {
    queue: Arc<LaneQueue>,
    hello: Option<Hello>,
    /// Bytes of messages without framing, counted as by the receiver.
    sent: Counter,
}

impl Stream for Batches {
    type Item = MessageBatch;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Option<MessageBatch>> {
        if let Some(hello) = self.hello.take() {
            return Poll::Ready(Some(MessageBatch { hello: Some(hello), ..MessageBatch::default() }));
        }
        let messages = ready!(self.queue.poll_batch(context));
        self.sent.inc_by(messages.iter().map(|message| message.len() as u64).sum());
        Poll::Ready(Some(MessageBatch { messages, ..MessageBatch::default() }))
    }
}

/// Returns the first listed member's description of the cluster that `fits`; if none does, the first
/// response. A lagging member returns an old list.
pub async fn running_cluster(
    dialer: &Dialer,
    urls: &[String],
    fits: impl Fn(&RunningCluster) -> bool,
) -> Option<RunningCluster> {
    let mut first = None;
    for url in urls {
        let asked = async {
            let mut client = dial(dialer, url).await.ok()?;
            client.members(MembersRequest {}).await.ok()
        };
        let Ok(Some(answer)) = tokio::time::timeout(REQUEST_TIMEOUT, asked).await else { continue };
        let MembersResponse { cluster_id, members, cluster_level } = answer.into_inner();
        let member = |member: PeerMember| FirstMember {
            id: member.id,
            name: member.name,
            peer_urls: member.peer_urls,
            is_learner: member.is_learner,
        };
        let (members, level) = (members.into_iter().map(member).collect(), CommandLevel(cluster_level));
        let running = RunningCluster { cluster_id, members, level };
        if fits(&running) {
            return Some(running);
        }
        first = first.or(Some(running));
    }
    first
}

/// Returns the current members, as described by a member of `identity` that lists this member. A list
/// without this member predates its addition and is older than the identity's; or this member was removed,
/// which it learns when it dials.
pub async fn members_now(dialer: &Dialer, identity: &Identity) -> Option<Vec<FirstMember>> {
    let others = identity.members.iter().filter(|member| member.id != identity.member_id);
    let urls: Vec<String> = others.flat_map(|member| member.peer_urls.iter().cloned()).collect();
    let fits = |running: &RunningCluster| running.has(identity);
    let running = running_cluster(dialer, &urls, fits).await.filter(fits)?;
    Some(running.members)
}

/// Reports whether the receiver of `hello` itself responds at one of these URLs.
pub(super) async fn answers_as(dialer: &Dialer, urls: &[String], hello: Hello) -> bool {
    answer_of(dialer, urls, hello).await.is_some()
}

/// Returns the probe response of the receiver of `hello`, if it responds at one of these URLs itself. The
/// URLs may be outdated, and a different member may listen there now.
pub(super) async fn answer_of(dialer: &Dialer, urls: &[String], hello: Hello) -> Option<ProbeResponse> {
    for url in urls {
        let asked = async {
            let request = ProbeRequest { hello: Some(hello.clone()) };
            Some(dial(dialer, url).await.ok()?.probe(request).await.ok()?.into_inner())
        };
        if let Ok(Some(answer)) = tokio::time::timeout(REQUEST_TIMEOUT, asked).await
            && (answer.cluster_id, answer.member_id) == (hello.cluster_id, hello.to)
        {
            return Some(answer);
        }
    }
    None
}

/// Returns the reason that this member, with an empty directory, cannot join a new cluster: a peer
/// remembers it from an earlier run, or belongs to a running cluster that has added it.
///
/// A member that lost its disk does not rejoin under its old id, as in etcd. Unreachable peers are not
/// queried again, since none is reachable on the first start of a whole cluster; `confirming` prevents
/// wrong votes of such a member.
pub async fn bootstrapped_elsewhere(dialer: &Dialer, identity: &Identity) -> Option<BootstrapError> {
    let (own, others): (Vec<_>, Vec<_>) =
        identity.members.iter().partition(|member| member.id == identity.member_id);
    let own = &own.first()?.peer_urls;
    let urls = others.into_iter().flat_map(|member| member.peer_urls.iter().map(move |url| (member, url)));
    let asking: FuturesUnordered<_> = urls
        .map(|(member, url)| async move {
            let mut client = dial(dialer, url).await.ok()?;
            let known = client.members(MembersRequest {}).await.ok()?.into_inner();
            let (cluster, peer) = (known.cluster_id, member.id);
            let is_running = known.members.iter().any(|listed| !listed.client_urls.is_empty());
            let refusal = |listed: &PeerMember| match listed.id {
                member if member == identity.member_id => {
                    (!listed.client_urls.is_empty()).then_some(BootstrapError::BornBefore { member, peer })
                }
                // Not started, in a running cluster: started members have published their client URLs.
                member => (listed.peer_urls == *own && listed.client_urls.is_empty() && is_running)
                    .then_some(BootstrapError::Added { member, cluster, peer }),
            };
            known.members.iter().find_map(refusal)
        })
        .collect();
    // Concurrent: on a first start, each peer accepts the connection but serves it only when this member
    // does too.
    let remembering = pin!(asking.filter_map(std::future::ready));
    tokio::time::timeout(REQUEST_TIMEOUT, remembering.into_future()).await.ok()?.0
}

/// First pause: a restarting peer is back within a second, so dialling it more often is useless.
const FIRST: Duration = Duration::from_millis(20);
/// Longest pause: an absent peer costs one attempt per second and is found within a second of its return.
const LONGEST: Duration = Duration::from_secs(1);

/// Delays between dial attempts: exponential, with jitter so that members do not dial in step.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
}

impl Backoff {
    pub fn new() -> Backoff {
        Backoff { next: FIRST }
    }

    pub fn reset(&mut self) {
        self.next = FIRST;
    }

    /// Returns the next pause; `chance` in 0.0..1.0 selects it within the upper half.
    pub fn pause(&mut self, chance: f64) -> Duration {
        let pause = self.next.mul_f64(0.5 + chance / 2.0);
        self.next = (self.next * 2).min(LONGEST);
        pause
    }
}

/// Messages in the order they were sent. Any thread pushes; a single task takes.
#[derive(Debug)]
pub struct LaneQueue {
    state: Mutex<LaneState>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct LaneState {
    messages: VecDeque<Bytes>,
    bytes: usize,
    taker: Option<Waker>,
}

/// Outcome of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushResult {
    Queued,
    Full,
}

impl LaneQueue {
    /// Creates a queue of at most `bytes_max`; a single larger message is accepted when the queue is empty.
    pub fn new(bytes_max: usize) -> LaneQueue {
        LaneQueue { state: Mutex::default(), bytes_max }
    }

    pub fn push(&self, message: Bytes) -> PushResult {
        let mut state = self.state.lock();
        if !state.messages.is_empty() && state.bytes + message.len() > self.bytes_max {
            return PushResult::Full;
        }
        state.bytes += message.len();
        state.messages.push_back(message);
        let taker = state.taker.take();
        drop(state);
        if let Some(taker) = taker {
            taker.wake();
        }
        PushResult::Queued
    }

    /// Takes the pending messages, up to a batch; at least one message.
    pub fn poll_batch(&self, context: &mut task::Context<'_>) -> Poll<Vec<Bytes>> {
        let mut state = self.state.lock();
        if state.messages.is_empty() {
            state.taker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let mut batch = Vec::with_capacity(state.messages.len());
        let mut bytes = 0;
        while let Some(message) = state.messages.front() {
            if !batch.is_empty() && bytes + message.len() > BATCH_BYTES_MAX {
                break;
            }
            bytes += message.len();
            batch.extend(state.messages.pop_front());
        }
        state.bytes -= bytes;
        Poll::Ready(batch)
    }

    /// Drops the pending messages and returns their number.
    pub fn clear(&self) -> usize {
        let mut state = self.state.lock();
        state.bytes = 0;
        state.messages.drain(..).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second_and_begin_anew() {
        let mut backoff = Backoff::new();
        let pauses: Vec<u128> = (0..8).map(|_| backoff.pause(1.0).as_millis()).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1000, 1000]);
        backoff.reset();
        assert_eq!(backoff.pause(0.0).as_millis(), 10);
    }

    fn take(queue: &LaneQueue) -> Option<Vec<usize>> {
        match queue.poll_batch(&mut task::Context::from_waker(Waker::noop())) {
            Poll::Ready(batch) => Some(batch.iter().map(Bytes::len).collect()),
            Poll::Pending => None,
        }
    }

    fn message(bytes: usize) -> Bytes {
        Bytes::from(vec![0; bytes])
    }

    #[test]
    fn what_waits_leaves_together_and_in_order() {
        let queue = LaneQueue::new(100);
        assert_eq!(take(&queue), None);
        for bytes in [1, 2, 3] {
            assert_eq!(queue.push(message(bytes)), PushResult::Queued);
        }
        assert_eq!(take(&queue), Some(vec![1, 2, 3]));
        assert_eq!(take(&queue), None);
    }

    #[test]
    fn a_batch_ends_before_it_grows_too_large() {
        let queue = LaneQueue::new(usize::MAX);
        for bytes in [BATCH_BYTES_MAX - 1, 1, 1, 2 * BATCH_BYTES_MAX, 1] {
            queue.push(message(bytes));
        }
        assert_eq!(take(&queue), Some(vec![BATCH_BYTES_MAX - 1, 1]));
        assert_eq!(take(&queue), Some(vec![1]));
        assert_eq!(take(&queue), Some(vec![2 * BATCH_BYTES_MAX]));
        assert_eq!(take(&queue), Some(vec![1]));
    }

    #[test]
    fn a_full_queue_refuses_but_never_for_a_lone_message() {
        let queue = LaneQueue::new(10);
        assert_eq!(queue.push(message(20)), PushResult::Queued);
        assert_eq!(queue.push(message(1)), PushResult::Full);
        assert_eq!(queue.clear(), 1);
        assert_eq!(queue.push(message(10)), PushResult::Queued);
        assert_eq!(queue.push(message(0)), PushResult::Queued);
        assert_eq!(take(&queue), Some(vec![10, 0]));
        assert_eq!(queue.push(message(10)), PushResult::Queued);
    }
}
