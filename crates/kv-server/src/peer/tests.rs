//! Two members over real sockets, and what strangers get.

use std::sync::Mutex;
use std::time::Duration;

use api::peer::peer_client::PeerClient;
use api::peer::{Hello, MessageBatch, ProbeRequest, SnapshotPart};
use mvcc::{Applied, Backend, MemoryBackend};
use raft_node::{Lane, Transport};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tonic::Code;

use super::*;
use crate::identity::{FORMAT, FirstMember};
use crate::incoming::{Incoming, Place};
use crate::listen::bind;
use crate::metrics::{From, To};
use crate::shutdown::{self, Stop, Stopper};
use crate::store_thread::StoreThread;
use crate::url::Urls;

/// What reached a member's Raft.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Message(u64, Bytes),
    Unreachable(u64),
    Snapshot(u64, SnapshotOutcome),
}

struct Recorder(Mutex<mpsc::UnboundedSender<Seen>>);

impl Inbox for Recorder {
    fn receive(&self, from: u64, message: Bytes) {
        drop(self.0.lock().unwrap().send(Seen::Message(from, message)));
    }

    fn report_unreachable(&self, peer: u64) {
        drop(self.0.lock().unwrap().send(Seen::Unreachable(peer)));
    }

    fn report_snapshot(&self, peer: u64, outcome: SnapshotOutcome) {
        drop(self.0.lock().unwrap().send(Seen::Snapshot(peer, outcome)));
    }

    fn commit(&self) -> u64 {
        u64::MAX
    }
}

struct TestMember {
    peers: Arc<Peers>,
    seen: mpsc::UnboundedReceiver<Seen>,
    server: PeerServer,
    incoming: Incoming,
    inbox: Arc<dyn Inbox>,
    store_thread: StoreThread,
    stop: Stop,
    stopper: Stopper,
}

fn member(id: u64, ports: &[(u64, u16)]) -> TestMember {
    let members = ports
        .iter()
        .map(|(id, port)| FirstMember {
            id: *id,
            name: format!("m{id}"),
            peer_urls: vec![format!("http://127.0.0.1:{port}")],
        })
        .collect();
    let identity = Identity { format: FORMAT, cluster_id: 7, member_id: id, name: format!("m{id}"), members };
    let context = Context { identity: Arc::new(identity), metrics: Arc::default() };
    let (store_thread, incoming) = store();
    let peers = Arc::new(Peers::new(context, store_thread.checkpoints()));
    let (sender, seen) = mpsc::unbounded_channel();
    let inbox: Arc<dyn Inbox> = Arc::new(Recorder(Mutex::new(sender)));
    let (stopper, stop) = shutdown::stop();
    peers.connect(Arc::clone(&inbox), &stop);
    let server =
        PeerServer::new(Arc::clone(&peers), Arc::clone(&inbox), incoming.clone(), Arc::new(Vec::new));
    TestMember { peers, seen, server, incoming, inbox, store_thread, stop, stopper }
}

/// A store with some megabytes in a checkpoint, and a place beside it.
fn store() -> (StoreThread, Incoming) {
    let home = MemoryBackend::new();
    let (mut writer, store, mut maintainer) =
        mvcc::open(Box::new(home.clone()), mvcc::Options::default()).unwrap();
    for index in 1..=ENTRIES {
        let mut revision = writer.begin();
        // Nothing that could be compressed: the stream shall take its time.
        let mut value = vec![0; VALUE_BYTES];
        StdRng::seed_from_u64(index).fill(&mut value[..]);
        revision.put(format!("k{index}").as_bytes(), &value, 0);
        revision.finish();
        writer.end_entry(Applied { index, term: 2 }).unwrap();
    }
    maintainer.persist().unwrap();
    let thread = StoreThread::start(maintainer, store, 1000, Arc::default(), |_| ()).unwrap();
    (thread, Incoming::new(Box::new(Beside(home)), Arc::default(), Arc::new(|_| ())))
}

const ENTRIES: u64 = 30;
const VALUE_BYTES: usize = 100 << 10;

struct Beside(MemoryBackend);

impl Place for Beside {
    fn begin(&self) -> mvcc::Result<Box<dyn Backend>> {
        Ok(Box::new(self.0.incoming()))
    }

    fn wipe(&self) -> mvcc::Result<()> {
        self.0.discard_staged()
    }
}

fn listener() -> (TcpListener, u16) {
    let listener = bind(&Urls::parse("http://127.0.0.1:0").unwrap()).unwrap().remove(0);
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

impl TestMember {
    async fn next_message(&mut self) -> (u64, Bytes) {
        loop {
            let seen = tokio::time::timeout(Duration::from_secs(10), self.seen.recv()).await;
            if let Seen::Message(from, message) = seen.expect("nothing came").expect("the recorder lives") {
                return (from, message);
            }
        }
    }

    /// Offers a snapshot to a member that listens on `port`.
    fn send_snapshot(&self, senders: &sending::Senders, to: u64, port: u16) {
        let message = Box::new(|applied: Applied| Bytes::from(format!("up to {}", applied.index)));
        let urls = vec![format!("http://127.0.0.1:{port}")];
        senders.send(to, urls, message, &self.inbox, &self.stop);
    }

    fn senders(&self) -> sending::Senders {
        sending::Senders::new(self.peers.context().clone(), self.store_thread.checkpoints())
    }

    async fn next_report(&mut self) -> (u64, SnapshotOutcome) {
        loop {
            let seen = tokio::time::timeout(Duration::from_secs(20), self.seen.recv()).await;
            if let Seen::Snapshot(peer, outcome) = seen.expect("nothing came").expect("the recorder lives") {
                return (peer, outcome);
            }
        }
    }

    /// Sends until something arrives at `to`: what is sent while a link comes up may be lost.
    async fn reach(&self, to: &mut TestMember, id: u64, text: &'static str) {
        let sending = async {
            loop {
                self.peers.send(id, Lane::Urgent, Bytes::from_static(text.as_bytes()));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = sending => unreachable!("sending has no end"),
            (_, message) = to.next_message() => assert_eq!(message, text),
        }
    }
}

#[tokio::test]
async fn messages_arrive_in_order_on_each_lane_and_say_who_sent_them() {
    let (listener, port) = listener();
    let ports = [(1, 1), (2, port)];
    let one = member(1, &ports);
    let mut two = member(2, &ports);
    serve(vec![listener], &two.server, &two.stop);
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
    // A member that does not exist is nobody's problem.
    one.peers.send(9, Lane::Urgent, Bytes::from_static(b"x"));
}

#[tokio::test]
async fn a_message_larger_than_a_batch_arrives() {
    let (listener, port) = listener();
    let ports = [(1, 1), (2, port)];
    let (one, mut two) = (member(1, &ports), member(2, &ports));
    serve(vec![listener], &two.server, &two.stop);
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
    serve(vec![first], &two.server, &two.stop);
    one.reach(&mut two, 2, "before").await;
    two.stopper.stop();
    let away = tokio::time::timeout(Duration::from_secs(10), async {
        while one.seen.recv().await != Some(Seen::Unreachable(2)) {}
    });
    away.await.expect("nobody noticed that the peer is away");
    let mut again = member(2, &ports);
    let address = Urls::parse(&format!("http://127.0.0.1:{port}")).unwrap();
    serve(bind(&address).unwrap(), &again.server, &again.stop);
    one.reach(&mut again, 2, "after").await;
}

#[tokio::test]
async fn strangers_are_refused_with_a_reason() {
    let (listener, port) = listener();
    let two = member(2, &[(1, 1), (2, port)]);
    serve(vec![listener], &two.server, &two.stop);
    let mut client = PeerClient::connect(format!("http://127.0.0.1:{port}")).await.unwrap();
    let good = Hello { cluster_id: 7, from: 1, to: 2, encoding: ENCODING };
    let cases = [
        (Hello { cluster_id: 8, ..good }, "cluster ID mismatch: want 7, got 8"),
        (Hello { to: 3, ..good }, "member ID mismatch: this is 2, not 3"),
        (Hello { from: 9, ..good }, "9 is not a member of this cluster"),
        (Hello { from: 2, ..good }, "2 is not a member of this cluster"),
        (Hello { encoding: 99, ..good }, "message encoding 99 is not 1"),
    ];
    for (hello, wanted) in cases {
        let status = client.probe(ProbeRequest { hello: Some(hello) }).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, wanted));
        let batch = MessageBatch { hello: Some(hello), messages: vec![Bytes::from_static(b"x")] };
        let status = client.messages(tokio_stream::once(batch)).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, wanted));
    }
    let status = client.messages(tokio_stream::once(MessageBatch::default())).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let response = client.probe(ProbeRequest { hello: Some(good) }).await.unwrap().into_inner();
    assert_eq!((response.cluster_id, response.member_id), (7, 2));
}

#[tokio::test]
async fn garbage_on_the_peer_port_ends_its_own_connection_only() {
    let (listener, port) = listener();
    let ports = [(1, 1), (2, port)];
    let (one, mut two) = (member(1, &ports), member(2, &ports));
    serve(vec![listener], &two.server, &two.stop);
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
async fn a_snapshot_is_durable_before_raft_hears_of_it() {
    let (listener, port) = listener();
    let ports = [(1, 1), (2, port)];
    let (mut one, mut two) = (member(1, &ports), member(2, &ports));
    serve(vec![listener], &two.server, &two.stop);
    let senders = one.senders();
    one.send_snapshot(&senders, 2, port);
    assert_eq!(two.next_message().await, (1, Bytes::from(format!("up to {ENTRIES}"))));
    assert!(two.incoming.holds(ENTRIES));
    assert_eq!(one.next_report().await, (2, SnapshotOutcome::Sent));
    // It waits to be installed, so a second one is refused; one that is not wanted makes room.
    one.send_snapshot(&senders, 2, port);
    assert_eq!(one.next_report().await, (2, SnapshotOutcome::Failed));
    two.incoming.discard_soon(ENTRIES);
    one.send_snapshot(&senders, 2, port);
    assert_eq!(one.next_report().await, (2, SnapshotOutcome::Sent));
}

#[tokio::test]
async fn a_peer_that_goes_away_in_the_middle_of_a_snapshot_is_a_failure() {
    let (listener, port) = listener();
    let ports = [(1, 1), (2, port)];
    let (mut one, two) = (member(1, &ports), member(2, &ports));
    serve(vec![listener], &two.server, &two.stop);
    let senders = one.senders();
    one.send_snapshot(&senders, 2, port);
    tokio::time::sleep(Duration::from_millis(30)).await;
    two.stopper.stop();
    assert_eq!(one.next_report().await, (2, SnapshotOutcome::Failed));
    assert!(!two.incoming.holds(ENTRIES));
    // Nobody listens any more.
    one.send_snapshot(&senders, 2, 1);
    assert_eq!(one.next_report().await, (2, SnapshotOutcome::Failed));
}

#[tokio::test]
async fn a_new_offer_takes_the_place_of_the_stream_before_it() {
    let (listener, port) = listener();
    let ports = [(1, 1), (2, port)];
    let (mut one, mut two) = (member(1, &ports), member(2, &ports));
    serve(vec![listener], &two.server, &two.stop);
    let senders = one.senders();
    for _ in 0..3 {
        one.send_snapshot(&senders, 2, port);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(one.next_report().await, (2, SnapshotOutcome::Sent));
    assert_eq!(two.next_message().await, (1, Bytes::from(format!("up to {ENTRIES}"))));
    assert_eq!(one.seen.try_recv().ok(), None, "streams that were replaced report nothing");
}

#[tokio::test]
async fn a_stranger_sends_no_snapshot() {
    let (listener, port) = listener();
    let two = member(2, &[(1, 1), (2, port)]);
    serve(vec![listener], &two.server, &two.stop);
    let mut client = PeerClient::connect(format!("http://127.0.0.1:{port}")).await.unwrap();
    let hello = Some(Hello { cluster_id: 8, from: 1, to: 2, encoding: ENCODING });
    let part = SnapshotPart { hello, chunk: Bytes::from_static(b"x"), ..SnapshotPart::default() };
    let status = client.snapshot(tokio_stream::once(part)).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let hello = Some(Hello { cluster_id: 7, from: 1, to: 2, encoding: ENCODING });
    let part = SnapshotPart { hello, chunk: Bytes::from_static(b"x"), ..SnapshotPart::default() };
    let status = client.snapshot(tokio_stream::once(part)).await.unwrap_err();
    assert_eq!(status.code(), Code::DataLoss, "{status}");
}
