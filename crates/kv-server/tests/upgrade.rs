//! Rolling upgrade: members of the previous version are replaced by the current version under load.
//!
//! `KV_SERVER_BEFORE` is the path of the older server. `deploy/try-upgrade` builds it and sets the variable;
//! without it, these tests print that they are skipped.

use crate::common;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use api::etcdserverpb::{
    AuthUserAddRequest, CompactionRequest, LeaseGrantRequest, LeaseTimeToLiveRequest, MemberAddRequest,
    MemberRemoveRequest, PutRequest,
};
use client::Client;
use state_machine::CommandLevel;
use tonic::transport::Endpoint;

use crate::common::{Cluster, Member, PATIENCE, put, server};

const BEFORE: &str = "KV_SERVER_BEFORE";
/// Timeout of a put to a member that is being replaced; the next put uses another member.
const TRY_AGAIN: Duration = Duration::from_secs(2);
const LEASE: i64 = 77;

fn before() -> Option<Vec<String>> {
    let program = std::env::var(BEFORE).ok().filter(|path| !path.is_empty());
    if program.is_none() {
        eprintln!("left out: {BEFORE} names no older server");
    }
    program.map(|path| vec![path])
}

fn cluster_of(program: &[String]) -> Cluster {
    let mut cluster = Cluster::new(3);
    cluster.members.iter_mut().for_each(|member| member.program = program.to_vec());
    cluster.start();
    cluster
}

/// A client that writes while members are replaced.
#[derive(Default)]
struct Load {
    acknowledged: AtomicUsize,
    ends: AtomicBool,
}

impl Load {
    /// Waits for `puts` more acknowledged puts.
    async fn goes_on(&self, puts: usize) {
        let (wanted, deadline) =
            (self.acknowledged.load(Ordering::Relaxed) + puts, Instant::now() + PATIENCE);
        while self.acknowledged.load(Ordering::Relaxed) < wanted {
            assert!(Instant::now() < deadline, "nothing is written any more");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Puts new keys, round robin to the members, until the load stops. Returns the acknowledged keys.
async fn write(ports: Vec<u16>, load: Arc<Load>) -> Vec<String> {
    let client = |port: &u16| {
        let uri = format!("http://127.0.0.1:{port}");
        Client::new(Endpoint::from_shared(uri).unwrap().timeout(TRY_AGAIN).connect_lazy()).kv()
    };
    let mut clients: Vec<_> = ports.iter().map(client).collect();
    let (mut acknowledged, count) = (Vec::new(), clients.len());
    for n in 0.. {
        if load.ends.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("w{n:06}");
        if clients[n % count].put(put(&key, "x")).await.is_ok() {
            acknowledged.push(key);
            load.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    acknowledged
}

/// Writes all kinds of state: keys with history, a compaction, a lease with a key, a user.
async fn fill(member: &Member) {
    for n in 0..300 {
        member.put(&format!("k{:02}", n % 50), &"v".repeat(1 + n)).await;
    }
    let client = member.client().await;
    let newest = member.put("filled", "yes").await;
    member.kv().await.compact(CompactionRequest { revision: newest - 100, physical: true }).await.unwrap();
    let grant = LeaseGrantRequest { id: LEASE, ttl: 3600 };
    client.lease().lease_grant(grant).await.unwrap();
    member.kv().await.put(PutRequest { lease: LEASE, ..put("leased", "x") }).await.unwrap();
    let user = AuthUserAddRequest { name: "u".into(), password: "p".into(), ..AuthUserAddRequest::default() };
    client.auth().user_add(user).await.unwrap();
}

async fn assert_filled(member: &Member) {
    assert_eq!(member.get("filled").await.as_deref(), Some("yes"));
    assert_eq!(member.get("leased").await.as_deref(), Some("x"));
    assert_eq!(member.get("k49").await, Some("v".repeat(300)));
    let client = member.client().await;
    let asked = LeaseTimeToLiveRequest { id: LEASE, keys: true };
    let lease = client.lease().lease_time_to_live(asked).await.unwrap().into_inner();
    assert!(lease.ttl > 3000 && lease.keys == ["leased"], "{lease:?}");
    let users = client.auth().user_list(api::etcdserverpb::AuthUserListRequest {}).await;
    assert_eq!(users.unwrap().into_inner().users, ["u"]);
}

/// Stops a member, if it runs, and starts another version on its directory.
fn replace(member: &mut Member, program: &[String]) {
    if let Some(process) = member.process.take() {
        process.terminate();
        let (status, said) = process.wait_end();
        assert!(status.success(), "{status}\n{said}");
    }
    member.program = program.to_vec();
    member.launch();
}

async fn upgrade(cluster: &mut Cluster, at: usize) {
    let member = &mut cluster.members[at];
    replace(member, &[server().to_owned()]);
    member.wait_ready();
    // Like an operator: continue once this member is healthy again.
    let deadline = Instant::now() + PATIENCE;
    while member.leader().await == 0 {
        assert!(Instant::now() < deadline, "{} knows no leader", member.name);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the cluster's command level, as reported by a member of this version.
fn level(member: &Member) -> Option<u32> {
    let metrics = common::http(member.client_port, "GET /metrics");
    let value = metrics.lines().find_map(|line| line.strip_prefix("kv_server_command_level "));
    value.map(|value| value.parse().unwrap())
}

async fn level_is(cluster: &Cluster, wanted: CommandLevel) {
    let deadline = Instant::now() + PATIENCE;
    for member in &cluster.members {
        while level(member) != Some(wanted.0) {
            assert!(Instant::now() < deadline, "{} has level {:?}", member.name, level(member));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Adds and removes members through a member of this version, in a mixed cluster. The lists converge.
async fn change_members(cluster: &Cluster, at: usize) {
    let mut client = cluster.members[at].client().await.cluster();
    let peer_urls = vec!["http://127.0.0.1:1".to_owned()];
    let request = MemberAddRequest { peer_ur_ls: peer_urls, is_learner: true };
    let id = common::add(&cluster.members[at], request).await;
    client.member_remove(MemberRemoveRequest { id }).await.unwrap();
    for member in &cluster.members {
        let members = member.client().await.members(true).await.unwrap();
        assert_eq!(members.len(), 3, "{}: {members:?}", member.name);
    }
}

/// An older member is rejected with the reason, on an existing directory and on a new one.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_member_is_refused_once_all_members_are_newer() {
    let Some(before) = before() else { return };
    let mut cluster = Cluster::started(3);
    level_is(&cluster, CommandLevel::OWN).await;
    let refusal = "this version is too old for the cluster: it knows the commands of level";
    replace(&mut cluster.members[1], &before);
    cluster.members[1].running().wait_for(refusal);
    assert!(!cluster.members[1].running().said().contains(common::READY), "it serves no client");
    cluster.members[0].put("a", "1").await;
    // 0.1.0 is rejected by its peers and keeps retrying; versions with command levels exit with an error.
    cluster.members[1].kill();
    upgrade(&mut cluster, 1).await;
    assert_eq!(cluster.members[1].get("a").await.as_deref(), Some("1"));

    let joiner = cluster.joiner(&[0, 1, 2]);
    let peer_ur_ls = vec![format!("http://127.0.0.1:{}", cluster.members[joiner].peer_port)];
    common::add(&cluster.members[0], MemberAddRequest { peer_ur_ls, is_learner: true }).await;
    cluster.members[joiner].program = before;
    cluster.members[joiner].launch();
    cluster.members[joiner].running().wait_for(refusal);
    assert!(!cluster.members[joiner].running().said().contains(common::READY), "it serves no client");
}

#[tokio::test(flavor = "multi_thread")]
async fn members_are_upgraded_one_by_one_under_load() {
    let Some(before) = before() else { return };
    // Leader first, and last: each version leads a mixed cluster.
    for leader_is_first in [true, false] {
        let mut cluster = cluster_of(&before);
        fill(&cluster.members[0]).await;
        let load = Arc::new(Load::default());
        let ports = cluster.members.iter().map(|member| member.client_port).collect();
        let writing = tokio::spawn(write(ports, Arc::clone(&load)));
        load.goes_on(10).await;
        let leader = cluster.leader().await;
        let order = if leader_is_first { [0, 1, 2] } else { [1, 2, 0] };
        for step in order {
            let at = (leader + step) % 3;
            upgrade(&mut cluster, at).await;
            change_members(&cluster, at).await;
            let is_raised = level(&cluster.members[at]) >= Some(CommandLevel::OWN.0);
            assert!(step == order[2] || !is_raised, "an older member is left");
            for member in &cluster.members {
                assert_filled(member).await;
            }
            let revision = cluster.members[0].put("step", "x").await;
            cluster.assert_equal(revision).await;
            load.goes_on(10).await;
        }
        level_is(&cluster, CommandLevel::OWN).await;
        load.ends.store(true, Ordering::Relaxed);
        let acknowledged = writing.await.unwrap();
        let mut kv = cluster.members[0].kv().await;
        for key in &acknowledged {
            let answer = kv.range(common::get(key)).await.unwrap().into_inner();
            assert_eq!(answer.kvs.len(), 1, "{key} was acknowledged and is lost");
        }
    }
}
