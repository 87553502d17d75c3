//! A stopping member without a quorum, and a removed member, complete all pending calls.

use std::time::{Duration, Instant};

use crate::common::{Cluster, PATIENCE, get, put};
use api::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, MemberAddRequest, MemberRemoveRequest, WatchCreateRequest,
    WatchRequest, watch_request::RequestUnion,
};
use api::v3lockpb::LockRequest;
use client::Client;
use tokio::task::JoinSet;
use tonic::{Code, Status};

/// Maximum duration of a stop on a busy machine. A call that reaches its timeout takes seven seconds.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// Starts streams, and calls that need a quorum.
async fn calls(client: &Client) -> JoinSet<(&'static str, Status)> {
    let mut calls = JoinSet::new();
    let mut kv = client.kv();
    let mut reader = kv.clone();
    let mut lease = client.lease();
    let mut keeper = lease.clone();
    let mut cluster = client.cluster();
    let mut locker = client.lock();
    let mut watch = client.watch();
    calls.spawn(async move { ("put", kv.put(put("k", "v")).await.unwrap_err()) });
    calls.spawn(async move { ("range", reader.range(get("k")).await.unwrap_err()) });
    calls.spawn(async move {
        let request = LeaseGrantRequest { ttl: 10, ..LeaseGrantRequest::default() };
        ("grant", lease.lease_grant(request).await.unwrap_err())
    });
    calls.spawn(async move {
        let request = tokio_stream::once(LeaseKeepAliveRequest { id: 7 });
        let ended = match keeper.lease_keep_alive(request).await {
            Ok(answers) => answers.into_inner().message().await.unwrap_err(),
            Err(status) => status,
        };
        ("keep-alive", ended)
    });
    calls.spawn(async move {
        let request =
            MemberAddRequest { peer_ur_ls: vec!["http://127.0.0.1:1".to_owned()], is_learner: true };
        ("member add", cluster.member_add(request).await.unwrap_err())
    });
    calls.spawn(async move {
        let request = LockRequest { name: "n".into(), lease: 0 };
        ("lock", locker.lock(request).await.unwrap_err())
    });
    calls.spawn(async move {
        let create = WatchCreateRequest { key: "k".into(), ..WatchCreateRequest::default() };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let requests = futures_util::StreamExt::chain(tokio_stream::once(create), tokio_stream::pending());
        let mut answers = watch.watch(requests).await.unwrap().into_inner();
        loop {
            if let Err(status) = answers.message().await {
                return ("watch", status);
            }
        }
    });
    calls
}

/// Asserts that all calls are pending: none receives a response for some time.
async fn under_way(calls: &mut JoinSet<(&'static str, Status)>) {
    let answered = tokio::time::timeout(Duration::from_millis(700), calls.join_next()).await;
    assert!(answered.is_err(), "answered before the stop: {answered:?}");
}

async fn all_answered(mut calls: JoinSet<(&'static str, Status)>) {
    while let Some(ended) = calls.join_next().await {
        let (call, status) = ended.unwrap();
        // Lock returns errors of other services without a code, like etcd.
        let code = if call == "lock" { Code::Unknown } else { Code::Unavailable };
        assert_eq!((status.code(), status.message()), (code, "etcdserver: server stopped"), "{call}");
    }
}

#[tokio::test]
async fn a_member_that_stops_without_a_quorum_answers_what_waits_and_ends_at_once() {
    for stops in ["leader", "follower"] {
        // The health check of members would reject the change.
        let mut cluster = Cluster::started_with(3, &["--strict-reconfig-check=false"]);
        let leader = cluster.leader().await;
        let last = if stops == "leader" { leader } else { (leader + 1) % 3 };
        let client = cluster.members[last].client().await;
        for at in (0..3).filter(|at| *at != last) {
            cluster.members[at].kill();
        }
        let mut calls = calls(&client).await;
        under_way(&mut calls).await;
        let began = Instant::now();
        let process = cluster.members[last].process.take().unwrap();
        process.terminate();
        all_answered(calls).await;
        let answered = began.elapsed();
        let (status, said) = tokio::task::spawn_blocking(|| process.wait_end()).await.unwrap();
        assert!(status.success(), "{said}");
        let ended = began.elapsed();
        println!("{stops}: answered after {answered:?}, ended after {ended:?}");
        assert!(ended < EXIT_TIMEOUT, "{stops}: answered after {answered:?}, ended after {ended:?}\n{said}");
    }
}

#[tokio::test]
async fn a_removed_member_answers_what_waits_and_ends_at_once() {
    let mut cluster = Cluster::started(3);
    let leader = cluster.leader().await;
    let gone = (leader + 1) % 3;
    let (id, client) = (cluster.members[gone].id().await, cluster.members[gone].client().await);
    let mut operator = cluster.members[leader].client().await.cluster();
    let began = Instant::now();
    while let Err(status) = operator.member_remove(MemberRemoveRequest { id }).await {
        assert!(began.elapsed() < PATIENCE, "{status}"); // Until all count as connected.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let began = Instant::now();
    let mut kv = client.kv();
    let writing = tokio::spawn(async move {
        loop {
            if let Err(status) = kv.put(put("k", "v")).await {
                return status;
            }
        }
    });
    let process = cluster.members[gone].process.take().unwrap();
    let (status, said) = tokio::task::spawn_blocking(|| process.wait_end()).await.unwrap();
    assert!(status.success(), "{said}");
    let (ended, status) = (began.elapsed(), writing.await.unwrap());
    println!("ended after {ended:?}: {status}");
    assert!(ended < EXIT_TIMEOUT, "ended after {ended:?}\n{said}");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}
