//! Leases on real processes: grant, renewal, expiry, revocation, and leader crashes.

use crate::common;
use std::time::{Duration, Instant};

use api::etcdserverpb::lease_client::LeaseClient;
use api::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseLeasesRequest, LeaseRevokeRequest,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, PutRequest, RequestOp, TxnRequest, request_op,
};
use client::Channel;
use tonic::{Code, Status};

use crate::common::{Cluster, Member, PATIENCE, metric, put};

async fn leases(member: &Member) -> LeaseClient<Channel> {
    member.client().await.lease()
}

async fn grant(member: &Member, id: i64, ttl: i64) -> Result<LeaseGrantResponse, Status> {
    leases(member).await.lease_grant(LeaseGrantRequest { id, ttl }).await.map(tonic::Response::into_inner)
}

async fn put_with(member: &Member, key: &str, lease: i64) -> Result<i64, Status> {
    let request = PutRequest { lease, ..put(key, "x") };
    member.kv().await.put(request).await.map(|answer| answer.into_inner().header.unwrap().revision)
}

/// Renews leases on a separate stream. Returns their TTLs.
async fn renew(member: &Member, ids: &[i64]) -> Result<Vec<i64>, Status> {
    let requests: Vec<_> = ids.iter().map(|id| LeaseKeepAliveRequest { id: *id }).collect();
    let mut client = leases(member).await;
    let mut answers = client.lease_keep_alive(tokio_stream::iter(requests)).await?.into_inner();
    let mut ttls = Vec::new();
    while let Some(answer) = answers.message().await? {
        assert_eq!(answer.id, ids[ttls.len()], "answers come in order");
        ttls.push(answer.ttl);
    }
    assert_eq!(ttls.len(), ids.len(), "each request has an answer");
    Ok(ttls)
}

async fn time_to_live(member: &Member, id: i64, keys: bool) -> LeaseTimeToLiveResponse {
    let request = LeaseTimeToLiveRequest { id, keys };
    leases(member).await.lease_time_to_live(request).await.unwrap().into_inner()
}

/// Waits until a key is deleted. Returns the times at which it was last seen and first missing.
async fn gone(member: &Member, key: &str, began: Instant) -> (Duration, Duration) {
    let mut seen = Duration::ZERO;
    loop {
        let asked = began.elapsed();
        match member.get(key).await {
            Some(_) => seen = asked,
            None => return (seen, began.elapsed()),
        }
        assert!(began.elapsed() < PATIENCE, "{key} is still there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_lease_is_granted_listed_and_revoked_on_any_member() {
    let cluster = Cluster::started(3);
    let [a, b, c] = &cluster.members[..] else { panic!("three members") };
    let began = Instant::now();
    let granted = grant(a, 0, 600).await.unwrap();
    assert!(granted.id > 0 && granted.ttl == 600 && granted.error.is_empty(), "{granted:?}");
    let chosen = grant(b, -7, 1).await.unwrap();
    assert_eq!((chosen.id, chosen.ttl), (-7, 2), "raised to the minimum");
    for (refused, code, text) in [
        (grant(c, -7, 60).await, Code::FailedPrecondition, "etcdserver: lease already exists"),
        (grant(c, -7, 9_000_000_001).await, Code::OutOfRange, "etcdserver: too large lease TTL"),
    ] {
        let status = refused.unwrap_err();
        assert_eq!((status.code(), status.message()), (code, text));
    }
    let status = put_with(a, "k", 77).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "etcdserver: requested lease not found"));
    let before = put_with(a, "k2", granted.id).await.unwrap();
    put_with(b, "k1", granted.id).await.unwrap();
    for member in &cluster.members {
        let mut answer = time_to_live(member, granted.id, true).await;
        answer.keys.sort();
        assert_eq!(answer.keys, ["k1", "k2"]);
        let passed = i64::try_from(began.elapsed().as_secs()).unwrap();
        assert!(answer.granted_ttl == 600 && (598 - passed..600).contains(&answer.ttl), "{answer:?}");
        let answer = time_to_live(member, 99, true).await;
        assert_eq!((answer.id, answer.ttl, answer.granted_ttl, answer.keys.len()), (99, -1, 0, 0));
        member.get("k1").await;
        let listed = leases(member).await.lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner();
        assert!(listed.leases.iter().any(|lease| lease.id == granted.id), "{listed:?}");
    }
    let revoke = LeaseRevokeRequest { id: granted.id };
    let revoked = leases(c).await.lease_revoke(revoke).await.unwrap().into_inner();
    assert_eq!(revoked.header.unwrap().revision, before + 2, "both keys at one revision");
    assert_eq!((a.get("k1").await, b.get("k2").await), (None, None));
    let status = leases(a).await.lease_revoke(revoke).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "etcdserver: requested lease not found"));
    cluster.assert_equal(0).await;
}

#[tokio::test]
async fn a_lease_expires_after_its_ttl_unless_it_is_renewed() {
    let cluster = Cluster::started(3);
    let leader = cluster.leader().await;
    let follower = &cluster.members[(leader + 1) % 3];
    // Enough for a put or a renewal on a busy machine.
    let (began, ttl) = (Instant::now(), 5);
    for id in [1, 2] {
        grant(follower, id, ttl).await.unwrap();
    }
    put_with(follower, "dies", 1).await.unwrap();
    put_with(follower, "lives", 2).await.unwrap();
    let renewals = async {
        while began.elapsed() < Duration::from_secs(9) {
            // Through a follower, with unknown ids in between.
            assert_eq!(renew(follower, &[2, 99, 2, 0]).await.unwrap(), [ttl, 0, ttl, 0]);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    let (_, (seen, gone)) = tokio::join!(renewals, gone(follower, "dies", began));
    assert!(gone >= Duration::from_secs(5), "early: seen at {seen:?}, gone at {gone:?}");
    assert_eq!(follower.get("lives").await.as_deref(), Some("x"));
    assert_eq!(renew(follower, &[1]).await.unwrap(), [0]);
    cluster.assert_equal(0).await;
}

#[tokio::test]
async fn the_death_of_a_leader_neither_shortens_nor_resets_a_ttl() {
    let mut cluster = Cluster::started(3);
    let leader = cluster.leader().await;
    let began = Instant::now();
    let ttl = 8;
    grant(&cluster.members[leader], 5, ttl).await.unwrap();
    put_with(&cluster.members[leader], "k", 5).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let renewing = began.elapsed();
    assert_eq!(renew(&cluster.members[leader], &[5]).await.unwrap(), [ttl]);
    let renewed = began.elapsed();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let killed = began.elapsed();
    cluster.members[leader].kill();
    let survivor = &cluster.members[(leader + 1) % 3];
    cluster.leader().await;
    let elected = began.elapsed();
    let left = time_to_live(survivor, 5, false).await.ttl;
    // The deadline is a TTL after some time between the request and the response of the renewal. Time without
    // a leader may not count, and neither may half a second before it; expiry is up to half a second late.
    let most = (ttl + 1 - (killed - renewed).as_secs() as i64).min(ttl);
    let least = ttl - (began.elapsed() - renewing).as_secs() as i64 - 2;
    assert!((least.max(-1)..=most.max(0)).contains(&left), "{left} s left, not {least} to {most}");
    let (seen, gone) = gone(survivor, "k", began).await;
    let ttl = Duration::from_secs(8);
    assert!(gone >= renewing + ttl, "early: renewed at {renewing:?}, gone at {gone:?}");
    assert!(seen < elected + ttl, "reset: elected at {elected:?}, seen at {seen:?}");
}

/// A client renews twice per second, through the remaining member, whenever it responds.
#[tokio::test]
async fn an_outage_of_the_quorum_ends_no_lease_that_is_renewed() {
    let mut cluster = Cluster::started(3);
    let leader = cluster.leader().await;
    let (stays, other, ttl) = ((leader + 1) % 3, (leader + 2) % 3, 5);
    grant(&cluster.members[stays], 5, ttl).await.unwrap();
    put_with(&cluster.members[stays], "k", 5).await.unwrap();
    assert_eq!(renew(&cluster.members[stays], &[5]).await.unwrap(), [ttl]);
    let down = [leader, other];
    down.iter().for_each(|member| cluster.members[*member].kill());
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(6) {
        assert!(renew(&cluster.members[stays], &[5]).await.is_err(), "there is no quorum");
    }
    down.iter().for_each(|member| cluster.members[*member].launch());
    down.iter().for_each(|member| cluster.members[*member].wait_ready());
    cluster.leader().await;
    let ttls = loop {
        match renew(&cluster.members[stays], &[5]).await {
            Ok(ttls) => break ttls,
            Err(status) => assert!(began.elapsed() < PATIENCE, "{status}"),
        }
    };
    assert_eq!((ttls, cluster.members[stays].get("k").await.as_deref()), (vec![ttl], Some("x")));
    // Without renewals, the lease expires in time.
    let renewed = Instant::now();
    let (_, gone) = gone(&cluster.members[stays], "k", renewed).await;
    assert!(gone < Duration::from_secs(9), "{gone:?}");
    cluster.assert_equal(0).await;
}

#[tokio::test]
async fn leases_and_their_keys_survive_a_restart() {
    let mut cluster = Cluster::started(1);
    let began = Instant::now();
    grant(&cluster.members[0], 5, 6).await.unwrap();
    grant(&cluster.members[0], 6, 600).await.unwrap();
    put_with(&cluster.members[0], "short", 5).await.unwrap();
    put_with(&cluster.members[0], "long", 6).await.unwrap();
    cluster.members[0].kill();
    cluster.members[0].launch();
    cluster.members[0].wait_ready();
    let member = &cluster.members[0];
    assert_eq!(time_to_live(member, 6, true).await.keys, ["long"]);
    let (_, gone) = gone(member, "short", began).await;
    assert!(gone >= Duration::from_secs(6), "early: {gone:?}");
    assert_eq!(renew(member, &[6]).await.unwrap(), [600]);
    let metrics = common::http(member.client_port, "GET /metrics");
    assert!(metrics.contains("etcd_debugging_lease_renewed_total 1\n"), "{metrics}");
    assert!(metrics.contains("etcd_debugging_server_lease_expired_total 1\n"), "{metrics}");
}

#[tokio::test]
async fn without_a_leader_a_renewal_is_refused_and_ends_its_stream() {
    let mut cluster = Cluster::started(3);
    grant(&cluster.members[0], 5, 60).await.unwrap();
    cluster.members[1].kill();
    cluster.members[2].kill();
    let status = renew(&cluster.members[0], &[5]).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
}

#[tokio::test]
async fn long_lists_of_leases_and_keys_are_complete() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    grant(member, 5, 600).await.unwrap();
    let kv = member.kv().await;
    let mut last = 0;
    for n in 0..150 {
        let put = |m| {
            let key = format!("{}{:05}", "k".repeat(40), 100 * n + m).into();
            let put = PutRequest { key, lease: 5, ..PutRequest::default() };
            RequestOp { request: Some(request_op::Request::RequestPut(put)) }
        };
        let request = TxnRequest { success: (0..100).map(put).collect(), ..TxnRequest::default() };
        last = kv.clone().txn(request).await.unwrap().into_inner().header.unwrap().revision;
    }
    // Too many for a single caller, by many concurrent callers.
    let asked = (0..50).map(|_| time_to_live(member, 5, true));
    for answer in futures_util::future::join_all(asked).await {
        assert_eq!(answer.keys.len(), 15_000);
    }
    let granted = (10..30_010).map(|id| (member, id)).collect::<Vec<_>>();
    let client = leases(member).await;
    for ids in granted.chunks(500) {
        let granting = ids.iter().map(|(_, id)| {
            let mut client = client.clone();
            async move { client.lease_grant(LeaseGrantRequest { id: *id, ttl: 600 }).await.unwrap() }
        });
        futures_util::future::join_all(granting).await;
    }
    let listed = client.clone().lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner();
    assert_eq!(listed.leases.len(), 30_001);
    let revoked = client.clone().lease_revoke(LeaseRevokeRequest { id: 5 }).await.unwrap().into_inner();
    assert_eq!(revoked.header.unwrap().revision, last + 1, "all keys at one revision");
}

fn questions_begun(member: &Member) -> usize {
    let text = common::http(member.client_port, "GET /metrics");
    let is_count =
        |line: &&str| line.starts_with("grpc_server_started_total") && line.contains("\"LeaseTimeToLive\"");
    let count = text.lines().find(is_count).and_then(|line| line.rsplit(' ').next());
    count.map_or(0, |count| count.parse().unwrap())
}

/// Starts members with a long election timeout, so that the leader remains leader without contact to its
/// peers. Returns its index.
async fn patient_members() -> (Cluster, usize) {
    let cluster = Cluster::started_with(3, &["--election-timeout=5000"]);
    let at = cluster.leader().await;
    grant(&cluster.members[at], 7, 600).await.unwrap();
    (cluster, at)
}

/// Renews a lease while many TTL queries wait for stopped members.
async fn renew_among_questions(asked: &Member, stopped: &[&Member]) {
    const QUESTIONS: usize = 400;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(leases(asked).await);
    }
    stopped.iter().for_each(|other| other.running().pause());
    let mut questions = tokio::task::JoinSet::new();
    for client in &clients {
        for _ in 0..QUESTIONS {
            let mut client = client.clone();
            let request = LeaseTimeToLiveRequest { id: 7, keys: false };
            questions.spawn(async move { client.lease_time_to_live(request).await });
        }
    }
    let began = Instant::now();
    while questions_begun(asked) < 4 * QUESTIONS {
        assert!(began.elapsed() < Duration::from_secs(4), "{} have come", questions_begun(asked));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let goes_on = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        stopped.iter().for_each(|other| other.running().resume());
    };
    let (renewed, ()) = tokio::join!(renew(asked, &[7]), goes_on);
    assert_eq!(renewed.unwrap(), [600]);
    while let Some(answer) = questions.join_next().await {
        assert_eq!(answer.unwrap().unwrap().get_ref().granted_ttl, 600);
    }
}

/// Queries wait while a leader cannot confirm its leadership. There are more than a member's own limit.
#[tokio::test(flavor = "multi_thread")]
async fn questions_of_clients_leave_the_places_of_renewals() {
    let (cluster, at) = patient_members().await;
    let members = &cluster.members;
    renew_among_questions(&members[at], &[&members[(at + 1) % 3], &members[(at + 2) % 3]]).await;
}

/// Queries to a follower wait while its leader is stopped. There are more than the streams of a connection.
#[tokio::test(flavor = "multi_thread")]
async fn questions_through_a_follower_leave_streams_to_renewals() {
    let (cluster, at) = patient_members().await;
    let (leader, follower) = (&cluster.members[at], &cluster.members[(at + 1) % 3]);
    assert_eq!(renew(follower, &[7]).await.unwrap(), [600], "it is connected to the leader");
    renew_among_questions(follower, &[leader]).await;
}

/// A single stream puts hundreds of renewals into a record. With 16 at a time, there would be 19 records.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_alone_renews_hundreds_of_leases_at_a_time() {
    const APPLIED: &str = "etcd_server_proposals_applied_total";
    let cluster = Cluster::started(1);
    cluster.leader().await;
    let member = &cluster.members[0];
    let client = leases(member).await;
    let ids: Vec<i64> = (1..=300).collect();
    let granting = ids.iter().map(|id| {
        let mut client = client.clone();
        async move { client.lease_grant(LeaseGrantRequest { id: *id, ttl: 600 }).await.unwrap() }
    });
    futures_util::future::join_all(granting).await;
    // Afterwards, the record of the grants does not cover a renewal.
    tokio::time::sleep(Duration::from_millis(700)).await;
    let before = metric(member, APPLIED);
    assert_eq!(renew(member, &ids).await.unwrap(), vec![600; 300]);
    let records = metric(member, APPLIED) - before;
    assert!((1.0..15.0).contains(&records), "{records} records");
}
