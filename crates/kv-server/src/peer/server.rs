//! What the peer port answers: streams of messages, probes, and who is in the cluster.
//!
//! * HTTP/2 only. Whatever else arrives ends its connection and nothing more.
//! * A stream begins with a hello. It must name our cluster, us, and a member we know.
//! * Raft hears of a snapshot only when the whole store that belongs to it is durable here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::peer::peer_server::{Peer, PeerServer as Generated};
use api::peer::{
    Hello, MembersRequest, MembersResponse, MessageBatch, MessagesEnd, PeerMember, ProbeRequest,
    ProbeResponse, SnapshotEnd, SnapshotPart,
};
use bytes::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::net::{TcpListener, TcpStream};
use tonic::{Request, Response, Status, Streaming};

use super::transport::Peers;
use super::{ENCODING, Inbox, MESSAGE_BYTES_MAX, WINDOW_BYTES};
use crate::incoming::{Incoming, ReceiveError};
use crate::listen::{self, Permits};
use crate::log::causes;
use crate::metrics::{From, UnderWay};
use crate::shutdown::Stop;

/// Two lanes from each of a handful of peers, their reconnects, and some strangers.
const CONNECTIONS_MAX: u32 = 256;
/// Streams of one connection: a lane, a probe, a question or two.
const STREAMS_MAX: u32 = 32;
/// A connection that does not begin to speak HTTP/2 in this time is no peer's.
const PREFACE_WITHIN: Duration = Duration::from_secs(10);
const ALIVE_EVERY: Duration = Duration::from_secs(10);

/// How often Raft is asked what became of a received store.
const SETTLE_EVERY: Duration = Duration::from_millis(100);
/// Raft takes a message in within a turn of its driver. One that it has not taken in after so many questions was lost.
const UNHEARD_MAX: u32 = 100;

/// The members as applied here.
pub type Members = Arc<dyn Fn() -> Vec<PeerMember> + Send + Sync>;

/// Answers peers.
#[derive(Clone)]
pub struct PeerServer {
    peers: Arc<Peers>,
    inbox: Arc<dyn Inbox>,
    incoming: Incoming,
    members: Members,
    /// The last refusal per claimed sender, so that it is logged once. Bounded by [`REFUSALS_MAX`].
    refused: Arc<Mutex<HashMap<u64, String>>>,
}

/// Strangers remembered; beyond it the memory begins anew.
const REFUSALS_MAX: usize = 64;

impl PeerServer {
    pub fn new(peers: Arc<Peers>, inbox: Arc<dyn Inbox>, incoming: Incoming, members: Members) -> PeerServer {
        PeerServer { peers, inbox, incoming, members, refused: Arc::default() }
    }

    /// The member that speaks, if it may.
    fn greet(&self, hello: Option<Hello>) -> Result<u64, Status> {
        let hello = hello.ok_or_else(|| Status::invalid_argument("a stream begins with a hello"))?;
        let context = self.peers.context();
        let identity = &context.identity;
        let reason = if hello.cluster_id != identity.cluster_id {
            format!("cluster ID mismatch: want {:x}, got {:x}", identity.cluster_id, hello.cluster_id)
        } else if hello.to != identity.member_id {
            format!("member ID mismatch: this is {:x}, not {:x}", identity.member_id, hello.to)
        } else if !context.knows(hello.from) {
            format!("{:x} is not a member of this cluster", hello.from)
        } else if hello.encoding != ENCODING {
            format!("message encoding {} is not {ENCODING}", hello.encoding)
        } else {
            self.refused.lock().remove(&hello.from);
            return Ok(hello.from);
        };
        self.note_refusal(hello.from, &reason);
        Err(Status::failed_precondition(reason))
    }

    fn note_refusal(&self, from: u64, reason: &str) {
        let mut refused = self.refused.lock();
        if refused.get(&from).is_some_and(|said| said == reason) {
            return;
        }
        tracing::warn!(from = format!("{from:x}"), reason, "refused a peer");
        if refused.len() >= REFUSALS_MAX {
            refused.clear();
        }
        refused.insert(from, reason.to_owned());
    }

    /// The whole stream into its place; the index that the store reaches.
    async fn receive(&self, parts: &mut Streaming<SnapshotPart>, first: Bytes) -> Result<u64, Status> {
        let mut reception = self.incoming.begin().await.map_err(|error| not_received(&error))?;
        let mut chunk = first;
        loop {
            if !chunk.is_empty() {
                reception.add(chunk).await.map_err(|error| not_received(&error))?;
            }
            match parts.message().await? {
                Some(part) => chunk = part.chunk,
                None => return reception.finish().await.map_err(|error| not_received(&error)),
            }
        }
    }

    fn deliver(&self, from: u64, batch: MessageBatch, received: &Counter) {
        for message in batch.messages {
            received.inc_by(message.len() as u64);
            self.inbox.receive(from, message);
        }
    }
}

#[tonic::async_trait]
impl Peer for PeerServer {
    async fn messages(
        &self,
        request: Request<Streaming<MessageBatch>>,
    ) -> Result<Response<MessagesEnd>, Status> {
        let mut batches = request.into_inner();
        let first = batches.message().await?.unwrap_or_default();
        let from = self.greet(first.hello)?;
        self.peers.heard(from);
        let labels = From::member(from);
        let metrics = &self.peers.context().metrics.peers;
        let received = metrics.received_bytes.get_or_create(&labels).clone();
        let failures = metrics.receive_failures.get_or_create(&labels).clone();
        self.deliver(from, MessageBatch { hello: None, ..first }, &received);
        loop {
            match batches.message().await {
                Ok(Some(batch)) => self.deliver(from, batch, &received),
                Ok(None) => return Ok(Response::new(MessagesEnd {})),
                Err(status) => {
                    failures.inc();
                    return Err(status);
                }
            }
        }
    }

    async fn snapshot(
        &self,
        request: Request<Streaming<SnapshotPart>>,
    ) -> Result<Response<SnapshotEnd>, Status> {
        let mut parts = request.into_inner();
        let first = parts.message().await?.unwrap_or_default();
        let from = self.greet(first.hello)?;
        self.peers.heard(from);
        let labels = From::member(from);
        let metrics = &self.peers.context().metrics.snapshots;
        let began = Instant::now();
        let _under_way = UnderWay::new(&metrics.receiving.get_or_create(&labels).clone());
        let failures = metrics.receive_failures.get_or_create(&labels).clone();
        let mut attempt = Attempt { failures, has_succeeded: false };
        let index = self.receive(&mut parts, first.chunk).await.inspect_err(|status| {
            tracing::warn!(from = labels.From, error = status.message(), "a snapshot was not received");
        })?;
        attempt.has_succeeded = true;
        metrics.received.get_or_create(&labels).inc();
        metrics.receive_seconds.get_or_create(&labels).observe(began.elapsed().as_secs_f64());
        tracing::info!(from = labels.From, applied = index, took = ?began.elapsed(), "received a snapshot");
        self.inbox.receive(from, first.message);
        tokio::spawn(settle(self.incoming.clone(), Arc::clone(&self.inbox), index));
        Ok(Response::new(SnapshotEnd {}))
    }

    async fn probe(&self, request: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let from = self.greet(request.into_inner().hello)?;
        self.peers.heard(from);
        let identity = &self.peers.context().identity;
        Ok(Response::new(ProbeResponse { cluster_id: identity.cluster_id, member_id: identity.member_id }))
    }

    async fn members(&self, _request: Request<MembersRequest>) -> Result<Response<MembersResponse>, Status> {
        let cluster_id = self.peers.context().identity.cluster_id;
        Ok(Response::new(MembersResponse { cluster_id, members: (self.members)() }))
    }
}

fn not_received(error: &ReceiveError) -> Status {
    match error {
        ReceiveError::Damaged(_) => Status::data_loss(causes(error)),
        ReceiveError::Busy | ReceiveError::Replaced | ReceiveError::Stopping => {
            Status::unavailable(causes(error))
        }
    }
}

/// Removes a received store if Raft never hears of it: its message may be lost to a full inbox. What Raft does hear of, it installs
/// or says that it does not want it.
async fn settle(incoming: Incoming, inbox: Arc<dyn Inbox>, index: u64) {
    for _ in 0..UNHEARD_MAX {
        tokio::time::sleep(SETTLE_EVERY).await;
        if !incoming.holds(index) || inbox.commit() >= index {
            return;
        }
    }
    tracing::warn!(applied = index, "Raft did not hear of a received snapshot");
    incoming.discard_soon(index);
}

/// Counts a stream as failed unless it succeeded: its future may be dropped at any await, when the peer goes away.
struct Attempt {
    failures: Counter,
    has_succeeded: bool,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.has_succeeded {
            self.failures.inc();
        }
    }
}

/// Serves the peer port until `stop`.
pub fn serve(listeners: Vec<TcpListener>, server: &PeerServer, stop: &Stop) {
    let permits = Permits::new(CONNECTIONS_MAX);
    for listener in listeners {
        let (server, ending) = (server.clone(), stop.clone());
        let serving = move |stream| connection(stream, server.clone(), ending.clone());
        tokio::spawn(listen::accept(listener, permits.clone(), stop.clone(), serving));
    }
}

async fn connection(stream: TcpStream, server: PeerServer, stop: Stop) {
    let mut preface = [0; 1];
    let spoke = tokio::time::timeout(PREFACE_WITHIN, stream.peek(&mut preface)).await;
    if !matches!(spoke, Ok(Ok(1))) || preface != *b"P" {
        return;
    }
    let service = Generated::new(server)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(ALIVE_EVERY)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    // Peers are not drained: whatever is on its way, Raft sends again. Errors here are the other side's.
    tokio::select! {
        _ = connection => {}
        () = stop.stopped() => {}
    }
}
