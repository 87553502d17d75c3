//! Locks and elections on real processes: a single owner at a time, and no key of a finished call remains.

use crate::common;
use std::time::Duration;

use crate::common::{Cluster, Member, PATIENCE};
use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{AlarmRequest, AlarmType, LeaseGrantRequest, LeaseRevokeRequest, RangeRequest};
use api::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use api::mvccpb::event::EventType;
use api::v3electionpb::{CampaignRequest, LeaderRequest};
use api::v3lockpb::{LockRequest, LockResponse, UnlockRequest};
use bytes::Bytes;
use client::Client;
use prost::Message;
use tokio::time::timeout;
use tonic::{Code, Request, Status, Streaming};

async fn lease(member: &Member, id: i64) {
    let request = LeaseGrantRequest { id, ttl: 600 };
    member.client().await.lease().lease_grant(request).await.unwrap();
}

async fn revoke(member: &Member, id: i64) {
    member.client().await.lease().lease_revoke(LeaseRevokeRequest { id }).await.unwrap();
}

async fn lock(client: Client, name: &'static str, lease: i64) -> Result<LockResponse, Status> {
    let request = LockRequest { name: name.into(), lease };
    client.lock().lock(request).await.map(tonic::Response::into_inner)
}

async fn unlock(client: Client, key: &[u8]) {
    let request = UnlockRequest { key: key.to_vec().into() };
    client.lock().unlock(request).await.unwrap();
}

struct Events(Streaming<WatchResponse>);

impl Events {
    async fn of(member: &Member, key: &'static str) -> Events {
        let create = WatchCreateRequest { key: key.into(), ..WatchCreateRequest::default() };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let requests = tokio_stream::StreamExt::chain(tokio_stream::once(request), tokio_stream::pending());
        let mut stream = member.endless_client().await.watch().watch(requests).await.unwrap().into_inner();
        assert!(stream.message().await.unwrap().unwrap().created);
        Events(stream)
    }

    async fn next(&mut self) -> EventType {
        let response = timeout(PATIENCE, self.0.message()).await.expect("an event in time").unwrap().unwrap();
        assert_eq!(response.events.len(), 1, "{response:?}");
        response.events[0].r#type()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_call_that_ends_while_it_waits_is_deleted() {
    let cluster = Cluster::started(3);
    let [holder, waiter, observer] = &cluster.members[..] else { panic!("three members") };
    lease(holder, 1).await;
    lease(holder, 2).await;
    let held = lock(holder.endless_client().await, "l", 1).await.unwrap();
    let campaign = || CampaignRequest { name: "l".into(), lease: 2, value: "v".into() };
    let mut events = Events::of(observer, "l/2").await;

    // Reset by the client.
    let waiting = tokio::spawn(lock(waiter.endless_client().await, "l", 2));
    assert_eq!(events.next().await, EventType::Put, "the call waits with a key");
    waiting.abort();
    assert_eq!(events.next().await, EventType::Delete, "a reset");

    let mut election = waiter.endless_client().await.election();
    let waiting = tokio::spawn(async move { election.campaign(campaign()).await });
    assert_eq!(events.next().await, EventType::Put);
    waiting.abort();
    assert_eq!(events.next().await, EventType::Delete, "a reset campaign");

    // Deadline exceeded.
    let mut request = Request::new(LockRequest { name: "l".into(), lease: 2 });
    // Enough time to write its key, even on a busy machine.
    request.set_timeout(Duration::from_secs(5));
    let status = waiter.endless_client().await.lock().lock(request).await.unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    assert_eq!(events.next().await, EventType::Put);
    assert_eq!(events.next().await, EventType::Delete, "a deadline");

    // The next waiter does not wait for any of them.
    let waiting = tokio::spawn(lock(waiter.endless_client().await, "l", 2));
    assert_eq!(events.next().await, EventType::Put);
    unlock(observer.endless_client().await, &held.key).await;
    let next = timeout(PATIENCE, waiting).await.expect("in time").unwrap().unwrap();
    assert_eq!(next.key, "l/2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_lease_ended_while_it_waited_owns_nothing() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let mut events = Events::of(member, "l/2").await;
    let campaign = async |client: Client| {
        let request = CampaignRequest { name: "l".into(), lease: 2, value: "v".into() };
        client.election().campaign(request).await.map(drop)
    };
    for is_campaign in [true, false] {
        lease(member, 1).await;
        lease(member, 2).await;
        let held = lock(member.endless_client().await, "l", 1).await.unwrap();
        let client_of_waiter = member.endless_client().await;
        let waiting = tokio::spawn(async move {
            match is_campaign {
                true => campaign(client_of_waiter).await,
                false => lock(client_of_waiter, "l", 2).await.map(drop),
            }
        });
        assert_eq!(events.next().await, EventType::Put, "the call waits with a key");
        revoke(member, 2).await;
        assert_eq!(events.next().await, EventType::Delete);
        unlock(member.endless_client().await, &held.key).await;
        let status = timeout(PATIENCE, waiting).await.expect("an answer").unwrap().unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unknown, "mutex: session is expired"));
        revoke(member, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_has_one_owner_whichever_members_are_asked() {
    const CALLERS: i64 = 12;
    const ROUNDS: i64 = 5;
    let cluster = Cluster::started(3);
    cluster.members[0].put("count", "0").await;
    let mut callers = tokio::task::JoinSet::new();
    for caller in 1..=CALLERS {
        let member = &cluster.members[caller as usize % 3];
        lease(member, caller).await;
        let (client, mut kv) = (member.endless_client().await, member.kv().await);
        callers.spawn(async move {
            for _ in 0..ROUNDS {
                let held = lock(client.clone(), "count", caller).await.unwrap();
                // A concurrent caller would cause a lost update.
                let read = kv.range(common::get("count")).await.unwrap().into_inner();
                let count: i64 = std::str::from_utf8(&read.kvs[0].value).unwrap().parse().unwrap();
                kv.put(common::put("count", &(count + 1).to_string())).await.unwrap();
                unlock(client.clone(), &held.key).await;
            }
        });
    }
    timeout(3 * PATIENCE, async { while callers.join_next().await.transpose().unwrap().is_some() {} })
        .await
        .expect("every caller gets its turns");
    assert_eq!(cluster.members[1].get("count").await, Some((CALLERS * ROUNDS).to_string()));
}

/// Responses would depend on the member's state.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_wait_at_a_member_end_when_its_state_is_found_to_be_wrong() {
    let cluster = Cluster::started(3);
    let [holder, waiter, _] = &cluster.members[..] else { panic!("three members") };
    lease(holder, 1).await;
    lease(holder, 2).await;
    lock(holder.endless_client().await, "l", 1).await.unwrap();
    let mut events = Events::of(holder, "l/2").await;
    let waiting = tokio::spawn(lock(waiter.endless_client().await, "l", 2));
    assert_eq!(events.next().await, EventType::Put);
    let mut election = waiter.endless_client().await.election();
    let mut observed = election.observe(LeaderRequest { name: "l".into() }).await.unwrap().into_inner();
    assert_eq!(observed.message().await.unwrap().unwrap().kv.unwrap().key, "l/1");
    let (action, alarm) = (AlarmAction::Activate as i32, AlarmType::Corrupt as i32);
    let request = AlarmRequest { action, member_id: waiter.id().await, alarm };
    holder.client().await.maintenance().alarm(request).await.unwrap();
    let status = timeout(PATIENCE, waiting).await.expect("an end in time").unwrap().unwrap_err();
    assert_eq!(status.message(), "etcdserver: corrupt cluster");
    let status = timeout(PATIENCE, observed.message()).await.expect("an end in time").unwrap_err();
    assert_eq!(status.code(), Code::DataLoss, "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_stops_does_not_wait_for_calls_that_wait() {
    let mut cluster = Cluster::started(1);
    let member = &cluster.members[0];
    lease(member, 1).await;
    lease(member, 2).await;
    lock(member.endless_client().await, "l", 1).await.unwrap();
    let mut events = Events::of(member, "l/2").await;
    let waiting = tokio::spawn(lock(member.endless_client().await, "l", 2));
    assert_eq!(events.next().await, EventType::Put);
    let mut election = member.endless_client().await.election();
    let mut observed = election.observe(LeaderRequest { name: "l".into() }).await.unwrap().into_inner();
    assert_eq!(observed.message().await.unwrap().unwrap().kv.unwrap().key, "l/1");
    cluster.members[0].running().terminate();
    let status = waiting.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(observed.message().await.unwrap_err().code(), Code::Unavailable);
    let process = cluster.members[0].process.take().unwrap();
    let (status, said) = tokio::task::spawn_blocking(|| process.wait_end()).await.unwrap();
    assert!(status.success() && !said.contains("did not close in time"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_may_not_watch_fails_and_leaves_no_key() {
    const NAME: &str = "a-name-that-is-longer-than-what-is-left";
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    lease(member, 1).await;
    lease(member, 2).await;
    let owner = lock(member.endless_client().await, NAME, 1).await.unwrap();
    // The watchers of this connection use up its limit of key bytes.
    let greedy = member.endless_client().await;
    let (to, requests) = tokio::sync::mpsc::channel(1);
    let sending = tokio::spawn(async move {
        for (bytes, count) in [(1 << 20, 128), (1 << 10, 1024), (1, 2048)] {
            for n in 0..count {
                let key = [vec![b'k'; bytes], format!("{n}").into_bytes()].concat().into();
                let create = WatchCreateRequest { key, ..WatchCreateRequest::default() };
                let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
                to.send(request).await.unwrap();
            }
        }
        to
    });
    let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
    let mut watchers = greedy.watch().watch(requests).await.unwrap().into_inner();
    for _ in 0..128 + 1024 + 2048 {
        watchers.message().await.unwrap().unwrap();
    }
    let _to = sending.await.unwrap();
    let refused = timeout(PATIENCE, lock(greedy, NAME, 2)).await.expect("an answer").unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Unknown, "etcdserver: too many requests"));
    assert_eq!(member.get(&format!("{NAME}/2")).await, None);
    unlock(member.endless_client().await, &owner.key).await;
    lock(member.endless_client().await, NAME, 2).await.unwrap();
}

fn resident_mib(member: &Member) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", member.running().pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Returns a gRPC frame with a message that has an unknown field of a mebibyte.
fn bloated(message: &impl Message) -> Bytes {
    const UNKNOWN: u32 = 1 << 20;
    let mut bytes = message.encode_to_vec();
    prost::encoding::bytes::encode(99, &vec![7; UNKNOWN as usize], &mut bytes);
    [&[0][..], &u32::try_from(bytes.len()).unwrap().to_be_bytes(), &bytes].concat().into()
}

async fn keys_below(member: &Member, start: &'static str, end: &'static str) -> i64 {
    let (key, range_end) = (start.into(), end.into());
    let range = RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() };
    member.kv().await.range(range).await.unwrap().into_inner().count
}

/// The memory of a waiting call is accounted by the length of its name.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_keeps_nothing_of_its_request_but_the_name() {
    const CALLS: i64 = 100;
    let directory = tempfile::tempdir().unwrap();
    let to_file = format!("--audit-log={}", directory.path().join("audit.log").display());
    for flags in [&[][..], &[to_file.as_str(), "--audit-log-level=changes"]] {
        let cluster = Cluster::started_with(1, flags);
        let member = &cluster.members[0];
        lease(member, 1).await;
        lock(member.endless_client().await, "l", 1).await.unwrap();
        let before = resident_mib(member);
        let mut calls = Vec::new();
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", member.client_port)).await.unwrap();
        let (mut requests, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        for call in 0..CALLS {
            let (path, message) = match call % 2 {
                0 => ("v3lockpb.Lock/Lock", bloated(&LockRequest { name: "l".into(), lease: 0 })),
                _ => {
                    let request = CampaignRequest { name: "l".into(), lease: 0, value: "v".into() };
                    ("v3electionpb.Election/Campaign", bloated(&request))
                }
            };
            let head = http::Request::post(format!("http://member/{path}"));
            let head = head.header("content-type", "application/grpc").body(()).unwrap();
            requests = requests.ready().await.unwrap();
            let (answer, mut body) = requests.send_request(head, false).unwrap();
            body.send_data(message, true).unwrap();
            calls.push(answer);
            // Its key exists, so the call is waiting.
            let deadline = std::time::Instant::now() + PATIENCE;
            while keys_below(member, "l/", "l0").await < call + 2 {
                assert!(std::time::Instant::now() < deadline, "call {call} has no key");
            }
        }
        let grown = resident_mib(member).saturating_sub(before);
        assert!(grown <= 50, "{CALLS} calls that wait hold {grown} MiB, with {flags:?}");
    }
}
