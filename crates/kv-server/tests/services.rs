//! The services over the wire, where one recorded story of a healthy lone member cannot reach: metadata,
//! limits by flag, wide reads, health, leadership, and what is not built.

use crate::common;
use crate::common::{Cluster, PATIENCE, get, put};
use api::etcdserverpb::kv_client::KvClient;
use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{
    AlarmRequest, AuthRoleAddRequest, CompactionRequest, DefragmentRequest, MemberAddRequest,
    MemberListRequest, MoveLeaderRequest, PutRequest, RangeRequest, RequestOp, StatusRequest, TxnRequest,
};
use api::health::HealthCheckRequest;
use client::{Channel, Client};
use testkit::exposition::{histograms, quantile};
use tonic::{Code, Request, Status};

/// A lone member and a connection to it.
struct Lone {
    _cluster: Cluster,
    client: Client,
}

impl Lone {
    async fn started(flags: &[&str]) -> Lone {
        let cluster = Cluster::started_with(1, flags);
        Lone { client: cluster.members[0].endless_client().await, _cluster: cluster }
    }

    fn kv(&self) -> KvClient<Channel> {
        self.client.kv()
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, text: &str) {
    let status = answer.expect_err(text);
    assert_eq!((status.code(), status.message()), (code, text));
}

fn with_metadata<T>(message: T, name: &'static str, value: &[u8]) -> Request<T> {
    let mut request = Request::new(message);
    let value = http::HeaderValue::from_bytes(value).expect("no control characters");
    request.metadata_mut().as_mut().insert(name, value);
    request
}

#[tokio::test]
async fn defragment_returns_when_the_space_is_back() {
    let lone = Lone::started(&[]).await;
    let mut kv = lone.kv();
    let mut revision = 0;
    for number in 0..200u32 {
        let value: Vec<u8> = (0..100_000u32).map(|at| (at.wrapping_mul(at ^ number) >> 3) as u8).collect();
        let put = PutRequest { key: "k".into(), value: value.into(), ..PutRequest::default() };
        revision = kv.put(put).await.unwrap().into_inner().header.unwrap().revision;
    }
    let before = lone.client.status().await.unwrap().db_size;
    let compact = CompactionRequest { revision, physical: false };
    kv.compact(compact).await.unwrap();
    let answer = lone.client.maintenance().defragment(DefragmentRequest {}).await.unwrap().into_inner();
    assert_eq!(answer.header, None);
    let after = lone.client.status().await.unwrap();
    assert!(after.db_size < before / 4, "{before} bytes before, {} after", after.db_size);
    assert!(after.db_size_in_use <= after.db_size, "{after:?}");
}

#[tokio::test]
async fn health_knows_one_service_and_its_watch_stays_open() {
    let lone = Lone::started(&[]).await;
    let mut health = lone.client.health();
    let service = |name: &str| HealthCheckRequest { service: name.to_owned() };
    assert_eq!(health.check(service("")).await.unwrap().into_inner().status, 1);
    refused(health.check(service("etcdserverpb.KV")).await, Code::NotFound, "unknown service");
    let statuses = health.list(api::health::HealthListRequest {}).await.unwrap().into_inner().statuses;
    assert_eq!(
        statuses.into_iter().map(|(name, it)| (name, it.status)).collect::<Vec<_>>(),
        [(String::new(), 1)]
    );
    for (name, wanted) in [("", 1), ("other", 3)] {
        let mut stream = health.watch(service(name)).await.unwrap().into_inner();
        assert_eq!(stream.message().await.unwrap().unwrap().status, wanted);
        let silence = tokio::time::timeout(std::time::Duration::from_millis(50), stream.message()).await;
        assert!(silence.is_err(), "the stream of {name:?} went on");
    }
}

#[tokio::test]
async fn metadata_is_looked_at_before_the_request_and_on_every_service() {
    let lone = Lone::started(&[]).await;
    let text = "etcdserver: invalid client api version";
    let bad = |message| with_metadata(message, "client-api-version", b"\xff");
    refused(lone.kv().put(bad(PutRequest::default())).await, Code::InvalidArgument, text);
    let status = with_metadata(StatusRequest {}, "client-api-version", b"\xff");
    refused(lone.client.maintenance().status(status).await, Code::InvalidArgument, text);
    let list = with_metadata(MemberListRequest::default(), "client-api-version", b"\xff");
    refused(lone.client.cluster().member_list(list).await, Code::InvalidArgument, text);
    lone.kv().put(with_metadata(put("a", "1"), "client-api-version", b"3.7")).await.unwrap();
    lone.kv().range(with_metadata(get("a"), "hasleader", b"true")).await.unwrap();
}

#[tokio::test]
async fn a_member_that_lost_its_leader_says_so_to_whom_asks() {
    let mut cluster = Cluster::started(3);
    let client = cluster.members[0].client().await;
    cluster.members[1].kill();
    cluster.members[2].kill();
    let mut kv = client.kv();
    let deadline = std::time::Instant::now() + PATIENCE;
    let status = loop {
        let request = RangeRequest { serializable: true, ..get("a") };
        match kv.range(with_metadata(request, "hasleader", b"true")).await {
            Err(status) => break status,
            Ok(_) => assert!(std::time::Instant::now() < deadline, "a leader is still known"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "etcdserver: no leader"));
    // Without the question, its own state is still worth reading.
    kv.range(RangeRequest { serializable: true, ..get("a") }).await.unwrap();
    let status = client.status().await.unwrap();
    assert_eq!(status.errors, ["etcdserver: no leader"]);
}

#[tokio::test]
async fn a_full_member_raises_the_alarm_and_takes_only_what_needs_no_room() {
    let lone = Lone::started(&["--quota-backend-bytes=1"]).await;
    let text = "etcdserver: mvcc: database space exceeded";
    let mut kv = lone.kv();
    refused(kv.put(put("a", "1")).await, Code::ResourceExhausted, text);
    // The quota is asked before the request is looked at.
    refused(kv.put(PutRequest::default()).await, Code::ResourceExhausted, text);
    let status = lone.client.status().await.unwrap();
    let member = status.header.unwrap().member_id;
    assert_eq!(status.errors, [format!("memberID:{member} alarm:NOSPACE")]);
    assert_eq!(status.db_size_quota, 1);
    kv.range(get("a")).await.unwrap();
    kv.delete_range(api::etcdserverpb::DeleteRangeRequest { key: "a".into(), ..Default::default() })
        .await
        .unwrap();
    kv.txn(TxnRequest::default()).await.unwrap();
    let answer = lone.client.maintenance().alarm(AlarmRequest { action: 9, ..AlarmRequest::default() }).await;
    refused(answer, Code::InvalidArgument, "etcdserver: unknown alarm action");
}

/// etcd takes an alarm of any member id and any kind, known or not. Each is an item of the store.
#[tokio::test]
async fn clients_cannot_raise_alarms_without_end() {
    let lone = Lone::started(&[]).await;
    let mut maintenance = lone.client.maintenance();
    let request = |action, member_id| AlarmRequest { action, member_id, alarm: 77 };
    let (activate, deactivate) = (1, 2);
    for member_id in 0..100 {
        maintenance.alarm(request(activate, member_id)).await.unwrap();
    }
    let one_more = maintenance.alarm(request(activate, 100)).await;
    refused(one_more, Code::Unknown, "etcdserver: too many requests");
    let active = maintenance.alarm(AlarmRequest::default()).await.unwrap().into_inner().alarms;
    assert_eq!(active.len(), 100);
    // One that is active may be raised again, and one that is cleared leaves room.
    maintenance.alarm(request(activate, 99)).await.unwrap();
    maintenance.alarm(request(deactivate, 99)).await.unwrap();
    maintenance.alarm(request(activate, 100)).await.unwrap();
}

/// A quota of 13 pages, as etcd's own tests use: an empty store has room, and a full one has room again.
#[tokio::test]
async fn a_small_quota_takes_small_puts_and_takes_them_again_after_compaction_and_defragmentation() {
    let lone = Lone::started(&["--quota-backend-bytes=53248"]).await;
    let (mut kv, mut maintenance) = (lone.kv(), lone.client.maintenance());
    let mut noise = 1u64;
    let mut value = || {
        let mut next = || {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(b' ' + (noise >> 58) as u8)
        };
        (0..4096).map(|_| next()).collect::<String>()
    };
    for round in 0..2 {
        let mut revision = 0;
        let refusal = loop {
            match kv.put(put("a", &value())).await {
                Ok(done) => revision = done.into_inner().header.expect("every answer has a header").revision,
                Err(refusal) => break refusal,
            }
            assert!(revision < 100, "a quota that is never reached");
        };
        assert!(revision > 6, "round {round}: refused after revision {revision}");
        assert_eq!(refusal.message(), "etcdserver: mvcc: database space exceeded");
        kv.compact(CompactionRequest { revision, physical: true }).await.unwrap();
        maintenance.defragment(DefragmentRequest {}).await.unwrap();
        let status = lone.client.status().await.unwrap();
        assert!(status.db_size < 53_248 / 2, "{} bytes are left", status.db_size);
        let alarm = AlarmRequest { action: 2, member_id: status.header.unwrap().member_id, alarm: 1 };
        maintenance.alarm(alarm).await.unwrap();
    }
    kv.put(put("a", "b")).await.unwrap();
}

#[tokio::test]
async fn limits_are_those_of_the_flags() {
    let lone = Lone::started(&["--max-txn-ops=2", "--max-request-bytes=1000"]).await;
    let mut kv = lone.kv();
    let ops = |count: usize| TxnRequest {
        success: vec![RequestOp { request: Some(Op::RequestRange(get("a"))) }; count],
        ..TxnRequest::default()
    };
    kv.txn(ops(2)).await.unwrap();
    let text = "etcdserver: too many operations in txn request";
    refused(kv.txn(ops(3)).await, Code::InvalidArgument, text);
    kv.put(put("a", &"v".repeat(900))).await.unwrap();
    let text = "etcdserver: request is too large";
    refused(kv.put(put("a", &"v".repeat(1000))).await, Code::InvalidArgument, text);
    let limit = 1000 + 524_288;
    let answer = kv.put(put("a", &"v".repeat(limit))).await;
    let text = format!("grpc: received message larger than max ({} vs. {limit})", limit + 7);
    refused(answer, Code::ResourceExhausted, &text);
    // The same through the services that tonic reads for us.
    let name = "v".repeat(limit);
    let answer = lone.client.auth().role_add(AuthRoleAddRequest { name }).await;
    let text = format!("grpc: received message larger than max ({} vs. {limit})", limit + 4);
    refused(answer, Code::ResourceExhausted, &text);
    // A request that changes the members has fewer.
    let answer = lone
        .client
        .cluster()
        .member_add(MemberAddRequest { peer_ur_ls: vec!["v".repeat(1 << 16)], is_learner: false })
        .await;
    let text = format!("grpc: received message larger than max ({} vs. {})", (1 << 16) + 4, 1 << 16);
    refused(answer, Code::ResourceExhausted, &text);
}

#[tokio::test]
async fn a_wide_read_is_whole_whichever_way_it_goes() {
    let lone = Lone::started(&[]).await;
    let mut kv = lone.kv();
    let keys: Vec<String> = (0..1500).map(|number| format!("k{number:05}")).collect();
    for keys in keys.chunks(100) {
        let puts = keys.iter().map(|key| RequestOp { request: Some(Op::RequestPut(put(key, "v"))) });
        kv.txn(TxnRequest { success: puts.collect(), ..TxnRequest::default() }).await.unwrap();
    }
    let all = RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..RangeRequest::default() };
    for request in [
        all.clone(),
        RangeRequest { serializable: true, ..all.clone() },
        RangeRequest { revision: 16, ..all.clone() },
        RangeRequest { sort_order: 2, sort_target: 3, ..all.clone() },
    ] {
        let answer = kv.range(request.clone()).await.unwrap().into_inner();
        assert_eq!((answer.kvs.len(), answer.count, answer.header.unwrap().revision), (1500, 1500, 16));
        let txn = TxnRequest {
            success: vec![RequestOp { request: Some(Op::RequestRange(request)) }],
            ..TxnRequest::default()
        };
        let answer = kv.txn(txn).await.unwrap().into_inner();
        let Some(api::etcdserverpb::response_op::Response::ResponseRange(range)) =
            &answer.responses[0].response
        else {
            panic!("a range is answered with a range");
        };
        assert_eq!((range.kvs.len(), answer.header.unwrap().revision), (1500, 16));
    }
    let mut stream = kv.range_stream(all).await.unwrap().into_inner();
    let mut streamed = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        streamed.extend(message.range_response.unwrap().kvs.into_iter().map(|kv| kv.key));
    }
    assert_eq!(streamed, keys.iter().map(String::as_bytes).collect::<Vec<_>>());
}

#[tokio::test]
async fn leadership_moves_only_from_the_leader_and_to_a_member() {
    let cluster = Cluster::started(3);
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    let target_id = cluster.members[follower].id().await;
    let ask = async |member: usize, target_id| {
        cluster.members[member]
            .client()
            .await
            .maintenance()
            .move_leader(MoveLeaderRequest { target_id })
            .await
    };
    refused(ask(follower, target_id).await, Code::FailedPrecondition, "etcdserver: not leader");
    refused(ask(leader, 4711).await, Code::FailedPrecondition, "etcdserver: bad leader transferee");
    ask(leader, cluster.members[leader].id().await).await.unwrap();
    assert_eq!(cluster.leader().await, leader);
    let answer = ask(leader, target_id).await.unwrap().into_inner();
    assert_eq!(answer.header, None);
    assert_eq!(cluster.leader().await, follower);
}

/// As a dashboard reads them: quantiles of each histogram, computed from a member's page.
#[tokio::test(flavor = "multi_thread")]
async fn extensive_metrics_time_the_calls_of_every_method() {
    let page = |of: &Cluster| common::http(of.members[0].client_port, "GET /metrics");
    let text = |page: &str| page.split_once("\r\n\r\n").expect("a whole head").1.to_owned();
    let timed = Cluster::started_with(1, &["--metrics=extensive"]);
    timed.members[0].put("key", "value").await;
    let all = histograms(&text(&page(&timed)));
    for ((name, labels), buckets) in &all {
        let (bound, _, count) = buckets.last().unwrap();
        assert_eq!(bound, "+Inf", "the last bucket of {name} {labels:?}");
        assert!(*count == 0.0 || quantile(0.99, buckets).is_finite(), "{name} {labels:?}: {buckets:?}");
    }
    let of = |wanted: &str, method: &str| {
        let mut found = all.iter().filter(|((name, labels), _)| {
            name == wanted && labels.get("grpc_method").is_some_and(|name| name == method)
        });
        found.next().map(|(_, buckets)| buckets.clone())
    };
    for name in ["grpc_server_handling_seconds", "kv_server_call_seconds"] {
        let put = of(name, "Put").unwrap_or_else(|| panic!("{name} is missing"));
        assert!(quantile(0.99, &put) > 0.0 && put.last().unwrap().2 == 1.0, "{name}: {put:?}");
    }
    // A stream counts when it has ended; its series is there before.
    assert_eq!(of("grpc_server_handling_seconds", "Watch").unwrap().last().unwrap().2, 0.0);
    assert!(!page(&Cluster::started_with(1, &["--metrics=basic"])).contains("grpc_server_handling_seconds"));
}
