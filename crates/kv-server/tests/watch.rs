//! Watch, from the client's perspective: real processes, the generated client, and raw HTTP/2.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::common::{Cluster, Member, PATIENCE, metric, put};
use api::etcdserverpb::watch_create_request::FilterType;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, PutRequest, RequestOp, TxnRequest, WatchCancelRequest,
    WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse, request_op,
};
use api::mvccpb::Event;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Request, Status, Streaming};

struct Stream {
    to: mpsc::UnboundedSender<WatchRequest>,
    from: Streaming<WatchResponse>,
}

impl Stream {
    async fn open(member: &Member) -> Stream {
        Stream::open_with(member, &[]).await.unwrap()
    }

    async fn open_with(member: &Member, metadata: &[(&'static str, &'static str)]) -> Result<Stream, Status> {
        let mut client = member.endless_client().await.watch();
        let (to, requests) = mpsc::unbounded_channel();
        let mut request = Request::new(UnboundedReceiverStream::new(requests));
        for (name, value) in metadata {
            request.metadata_mut().insert(*name, value.parse().unwrap());
        }
        // Headers arrive with the first response.
        to.send(create(WatchCreateRequest { key: "opens".into(), watch_id: 1 << 40, ..Default::default() }))
            .unwrap();
        let from = client.watch(request).await?.into_inner();
        let mut stream = Stream { to, from };
        assert!(stream.next().await.created);
        stream.send(cancel(1 << 40));
        assert!(stream.next().await.canceled);
        Ok(stream)
    }

    fn send(&self, request: WatchRequest) {
        self.to.send(request).unwrap();
    }

    async fn answer(&mut self) -> Result<WatchResponse, Status> {
        let answer = tokio::time::timeout(PATIENCE, self.from.message()).await.expect("an answer in time");
        Ok(answer?.expect("an open stream"))
    }

    async fn next(&mut self) -> WatchResponse {
        self.answer().await.unwrap()
    }

    /// Creates a watcher. Returns its id and the revision of the response.
    async fn watch(&mut self, request: WatchCreateRequest) -> (i64, i64) {
        self.send(create(request));
        let answer = self.next().await;
        assert!(answer.created && !answer.canceled, "{answer:?}");
        (answer.watch_id, answer.header.unwrap().revision)
    }

    async fn events(&mut self, count: usize) -> Vec<Event> {
        let mut events = Vec::new();
        while events.len() < count {
            let answer = self.next().await;
            assert!(!answer.canceled, "{answer:?}");
            events.extend(answer.events);
        }
        assert_eq!(events.len(), count, "{events:?}");
        events
    }
}

fn create(request: WatchCreateRequest) -> WatchRequest {
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(request)) }
}

fn cancel(watch_id: i64) -> WatchRequest {
    WatchRequest { request_union: Some(RequestUnion::CancelRequest(WatchCancelRequest { watch_id })) }
}

fn progress() -> WatchRequest {
    WatchRequest { request_union: Some(RequestUnion::ProgressRequest(WatchProgressRequest {})) }
}

fn on(key: &str) -> WatchCreateRequest {
    WatchCreateRequest { key: key.to_owned().into(), ..Default::default() }
}

fn everything(start_revision: i64) -> WatchCreateRequest {
    WatchCreateRequest { key: "\0".into(), range_end: "\0".into(), start_revision, ..Default::default() }
}

/// Formats an event: `PUT a=1@2`, `DELETE a@3`, with ` was …` for a previous pair.
fn text(event: &Event) -> String {
    let kv = event.kv.as_ref().unwrap();
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    let previous = event.prev_kv.as_ref().map_or(String::new(), |kv| format!(" was {}", text(&kv.value)));
    match event.r#type {
        0 => format!("PUT {}={}@{}{previous}", text(&kv.key), text(&kv.value), kv.mod_revision),
        _ => format!("DELETE {}@{}{previous}", text(&kv.key), kv.mod_revision),
    }
}

fn texts(events: &[Event]) -> Vec<String> {
    events.iter().map(text).collect()
}

async fn delete(member: &Member, key: &str) -> i64 {
    let request = DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() };
    member.kv().await.delete_range(request).await.unwrap().into_inner().header.unwrap().revision
}

async fn compact(member: &Member, revision: i64) {
    let request = CompactionRequest { revision, physical: false };
    member.kv().await.compact(request).await.unwrap();
}

fn put_op(key: &str, value: &str) -> RequestOp {
    RequestOp { request: Some(request_op::Request::RequestPut(put(key, value))) }
}

/// Waits until a metric is `wanted`.
async fn wait_for_metric(member: &Member, name: &str, wanted: f64) {
    let deadline = Instant::now() + PATIENCE;
    while metric(member, name) != wanted {
        assert!(Instant::now() < deadline, "{name} is {}, not {wanted}", metric(member, name));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_watcher_gets_the_events_of_its_keys_until_it_is_cancelled() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let mut stream = Stream::open(member).await;
    let present = member.put("other", "0").await;
    assert_eq!(stream.watch(on("a")).await, (0, present));
    let range = WatchCreateRequest { key: "b".into(), range_end: "d".into(), ..Default::default() };
    assert_eq!(stream.watch(range).await, (1, present));
    member.put("a", "1").await;
    member.put("aa", "no").await;
    member.put("c", "2").await;
    delete(member, "a").await;
    let ops = vec![put_op("b", "3"), put_op("a", "4"), put_op("c", "5")];
    member.kv().await.txn(TxnRequest { success: ops, ..Default::default() }).await.unwrap();
    let mut answers = Vec::new();
    for _ in 0..5 {
        let answer = stream.next().await;
        let header = answer.header.unwrap();
        assert!(header.cluster_id != 0 && header.member_id == member.id().await && header.raft_term > 0);
        answers.push((answer.watch_id, header.revision - present, texts(&answer.events).join(", ")));
    }
    answers.sort();
    let r = |after: i64| present + after;
    let wanted = [
        (0, 1, format!("PUT a=1@{}", r(1))),
        (0, 4, format!("DELETE a@{}", r(4))),
        (0, 5, format!("PUT a=4@{}", r(5))),
        (1, 3, format!("PUT c=2@{}", r(3))),
        (1, 5, format!("PUT b=3@{0}, PUT c=5@{0}", r(5))),
    ];
    assert_eq!(answers, wanted);
    stream.send(cancel(7));
    stream.send(cancel(0));
    let answer = stream.next().await;
    assert_eq!((answer.watch_id, answer.canceled, answer.compact_revision), (0, true, 0));
    assert_eq!(answer.cancel_reason, "");
    member.put("a", "unseen").await;
    member.put("b", "seen").await;
    assert_eq!(texts(&stream.events(1).await), [format!("PUT b=seen@{}", r(7))]);
}

#[tokio::test]
async fn ids_are_chosen_and_requests_refused_as_in_etcd() {
    let cluster = Cluster::started(1);
    let mut stream = Stream::open(&cluster.members[0]).await;
    let with_id = |watch_id| WatchCreateRequest { watch_id, ..on("a") };
    for (asked, got) in [(0, 0), (2, 2), (-5, -5), (0, 1), (0, 3)] {
        assert_eq!(stream.watch(with_id(asked)).await.0, got, "{asked}");
    }
    stream.send(cancel(3));
    assert!(stream.next().await.canceled);
    assert_eq!(stream.watch(with_id(0)).await.0, 4, "an id is not used again");
    let range = |key: &str, end: &str| WatchCreateRequest { range_end: end.to_owned().into(), ..on(key) };
    let refused = [
        (with_id(2), "mvcc: duplicate watch ID provided on the WatchStream"),
        (range("b", "b"), "mvcc: watcher range is empty"),
        (range("b", "a"), "mvcc: watcher range is empty"),
        (
            WatchCreateRequest { start_revision: -1, ..on("a") },
            "etcdserver: mvcc: required revision has been compacted",
        ),
    ];
    for (request, reason) in refused {
        stream.send(create(request));
        let answer = stream.next().await;
        assert_eq!((answer.watch_id, answer.created, answer.canceled), (-1, true, true), "{answer:?}");
        assert_eq!((answer.cancel_reason.as_str(), answer.compact_revision), (reason, 0));
    }
    stream.send(WatchRequest { request_union: None });
    assert_eq!(stream.watch(with_id(0)).await.0, 5, "a request without a kind is ignored");
}

#[tokio::test]
async fn history_comes_first_and_a_compacted_start_is_refused_with_its_revision() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let first = member.put("k", "0").await;
    for n in 1..3000 {
        member.put("k", &n.to_string()).await;
    }
    let mut stream = Stream::open(member).await;
    let (_, present) = stream.watch(WatchCreateRequest { start_revision: first + 10, ..on("k") }).await;
    assert_eq!(present, first + 2999);
    member.put("k", "new").await;
    let events = stream.events(2991).await;
    let revisions: Vec<i64> = events.iter().map(|event| event.kv.as_ref().unwrap().mod_revision).collect();
    assert_eq!(revisions, (first + 10..=first + 3000).collect::<Vec<_>>());

    let future = first + 3002;
    let (id, _) = stream.watch(WatchCreateRequest { start_revision: future, ..on("k") }).await;
    stream.send(cancel(0));
    assert!(stream.next().await.canceled);
    member.put("k", "before").await;
    member.put("k", "from").await;
    let answer = stream.next().await;
    assert_eq!((answer.watch_id, texts(&answer.events)), (id, vec![format!("PUT k=from@{future}")]));

    compact(member, first + 100).await;
    let (id, _) = stream.watch(WatchCreateRequest { start_revision: first + 99, ..on("k") }).await;
    let answer = stream.next().await;
    assert_eq!((answer.watch_id, answer.canceled), (id, true), "{answer:?}");
    assert_eq!((answer.compact_revision, answer.cancel_reason.as_str()), (first + 100, ""));
    stream.send(cancel(1));
    assert!(stream.next().await.canceled);
    stream.watch(WatchCreateRequest { start_revision: first + 100, ..on("k") }).await;
    let answer = stream.next().await;
    assert_eq!(
        answer.events[0].kv.as_ref().unwrap().mod_revision,
        first + 100,
        "the compact revision itself"
    );
}

#[tokio::test]
async fn previous_values_and_filters_are_those_of_the_request() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let mut stream = Stream::open(member).await;
    let filtered = |filter: FilterType| WatchCreateRequest { filters: vec![filter as i32], ..on("a") };
    let (with_previous, present) = stream.watch(WatchCreateRequest { prev_kv: true, ..on("a") }).await;
    let (deletes, _) = stream.watch(filtered(FilterType::Noput)).await;
    let (puts, _) = stream.watch(filtered(FilterType::Nodelete)).await;
    member.put("a", "1").await;
    member.put("a", "2").await;
    delete(member, "a").await;
    let mut answers = Vec::new();
    for _ in 0..6 {
        let answer = stream.next().await;
        answers.push((answer.watch_id, texts(&answer.events).join(", ")));
    }
    answers.sort();
    let r = |after: i64| present + after;
    let wanted = [
        (with_previous, format!("DELETE a@{} was 2", r(3))),
        (with_previous, format!("PUT a=1@{}", r(1))),
        (with_previous, format!("PUT a=2@{} was 1", r(2))),
        (deletes, format!("DELETE a@{}", r(3))),
        (puts, format!("PUT a=1@{}", r(1))),
        (puts, format!("PUT a=2@{}", r(2))),
    ];
    assert_eq!(answers, wanted);
}

#[tokio::test]
async fn a_large_response_is_split_only_for_a_watcher_that_asked() {
    let cluster = Cluster::started_with(1, &["--max-request-bytes=1048576"]);
    let member = &cluster.members[0];
    let value = "x".repeat(700_000);
    let first = member.put("a", &value).await;
    member.put("b", &value).await;
    member.put("c", &value).await;
    for fragment in [false, true] {
        let mut stream = Stream::open(member).await;
        stream.watch(WatchCreateRequest { fragment, ..everything(first) }).await;
        let mut answers = Vec::new();
        let mut events = 0;
        while events < 3 {
            let answer = stream.next().await;
            events += answer.events.len();
            answers.push((answer.fragment, answer.events.len()));
        }
        if fragment {
            assert!(answers.iter().all(|(_, events)| *events <= 2), "{answers:?}");
            assert!(!answers.last().unwrap().0, "{answers:?}");
        } else {
            assert!(answers.iter().all(|(fragment, _)| !fragment), "{answers:?}");
        }
    }
}

#[tokio::test]
async fn progress_is_reported_on_request_and_periodically() {
    let cluster = Cluster::started_with(1, &["--watch-progress-notify-interval=1ms"]);
    let member = &cluster.members[0];
    member.running().wait_for("adjusting watch progress notify interval to minimum period");
    let mut stream = Stream::open(member).await;
    stream.send(progress());
    let (_, present) = stream.watch(on("a")).await; // No response without a watcher.
    stream.send(progress());
    let answer = stream.next().await;
    assert_eq!((answer.watch_id, answer.header.unwrap().revision), (-1, present));
    assert!(answer.events.is_empty() && !answer.created && !answer.canceled, "{answer:?}");
    // For another key, so that the watcher receives no event.
    let newest = member.put("b", "1").await;
    stream.send(progress());
    assert_eq!(stream.next().await.header.unwrap().revision, newest);

    let began = Instant::now();
    let (id, _) = stream.watch(WatchCreateRequest { progress_notify: true, ..on("c") }).await;
    for _ in 0..3 {
        let answer = stream.next().await;
        assert_eq!((answer.watch_id, answer.header.unwrap().revision), (id, newest), "{answer:?}");
    }
    assert!(began.elapsed() > Duration::from_millis(150), "more often than every 100 ms");

    // A watcher with a future start revision is excluded from progress.
    let future = WatchCreateRequest { start_revision: newest + 3, ..on("d") };
    let (id_of_future, _) = stream.watch(future).await;
    stream.send(progress());
    member.put("c", "1").await;
    loop {
        let answer = stream.next().await;
        assert_ne!(answer.watch_id, -1, "{answer:?}");
        assert_ne!(answer.watch_id, id_of_future, "{answer:?}");
        if !answer.events.is_empty() {
            break;
        }
    }
}

#[tokio::test]
async fn a_follower_delivers_each_event_once_while_the_leader_is_killed() {
    let mut cluster = Cluster::started(3);
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    let mut stream = Stream::open(&cluster.members[follower]).await;
    let (_, present) = stream.watch(everything(1)).await;
    let writer = cluster.members[follower].kv().await;
    let writing = tokio::spawn(async move {
        let mut acknowledged = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        for n in 0..600 {
            loop {
                assert!(Instant::now() < deadline, "no put is acknowledged");
                // A put without a response may have been applied: its event then has another revision.
                let request = put("k", &n.to_string());
                if let Ok(answer) = writer.clone().put(request).await {
                    acknowledged.push((answer.into_inner().header.unwrap().revision, n));
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        acknowledged
    });
    let mut seen = stream.events(100).await;
    cluster.members[leader].kill();
    let acknowledged = writing.await.unwrap();
    let last = acknowledged.last().unwrap().0;
    while seen.last().unwrap().kv.as_ref().unwrap().mod_revision < last {
        seen.extend(stream.next().await.events);
    }
    let revisions: Vec<i64> = seen.iter().map(|event| event.kv.as_ref().unwrap().mod_revision).collect();
    assert_eq!(revisions, (present.max(1) + 1..=last).collect::<Vec<_>>(), "a gap or a repeated revision");
    for (revision, n) in acknowledged {
        let kv = seen[usize::try_from(revision - present.max(1) - 1).unwrap()].kv.as_ref().unwrap();
        assert_eq!(kv.value, n.to_string(), "at {revision}");
    }
}

fn resident_bytes(member: &Member) -> f64 {
    metric(member, "process_resident_memory_bytes")
}

#[tokio::test]
async fn readers_that_stop_hold_a_bounded_number_of_bytes_and_miss_nothing() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let mut healthy = Stream::open(member).await;
    let (_, present) = healthy.watch(everything(0)).await;
    let mut stalled = Vec::new();
    for _ in 0..200 {
        let mut stream = Stream::open(member).await;
        stream.watch(everything(0)).await;
        stalled.push(stream);
    }
    wait_for_metric(member, "etcd_debugging_mvcc_watcher_total", 201.0).await;
    let before = resident_bytes(member);
    let kv = member.kv().await;
    let value = Bytes::from(vec![7; 64 << 10]);
    let puts: i64 = 1600; // 100 MiB; 20 GiB for all readers.
    for n in 0..puts {
        let request =
            PutRequest { key: format!("k{}", n % 16).into(), value: value.clone(), ..Default::default() };
        kv.clone().put(request).await.unwrap();
        let event = &healthy.events(1).await[0];
        assert_eq!(event.kv.as_ref().unwrap().mod_revision, present + 1 + n);
    }
    let bodies = metric(member, "kv_server_watch_body_bytes");
    assert!(bodies <= f64::from(34 << 20), "{bodies} bytes of events wait");
    // 32 MiB of events, 64 MiB of raw records before a checkpoint, 64 MiB of cached blocks.
    let grown = resident_bytes(member) - before;
    assert!(grown < f64::from(320 << 20), "resident memory has grown by {grown} bytes");
    for stream in stalled.iter_mut().step_by(50) {
        let events = stream.events(usize::try_from(puts).unwrap()).await;
        for (n, event) in (0..).zip(&events) {
            assert_eq!(event.kv.as_ref().unwrap().mod_revision, present + 1 + n);
        }
    }
}

#[tokio::test]
async fn readers_that_stop_in_history_hold_little_of_it() {
    const READERS: usize = 200;
    const KEYS: usize = 8;
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let kv = member.kv().await;
    for n in 0..64 {
        let put = |key| {
            let request = PutRequest {
                key: format!("k{n}-{key}").into(),
                value: vec![n; 2 << 10].into(),
                ..Default::default()
            };
            RequestOp { request: Some(request_op::Request::RequestPut(request)) }
        };
        let success = (0..KEYS).map(put).collect();
        kv.clone().txn(TxnRequest { success, ..Default::default() }).await.unwrap();
    }
    let before = resident_bytes(member);
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let reader = Stream::open(member).await;
        reader.send(create(everything(1)));
        readers.push(reader);
    }
    wait_for_metric(member, "etcd_debugging_mvcc_watcher_total", READERS as f64).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    // 32 MiB of queued events, and about 64 KiB per connection with its stream.
    let grown = resident_bytes(member) - before;
    assert!(grown < f64::from(90 << 20), "resident memory has grown by {grown} bytes");
    for reader in readers.iter_mut().step_by(50) {
        assert!(reader.next().await.created);
        assert_eq!(reader.events(64 * KEYS).await.len(), 64 * KEYS);
    }
}

#[tokio::test]
async fn a_deleted_range_with_large_previous_values_is_not_held_in_memory() {
    const KEYS: usize = 384; // 24 MiB of values.
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let kv = member.kv().await;
    let value = |n: usize| Bytes::from(vec![n as u8; 64 << 10]);
    for n in 0..KEYS {
        let request = PutRequest { key: format!("k{n:03}").into(), value: value(n), ..Default::default() };
        kv.clone().put(request).await.unwrap();
    }
    let mut streams = Vec::new();
    for (prev_kv, fragment) in [(true, false), (true, true), (false, false)] {
        let mut stream = Stream::open(member).await;
        stream.watch(WatchCreateRequest { prev_kv, fragment, ..everything(0) }).await;
        streams.push((stream, prev_kv));
    }
    let request = DeleteRangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    kv.clone().delete_range(request).await.unwrap();
    member.put("after", "1").await;
    // Without previous values first: afterwards the hub has reached the revision.
    for (stream, prev_kv) in streams.iter_mut().rev() {
        let bodies = metric(member, "kv_server_watch_body_bytes");
        assert!(bodies < f64::from(2 << 20), "{bodies} bytes of events wait");
        let mut events = Vec::new();
        loop {
            let answer = stream.next().await;
            events.extend(answer.events);
            if !answer.fragment {
                break;
            }
        }
        assert_eq!(events.len(), KEYS, "one response, or all of its fragments");
        for (n, event) in events.iter().enumerate() {
            assert_eq!(event.kv.as_ref().unwrap().key, format!("k{n:03}"));
            assert_eq!(event.prev_kv.as_ref().map(|kv| &kv.value), prev_kv.then(|| value(n)).as_ref());
        }
        assert_eq!(stream.events(1).await[0].kv.as_ref().unwrap().key, "after");
    }
}

#[tokio::test]
async fn a_compaction_inside_a_large_response_ends_the_stream() {
    const SENT: &str = "etcd_network_client_grpc_sent_bytes_total";
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let kv = member.kv().await;
    for n in 0..200 {
        let (key, value) = (format!("k{n:03}").into(), Bytes::from(vec![7; 64 << 10]));
        kv.clone().put(PutRequest { key, value, ..Default::default() }).await.unwrap();
    }
    let mut stream = Stream::open(member).await;
    stream.watch(WatchCreateRequest { prev_kv: true, ..everything(0) }).await;
    let before = metric(member, SENT);
    let request = DeleteRangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    kv.clone().delete_range(request).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    while metric(member, SENT) < before + f64::from(32 << 10) {
        assert!(Instant::now() < deadline, "the response does not begin");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let newest = member.put("after", "1").await;
    compact(member, newest).await;
    assert_eq!(stream.answer().await.unwrap_err().code(), Code::Unavailable);
    // A client that resumes at the next revision receives the reason.
    let mut stream = Stream::open(member).await;
    stream.watch(everything(newest - 1)).await;
    let answer = stream.next().await;
    assert_eq!((answer.canceled, answer.compact_revision), (true, newest));
}

/// Creates ranges that start with `key` on a stream, without waiting for each response.
async fn watch_ranges(stream: &mut Stream, key: &str, count: usize) {
    for n in 0..count {
        let range_end = format!("{key}~{n:06}").into();
        stream.send(create(WatchCreateRequest {
            key: key.to_owned().into(),
            range_end,
            ..Default::default()
        }));
    }
    for _ in 0..count {
        assert!(stream.next().await.created);
    }
}

#[tokio::test]
async fn ranges_that_need_copies_of_a_large_revision_cost_bounded_memory() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let (mut healthy, mut greedy) = (Stream::open(member).await, Stream::open(member).await);
    healthy.watch(on("between")).await;
    watch_ranges(&mut greedy, "a", 500).await;
    let before = resident_bytes(member);
    let value = "v".repeat(600 << 10);
    // Each range includes the first and the last put, but not the put between them.
    let success = vec![put_op("a1", &value), put_op("between", "x"), put_op("a2", &value)];
    member.kv().await.txn(TxnRequest { success, ..Default::default() }).await.unwrap();
    assert_eq!(texts(&healthy.events(1).await).len(), 1);
    let grown = resident_bytes(member) - before;
    assert!(grown < f64::from(150 << 20), "resident memory has grown by {grown} bytes");
    // Each range receives both puts when the stream is read.
    for _ in 0..500 {
        assert_eq!(greedy.events(2).await.len(), 2);
    }
}

#[tokio::test]
async fn a_revision_with_a_million_matches_does_not_delay_others() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let kv = member.kv().await;
    for n in 0..20 {
        let success = (0..100).map(|m| put_op(&format!("a{:05}", 100 * n + m), "v")).collect();
        kv.clone().txn(TxnRequest { success, ..Default::default() }).await.unwrap();
    }
    let (mut healthy, mut greedy) = (Stream::open(member).await, Stream::open(member).await);
    healthy.watch(everything(0)).await;
    watch_ranges(&mut greedy, "a", 500).await;
    let before = resident_bytes(member);
    let request = DeleteRangeRequest { key: "a".into(), range_end: "b".into(), ..Default::default() };
    kv.clone().delete_range(request).await.unwrap();
    assert_eq!(healthy.events(2000).await.len(), 2000);
    let grown = resident_bytes(member) - before;
    assert!(grown < f64::from(100 << 20), "resident memory has grown by {grown} bytes");
    let mut events = 0;
    while events < 1_000_000 {
        events += greedy.next().await.events.len();
    }
    assert_eq!(events, 1_000_000);
}

#[tokio::test]
async fn one_connection_leaves_watchers_to_others() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let mut greedy = Stream::open(member).await;
    let mut held = 0;
    let reason = loop {
        let mut key = vec![b'k'; 1 << 20];
        key.extend_from_slice(format!("{held}").as_bytes());
        greedy.send(create(WatchCreateRequest { key: key.into(), ..Default::default() }));
        let answer = greedy.next().await;
        match answer.canceled {
            true => break answer.cancel_reason,
            false => held += 1,
        }
    };
    assert_eq!(held, 127, "half of 256 MiB");
    let expected = "etcdserver: too many requests: this connection has ";
    assert!(reason.starts_with(expected) && reason.ends_with("bytes of watched keys"), "{reason}");
    let mut other = Stream::open(member).await;
    other.watch(on("k")).await;
    member.put("k", "v").await;
    assert_eq!(other.events(1).await.len(), 1);
}

#[tokio::test]
async fn a_stream_ends_with_unavailable_when_the_member_stops() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let mut stream = Stream::open(member).await;
    stream.watch(on("a")).await;
    member.running().terminate();
    let status = stream.answer().await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "etcdserver: server stopped"));
}

#[tokio::test]
async fn a_stream_that_is_reset_frees_its_watchers() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let mut streams = Vec::new();
    for _ in 0..10 {
        let mut stream = Stream::open(member).await;
        for _ in 0..20 {
            stream.watch(on("a")).await;
        }
        streams.push(stream);
    }
    wait_for_metric(member, "etcd_debugging_mvcc_watcher_total", 200.0).await;
    wait_for_metric(member, "etcd_debugging_mvcc_watch_stream_total", 10.0).await;
    streams.truncate(4);
    wait_for_metric(member, "etcd_debugging_mvcc_watcher_total", 80.0).await;
    member.put("a", "1").await;
    for stream in &mut streams {
        for _ in 0..20 {
            assert_eq!(stream.next().await.events.len(), 1);
        }
    }
    wait_for_metric(member, "etcd_debugging_mvcc_events_total", 80.0).await;
    streams.clear();
    wait_for_metric(member, "etcd_debugging_mvcc_watcher_total", 0.0).await;
    wait_for_metric(member, "etcd_debugging_mvcc_watch_stream_total", 0.0).await;
    let labels = "grpc_method=\"Watch\",grpc_service=\"etcdserverpb.Watch\",grpc_type=\"bidi_stream\"";
    assert_eq!(metric(member, &format!("grpc_server_started_total{{{labels}}}")), 10.0);
    // Per stream: a create and a cancel request to open it, 20 creates, and the close.
    assert_eq!(metric(member, &format!("grpc_server_msg_received_total{{{labels}}}")), 230.0);
    assert_eq!(metric(member, &format!("grpc_server_msg_sent_total{{{labels}}}")), 220.0 + 80.0);
    let cancelled = format!("grpc_server_handled_total{{grpc_code=\"Canceled\",{labels}}}");
    assert_eq!(metric(member, &cancelled), 10.0);
}

#[tokio::test]
async fn ten_thousand_watchers_share_a_stream() {
    const WATCHERS: i64 = 10_000;
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let mut stream = Stream::open(member).await;
    for _ in 0..WATCHERS {
        stream.send(create(on("shared")));
    }
    for id in 0..WATCHERS {
        let answer = stream.next().await;
        assert!(answer.created && answer.watch_id == id, "{answer:?}");
    }
    for n in 0..3 {
        member.put("shared", &n.to_string()).await;
        let mut ids = BTreeSet::new();
        for _ in 0..WATCHERS {
            let answer = stream.next().await;
            assert_eq!(answer.events.len(), 1);
            assert_eq!(answer.events[0].kv.as_ref().unwrap().value, n.to_string());
            ids.insert(answer.watch_id);
        }
        assert_eq!(ids.len() as i64, WATCHERS, "a watcher got an event twice");
    }
    member.put("elsewhere", "1").await;
    stream.send(progress());
    assert_eq!(stream.next().await.watch_id, -1);
}

/// h2 closes a connection with too many small unread messages.
#[tokio::test]
async fn forty_thousand_watchers_are_created_at_once_on_one_stream() {
    const WATCHERS: i64 = 40_000;
    let cluster = Cluster::started(1);
    let mut stream = Stream::open(&cluster.members[0]).await;
    for number in 0..WATCHERS {
        stream.send(create(on(&format!("key/{number}"))));
    }
    for id in 0..WATCHERS {
        let answer = stream.next().await;
        assert!(answer.created && answer.watch_id == id, "{answer:?}");
    }
}

#[tokio::test]
async fn a_stream_that_asks_for_a_leader_ends_when_there_is_none() {
    let mut cluster = Cluster::started(3);
    let mut wants_leader = Stream::open_with(&cluster.members[0], &[("hasleader", "true")]).await.unwrap();
    let mut goes_on = Stream::open(&cluster.members[0]).await;
    wants_leader.watch(on("a")).await;
    goes_on.watch(on("a")).await;
    cluster.members[1].kill();
    cluster.members[2].kill();
    let status = wants_leader.answer().await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "etcdserver: no leader"));
    let refused = Stream::open_with(&cluster.members[0], &[("hasleader", "true")]).await;
    assert_eq!(refused.err().map(|status| status.code()), Some(Code::Unavailable));
    assert_eq!(goes_on.watch(on("b")).await.0, 1, "it is served from this member's state");
}

#[tokio::test]
async fn the_end_of_the_requests_leaves_the_stream_open() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let mut stream = Stream::open(member).await;
    stream.watch(on("a")).await;
    let (unused, _) = mpsc::unbounded_channel();
    drop(std::mem::replace(&mut stream.to, unused));
    for n in 0..10 {
        member.put("a", &n.to_string()).await;
        assert_eq!(stream.events(1).await[0].kv.as_ref().unwrap().value, n.to_string());
    }
}
