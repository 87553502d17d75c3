//! Leases, for services of any member: renewals, and questions how long leases still have, in batches to the
//! leader.
//!
//! * Requests that wait together are one batch: one read index on the leader, one command for renewals, one
//!   call on a follower. While a batch is under way the next one waits for more requests, within bounds.
//! * Renewals of expired leases that are not revoked yet go on in separate batches, which wait for that:
//!   no other renewal waits for them, or for their place. Nor does one wait for questions: their batches and
//!   bounds are separate.
//! * A request is tried again while the leader is being found. It ends with the request timeout, which counts
//!   from its arrival.
//! * One connection, to the member that led last, is kept and shared by all questions. The first error on it
//!   gives it up.

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

/// Requests in one batch: its answer takes at most 22 bytes for each.
const BATCH_MAX: usize = 1_024;
/// Renewals that wait for their answers, some 400 bytes each, and as many questions. A client with too many
/// of them is refused with *too many requests*; it asks again.
const WAITING_MAX: usize = 64 << 10;
/// Requests of one client that always wait: a busy client that keeps some thousand leases alive.
const WAITING_ALWAYS: usize = 64;
/// Batches of a kind under way: the next ones go out while earlier ones wait for a sync. When all are under
/// way, requests wait and make larger batches. Those of all kinds take a half at most of the streams that the
/// leader gives to a connection.
const BATCHES_MAX: usize = 4;
const _: () = assert!(BatchKind::COUNT * BATCHES_MAX <= STREAMS_MAX as usize / 2);
/// While a batch is under way, the next one goes out when it has so many requests,
const NEXT_BATCH_MIN: usize = 256;
/// or when its first request has waited so long. A batch of a few requests costs the members nearly as much
/// as one of hundreds. The end of the batch before it usually comes first, after a round trip and a sync.
const NEXT_BATCH_WITHIN: Duration = Duration::from_millis(10);
/// Between two attempts while there is no leader.
const RETRY_EVERY: Duration = Duration::from_millis(50);

/// Ids in one question. An answer takes at most 22 bytes for each.
const IDS_MAX: usize = 2_048;
/// What the leader may take: a sync of its disk, and the revoke of an expired lease. Then the caller tries
/// again, perhaps with another leader.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// A question to the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseQuestion {
    Renew(Vec<i64>, WhenExpired),
    Remaining(Vec<i64>),
}

/// What a batch asks.
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

/// Leases, for services of any member. Cheap to clone.
#[derive(Clone)]
pub struct LeaseService {
    leader: Arc<LeaderLeases>,
    link: Arc<LeaderLink>,
    request_timeout: Duration,
    renewals: Entrance,
    questions: Entrance,
    /// Renewals whose leases have expired, and are not revoked yet.
    unrevoked: mpsc::UnboundedSender<Waiting>,
    renewed: Counter,
}

/// Where requests begin to wait for their batch.
#[derive(Clone)]
struct Entrance {
    waiting: mpsc::UnboundedSender<Waiting>,
    /// Bounds them, under way as well.
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

/// A request under way.
pub struct PendingLease {
    answer: oneshot::Receiver<Result<Remaining, LeaseError>>,
    deadline: Instant,
    leader: watch::Receiver<Option<u64>>,
}

impl PendingLease {
    /// The answer: for a renewal the lease's TTL, or 0 if there is no such lease.
    pub async fn remaining(self) -> Result<Remaining, LeaseError> {
        match timeout_at(self.deadline, self.answer).await {
            Ok(answer) => answer.unwrap_or(Err(LeaseError::Stopped)),
            Err(_) if self.leader.borrow().is_none() => Err(LeaseError::NoLeader),
            Err(_) => Err(LeaseError::Timeout),
        }
    }
}

/// A request that waits for its batch.
struct Waiting {
    id: i64,
    _share: Share,
    reply: oneshot::Sender<Result<Remaining, LeaseError>>,
}

impl Waiting {
    /// Ends here, or goes on to those that wait for the end of their lease.
    fn answered(
        self,
        kind: BatchKind,
        answer: Result<Remaining, LeaseError>,
        unrevoked: &mpsc::UnboundedSender<Waiting>,
    ) {
        let may_go_on = kind == BatchKind::Renew(WhenExpired::Tell);
        // The member may stop, and the caller may have gone.
        if may_go_on && answer.is_ok_and(|answer| answer.ttl == UNREVOKED) {
            let _unsent = unrevoked.send(self);
        } else {
            let _unsent = self.reply.send(answer);
        }
    }
}

/// Makes batches of the requests that wait.
struct Batches {
    waiting: mpsc::UnboundedReceiver<Waiting>,
    under_way: JoinSet<()>,
}

impl Batches {
    /// The next batch, when it has to go out. None when no request can come any more.
    async fn next(&mut self) -> Option<Vec<Waiting>> {
        let mut batch = Vec::new();
        if self.waiting.recv_many(&mut batch, BATCH_MAX).await == 0 {
            return None;
        }
        let mut is_due = pin!(sleep(NEXT_BATCH_WITHIN));
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
    /// Starts the tasks that make batches, which end with `stop`.
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

    /// The leases of this member.
    pub fn table(&self) -> &state_machine::LeaseTable {
        &self.leader.table
    }

    /// Begins to renew a lease.
    pub fn renew(&self, client: ClientId, id: i64) -> Result<PendingLease, LeaseError> {
        self.renewals.enter(client, id)
    }

    /// Whether the renewals that wait, of all clients, fit into the batches under way.
    pub fn has_room(&self) -> bool {
        self.renewals.shares.total() < BATCHES_MAX * BATCH_MAX
    }

    /// How long a lease still has, by the leader's clock.
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
            // Callers may have gone since.
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

    /// Asks the leader, and again until the request timeout while it is being found.
    async fn ask(&self, question: LeaseQuestion) -> Result<Vec<Remaining>, LeaseError> {
        let deadline = Instant::now() + self.request_timeout;
        loop {
            let error = match timeout_at(deadline, self.ask_once(question.clone())).await {
                Ok(Ok(answers)) => return Ok(answers),
                Ok(Err(error)) => error,
                Err(_) => LeaseError::Timeout,
            };
            if !error.is_passing() || Instant::now() + RETRY_EVERY >= deadline {
                return Err(error);
            }
            sleep(RETRY_EVERY).await;
        }
    }

    /// Asks the leader, and gives up when another member leads or none does: a leader that is paused or cut
    /// off answers late or never.
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

/// Waits until `asked` is not the leader any more.
async fn until_changed(mut leader: watch::Receiver<Option<u64>>, asked: u64) {
    let has_changed = |leader: &Option<u64>| *leader != Some(asked) && !base::mutant("asks-a-deposed-leader");
    if leader.wait_for(has_changed).await.is_err() {
        pending::<()>().await; // The member stops.
    }
}

/// Asks other members when they lead.
struct LeaderLink {
    peers: Arc<Peers>,
    kept: Kept<PeerConnection>,
}

/// The connection to the member that led last.
struct Kept<C>(Mutex<Option<Arc<(u64, C)>>>);

impl<C> Kept<C> {
    /// Questions that failed together may find a newer connection than theirs here. That one stays.
    async fn give_up(&self, used: &Arc<(u64, C)>) {
        self.0.lock().await.take_if(|kept| Arc::ptr_eq(kept, used));
    }
}

impl LeaderLink {
    /// The answers in the order of the ids. Those to renewals have the TTL only.
    async fn ask(&self, leader: u64, question: LeaseQuestion) -> Result<Vec<Remaining>, LeaseError> {
        let deadline = Instant::now() + ANSWER_WITHIN;
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

    /// None if not every id is answered.
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

/// Answers a question on the leader.
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

/// What a peer asks, if it is within bounds.
pub(super) fn question(request: LeaseQuestions) -> Result<LeaseQuestion, Status> {
    let LeaseQuestions { hello: _, renew, remaining, tell_expired } = request;
    if renew.len() + remaining.len() > IDS_MAX {
        return Err(Status::invalid_argument("too many leases in one question"));
    }
    match (renew.is_empty(), remaining.is_empty()) {
        (false, true) => {
            let when_expired = if tell_expired { WhenExpired::Tell } else { WhenExpired::Wait };
            Ok(LeaseQuestion::Renew(renew, when_expired))
        }
        (true, _) => Ok(LeaseQuestion::Remaining(remaining)),
        (false, false) => Err(Status::invalid_argument("two questions in one")),
    }
}

/// The leader's answer to a peer.
pub(super) fn answers(answered: Result<Vec<Remaining>, LeaseError>) -> Result<LeaseAnswers, Status> {
    let answer = |it: Remaining| LeaseAnswer { ttl: it.ttl, granted_ttl: it.granted_ttl };
    match answered {
        Ok(answers) => Ok(LeaseAnswers { answers: answers.into_iter().map(answer).collect() }),
        Err(LeaseError::NotLeader | LeaseError::NoLeader) => {
            Err(Status::failed_precondition("not the leader"))
        }
        Err(LeaseError::TooManyRequests) => Err(Status::resource_exhausted("too many requests")),
        Err(LeaseError::Timeout) => Err(Status::deadline_exceeded("timed out")),
        Err(LeaseError::Stopped | LeaseError::Unreachable) => Err(Status::unavailable("this member stops")),
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

        /// Answers are not looked at.
        fn renew(&self, count: usize) {
            for id in 0..count {
                let share = self.shares.take(ClientId::default(), 1).unwrap();
                let sent =
                    self.renewals.send(Waiting { id: id as i64, _share: share, reply: oneshot::channel().0 });
                assert!(sent.is_ok());
            }
        }

        /// A batch that ends after so many milliseconds.
        fn batch_of(&mut self, millis: u64) {
            self.batches.under_way.spawn(sleep(Duration::from_millis(millis)));
        }

        /// The size of the next batch, and the milliseconds until it goes out.
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
                // A sender that is gone is a member that stops.
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

    /// No batch is made: those under way wait for a leader that is gone.
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
