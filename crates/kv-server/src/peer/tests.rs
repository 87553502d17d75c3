//! Two members over real sockets, and what strangers get.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::peer::peer_client::PeerClient;
use api::peer::{Hello, InquireRequest, MessageBatch, PeerMember, ProbeRequest, SnapshotPart};
use bytes::Bytes;
use mvcc::{Backend, LogIndex, MemoryBackend, RecountSpan, Revision};
use raft_node::{
    Confirmation, Inbox, Lane, LogPosition, Membership, PeerState, Progress, SnapshotOutcome, Start, Term,
    Transport,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use state_machine::CommandLevel;
use testkit::process::PATIENCE;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tonic::Code;

use super::context::{ENCODING, MESSAGE_BYTES_MAX};
use super::server::Members;
use super::*;
use crate::member::{AnnouncedMembers, Reach, Roster, StoreThread};
use crate::member::{ReceivePlace, StagingPlace};
use ::transport::tls::Dialer;
use ::transport::wire::Listener;
use config::Urls;
use data_dir::bootstrap::RunningCluster;
use data_dir::{FORMAT, FirstMember, Identity};
use grpc_server::listen::bind;
use process::shutdown::{self, Stop, Stopper};
use telemetry::metrics::{From, To};

/// What reached a member's Raft.
#[derive(Debug, PartialEq, Eq)]
enum RaftCall {
    Message(u64, Bytes),
    Unreachable(u64),
    Snapshot(u64, SnapshotOutcome),
    Confirmed(Confirmation),
    PeerMembership(Membership),
}

/// Records calls. The flag: the member is a founder.
struct Recorder(Mutex<mpsc::UnboundedSender<RaftCall>>, Arc<AtomicBool>);

impl Inbox for Recorder {
    fn receive(&self, from: u64, message: Bytes) {
        drop(self.0.lock().unwrap().send(RaftCall::Message(from, message)));
    }

    fn report_unreachable(&self, peer: u64) {
        drop(self.0.lock().unwrap().send(RaftCall::Unreachable(peer)));
    }

    fn report_snapshot(&self, peer: u64, outcome: SnapshotOutcome) {
        drop(self.0.lock().unwrap().send(RaftCall::Snapshot(peer, outcome)));
    }

    fn commit(&self) -> LogIndex {
        LogIndex(1)
    }

    fn leader(&self) -> Option<u64> {
        Some(1)
    }

    fn answer_member(&self, asker: u64) -> oneshot::Receiver<PeerState> {
        let (reply, answer) = oneshot::channel();
        let state = PeerState {
            term: Term(4),
            last_index: LogIndex(asker),
            is_leader: true,
            is_held: false,
            voters: vec![1, 2, 3],
            uncommitted: None,
            is_founder: true,
        };
        reply.send(state).unwrap();
        answer
    }

    fn progress_of(&self, member: u64) -> Pin<Box<dyn Future<Output = Option<Progress>> + Send + '_>> {
        let progress =
            Progress { matched: LogIndex(member), applied: LogIndex::ZERO, last_index: LogIndex(10) };
        Box::pin(async move { (member == 3).then_some(progress) })
    }

    fn is_unconfirmed(&self) -> bool {
        true
    }

    fn start(&self) -> Start {
        Start { is_founder: self.1.load(Relaxed), has_term: false }
    }

    fn confirm(&self, confirmation: Confirmation) {
        drop(self.0.lock().unwrap().send(RaftCall::Confirmed(confirmation)));
    }

    fn peer_membership(&self, membership: Membership) {
        drop(self.0.lock().unwrap().send(RaftCall::PeerMembership(membership)));
    }
}

struct TestMember {
    peers: Arc<Peers>,
    seen: mpsc::UnboundedReceiver<RaftCall>,
    server: PeerServer,
    incoming: ReceivePlace,
    inbox: Arc<dyn Inbox>,
    store_thread: StoreThread,
    stop: Stop,
    stopper: Stopper,
    is_founder: Arc<AtomicBool>,
}

fn member(id: u64, ports: &[(u64, u16)]) -> TestMember {
    let members = ports
        .iter()
        .map(|(id, port)| FirstMember {
            id: *id,
            name: format!("m{id}"),
            peer_urls: vec![format!("http://127.0.0.1:{port}")],
            is_learner: false,
        })
        .collect::<Vec<_>>();
    let roster = Roster::new(id, members.clone(), Box::new(|id| id == 66));
    member_with(id, members, roster)
}

fn member_with(id: u64, members: Vec<FirstMember>, roster: Roster) -> TestMember {
    member_advertising(id, members, roster, Vec::new())
}

fn member_advertising(
    id: u64,
    members: Vec<FirstMember>,
    roster: Roster,
    advertised: Vec<String>,
) -> TestMember {
    let name = format!("m{id}");
    let identity =
        Identity { format: FORMAT, cluster_id: 7, member_id: id, name, members, ..Identity::default() };
    let roster = Arc::new(roster);
    let (identity, dialer) = (Arc::new(identity), Dialer::default());
    let context = Context {
        advertised: advertised.into(),
        ..Context::new(&identity, &roster, &Arc::default(), dialer, &Arc::default())
    };
    let (store_thread, incoming) = store();
    let peers = Arc::new(Peers::new(context, store_thread.checkpoints()));
    let (sender, seen) = mpsc::unbounded_channel();
    let is_founder = Arc::new(AtomicBool::new(true));
    let inbox: Arc<dyn Inbox> = Arc::new(Recorder(Mutex::new(sender), Arc::clone(&is_founder)));
    let (stopper, stop) = shutdown::stop();
    peers.connect(Arc::clone(&inbox), &stop);
    let roster = Arc::clone(&peers.context().roster);
    let entry = |FirstMember { id, name, peer_urls, is_learner }: &FirstMember| PeerMember {
        id: *id,
        name: name.clone(),
        peer_urls: peer_urls.clone(),
        client_urls: Vec::new(),
        is_learner: *is_learner,
    };
    let listed: Members = Arc::new(move || roster.members().iter().map(entry).collect());
    let server = PeerServer::new(Arc::clone(&peers), Arc::clone(&inbox), incoming.clone(), listed);
    TestMember { peers, seen, server, incoming, inbox, store_thread, stop, stopper, is_founder }
}

/// A store with some megabytes in a checkpoint, and a staging place.
fn store() -> (StoreThread, ReceivePlace) {
    let home = MemoryBackend::new();
    let (mut writer, store, mut maintainer) =
        mvcc::open(Box::new(home.clone()), mvcc::StoreOptions::default()).unwrap();
    for index in 1..=ENTRIES {
        let mut revision = writer.begin();
        // Nothing that could be compressed: the stream shall take its time.
        let mut value = vec![0; VALUE_BYTES];
        StdRng::seed_from_u64(index).fill(&mut value[..]);
        revision.put(format!("k{index}").as_bytes(), &value, 0);
        revision.finish();
        writer.end_entry(LogPosition::new(index, 2)).unwrap();
    }
    maintainer.persist().unwrap();
    let thread = StoreThread::start(maintainer, store, 1000, Arc::default(), |_| ()).unwrap();
    (thread, ReceivePlace::new(Box::new(NextTo(home)), Arc::default(), Arc::new(|_| ())))
}

const ENTRIES: u64 = 30;
/// The last of them.
const END: LogPosition = LogPosition::new(ENTRIES, 2);
const VALUE_BYTES: usize = 100 << 10;

struct NextTo(MemoryBackend);

impl StagingPlace for NextTo {
    fn begin(&self) -> mvcc::Result<Box<dyn Backend>> {
        Ok(Box::new(self.0.incoming()))
    }

    fn wipe(&self) -> mvcc::Result<()> {
        self.0.discard_staged()
    }

    fn room(&self) -> u64 {
        1 << 30
    }
}

/// The message of a snapshot of members 1 and 2, as raft-node writes it: of entry `index`, from `from` in
/// term 2.
fn snapshot_message(from: u8, index: u64, term: u8) -> Bytes {
    let index = u8::try_from(index).unwrap();
    assert!(index < 0x80, "a number of one byte");
    Bytes::from(vec![1, 7, 4, from, 2, 0, 0, 0, 0, 0, 0, 0, index, term, 2, 1, 2, 0, 0, 0, 0])
}

fn listener() -> (Listener, u16) {
    let port = testkit::port();
    let listener = bind(&Urls::parse(&format!("http://127.0.0.1:{port}")).unwrap()).unwrap().remove(0);
    (listener, port)
}

impl TestMember {
    /// Waits for the first of its calls that `pick` takes; those before it are dropped.
    async fn next<T>(&mut self, mut pick: impl FnMut(RaftCall) -> Option<T>) -> T {
        let picked = async {
            loop {
                if let Some(picked) = pick(self.seen.recv().await.expect("the recorder lives")) {
                    return picked;
                }
            }
        };
        tokio::time::timeout(PATIENCE, picked).await.expect("it did not come")
    }

    async fn until(&mut self, wanted: &RaftCall) {
        self.next(|call| (call == *wanted).then_some(())).await;
    }

    async fn next_message(&mut self) -> (u64, Bytes) {
        let message =
            |call| if let RaftCall::Message(from, message) = call { Some((from, message)) } else { None };
        self.next(message).await
    }

    async fn until_message(&mut self, text: &str) {
        self.next(|call| matches!(call, RaftCall::Message(_, message) if message == text).then_some(()))
            .await;
    }

    /// Offers a snapshot to a member that listens on `port`.
    fn send_snapshot(&self, senders: &sending::Senders, to: u64, port: u16) {
        let message = Box::new(|applied: LogPosition| snapshot_message(1, applied.index.0, 2));
        let urls = vec![format!("http://127.0.0.1:{port}")];
        senders.send(to, urls, message, &self.inbox, &self.stop);
    }

    fn senders(&self) -> sending::Senders {
        sending::Senders::new(self.peers.context().clone(), self.store_thread.checkpoints())
    }

    async fn next_report(&mut self) -> (u64, SnapshotOutcome) {
        let report =
            |call| if let RaftCall::Snapshot(peer, outcome) = call { Some((peer, outcome)) } else { None };
        self.next(report).await
    }

    /// Sends until it arrives at `to`: what is sent while a link comes up may be lost, and what was sent
    /// before may still arrive.
    async fn reach(&self, to: &mut TestMember, id: u64, text: &'static str) {
        let sending = async {
            loop {
                self.peers.send(id, Lane::Urgent, Bytes::from_static(text.as_bytes()));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = sending => unreachable!("sending has no end"),
            () = to.until_message(text) => {}
        }
    }
}

/// Waits until it is so.
async fn until(mut is_so: impl FnMut() -> bool) {
    let so = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, so).await.expect("it is never so");
}

#[tokio::test]
async fn messages_arrive_in_order_on_each_lane_and_say_who_sent_them() {
    let (listener, port) = listener();
    let ports = [(1, 1), (2, port)];
    let one = member(1, &ports);
    let mut two = member(2, &ports);
    serve(vec![(listener, None)], &two.server, &two.stop);
    for number in 0..100u8 {
        one.peers.send(2, Lane::Bulk, Bytes::from(vec![number; 1000]));
    }
    for number in 0..100u8 {
        assert_eq!(two.next_message().await, (1, Bytes::from(vec![number; 1000])));
    }
    let sent = &one.peers.context().metrics.peers.sent_bytes;
    let received = &two.peers.context().metrics.peers.received_bytes;
    assert_eq!(sent.get_or_create(&To { To: "2".into() }).get(), 100_000);
    assert_eq!(received.get_or_create(&From { From: "1".into() }).get(), 100_000);
    // A message to a member that does not exist is dropped.
    one.peers.send(9, Lane::Urgent, Bytes::from_static(b"x"));
}

#[tokio::test]
async fn a_member_with_an_empty_log_asks_until_a_majority_of_the_others_has_answered() {
    let ((second, port_2), (third, port_3)) = (listener(), listener());
    let ports = [(1, 1), (2, port_2), (3, port_3)];
    let mut one = member(1, &ports);
    let (two, three) = (member(2, &ports), member(3, &ports));
    serve(vec![(second, None)], &two.server, &two.stop);
    let (peers, inbox, stop) = (Arc::clone(&one.peers), Arc::clone(&one.inbox), one.stop.clone());
    let mut asking = tokio::spawn(confirm(peers, inbox, FirstList::OfState, stop));
    // Member 3 accepts connections and does not answer; it begins to when the first round is over.
    let waited = tokio::time::timeout(2 * link::REQUEST_TIMEOUT, &mut asking).await;
    waited.expect_err("one answer of a member that has a term is not enough");
    serve(vec![(third, None)], &three.server, &three.stop);
    tokio::time::timeout(PATIENCE, asking).await.expect("both answer").unwrap();
    let (term, until) = (Term(4), Some(LogPosition::new(1, 4)));
    // A store without a digest is like no other one.
    let wanted = RaftCall::Confirmed(Confirmation::CatchUp { term, until, is_alike: false });
    one.until(&wanted).await;
}

#[tokio::test]
async fn a_message_larger_than_a_batch_arrives() {
    let (listener, port) = listener();
    let ports = [(1, 1), (2, port)];
    let (one, mut two) = (member(1, &ports), member(2, &ports));
    serve(vec![(listener, None)], &two.server, &two.stop);
    let large = Bytes::from(vec![7; 9 << 20]);
    one.peers.send(2, Lane::Bulk, large.clone());
    assert_eq!(two.next_message().await, (1, large));
}

#[tokio::test]
async fn a_peer_that_was_away_is_found_again() {
    let (first, port) = listener();
    let ports = [(1, 1), (2, port)];
    let mut one = member(1, &ports);
    let mut two = member(2, &ports);
    serve(vec![(first, None)], &two.server, &two.stop);
    one.reach(&mut two, 2, "before").await;
    two.stopper.stop();
    one.until(&RaftCall::Unreachable(2)).await;
    let mut again = member(2, &ports);
    let address = Urls::parse(&format!("http://127.0.0.1:{port}")).unwrap();
    serve(bind(&address).unwrap().into_iter().map(|port| (port, None)).collect(), &again.server, &again.stop);
    one.reach(&mut again, 2, "after").await;
}

#[tokio::test]
async fn strangers_are_refused_with_a_reason() {
    let (listener, port) = listener();
    let two = member(2, &[(1, 1), (2, port)]);
    serve(vec![(listener, None)], &two.server, &two.stop);
    let mut client = PeerClient::connect(format!("http://127.0.0.1:{port}")).await.unwrap();
    let hello = |from| Hello { cluster_id: 7, from, to: 2, encoding: ENCODING, ..Hello::default() };
    let good = hello(1);
    let cases = [
        (Hello { cluster_id: 8, ..hello(1) }, "cluster ID mismatch: want 7, got 8"),
        (Hello { to: 3, ..hello(1) }, "member ID mismatch: this is 2, not 3"),
        (hello(9), "9 is not a member of this cluster"),
        (hello(66), "the member has been permanently removed from the cluster"),
        (hello(2), "2 is not a member of this cluster"),
        (Hello { encoding: 99, ..hello(1) }, "message encoding 99 is not 1"),
        (
            Hello { cluster_level: CommandLevel::OWN.0 + 1, ..hello(1) },
            "member 2: this version is too old for the cluster: it knows the commands of level 2, the \
             cluster uses those of level 3; a downgrade is not possible, start the version of the other \
             members",
        ),
    ];
    for (hello, wanted) in cases {
        let status = client.probe(ProbeRequest { hello: Some(hello.clone()) }).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, wanted));
        let batch = MessageBatch {
            hello: Some(hello),
            messages: vec![Bytes::from_static(b"x")],
            ..MessageBatch::default()
        };
        let status = client.messages(tokio_stream::once(batch)).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, wanted));
    }
    let status = client.messages(tokio_stream::once(MessageBatch::default())).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let response = client.probe(ProbeRequest { hello: Some(good) }).await.unwrap().into_inner();
    assert_eq!((response.cluster_id, response.member_id), (7, 2));
}

#[tokio::test]
async fn members_that_are_added_are_dialled_and_one_that_is_removed_is_told() {
    let ((listener, port), (listener_of_two, port_of_two)) = (listener(), listener());
    let mut one = member(1, &[(1, port)]);
    serve(vec![(listener, None)], &one.server, &one.stop);
    let both = [(1, port), (2, port_of_two)];
    let mut two = member(2, &both);
    serve(vec![(listener_of_two, None)], &two.server, &two.stop);
    let known = two.peers.context().roster.members();
    one.peers.set_members(known.to_vec());
    // Members that know each other become active.
    until(|| one.peers.active_since(2).is_some() && two.peers.active_since(1).is_some()).await;
    one.reach(&mut two, 2, "added").await;
    two.reach(&mut one, 1, "back").await;
    assert_eq!(
        one.peers.ask_progress(2, 3).await,
        Some(Progress { matched: LogIndex(3), applied: LogIndex::ZERO, last_index: LogIndex(10) })
    );
    assert_eq!(one.peers.ask_progress(2, 4).await, None);
    // Number 66 was removed: the first member that it greets answers so.
    let gone = member(66, &[(66, 1), (1, port)]);
    tokio::time::timeout(PATIENCE, gone.peers.context().roster.removed()).await.expect("notified to stop");
    assert!(one.peers.context().levels.announced(2).is_some());
    one.peers.set_members(known[..1].to_vec());
    assert!(one.peers.active_since(2).is_none());
    assert_eq!(one.peers.context().levels.announced(2), None, "only listed members are remembered");
}

#[tokio::test]
async fn questions_that_come_often_open_no_connections() {
    let ((listener, port), (listener_of_two, port_of_two)) = (listener(), listener());
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let both = [(1, port), (2, between.local_addr().unwrap().port())];
    let mut two = member(2, &both);
    serve(vec![(listener_of_two, None)], &two.server, &two.stop);
    let one = member(1, &both);
    serve(vec![(listener, None)], &one.server, &one.stop);
    let span = RecountSpan {
        from: Revision::first_of(0),
        to: Revision::first_of(1),
        compacted: 0,
        applied: LogIndex(0),
    };
    let unlinked = one.peers.ask_recount(2, span).await;
    assert_eq!(unlinked, Err("the peer is inactive".to_owned()));
    // One for each lane.
    for _ in 0..2 {
        let (mut near, _) = between.accept().await.unwrap();
        tokio::spawn(async move {
            let mut far = TcpStream::connect(("127.0.0.1", port_of_two)).await.unwrap();
            copy_bidirectional(&mut near, &mut far).await
        });
    }
    until(|| one.peers.active_since(2).is_some()).await;
    one.reach(&mut two, 2, "linked").await;
    for _ in 0..20 {
        assert_eq!(one.peers.ask_recount(2, span).await, Err("digests are not served".to_owned()));
        assert!(one.peers.ask_digest(2, LogIndex(0), LogIndex(1)).await.is_err());
    }
    assert!(tokio::time::timeout(Duration::ZERO, between.accept()).await.is_err(), "no other connection");
    two.stopper.stop();
    until(|| one.peers.active_since(2).is_none()).await;
    assert_eq!(one.peers.ask_recount(2, span).await, unlinked);
}

#[tokio::test]
async fn what_a_member_announced_is_forgotten_when_its_link_breaks() {
    let ((listener, port), (listener_of_two, port_of_two)) = (listener(), listener());
    let ports = [(1, port), (2, port_of_two)];
    let one = member(1, &ports);
    serve(vec![(listener, None)], &one.server, &one.stop);
    let two = member(2, &ports);
    serve(vec![(listener_of_two, None)], &two.server, &two.stop);
    let own = AnnouncedMembers { known: CommandLevel::OWN, cluster: CommandLevel(0) };
    until(|| one.peers.announced(2) == Some(own)).await;
    two.stopper.stop();
    until(|| one.peers.active_since(2).is_none()).await;
    until(|| one.peers.context().levels.announced(2).is_none()).await;
    let again = member(2, &[(1, 1), (2, port_of_two)]);
    let address = Urls::parse(&url(port_of_two)).unwrap();
    serve(bind(&address).unwrap().into_iter().map(|port| (port, None)).collect(), &again.server, &again.stop);
    until(|| one.peers.active_since(2).is_some()).await;
    assert_eq!(one.peers.ask_levels(2).await, Some(own));
    again.stopper.stop();
    until(|| one.peers.active_since(2).is_none()).await;
    assert_eq!(one.peers.ask_levels(2).await, None);
}

#[tokio::test]
async fn a_member_that_the_list_does_not_hold_yet_is_heard_and_answered() {
    let ((listener, port), (listener_of_two, port_of_two)) = (listener(), listener());
    let both = [(1, port), (2, port_of_two)];
    let mut one = member(1, &both);
    serve(vec![(listener, None)], &one.server, &one.stop);
    let mut two = member(2, &[(2, port_of_two), (3, 1)]);
    serve(vec![(listener_of_two, None)], &two.server, &two.stop);
    one.reach(&mut two, 2, "from a member that was added").await;
    two.reach(&mut one, 1, "and the answer").await;
    // It may not ask.
    let mut client = PeerClient::connect(format!("http://127.0.0.1:{port_of_two}")).await.unwrap();
    let hello = Some(one.peers.context().hello(2));
    let refused = client.inquire(InquireRequest { hello }).await.unwrap_err();
    assert_eq!(refused.message(), "1 is not a member of this cluster");
    // The list says more: it is a member, and then it is gone.
    two.peers.set_members(one.peers.context().roster.members().to_vec());
    assert!(!two.peers.is_introduced(1));
    one.reach(&mut two, 2, "from a listed member").await;
}

#[tokio::test]
async fn a_member_is_answered_at_an_address_that_the_list_does_not_hold_yet() {
    let ((listener, port), (listener_of_two, port_of_two)) = (listener(), listener());
    let mut one = member(1, &[(1, port), (2, port_of_two)]);
    serve(vec![(listener, None)], &one.server, &one.stop);
    // Nothing answers at the address that the second member knows.
    let mut two = member(2, &[(1, 1), (2, port_of_two)]);
    serve(vec![(listener_of_two, None)], &two.server, &two.stop);
    one.reach(&mut two, 2, "from a member that has moved").await;
    two.reach(&mut one, 1, "and the answer").await;
}

fn listed_at(id: u64, port: u16) -> FirstMember {
    FirstMember { id, name: format!("m{id}"), peer_urls: vec![url(port)], is_learner: false }
}

#[tokio::test]
async fn a_link_stays_where_a_member_was_until_it_answers_where_the_list_has_it() {
    let ((listener, port), moved_to) = (listener(), testkit::port());
    let ports = [(1, 1), (2, port)];
    let (mut one, mut two) = (member(1, &ports), member(2, &ports));
    serve(vec![(listener, None)], &two.server, &two.stop);
    one.reach(&mut two, 2, "before").await;
    until(|| one.peers.active_since(2).is_some()).await;
    let active_since = one.peers.active_since(2);
    while one.seen.try_recv().is_ok() {}
    for listed in [2, 3, moved_to] {
        one.peers.set_members(vec![listed_at(1, 1), listed_at(2, listed)]);
        one.peers.send(2, Lane::Bulk, Bytes::from(format!("listed at {listed}")));
        let text = format!("listed at {listed}");
        tokio::select! {
            () = two.until_message(&text) => {}
            () = one.until(&RaftCall::Unreachable(2)) => panic!("the link has ended"),
        }
    }
    assert_eq!((one.seen.try_recv().ok(), one.peers.active_since(2)), (None, active_since));
    assert!(one.peers.ask_progress(2, 3).await.is_some(), "asked where it is");
    // The connection breaks, and the member is still where it was.
    two.stopper.stop();
    one.until(&RaftCall::Unreachable(2)).await;
    let mut again = member(2, &ports);
    let address = Urls::parse(&url(port)).unwrap();
    serve(bind(&address).unwrap().into_iter().map(|port| (port, None)).collect(), &again.server, &again.stop);
    one.reach(&mut again, 2, "still there").await;
    // It is at its new address as well, and then only there.
    let mut moved = member(2, &ports);
    let address = Urls::parse(&url(moved_to)).unwrap();
    serve(bind(&address).unwrap().into_iter().map(|port| (port, None)).collect(), &moved.server, &moved.stop);
    one.reach(&mut moved, 2, "moved").await;
}

#[tokio::test]
async fn a_member_that_all_lists_have_elsewhere_is_answered_where_it_listens() {
    let ((listener, port), (listener_of_two, port_of_two)) = (listener(), listener());
    // A wrong address, or one at which the member is not started yet.
    let list = vec![listed_at(1, 1), listed_at(2, port_of_two)];
    let roster = Roster::new(1, list.clone(), Box::new(|_| false));
    let mut one = member_advertising(1, list, roster, vec![url(port)]);
    serve(vec![(listener, None)], &one.server, &one.stop);
    let mut two = member(2, &[(1, 1), (2, port_of_two)]);
    serve(vec![(listener_of_two, None)], &two.server, &two.stop);
    one.reach(&mut two, 2, "from a member that the list has elsewhere").await;
    two.reach(&mut one, 1, "and the answer").await;
    // The list is corrected to another wrong one.
    two.peers.set_members(vec![listed_at(1, 2), listed_at(2, port_of_two)]);
    two.reach(&mut one, 1, "still").await;
}

#[tokio::test]
async fn a_member_that_was_removed_is_notified_before_it_says_anything() {
    let ((listener, port), is_removed) = (listener(), Arc::new(AtomicBool::new(false)));
    let list = vec![listed_at(1, port), listed_at(2, 1)];
    let was_removed = Arc::clone(&is_removed);
    let roster = Roster::new(1, list.clone(), Box::new(move |_| was_removed.load(Ordering::SeqCst)));
    let mut one = member_with(1, list.clone(), roster);
    serve(vec![(listener, None)], &one.server, &one.stop);
    let two = member(2, &[(1, port), (2, 1)]);
    two.reach(&mut one, 1, "before").await;
    is_removed.store(true, Ordering::SeqCst);
    one.peers.set_members(list[..1].to_vec());
    // Earlier than the next probe, which is due every five seconds.
    let notified = tokio::time::timeout(Duration::from_secs(3), two.peers.context().roster.removed());
    notified.await.expect("it hears of it at once");
}

#[tokio::test]
async fn who_asks_for_the_members_goes_on_after_a_member_with_an_old_list() {
    let ((listener, port), (listener_of_two, port_of_two)) = (listener(), listener());
    let one = member(1, &[(1, port), (2, port_of_two)]);
    serve(vec![(listener, None)], &one.server, &one.stop);
    let two = member(2, &[(1, port), (2, port_of_two), (9, 1)]);
    serve(vec![(listener_of_two, None)], &two.server, &two.stop);
    let urls = [url(1), url(port), url(port_of_two)];
    for (wanted, found) in [(9, 3), (2, 2), (8, 2)] {
        let lists = |running: &RunningCluster| running.members.iter().any(|member| member.id == wanted);
        let running = running_cluster(&Dialer::default(), &urls, lists).await.expect("two members answer");
        assert_eq!(running.members.len(), found, "the list that has {wanted}, or else the first");
    }
    for (id, wanted) in [(9, Some(3)), (8, None)] {
        let known = [(1, port), (2, port_of_two), (id, 1)];
        let starting = member(id, &known);
        let members = link::members_now(&Dialer::default(), &starting.peers.context().identity).await;
        assert_eq!(members.map(|members| members.len()), wanted, "a list without {id} is older than its own");
    }
}

#[tokio::test]
async fn a_joiner_whose_list_has_no_voter_left_takes_the_list_of_one_that_dials_it() {
    let entry = |id, port, is_learner| {
        let peer_urls = vec![url(port)];
        FirstMember { id, name: String::new(), peer_urls, is_learner }
    };
    // The leader is not in the list, or was promoted since.
    for is_listed in [false, true] {
        let ((listener, port), (listener_of_four, port_of_four)) = (listener(), listener());
        let leader = member(3, &[(3, port), (4, port_of_four)]);
        serve(vec![(listener, None)], &leader.server, &leader.stop);
        let mut list = vec![entry(1, 1, false), entry(4, port_of_four, false)];
        list.extend(is_listed.then(|| entry(3, port, true)));
        let mut joiner = member_with(4, list.clone(), Roster::new(4, list, Box::new(|_| false)));
        serve(vec![(listener_of_four, None)], &joiner.server, &joiner.stop);
        let (peers, inbox) = (Arc::clone(&joiner.peers), Arc::clone(&joiner.inbox));
        tokio::spawn(confirm(peers, inbox, FirstList::Given, joiner.stop.clone()));
        let now = Membership { voters: vec![3, 4], learners: Vec::new() };
        joiner.until(&RaftCall::PeerMembership(now)).await;
    }
}

#[tokio::test]
async fn a_stranger_that_no_list_names_stays_one() {
    let (listener, port) = listener();
    let two = member(2, &[(2, port), (3, 1)]);
    serve(vec![(listener, None)], &two.server, &two.stop);
    let (listener_of_nine, port_of_nine) = self::listener();
    // It knows this cluster, but its own list does not have the member that it greets.
    let nine = member(9, &[(3, port), (9, port_of_nine)]);
    serve(vec![(listener_of_nine, None)], &nine.server, &nine.stop);
    let urls = vec![format!("http://127.0.0.1:{port_of_nine}")];
    two.peers.introduce(9, urls).await;
    assert!(!two.peers.is_introduced(9));
    two.peers.introduce(9, vec!["http://127.0.0.1:1".to_owned()]).await;
    assert!(!two.peers.is_introduced(9), "nothing answers there");
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

#[tokio::test]
async fn a_claim_of_an_address_where_another_member_answers_counts_for_nothing() {
    let (listener, port) = listener();
    // Number 3 has taken the address over that 9 had, and its list has 9 there still.
    let three = member(3, &[(2, 1), (3, 1), (9, port)]);
    serve(vec![(listener, None)], &three.server, &three.stop);
    let two = member(2, &[(2, 1), (3, 1)]);
    two.peers.introduce(9, vec![url(port)]).await;
    assert!(!two.peers.is_introduced(9), "messages to 9 would go to 3");
    // The same list, given by 9 itself.
    let (listener, port) = self::listener();
    let nine = member(9, &[(2, 1), (3, 1), (9, port)]);
    serve(vec![(listener, None)], &nine.server, &nine.stop);
    two.peers.introduce(9, vec![url(port)]).await;
    assert!(two.peers.is_introduced(9));
}

#[tokio::test]
async fn an_introduction_that_the_list_overtakes_while_it_is_checked_is_none() {
    let (listener, port) = listener();
    let gone = member(66, &[(2, 1), (3, 1), (66, port)]);
    serve(vec![(listener, None)], &gone.server, &gone.stop);
    let two = member(2, &[(2, 1), (3, 1)]);
    two.peers.introduce(66, vec![url(port)]).await;
    assert!(!two.peers.is_introduced(66), "removed meanwhile");
    let (listener, port) = self::listener();
    let list = [(2, 1), (3, 1), (9, port)];
    let nine = member(9, &list);
    serve(vec![(listener, None)], &nine.server, &nine.stop);
    let two = member(2, &list);
    two.peers.introduce(9, vec![url(port)]).await;
    assert!(!two.peers.is_introduced(9), "listed there meanwhile");
    // It is elsewhere for a while, does not answer where it is listed, and this list does not hear of that.
    let ((listener, port), (other, elsewhere)) = (self::listener(), self::listener());
    let list = [(2, 1), (3, 1), (9, port)];
    let two = member(2, &list);
    let moved = member(9, &[(2, 1), (3, 1), (9, elsewhere)]);
    serve(vec![(other, None)], &moved.server, &moved.stop);
    two.peers.introduce(9, vec![url(elsewhere)]).await;
    assert!(two.peers.is_introduced(9));
    let nine = member(9, &list);
    serve(vec![(listener, None)], &nine.server, &nine.stop);
    two.peers.introduce(9, vec![url(port)]).await;
    assert!(!two.peers.is_introduced(9), "back where it is listed");
}

#[tokio::test]
async fn a_member_alone_in_its_list_is_introduced_to_others_only_when_its_log_has_them() {
    let (listener, port) = listener();
    let nine = member(9, &[(2, 1), (9, port)]);
    serve(vec![(listener, None)], &nine.server, &nine.stop);
    let alone = FirstMember { id: 2, name: "m2".to_owned(), peer_urls: vec![url(1)], is_learner: false };
    for (lacks_others, is_introduced) in [(false, false), (true, true)] {
        let mut roster = Roster::new(2, vec![alone.clone()], Box::new(|_| false));
        if lacks_others {
            roster = roster.lacking_others();
        }
        let two = member_with(2, vec![alone.clone()], roster);
        two.peers.introduce(9, vec![url(port)]).await;
        assert_eq!(two.peers.is_introduced(9), is_introduced, "lacks others: {lacks_others}");
        // The list that it receives decides.
        two.peers.set_members(vec![alone.clone()]);
        assert!(!two.peers.context().roster.lacks_others());
    }
}

/// A port that accepts and says nothing, as long as the listener is kept.
fn silent_port() -> (std::net::TcpListener, u16) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Claims addresses that never answer, from a separate address, until it is dropped.
async fn claim_silent_addresses(port: u16, silent: u16, have_places: Arc<tokio::sync::Notify>) {
    let from = Some(std::net::IpAddr::from([127, 0, 0, 2]));
    let endpoint = tonic::transport::Endpoint::from_shared(url(port)).unwrap().local_address(from);
    let mut client = PeerClient::new(endpoint.connect().await.unwrap());
    for (number, id) in (0x100..).flat_map(|id| [1, 3, id]).enumerate() {
        if number == 12 {
            have_places.notify_one();
        }
        let peer_urls = vec![format!("{}/{number}", url(silent)); 8].join(",");
        let hello =
            Hello { cluster_id: 7, from: id, to: 2, encoding: ENCODING, peer_urls, ..Hello::default() };
        drop(client.probe(ProbeRequest { hello: Some(hello) }).await);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn claims_that_come_from_silent_hosts_delay_no_member_that_has_moved() {
    let ((listener, port), (listener_of_two, port_of_two)) = (listener(), listener());
    let mut two = member(2, &[(1, 1), (2, port_of_two), (3, 1)]);
    serve(vec![(listener_of_two, None)], &two.server, &two.stop);
    let ((_silent, silent_port), have_places) = (silent_port(), Arc::new(tokio::sync::Notify::new()));
    let liar = tokio::spawn(claim_silent_addresses(port_of_two, silent_port, Arc::clone(&have_places)));
    have_places.notified().await;
    let mut one = member(1, &[(1, port), (2, port_of_two)]);
    serve(vec![(listener, None)], &one.server, &one.stop);
    one.reach(&mut two, 2, "from a member that has moved").await;
    two.reach(&mut one, 1, "and the answer").await;
    assert!(!liar.is_finished());
    liar.abort();
    // Ids of strangers are no labels.
    let mut text = String::new();
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register("sent", "", two.peers.context().metrics.peers.send_failures.clone());
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(text.contains("To=\"1\"") && !text.contains("To=\"10"), "{text}");
}

#[tokio::test]
async fn a_member_that_answers_where_it_is_listed_is_dialled_nowhere_else() {
    let ((listener, port), (elsewhere, port_elsewhere)) = (listener(), listener());
    let nine = member(9, &[(2, 1), (3, 1), (9, port)]);
    serve(vec![(listener, None)], &nine.server, &nine.stop);
    // A server that says of itself what the true member would say.
    let liar = member(9, &[(2, 1), (3, 1), (9, port_elsewhere)]);
    serve(vec![(elsewhere, None)], &liar.server, &liar.stop);
    let two = member(2, &[(2, 1), (3, 1), (9, port)]);
    two.peers.introduce(9, vec![url(port_elsewhere)]).await;
    assert!(!two.peers.is_introduced(9));
    nine.stopper.stop();
    let moved = async {
        while !two.peers.is_introduced(9) {
            two.peers.introduce(9, vec![url(port_elsewhere)]).await;
        }
    };
    tokio::time::timeout(PATIENCE, moved).await.expect("nothing answers at the old address any more");
}

#[tokio::test]
async fn a_label_of_a_member_that_the_list_does_not_hold_is_unknown() {
    let ((listener, port), (listener_of_two, port_of_two)) = (listener(), listener());
    let one = member(1, &[(1, port), (2, port_of_two)]);
    serve(vec![(listener, None)], &one.server, &one.stop);
    let mut two = member(2, &[(2, port_of_two), (3, 1)]);
    serve(vec![(listener_of_two, None)], &two.server, &two.stop);
    one.reach(&mut two, 2, "from a member that was added").await;
    let received = &two.peers.context().metrics.peers.received_bytes;
    assert_eq!(received.get_or_create(&From { From: "1".into() }).get(), 0);
    assert!(received.get_or_create(&From { From: "unknown".into() }).get() > 0);
}

#[tokio::test]
async fn a_stranger_that_was_introduced_cannot_end_this_member() {
    let (listener, port) = listener();
    // It says that 66 was removed.
    let nine = member(9, &[(2, 1), (3, 1), (9, port)]);
    serve(vec![(listener, None)], &nine.server, &nine.stop);
    let two = member(66, &[(66, 1), (3, 1)]);
    assert!(two.peers.hold(9, &[url(port)]));
    let ended = two.peers.context().roster.removed();
    tokio::time::timeout(Duration::from_secs(2), ended).await.expect_err("ended by a stranger");
}

#[tokio::test]
async fn garbage_on_the_peer_port_ends_its_own_connection_only() {
    let (listener, port) = listener();
    let ports = [(1, 1), (2, port)];
    let (one, mut two) = (member(1, &ports), member(2, &ports));
    serve(vec![(listener, None)], &two.server, &two.stop);
    let garbage: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 4096],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\xff\xff\xff\xff\xff",
        b"PRI * but not really",
    ];
    for bytes in garbage {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        drop(stream.write_all(bytes).await);
        let mut answer = Vec::new();
        drop(tokio::time::timeout(Duration::from_millis(200), stream.read_to_end(&mut answer)).await);
        assert!(!answer.starts_with(b"HTTP/1.1 200"));
    }
    one.reach(&mut two, 2, "still here").await;
}

#[tokio::test]
async fn requests_of_clients_are_refused_on_the_peer_port() {
    let (listener, port) = listener();
    let two = member(2, &[(1, 1), (2, port)]);
    serve(vec![(listener, None)], &two.server, &two.stop);
    let channel = tonic::transport::Endpoint::from_shared(url(port)).unwrap().connect().await.unwrap();
    let mut kv = api::etcdserverpb::kv_client::KvClient::new(channel);
    let put = api::etcdserverpb::PutRequest { key: "k".into(), ..Default::default() };
    let refused = kv.put(put).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented, "{refused}");
}

/// Opens connections that send `bytes` and then nothing.
async fn silent_connections(port: u16, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        streams.push(stream);
    }
    streams
}

#[tokio::test]
async fn connections_that_never_greet_do_not_shut_the_port() {
    let preface: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for said in [&b"P"[..], &preface[..20], preface] {
        let (listener, port) = listener();
        let ports = [(1, 1), (2, port)];
        let mut two = member(2, &ports);
        serve(vec![(listener, None)], &two.server, &two.stop);
        let strangers = silent_connections(port, 300, said).await;
        let one = member(1, &ports);
        one.reach(&mut two, 2, "admitted").await;
        drop(strangers);
    }
}

#[tokio::test]
async fn a_connection_that_never_greets_is_closed() {
    let (listener, port) = listener();
    let two = member(2, &[(1, 1), (2, port)]);
    serve(vec![(listener, None)], &two.server, &two.stop);
    let mut streams = silent_connections(port, 3, b"PRI * HTTP").await;
    for stream in &mut streams {
        let mut answer = Vec::new();
        let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        assert!(closed.is_ok(), "still open");
    }
}

#[tokio::test]
async fn a_stranger_cannot_send_more_than_a_hello_needs() {
    use tokio_stream::StreamExt as _;
    let (listener, port) = listener();
    let two = member(2, &[(1, 1), (2, port)]);
    serve(vec![(listener, None)], &two.server, &two.stop);
    let mut client = PeerClient::connect(format!("http://127.0.0.1:{port}")).await.unwrap();
    // A megabyte before the hello can be judged: its last byte never arrives, so the stream ends with the
    // deadline.
    let batch = MessageBatch { messages: vec![Bytes::from(vec![0; 1 << 20])], ..MessageBatch::default() };
    let endless = tokio_stream::once(batch).chain(tokio_stream::pending());
    let status = client.messages(endless).await.unwrap_err();
    assert_ne!(status.code(), Code::InvalidArgument, "the whole message was read: {status}");
}

#[tokio::test]
async fn a_snapshot_is_durable_before_raft_hears_of_it() {
    let (listener, port) = listener();
    let ports = [(1, 1), (2, port)];
    let (mut one, mut two) = (member(1, &ports), member(2, &ports));
    serve(vec![(listener, None)], &two.server, &two.stop);
    let senders = one.senders();
    one.send_snapshot(&senders, 2, port);
    assert_eq!(two.next_message().await, (1, snapshot_message(1, ENTRIES, 2)));
    assert!(two.incoming.holds(END));
    assert_eq!(one.next_report().await, (2, SnapshotOutcome::Sent));
    // It waits to be installed, so a second one is refused; one that is not wanted makes room.
    one.send_snapshot(&senders, 2, port);
    assert_eq!(one.next_report().await, (2, SnapshotOutcome::Failed));
    two.incoming.discard_soon(END);
    one.send_snapshot(&senders, 2, port);
    assert_eq!(one.next_report().await, (2, SnapshotOutcome::Sent));
}

#[tokio::test]
async fn a_corrupt_state_is_not_sent_before_it_was_replaced() {
    let (listener, port) = listener();
    let (mut one, two) = (member(1, &[(1, 1), (2, port)]), member(2, &[(1, 1), (2, port)]));
    serve(vec![(listener, None)], &two.server, &two.stop);
    let (senders, fence) = (one.senders(), Arc::clone(&one.peers.context().fence));
    fence.set(true);
    one.send_snapshot(&senders, 2, port);
    assert_eq!(one.next_report().await, (2, SnapshotOutcome::Failed));
    fence.note_installed(LogIndex(7));
    one.send_snapshot(&senders, 2, port);
    assert_eq!(one.next_report().await, (2, SnapshotOutcome::Sent));

    // Nor to its end, once it is known to be corrupt.
    fence.set(false);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    one.send_snapshot(&senders, 2, silent.local_addr().unwrap().port());
    let _connected = tokio::task::spawn_blocking(move || silent.accept()).await.unwrap().unwrap();
    fence.set(true);
    assert_eq!(one.next_report().await, (2, SnapshotOutcome::Failed));
}

#[tokio::test]
async fn a_peer_that_goes_away_in_the_middle_of_a_snapshot_is_a_failure() {
    let (listener, port) = listener();
    let ports = [(1, 1), (2, port)];
    let (mut one, two) = (member(1, &ports), member(2, &ports));
    serve(vec![(listener, None)], &two.server, &two.stop);
    let senders = one.senders();
    one.send_snapshot(&senders, 2, port);
    tokio::time::sleep(Duration::from_millis(30)).await;
    two.stopper.stop();
    assert_eq!(one.next_report().await, (2, SnapshotOutcome::Failed));
    assert!(!two.incoming.holds(END));
    // The peer port is closed.
    one.send_snapshot(&senders, 2, 1);
    assert_eq!(one.next_report().await, (2, SnapshotOutcome::Failed));
}

#[tokio::test]
async fn a_new_offer_takes_the_place_of_the_stream_before_it() {
    let (listener, port) = listener();
    let ports = [(1, 1), (2, port)];
    let (mut one, mut two) = (member(1, &ports), member(2, &ports));
    serve(vec![(listener, None)], &two.server, &two.stop);
    let senders = one.senders();
    for _ in 0..3 {
        one.send_snapshot(&senders, 2, port);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(one.next_report().await, (2, SnapshotOutcome::Sent));
    assert_eq!(two.next_message().await, (1, snapshot_message(1, ENTRIES, 2)));
    assert_eq!(one.seen.try_recv().ok(), None, "streams that were replaced report nothing");
}

#[tokio::test]
async fn a_batch_of_too_many_messages_ends_its_stream() {
    let (listener, port) = listener();
    let mut two = member(2, &[(1, 1), (2, port)]);
    serve(vec![(listener, None)], &two.server, &two.stop);
    let mut client = PeerClient::connect(format!("http://127.0.0.1:{port}"))
        .await
        .unwrap()
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let hello = Hello { cluster_id: 7, from: 1, to: 2, encoding: ENCODING, ..Hello::default() };
    let first = MessageBatch { hello: Some(hello), ..MessageBatch::default() };
    let batch = |count| MessageBatch { messages: vec![Bytes::new(); count], ..MessageBatch::default() };
    let most = batch(MessageBatch::MESSAGES_MAX);
    let sent = client.messages(tokio_stream::iter([first.clone(), most])).await;
    sent.expect("as many as fit are taken");
    let mut taken = 0;
    while taken < MessageBatch::MESSAGES_MAX {
        assert_eq!(two.next_message().await, (1, Bytes::new()));
        taken += 1;
    }
    let flood = batch(MESSAGE_BYTES_MAX / 2 - 1);
    let refused = client.messages(tokio_stream::iter([first, flood])).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, "too many messages in a batch"));
    while let Ok(seen) = two.seen.try_recv() {
        assert!(matches!(seen, RaftCall::Unreachable(_)), "{seen:?}");
    }
}

#[tokio::test]
async fn founders_with_unlike_first_states_exchange_no_messages() {
    let (listener, port) = listener();
    let mut two = member(2, &[(1, 1), (2, port)]);
    serve(vec![(listener, None)], &two.server, &two.stop);
    let mut client = PeerClient::connect(format!("http://127.0.0.1:{port}")).await.unwrap();
    // The receiver is a founder without an imported store, or has a leader's state.
    for (receiver, sender, imported, is_accepted) in
        [(true, true, 0, true), (true, true, 9, false), (true, false, 9, true), (false, true, 9, true)]
    {
        two.is_founder.store(receiver, Relaxed);
        let hello = Hello { imported, is_founder: sender, ..two.peers.context().hello(2) };
        let hello = Some(Hello { from: 1, ..hello });
        let messages = vec![Bytes::from_static(b"x")];
        let batch = MessageBatch { hello: hello.clone(), messages, ..MessageBatch::default() };
        let sent = client.messages(tokio_stream::once(batch)).await.map_err(|status| status.code());
        assert_eq!(sent.map(drop), if is_accepted { Ok(()) } else { Err(Code::FailedPrecondition) });
        if is_accepted {
            assert_eq!(two.next_message().await, (1, Bytes::from_static(b"x")));
        }
        let part = SnapshotPart { hello, ..SnapshotPart::default() };
        let code = client.snapshot(tokio_stream::once(part)).await.unwrap_err().code();
        assert_eq!(code == Code::FailedPrecondition, !is_accepted, "a store: {code}");
    }
    while let Ok(seen) = two.seen.try_recv() {
        assert!(matches!(seen, RaftCall::Unreachable(_)), "{seen:?}");
    }
}

#[tokio::test]
async fn a_stranger_sends_no_snapshot() {
    let (listener, port) = listener();
    let two = member(2, &[(1, 1), (2, port), (3, 1)]);
    serve(vec![(listener, None)], &two.server, &two.stop);
    let mut client = PeerClient::connect(format!("http://127.0.0.1:{port}")).await.unwrap();
    let hello = Some(Hello { cluster_id: 8, from: 1, to: 2, encoding: ENCODING, ..Hello::default() });
    let part = SnapshotPart { hello, chunk: Bytes::from_static(b"x"), ..SnapshotPart::default() };
    let status = client.snapshot(tokio_stream::once(part)).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let hello = Some(Hello { cluster_id: 7, from: 1, to: 2, encoding: ENCODING, ..Hello::default() });
    for (message, code) in [
        (Bytes::new(), Code::InvalidArgument),
        (snapshot_message(2, ENTRIES, 2), Code::InvalidArgument),
        (snapshot_message(1, ENTRIES, 2), Code::DataLoss),
    ] {
        let part = SnapshotPart { hello: hello.clone(), message, chunk: Bytes::from_static(b"x"), bytes: 0 };
        let status = client.snapshot(tokio_stream::once(part)).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
    }
    // A member that does not lead.
    let hello_of_3 = Some(Hello { from: 3, ..hello.clone().unwrap() });
    let message = snapshot_message(3, ENTRIES, 2);
    let part = SnapshotPart { hello: hello_of_3, message, ..SnapshotPart::default() };
    let status = client.snapshot(tokio_stream::once(part)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    // On a lane there is no store that it could belong to.
    let batch =
        MessageBatch { hello, messages: vec![snapshot_message(1, ENTRIES, 2)], ..MessageBatch::default() };
    let status = client.messages(tokio_stream::once(batch)).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
}

#[tokio::test]
async fn raft_hears_of_no_snapshot_that_its_store_does_not_reach() {
    let (listener, port) = listener();
    let ports = [(1, 1), (2, port)];
    let (mut one, mut two) = (member(1, &ports), member(2, &ports));
    serve(vec![(listener, None)], &two.server, &two.stop);
    let senders = one.senders();
    for (index, term) in [(ENTRIES + 1, 2), (ENTRIES - 1, 2), (ENTRIES, 1)] {
        let message = Box::new(move |_: LogPosition| snapshot_message(1, index, term));
        let urls = vec![format!("http://127.0.0.1:{port}")];
        senders.send(2, urls, message, &one.inbox, &one.stop);
        assert_eq!(one.next_report().await, (2, SnapshotOutcome::Failed), "{index} of term {term}");
        assert!(!two.incoming.holds(END));
    }
    one.send_snapshot(&senders, 2, port);
    assert_eq!(two.next_message().await, (1, snapshot_message(1, ENTRIES, 2)), "and nothing before it");
}

#[tokio::test]
async fn a_sender_that_panics_is_a_failure() {
    let (listener, port) = listener();
    let ports = [(1, 1), (2, port)];
    let (mut one, two) = (member(1, &ports), member(2, &ports));
    serve(vec![(listener, None)], &two.server, &two.stop);
    let message = Box::new(|_: LogPosition| -> Bytes { panic!("a fault in the sender") });
    let urls = vec![format!("http://127.0.0.1:{port}")];
    let senders = one.senders();
    senders.send(2, urls, message, &one.inbox, &one.stop);
    assert_eq!(one.next_report().await, (2, SnapshotOutcome::Failed));
}
