//! Server of the peer port: message streams, probes, and the member list.
//!
//! * A stream starts with a hello. It must name this cluster, this member, and a known sender.
//! * A sender that is not in the list yet is rejected until a call vouches for it; see `introduction`. From
//!   then on it may send messages, stores and probes, but no requests.
//! * Raft is notified of a snapshot only when the whole store that belongs to it is durable here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::peer::peer_server::Peer;
use api::peer::{
    ChangesDigestRequest, ChangesDigestResponse, FiguresRequest, FiguresResponse, Hello, HistoryHashRequest,
    HistoryHashResponse, InquireRequest, InquireResponse, LeaseAnswers, LeaseQuestions, MembersRequest,
    MembersResponse, MessageBatch, MessagesEnd, PeerLogEnd, PeerMember, ProbeRequest, ProbeResponse,
    ProgressRequest, ProgressResponse, RecountRequest, RecountResponse, SnapshotEnd, SnapshotPart,
};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use raft_node::{Inbox, LogPosition};
use state_machine::CommandLevel;
use tonic::{Request, Response, Status, Streaming};

use super::connections::Greeter;
use super::context::{CLUSTER_MISMATCH, Context, MEMBER_MISMATCH, REMOVED, REMOVED_SAYS_A_LEARNER};
use super::transport::Peers;
use super::{leases, questions};
use crate::member::{Figures, Hasher, LeaderLeases, ReceiveError, ReceivePlace, Standing};
use process::log::causes;
use telemetry::metrics::{From, UnderWay};

/// Maximum descriptors of the peer port. Above what `connections` admits (96 strangers and 8 connections
/// per member), so that only clusters of more than 20 members reach it; further connections wait in the
/// backlog.
pub const CONNECTIONS_MAX: u32 = 256;

/// Interval at which Raft is polled for the outcome of a received store.
const SETTLE_INTERVAL: Duration = Duration::from_millis(100);
/// Polls after which an unacknowledged message counts as lost. Raft accepts a message within a step of its
/// driver.
const UNHEARD_MAX: u32 = 100;

/// Response to a founder with a different first state: one of the two was restored again after its peer had
/// confirmed it, or is a member of a cluster that was restored since.
const UNLIKE: &str =
    "this member started from another snapshot: restart the member that has no leader, or restore it again";

/// Returns the members as applied here.
pub type Members = Arc<dyn Fn() -> Vec<PeerMember> + Send + Sync>;

/// gRPC service of the peer port.
#[derive(Clone)]
pub struct PeerServer {
    peers: Arc<Peers>,
    inbox: Arc<dyn Inbox>,
    incoming: ReceivePlace,
    members: Members,
    /// The leases of this member, once they are served.
    leases: Option<Arc<LeaderLeases>>,
    hasher: Option<Hasher>,
    refused: Arc<Mutex<RefusalLines>>,
    /// Connection of this clone's requests. None before there is one.
    greeter: Option<Greeter>,
    pub(super) connections_max: u32,
}

/// Maximum remembered strangers; the memory is cleared when full.
const REFUSALS_MAX: usize = 64;
/// Minimum interval between two logged rejections, since strangers choose the reasons.
const REFUSAL_INTERVAL: Duration = Duration::from_secs(1);

/// Log state of rejected greetings.
#[derive(Default)]
struct RefusalLines {
    /// Last reason per claimed sender; a repeated reason is not logged. Bounded by [`REFUSALS_MAX`].
    said: HashMap<u64, String>,
    logged: Option<Instant>,
    /// Rejections not logged since the last line.
    unlogged: u64,
}

impl RefusalLines {
    /// Returns the number of unlogged rejections if this one is to be logged.
    fn note(&mut self, from: u64, reason: &str, now: Instant) -> Option<u64> {
        if self.said.get(&from).is_some_and(|said| said == reason) {
            return None;
        }
        if self.logged.is_some_and(|logged| now < logged + REFUSAL_INTERVAL) {
            self.unlogged += 1;
            return None;
        }
        if self.said.len() >= REFUSALS_MAX {
            self.said.clear();
        }
        self.said.insert(from, reason.to_owned());
        self.logged = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

/// Idle timeout of a stream. A sender waits for a block of its disk, and for this member's disk.
const PART_TIMEOUT: Duration = Duration::from_secs(60);
/// Minimum average rate of a stream once [`SLOW_FOR`] is over: a hundredth of a sender's minimum rate.
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;
/// Grace period before the minimum rate applies: long enough for a sender's slot, and for a small store at
/// any pace.
const SLOW_FOR: Duration = Duration::from_secs(120);

/// Progress of a stream against its limits of size, time and rate.
struct ReceivedBatches {
    began: Instant,
    bytes: u64,
    bytes_max: u64,
}

impl ReceivedBatches {
    fn add(&mut self, bytes: usize, now: Instant) -> Result<(), ReceiveError> {
        self.bytes += bytes as u64;
        self.check(self.bytes)?;
        let passed = now.saturating_duration_since(self.began).saturating_sub(SLOW_FOR);
        if passed.as_secs().saturating_mul(BYTES_PER_SECOND_MIN) > self.bytes {
            return Err(ReceiveError::TooSlow(BYTES_PER_SECOND_MIN));
        }
        Ok(())
    }

    fn check(&self, bytes: u64) -> Result<(), ReceiveError> {
        if bytes > self.bytes_max { Err(ReceiveError::TooLong(self.bytes_max)) } else { Ok(()) }
    }
}

impl PeerServer {
    pub fn new(
        peers: Arc<Peers>,
        inbox: Arc<dyn Inbox>,
        incoming: ReceivePlace,
        members: Members,
    ) -> PeerServer {
        PeerServer {
            peers,
            inbox,
            incoming,
            members,
            leases: None,
            hasher: None,
            refused: Arc::default(),
            greeter: None,
            connections_max: CONNECTIONS_MAX,
        }
    }

    /// Enables requests about leases.
    pub fn with_leases(self, leases: Arc<LeaderLeases>) -> PeerServer {
        PeerServer { leases: Some(leases), ..self }
    }

    /// Enables requests for hashes.
    pub fn with_hasher(self, hasher: Hasher) -> PeerServer {
        PeerServer { hasher: Some(hasher), ..self }
    }

    /// Returns the server for one connection.
    pub(super) fn with_greeter(self, greeter: Greeter) -> PeerServer {
        PeerServer { greeter: Some(greeter), ..self }
    }

    /// Lowers the maximum descriptors of the peer port below [`CONNECTIONS_MAX`].
    pub fn with_connections_max(self, connections_max: u32) -> PeerServer {
        PeerServer { connections_max, ..self }
    }

    /// Returns the sender, if it is a listed member.
    fn greet_member(&self, hello: Option<Hello>) -> Result<u64, Status> {
        self.greet(hello, |from| self.peers.context().standing(from))
    }

    /// Returns the sender of Raft messages or probes: a listed or an introduced member.
    fn greet_sender(&self, hello: Option<Hello>) -> Result<u64, Status> {
        self.greet(hello, |from| self.standing_of_sender(from))
    }

    /// Returns the sender of Raft messages, unless both are founders with different first states.
    fn greet_sender_of_messages(&self, hello: Option<Hello>) -> Result<u64, Status> {
        let is_unlike = hello.as_ref().is_some_and(|hello| self.peers.context().has_unlike_start(hello));
        let from = self.greet_sender(hello)?;
        if is_unlike && !base::mutant("unlike-founders-talk") {
            self.note_refusal(from, UNLIKE);
            return Err(Status::failed_precondition(UNLIKE));
        }
        Ok(from)
    }

    /// Returns the sender's standing in the list, which does not contain introduced members yet.
    fn standing_of_sender(&self, from: u64) -> Standing {
        match self.peers.context().standing(from) {
            Standing::Unknown if self.peers.is_introduced(from) => Standing::Member,
            standing => standing,
        }
    }

    fn greet(&self, hello: Option<Hello>, standing: impl Fn(u64) -> Standing) -> Result<u64, Status> {
        let hello = hello.ok_or_else(|| Status::invalid_argument("a stream must start with a hello"))?;
        let context = self.peers.context();
        let identity = &context.identity;
        let reason = if hello.cluster_id != identity.cluster_id {
            format!("{CLUSTER_MISMATCH}: want {:x}, got {:x}", identity.cluster_id, hello.cluster_id)
        } else if hello.to != identity.member_id {
            format!("{MEMBER_MISMATCH}: this is {:x}, not {:x}", identity.member_id, hello.to)
        } else if standing(hello.from) == Standing::Removed {
            self.removed().to_owned()
        } else if let Some(reason) = context.refusal(&hello) {
            reason
        } else {
            self.peers.check_address(&hello, self.greeter.as_ref().and_then(Greeter::source));
            if standing(hello.from) == Standing::Member {
                self.refused.lock().said.remove(&hello.from);
                if let Some(greeter) = &self.greeter {
                    greeter.greeted(hello.from);
                }
                return Ok(hello.from);
            }
            format!("{:x} is not a member of this cluster", hello.from)
        };
        self.note_refusal(hello.from, &reason);
        Err(Status::failed_precondition(reason))
    }

    /// Notes the removed sender and returns the response for it.
    fn removed(&self) -> &'static str {
        if self.peers.context().roster.is_learner() { REMOVED_SAYS_A_LEARNER } else { REMOVED }
    }

    /// Fails the stream of a sender that was removed, or became too old, since it greeted.
    fn check_is_member(&self, from: u64) -> Result<(), Status> {
        match self.standing_of_sender(from) {
            Standing::Member if self.peers.context().levels.is_too_old(from) => {
                Err(Status::failed_precondition("the cluster uses commands unknown to this version"))
            }
            Standing::Member => Ok(()),
            Standing::Removed => Err(Status::failed_precondition(self.removed())),
            Standing::Unknown => Err(Status::failed_precondition("not a member of this cluster")),
        }
    }

    fn note_refusal(&self, from: u64, reason: &str) {
        let Some(unlogged) = self.refused.lock().note(from, reason, Instant::now()) else { return };
        let from = format!("{from:x}");
        // Programs that restart members match etcd's lines.
        if reason.starts_with(CLUSTER_MISMATCH) {
            let error = CLUSTER_MISMATCH;
            tracing::warn!(from, error, reason, unlogged, "request cluster ID mismatch");
        } else if reason.starts_with(MEMBER_MISMATCH) {
            tracing::warn!(from, reason, unlogged, "ignored streaming request; ID mismatch");
        } else {
            tracing::warn!(from, reason, unlogged, "rejected a peer");
        }
    }

    /// Receives the whole stream into its place; returns the last entry in the store.
    async fn receive(
        &self,
        from: u64,
        parts: &mut Streaming<SnapshotPart>,
        first: SnapshotPart,
    ) -> Result<LogPosition, Status> {
        let begun = self.incoming.begin(from, self.inbox.leader()).await;
        let mut reception = begun.map_err(|error| not_received(&error))?;
        let (began, bytes_max) = (Instant::now(), self.incoming.bytes_max());
        let mut received = ReceivedBatches { began, bytes: 0, bytes_max };
        received.check(first.bytes).map_err(|error| not_received(&error))?;
        let mut chunk = first.chunk;
        loop {
            received.add(chunk.len(), Instant::now()).map_err(|error| not_received(&error))?;
            if !chunk.is_empty() {
                reception.add(chunk).await.map_err(|error| not_received(&error))?;
            }
            let part = tokio::select! {
                biased;
                () = reception.replaced() => return Err(not_received(&ReceiveError::Replaced)),
                part = tokio::time::timeout(PART_TIMEOUT, parts.message()) => part,
            };
            match part.map_err(|_| Status::deadline_exceeded("the stream stalled"))?? {
                Some(part) => chunk = part.chunk,
                None => return reception.finish().await.map_err(|error| not_received(&error)),
            }
        }
    }

    /// Checks that the accompanying message names the received store's last entry. Raft restarts the log at
    /// the entry that the message names, so a mismatch would make the member look for a store that does not
    /// exist.
    fn check_fits(&self, named: LogPosition, at: LogPosition) -> Result<(), Status> {
        if named == at {
            return Ok(());
        }
        self.incoming.discard_soon(at);
        Err(Status::invalid_argument(format!(
            "the message names entry {} of term {}, the store ends with {} of term {}",
            named.index, named.term, at.index, at.term
        )))
    }

    /// Delivers messages to Raft. Snapshot messages are rejected: they belong to the stream of their store.
    fn deliver(&self, from: u64, batch: MessageBatch, received: &Counter) -> Result<(), Status> {
        if batch.is_truncated {
            self.note_refusal(from, "too many messages in a batch");
            return Err(Status::invalid_argument("too many messages in a batch"));
        }
        for message in batch.messages {
            received.inc_by(message.len() as u64);
            if raft_node::is_snapshot(&message) {
                self.note_refusal(from, "a snapshot's message without its store");
                return Err(Status::invalid_argument("a snapshot message requires its store"));
            }
            self.inbox.receive(from, message);
        }
        Ok(())
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
        let from = self.greet_sender_of_messages(first.hello)?;
        self.peers.heard(from);
        let labels = From { From: self.peers.context().label(from) };
        let metrics = &self.peers.context().metrics.peers;
        let received = metrics.received_bytes.get_or_create(&labels).clone();
        let failures = metrics.receive_failures.get_or_create(&labels).clone();
        self.deliver(from, MessageBatch { hello: None, ..first }, &received)?;
        let roster = Arc::clone(&self.peers.context().roster);
        let mut left = std::pin::pin!(roster.left(from));
        loop {
            let batch = tokio::select! {
                batch = batches.message() => batch,
                // Immediately: a leader that applied the removal sends no further message to respond to.
                () = &mut left => return Err(Status::failed_precondition(self.removed())),
            };
            match batch {
                Ok(Some(batch)) => {
                    self.check_is_member(from)?;
                    self.deliver(from, batch, &received)?;
                }
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
        let mut first = parts.message().await?.unwrap_or_default();
        let from = self.greet_sender_of_messages(first.hello.take())?;
        self.peers.heard(from);
        let own = self.peers.context().identity.member_id;
        let named = raft_node::snapshot_position(from, own, &first.message)
            .ok_or_else(|| Status::invalid_argument("the stream of a store must start with its message"))?;
        let labels = From { From: self.peers.context().label(from) };
        let metrics = &self.peers.context().metrics.snapshots;
        let began = Instant::now();
        let _under_way = UnderWay::new(&metrics.receiving.get_or_create(&labels).clone());
        let failures = metrics.receive_failures.get_or_create(&labels).clone();
        let mut attempt = Attempt { failures, has_succeeded: false };
        let message = std::mem::take(&mut first.message);
        let received = self.receive(from, &mut parts, first).await;
        let fitting = received.and_then(|at| self.check_fits(named, at).map(|()| at));
        let at = fitting.inspect_err(|status| {
            self.note_refusal(from, &format!("a snapshot was not received: {}", status.message()));
        })?;
        attempt.has_succeeded = true;
        metrics.received.get_or_create(&labels).inc();
        metrics.receive_seconds.get_or_create(&labels).observe(began.elapsed().as_secs_f64());
        tracing::info!(from = labels.From, applied = at.index.0, took = ?began.elapsed(), "received a snapshot");
        self.inbox.receive(from, message);
        tokio::spawn(settle(self.incoming.clone(), Arc::clone(&self.inbox), at));
        Ok(Response::new(SnapshotEnd {}))
    }

    async fn probe(&self, request: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let from = self.greet_sender(request.into_inner().hello)?;
        self.peers.heard(from);
        let Context { identity, levels, .. } = self.peers.context();
        Ok(Response::new(ProbeResponse {
            cluster_id: identity.cluster_id,
            member_id: identity.member_id,
            command_level: CommandLevel::OWN.0,
            cluster_level: levels.cluster.get().0,
        }))
    }

    async fn inquire(&self, request: Request<InquireRequest>) -> Result<Response<InquireResponse>, Status> {
        let from = self.greet_member(request.into_inner().hello)?;
        let answer = self.inbox.answer_member(from).await;
        let raft_node::PeerState { term, last_index, is_leader, is_held, voters, uncommitted, is_founder } =
            answer.map_err(|_| Status::unavailable("this member is stopping, or has just responded"))?;
        let uncommitted = uncommitted.map(|end| PeerLogEnd { index: end.index.0, term: end.term.0 });
        Ok(Response::new(InquireResponse {
            term: term.0,
            last_index: last_index.0,
            is_leader,
            is_held,
            voters,
            imported: self.peers.context().identity.imported,
            uncommitted,
            is_founder,
        }))
    }

    async fn leases(&self, request: Request<LeaseQuestions>) -> Result<Response<LeaseAnswers>, Status> {
        let mut request = request.into_inner();
        self.greet_member(request.hello.take())?;
        let question = leases::question(request)?;
        let leader = self.leases.as_ref().ok_or_else(|| Status::unavailable("leases are not served"))?;
        leases::answers(leases::answer_here(leader, question).await).map(Response::new)
    }

    async fn history_hash(
        &self,
        request: Request<HistoryHashRequest>,
    ) -> Result<Response<HistoryHashResponse>, Status> {
        let request = request.into_inner();
        self.greet_member(request.hello)?;
        let hasher = self.hasher.as_ref().ok_or_else(|| Status::unavailable("hashes are not served"))?;
        questions::answer(hasher, request.revision).await.map(Response::new)
    }

    async fn changes_digest(
        &self,
        request: Request<ChangesDigestRequest>,
    ) -> Result<Response<ChangesDigestResponse>, Status> {
        let mut request = request.into_inner();
        self.greet_member(request.hello.take())?;
        let hasher = self.hasher.as_ref().ok_or_else(|| Status::unavailable("digests are not served"))?;
        Ok(Response::new(questions::digest(hasher, &request)))
    }

    async fn recount(&self, request: Request<RecountRequest>) -> Result<Response<RecountResponse>, Status> {
        let mut request = request.into_inner();
        self.greet_member(request.hello.take())?;
        let hasher = self.hasher.as_ref().ok_or_else(|| Status::unavailable("digests are not served"))?;
        questions::recount(hasher, &request).await.map(Response::new)
    }

    async fn progress(
        &self,
        request: Request<ProgressRequest>,
    ) -> Result<Response<ProgressResponse>, Status> {
        let request = request.into_inner();
        self.greet_member(request.hello)?;
        let progress = self.inbox.progress_of(request.member_id).await;
        let raft_node::Progress { matched, applied, last_index } =
            progress.ok_or_else(|| Status::unavailable("not the leader, or no such member"))?;
        let (matched, last_index) = (matched.0, last_index.0);
        Ok(Response::new(ProgressResponse { matched, last_index, applied: Some(applied.0) }))
    }

    async fn figures(&self, request: Request<FiguresRequest>) -> Result<Response<FiguresResponse>, Status> {
        let FiguresRequest { hello, history } = request.into_inner();
        self.greet_member(hello)?;
        let document = self.peers.figures(if history { Figures::History } else { Figures::Now }).await;
        let document = document.ok_or_else(|| Status::unavailable("the status is not available yet"))?;
        Ok(Response::new(FiguresResponse { document }))
    }

    async fn members(&self, _request: Request<MembersRequest>) -> Result<Response<MembersResponse>, Status> {
        let context = self.peers.context();
        let (cluster_id, cluster_level) = (context.identity.cluster_id, context.levels.cluster.get().0);
        Ok(Response::new(MembersResponse { cluster_id, members: (self.members)(), cluster_level }))
    }
}

fn not_received(error: &ReceiveError) -> Status {
    match error {
        ReceiveError::Damaged(_) => Status::data_loss(causes(error)),
        ReceiveError::Busy | ReceiveError::Replaced | ReceiveError::Stopping => {
            Status::unavailable(causes(error))
        }
        ReceiveError::TooLong(_) | ReceiveError::TooSlow(_) => Status::resource_exhausted(causes(error)),
    }
}

/// Removes a received store that Raft never learned of: its message may be lost to a full inbox. A store
/// that Raft knows of is installed or rejected by Raft.
async fn settle(incoming: ReceivePlace, inbox: Arc<dyn Inbox>, at: LogPosition) {
    for _ in 0..UNHEARD_MAX {
        tokio::time::sleep(SETTLE_INTERVAL).await;
        if !incoming.holds(at) || inbox.commit() >= at.index {
            return;
        }
    }
    tracing::warn!(applied = at.index.0, "received snapshot was not reported to Raft");
    incoming.discard_soon(at);
}

/// Counts a stream as failed unless it succeeded: its future may be dropped at any await, when the peer
/// disconnects.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_logged_once_per_reason_and_once_per_second() {
        let (mut refusals, now) = (RefusalLines::default(), Instant::now());
        assert_eq!(refusals.note(1, "a", now), Some(0));
        let logged = (0..1000u64).filter_map(|i| refusals.note(i, &format!("cluster {i}"), now)).count();
        assert_eq!((logged, refusals.unlogged), (0, 1000));
        assert_eq!(refusals.note(2, "b", now + REFUSAL_INTERVAL), Some(1000));
        assert_eq!(refusals.note(2, "b", now + 9 * REFUSAL_INTERVAL), None, "nothing new");
    }

    #[test]
    fn a_stream_is_bounded_in_bytes_and_in_time() {
        let began = Instant::now();
        let received = || ReceivedBatches { began, bytes: 0, bytes_max: 100 << 20 };
        let mut endless = received();
        let taken = (0..).find(|_| endless.add(1 << 20, began).is_err());
        assert_eq!(taken, Some(100));
        assert!(received().check(100 << 20).is_ok());
        assert!(matches!(received().check((100 << 20) + 1), Err(ReceiveError::TooLong(_))));
        assert!(received().add(1, began + SLOW_FOR).is_ok());
        let late = began + SLOW_FOR + Duration::from_secs(3);
        assert!(matches!(received().add(190 << 10, late), Err(ReceiveError::TooSlow(_))));
        assert!(received().add(192 << 10, late).is_ok());
    }
}
