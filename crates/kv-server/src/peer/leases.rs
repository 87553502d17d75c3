//! Lease requests of any member's services: renewals and queries of remaining TTLs, batched and sent to the
//! leader.
//!
//! * Queued requests form a batch: one read index on the leader, one command for renewals, one call from a
//!   follower. While a batch is in flight, new requests are collected for the next, within bounds.
//! * Renewals of expired leases that are not revoked yet move to separate batches, which wait for the
//!   revocation. Other renewals wait neither for them nor for their slots. Batches and limits of queries are
//!   separate, too.
//! * Requests are retried during a leader change, until the request timeout, which counts from their arrival.
//! * All requests to the leader share one connection. It is dropped after the first error.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api::peer::{LeaseAnswer, LeaseAnswers, LeaseQuestions};
use prometheus_client::metrics::counter::Counter;
use state_machine::{Remaining, UNREVOKED, WhenExpired};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status};

use super::context::STREAMS_MAX;
use super::link::{PeerConnection, dial};
use super::transport::Peers;
use crate::member::{LeaderLeases, LeaseError};
use admission::{ClientId, Share, Shares};
use process::shutdown::Stop;

/// Maximum requests per batch. A response takes at most 22 bytes for each.
const BATCH_MAX: usize = 1_024;
/// Maximum pending renewals, about 400 bytes each, and the same number of queries. A client with too many
/// fails with *too many requests* and retries.
const WAITING_MAX: usize = 64 << 10;
/// Pending requests guaranteed to each client, enough for a busy client with some thousand live leases.
const WAITING_ALWAYS: usize = 64;
/// Maximum batches of each kind in flight. While earlier ones wait for a sync, the next are sent; at the
/// limit, requests queue up and form larger batches. All kinds together use at most half of the streams that
/// the leader allows per connection.
const BATCHES_MAX: usize = 4;
const _: () = assert!(BatchKind::COUNT * BATCHES_MAX <= STREAMS_MAX as usize / 2);
/// With other batches in flight, a batch is sent once it has this many requests,
const NEXT_BATCH_MIN: usize = 256;
/// or once its first request has waited this long. Small batches cost the members nearly as much as large
/// ones. Usually the previous batch finishes earlier, after a round trip and a sync.
const NEXT_BATCH_TIMEOUT: Duration = Duration::from_millis(10);
/// Retry interval while there is no leader.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum IDs per request. A response takes at most 22 bytes for each.
const IDS_MAX: usize = 2_048;
/// Timeout of a call to the leader: covers a sync of its disk, and the revocation of an expired lease. The
/// caller then retries, possibly with another leader.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Request to the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseQuestion {
    Renew(Vec<i64>, WhenExpired),
    Remaining(Vec<i64>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BatchKind {
    Renew(WhenExpired),
    Remaining,
}

impl BatchKind {
    const COUNT: usize = 3;

    fn question(self, ids: Vec<i64>) -> LeaseQuestion {
        match self {
            BatchKind::Renew(when_expired) => LeaseQuestion::Renew(ids, when_expired),
            BatchKind::Remaining => LeaseQuestion::Remaining(ids),
        }
    }
}

/// Lease operations for a member's services. Cheap to clone.
#[derive(Clone)]
pub struct LeaseService {
    leader: Arc<LeaderLeases>,
    link: Arc<LeaderLink>,
    request_timeout: Duration,
    renewals: Entrance,
    questions: Entrance,
    /// Renewals of leases that have expired but are not revoked yet.
    unrevoked: mpsc::UnboundedSender<Waiting>,
    renewed: Counter,
}

/// Admits requests to the queue of a batch kind.
#[derive(Clone)]
struct Entrance {
    waiting: mpsc::UnboundedSender<Waiting>,
    /// Limits pending requests, including those in flight.
    shares: Arc<Shares>,
    request_timeout: Duration,
    leader: watch::Receiver<Option<u64>>,
}

impl Entrance {
    fn new(
        request_timeout: Duration,
        leader: watch::Receiver<Option<u64>>,
    ) -> (Entrance, mpsc::UnboundedReceiver<Waiting>) {
        let (waiting, batches) = mpsc::unbounded_channel();
        let shares = Shares::new(WAITING_MAX, WAITING_ALWAYS);
        (Entrance { waiting, shares, request_timeout, leader }, batches)
    }

    fn enter(&self, client: ClientId, id: i64) -> Result<PendingLease, LeaseError> {
        let share = self.shares.take(client, 1).ok_or(LeaseError::TooManyRequests)?;
        let (reply, answer) = oneshot::channel();
        let sent = self.waiting.send(Waiting { id, _share: share, reply });
        sent.map_err(|_| LeaseError::Stopped)?;
        let deadline = Instant::now() + self.request_timeout;
        Ok(PendingLease { answer, deadline, leader: self.leader.clone() })
    }
}

/// A pending request.
pub struct PendingLease {
    answer: oneshot::Receiver<Result<Remaining, LeaseError>>,
    deadline: Instant,
    leader: watch::Receiver<Option<u64>>,
}

impl PendingLease {
    /// Returns the result. For a renewal this is the lease's TTL, or 0 if the lease does not exist.
    pub async fn remaining(self) -> Result<Remaining, LeaseError> {
        match timeout_at(self.deadline, self.answer).await {
            Ok(answer) => answer.unwrap_or(Err(LeaseError::Stopped)),
            Err(_) if self.leader.borrow().is_none() => Err(LeaseError::NoLeader),
            Err(_) => Err(LeaseError::Timeout),
        }
    }
}

/// A request queued for its batch.
struct Waiting {
    id: i64,
    _share: Share,
    reply: oneshot::Sender<Result<Remaining, LeaseError>>,
}

impl Waiting {
    /// Completes the request, or moves it to the batches that wait for the revocation of an expired lease.
    fn answered(
        self,
        kind: BatchKind,
        answer: Result<Remaining, LeaseError>,
        unrevoked: &mpsc::UnboundedSender<Waiting>,
    ) {
        let may_go_on = kind == BatchKind::Renew(WhenExpired::Tell);
        // Sending fails if the member stops or the caller gave up.
        if may_go_on && answer.is_ok_and(|answer| answer.ttl == UNREVOKED) {
            let _unsent = unrevoked.send(self);
        } else {
            let _unsent = self.reply.send(answer);
        }
    }
}

/// Collects queued requests into batches.
struct Batches {
    waiting: mpsc::UnboundedReceiver<Waiting>,
    under_way: JoinSet<()>,
}

impl Batches {
    /// Returns the next batch when it is to be sent, or None after the queue was closed.
    async fn next(&mut self) -> Option<Vec<Waiting>> {
        let mut batch = Vec::new();
        if self.waiting.recv_many(&mut batch, BATCH_MAX).await == 0 {
            return None;
        }
        let mut is_due = pin!(sleep(NEXT_BATCH_TIMEOUT));
        while self.has_to_wait(batch.len(), is_due.is_elapsed()) {
            let room = BATCH_MAX - batch.len();
            tokio::select! {
                biased;
                Some(_) = self.under_way.join_next() => {}
                received = self.waiting.recv_many(&mut batch, room), if room > 0 => {
                    if received == 0 {
                        return Some(batch);
                    }
                }
                () = is_due.as_mut(), if !is_due.is_elapsed() => {}
            }
        }
        Some(batch)
    }

    fn has_to_wait(&mut self, requests: usize, is_due: bool) -> bool {
        while self.under_way.try_join_next().is_some() {}
        match self.under_way.len() {
            0 => false,
            BATCHES_MAX.. => true,
            _ => requests < NEXT_BATCH_MIN && !is_due,
        }
    }
}

impl LeaseService {
    /// Starts the batching tasks, which run until `stop`.
    pub fn start(
        leader: Arc<LeaderLeases>,
        peers: Arc<Peers>,
        request_timeout: Duration,
        stop: &Stop,
    ) -> Self {
        let (renewals, renewing) = Entrance::new(request_timeout, leader.raft.leader_known());
        let (questions, asking) = Entrance::new(request_timeout, leader.raft.leader_known());
        let (unrevoked, ending) = mpsc::unbounded_channel();
        let renewed = peers.context().metrics.leases.renewed.clone();
        let link = Arc::new(LeaderLink { peers, kept: Kept(Mutex::new(None)) });
        let service = LeaseService { leader, link, request_timeout, renewals, questions, unrevoked, renewed };
        for (kind, waiting) in [
            (BatchKind::Renew(WhenExpired::Tell), renewing),
            (BatchKind::Renew(WhenExpired::Wait), ending),
            (BatchKind::Remaining, asking),
        ] {
            tokio::spawn(service.clone().make_batches(kind, waiting, stop.clone()));
        }
        service
    }

    /// Returns this member's lease table.
    pub fn table(&self) -> &state_machine::LeaseTable {
        &self.leader.table
    }

    /// Starts to renew a lease.
    pub fn renew(&self, client: ClientId, id: i64) -> Result<PendingLease, LeaseError> {
        self.renewals.enter(client, id)
    }

    /// Reports whether the pending renewals of all clients fit into the batches in flight.
    pub fn has_room(&self) -> bool {
        self.renewals.shares.total() < BATCHES_MAX * BATCH_MAX
    }

    /// Returns the remaining TTL by the leader's clock.
    pub async fn remaining(&self, client: ClientId, id: i64) -> Result<Remaining, LeaseError> {
        self.questions.enter(client, id)?.remaining().await
    }

    async fn make_batches(self, kind: BatchKind, waiting: mpsc::UnboundedReceiver<Waiting>, stop: Stop) {
        let mut batches = Batches { waiting, under_way: JoinSet::new() };
        loop {
            let batch = tokio::select! {
                batch = batches.next() => batch,
                () = stop.stopped() => return,
            };
            let Some(mut batch) = batch else { return };
            // Drop requests of callers that gave up.
            batch.retain(|waiting| !waiting.reply.is_closed());
            if batch.is_empty() {
                continue;
            }
            let service = self.clone();
            batches.under_way.spawn(async move { service.answer(kind, batch).await });
        }
    }

    async fn answer(&self, kind: BatchKind, batch: Vec<Waiting>) {
        let ids = batch.iter().map(|waiting| waiting.id).collect();
        let answers = self.ask(kind.question(ids)).await;
        for (number, waiting) in batch.into_iter().enumerate() {
            let answer = match &answers {
                Ok(answers) => answers.get(number).copied().ok_or(LeaseError::Unreachable),
                Err(error) => Err(*error),
            };
            if kind != BatchKind::Remaining && answer.is_ok_and(|answer| answer.ttl > 0) {
                self.renewed.inc();
            }
            waiting.answered(kind, answer, &self.unrevoked);
        }
    }

    /// Sends a request to the leader, and retries during a leader change until the request timeout.
    async fn ask(&self, question: LeaseQuestion) -> Result<Vec<Remaining>, LeaseError> {
        let deadline = Instant::now() + self.request_timeout;
        loop {
            let error = match timeout_at(deadline, self.ask_once(question.clone())).await {
                Ok(Ok(answers)) => return Ok(answers),
                Ok(Err(error)) => error,
                Err(_) => LeaseError::Timeout,
            };
            if !error.is_passing() || Instant::now() + RETRY_INTERVAL >= deadline {
                return Err(error);
            }
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// Sends a request to the leader. Fails as soon as the leader changes, since a paused or partitioned
    /// leader responds late or never.
    async fn ask_once(&self, question: LeaseQuestion) -> Result<Vec<Remaining>, LeaseError> {
        let known = self.leader.raft.leader_known();
        let leader = (*known.borrow()).ok_or(LeaseError::NoLeader)?;
        let asked = async {
            match leader == self.leader.member {
                true => answer_here(&self.leader, question).await,
                false => self.link.ask(leader, question).await,
            }
        };
        tokio::select! {
            answers = asked => answers,
            () = until_changed(known, leader) => Err(LeaseError::NotLeader),
        }
    }
}

/// Completes when `asked` no longer leads.
async fn until_changed(mut leader: watch::Receiver<Option<u64>>, asked: u64) {
    let has_changed = |leader: &Option<u64>| *leader != Some(asked) && !base::mutant("asks-a-deposed-leader");
    if leader.wait_for(has_changed).await.is_err() {
        pending::<()>().await; // The member stops.
    }
}

/// Sends requests to other members while they lead.
struct LeaderLink {
    peers: Arc<Peers>,
    kept: Kept<PeerConnection>,
}

/// Connection to the latest leader.
struct Kept<C>(Mutex<Option<Arc<(u64, C)>>>);

impl<C> Kept<C> {
    /// Drops the connection that was `used`, but not a newer one: several requests on a connection may fail
    /// at the same time.
    async fn give_up(&self, used: &Arc<(u64, C)>) {
        self.0.lock().await.take_if(|kept| Arc::ptr_eq(kept, used));
    }
}

impl LeaderLink {
    /// Returns results in the order of the IDs. Results of renewals contain only the TTL.
    async fn ask(&self, leader: u64, question: LeaseQuestion) -> Result<Vec<Remaining>, LeaseError> {
        let deadline = Instant::now() + RESPONSE_TIMEOUT;
        let connected = timeout_at(deadline, self.connection(leader)).await.ok().flatten();
        let used = connected.ok_or(LeaseError::Unreachable)?;
        match timeout_at(deadline, self.ask_over(&used, question)).await {
            Ok(Ok(answers)) => return answers.ok_or(LeaseError::Unreachable),
            Ok(Err(status)) => match status.code() {
                Code::FailedPrecondition => return Err(LeaseError::NotLeader),
                Code::ResourceExhausted => return Err(LeaseError::TooManyRequests),
                Code::DeadlineExceeded => return Err(LeaseError::Timeout),
                _ => {}
            },
            Err(_) => {}
        }
        self.kept.give_up(&used).await;
        Err(LeaseError::Unreachable)
    }

    async fn connection(&self, leader: u64) -> Option<Arc<(u64, PeerConnection)>> {
        let mut kept = self.kept.0.lock().await;
        if let Some(connection) = &*kept
            && connection.0 == leader
        {
            return Some(Arc::clone(connection));
        }
        for url in self.peers.urls(leader) {
            if let Ok(client) = dial(&self.peers.context().dialer, &url).await {
                return Some(Arc::clone(kept.insert(Arc::new((leader, client)))));
            }
        }
        None
    }

    /// Returns None unless there is a result for every ID.
    async fn ask_over(
        &self,
        used: &(u64, PeerConnection),
        question: LeaseQuestion,
    ) -> Result<Option<Vec<Remaining>>, Status> {
        let (leader, mut client) = used.clone();
        let hello = Some(self.peers.context().hello(leader));
        let (renew, remaining, tell_expired) = match question {
            LeaseQuestion::Renew(ids, when_expired) => (ids, vec![], when_expired == WhenExpired::Tell),
            LeaseQuestion::Remaining(ids) => (vec![], ids, false),
        };
        let ids = renew.len() + remaining.len();
        let request = LeaseQuestions { hello, renew, remaining, tell_expired };
        let answers = client.leases(request).await?.into_inner().answers;
        let remaining = |answer: LeaseAnswer| Remaining { ttl: answer.ttl, granted_ttl: answer.granted_ttl };
        Ok((answers.len() == ids).then(|| answers.into_iter().map(remaining).collect()))
    }
}

/// Executes a request on the leader.
pub(super) async fn answer_here(
    leader: &LeaderLeases,
    question: LeaseQuestion,
) -> Result<Vec<Remaining>, LeaseError> {
    match question {
        LeaseQuestion::Remaining(ids) => leader.remaining(&ids).await,
        LeaseQuestion::Renew(ids, when_expired) => {
            let ttls = leader.renew(ids, when_expired).await?;
            Ok(ttls.into_iter().map(|ttl| Remaining { ttl, granted_ttl: ttl }).collect())
        }
    }
}

/// Validates a peer's request.
pub(super) fn question(request: LeaseQuestions) -> Result<LeaseQuestion, Status> {
    let LeaseQuestions { hello: _, renew, remaining, tell_expired } = request;
    if renew.len() + remaining.len() > IDS_MAX {
        return Err(Status::invalid_argument("too many leases in one request"));
    }
    match (renew.is_empty(), remaining.is_empty()) {
        (false, true) => {
            let when_expired = if tell_expired { WhenExpired::Tell } else { WhenExpired::Wait };
            Ok(LeaseQuestion::Renew(renew, when_expired))
        }
        (true, _) => Ok(LeaseQuestion::Remaining(remaining)),
        (false, false) => Err(Status::invalid_argument("two requests in one")),
    }
}

/// Converts the leader's result to a response.
pub(super) fn answers(answered: Result<Vec<Remaining>, LeaseError>) -> Result<LeaseAnswers, Status> {
    let answer = |it: Remaining| LeaseAnswer { ttl: it.ttl, granted_ttl: it.granted_ttl };
    match answered {
        Ok(answers) => Ok(LeaseAnswers { answers: answers.into_iter().map(answer).collect() }),
        Err(LeaseError::NotLeader | LeaseError::NoLeader) => {
            Err(Status::failed_precondition("not the leader"))
        }
        Err(LeaseError::TooManyRequests) => Err(Status::resource_exhausted("too many requests")),
        Err(LeaseError::Timeout) => Err(Status::deadline_exceeded("timed out")),
        Err(LeaseError::Stopped | LeaseError::Unreachable) => {
            Err(Status::unavailable("this member is stopping"))
        }
        Err(LeaseError::Refused(error)) => Err(Status::unavailable(error.message())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bench {
        batches: Batches,
        renewals: mpsc::UnboundedSender<Waiting>,
        shares: Arc<Shares>,
    }

    impl Bench {
        fn new() -> Bench {
            let (renewals, waiting) = mpsc::unbounded_channel();
            let batches = Batches { waiting, under_way: JoinSet::new() };
            Bench { batches, renewals, shares: Shares::new(WAITING_MAX, WAITING_ALWAYS) }
        }

        /// Queues renewals. Their results are dropped.
        fn renew(&self, count: usize) {
            for id in 0..count {
                let share = self.shares.take(ClientId::default(), 1).unwrap();
                let sent =
                    self.renewals.send(Waiting { id: id as i64, _share: share, reply: oneshot::channel().0 });
                assert!(sent.is_ok());
            }
        }

        /// Adds a batch in flight that finishes after `millis`.
        fn batch_of(&mut self, millis: u64) {
            self.batches.under_way.spawn(sleep(Duration::from_millis(millis)));
        }

        /// Returns the size of the next batch, and the milliseconds until it is sent.
        async fn next(&mut self) -> (usize, u128) {
            let began = Instant::now();
            let batch = self.batches.next().await.unwrap();
            (batch.len(), began.elapsed().as_millis())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_under_way_is_given_up_when_another_member_leads_or_none() {
        for next in [None, Some(2)] {
            let (leads, known) = watch::channel(Some(1));
            let changes = async {
                sleep(Duration::from_secs(1)).await;
                leads.send_replace(next);
                // Dropping the sender means that the member stops.
                sleep(Duration::from_secs(1)).await;
            };
            tokio::select! {
                () = until_changed(known, 1) => {}
                () = changes => panic!("{next:?}"),
            }
        }
    }

    #[tokio::test]
    async fn questions_that_fail_together_leave_the_next_connection() {
        let used = Arc::new((2, ()));
        let kept = Kept(Mutex::new(Some(Arc::clone(&used))));
        kept.give_up(&used).await;
        assert!(kept.0.lock().await.is_none());
        *kept.0.lock().await = Some(Arc::new((2, ())));
        kept.give_up(&used).await;
        assert!(kept.0.lock().await.is_some(), "to the same leader");
    }

    #[tokio::test]
    async fn the_renewal_of_an_expired_lease_leaves_its_batch() {
        let (unrevoked, mut left) = mpsc::unbounded_channel();
        let mut bench = Bench::new();
        bench.renew(2);
        let batch = bench.batches.next().await.unwrap();
        for (mut renewal, ttl) in batch.into_iter().zip([UNREVOKED, 9]) {
            let (reply, answer) = oneshot::channel();
            renewal.reply = reply;
            let remaining = Remaining { ttl, granted_ttl: 0 };
            renewal.answered(BatchKind::Renew(WhenExpired::Tell), Ok(remaining), &unrevoked);
            match left.try_recv() {
                Ok(renewal) => assert_eq!((ttl, renewal.id), (UNREVOKED, 0), "it has no answer yet"),
                Err(_) => assert_eq!(answer.await.unwrap().unwrap().ttl, 9),
            }
        }
    }

    /// Batches are never formed, as if all slots wait for a lost leader.
    #[tokio::test(start_paused = true)]
    async fn a_renewal_ends_with_the_request_timeout_whether_it_has_a_batch_or_not() {
        let (leads, known) = watch::channel(Some(1));
        let (entrance, _batches) = Entrance::new(Duration::from_secs(7), known);
        for (leader, wanted) in [(Some(1), LeaseError::Timeout), (None, LeaseError::NoLeader)] {
            let began = Instant::now();
            let renewal = entrance.enter(ClientId::default(), 9).unwrap();
            leads.send_replace(leader);
            sleep(Duration::from_secs(2)).await;
            assert_eq!(renewal.remaining().await.unwrap_err(), wanted);
            assert_eq!(began.elapsed().as_secs(), 7, "from its arrival on");
        }
    }

    #[test]
    fn the_question_of_an_earlier_version_waits_for_expired_leases() {
        for (tell_expired, when_expired) in [(false, WhenExpired::Wait), (true, WhenExpired::Tell)] {
            let asked = LeaseQuestions { renew: vec![7], tell_expired, ..LeaseQuestions::default() };
            assert_eq!(question(asked).unwrap(), LeaseQuestion::Renew(vec![7], when_expired));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_waits_for_more_only_while_others_are_under_way() {
        let mut bench = Bench::new();
        bench.renew(3);
        assert_eq!(bench.next().await, (3, 0), "none is under way");
        bench.batch_of(5);
        bench.renew(3);
        assert_eq!(bench.next().await, (3, 5), "the one before ends");
        bench.batch_of(60_000);
        bench.renew(3);
        assert_eq!(bench.next().await, (3, 10), "it has waited for long");
        bench.renew(NEXT_BATCH_MIN);
        assert_eq!(bench.next().await, (NEXT_BATCH_MIN, 0), "it is large");
        for _ in 1..BATCHES_MAX {
            bench.batch_of(1_000);
        }
        bench.renew(2 * BATCH_MAX);
        assert_eq!(bench.next().await, (BATCH_MAX, 1_000), "there are too many");
        drop(bench.renewals);
        assert_eq!(bench.batches.next().await.unwrap().len(), BATCH_MAX);
        assert!(bench.batches.next().await.is_none());
    }
}
