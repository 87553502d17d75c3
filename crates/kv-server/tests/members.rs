//! A cluster of processes grows, shrinks and moves while it takes writes.

use crate::common;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Cluster, Member, PATIENCE, http, put};
use api::etcdserverpb::cluster_client::ClusterClient;
use api::etcdserverpb::{
    Member as Entry, MemberAddRequest, MemberPromoteRequest, MemberRemoveRequest, MemberUpdateRequest,
    MoveLeaderRequest,
};
use client::{Channel, Client};
use data_dir::{Directory, Identity};
use tonic::{Code, Status};
use wal::{LogPosition, RealFs, Wal, WalOptions};

async fn cluster_of(member: &Member) -> ClusterClient<Channel> {
    member.client().await.cluster()
}

fn peer_url(member: &Member) -> String {
    format!("http://127.0.0.1:{}", member.peer_port)
}

async fn list(member: &Member) -> Vec<Entry> {
    member.client().await.members(false).await.unwrap()
}

/// Repeats a call that etcd's checks may refuse for some seconds after a change, or until a learner is in
/// sync.
async fn patiently<T, F: Future<Output = Result<T, Status>>>(mut call: impl FnMut() -> F) -> T {
    let began = Instant::now();
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(status) => assert!(began.elapsed() < PATIENCE, "{status}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn add(member: &Member, joiner: &Member, is_learner: bool) -> u64 {
    let request = MemberAddRequest { peer_ur_ls: vec![peer_url(joiner)], is_learner };
    let added = patiently(|| {
        let request = request.clone();
        async move { cluster_of(member).await.member_add(request).await }
    });
    added.await.into_inner().member.expect("the member that was added").id
}

async fn remove(member: &Member, id: u64) -> Result<usize, Status> {
    let removed = cluster_of(member).await.member_remove(MemberRemoveRequest { id }).await?;
    Ok(removed.into_inner().members.len())
}

async fn promote(member: &Member, id: u64) -> Result<(), Status> {
    cluster_of(member).await.member_promote(MemberPromoteRequest { id }).await.map(drop)
}

/// Puts keys one after another, at any member that takes them, until the flag falls.
fn writer(
    ports: Vec<u16>,
    goes_on: Arc<AtomicBool>,
    acknowledged: Arc<AtomicI64>,
) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let mut number = 0;
        while goes_on.load(Ordering::SeqCst) {
            let port = ports[number as usize % ports.len()];
            let Ok(client) = Client::connect(format!("http://127.0.0.1:{port}"), PATIENCE).await else {
                number += 1;
                continue;
            };
            let mut client = client.kv();
            while goes_on.load(Ordering::SeqCst) {
                if client.put(put(&format!("w{number}"), "x")).await.is_err() {
                    break;
                }
                acknowledged.store(number, Ordering::SeqCst);
                number += 1;
            }
            number += 1;
        }
    })
}

#[tokio::test]
async fn one_member_grows_to_three_and_shrinks_to_one_under_puts() {
    let mut cluster = Cluster::started(1);
    cluster.members[0].put("before", "1").await;
    let (goes_on, acknowledged) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicI64::new(-1)));
    let ports = vec![cluster.members[0].client_port];
    let writing = writer(ports, Arc::clone(&goes_on), Arc::clone(&acknowledged));
    for size in 1..3 {
        let at = cluster.joiner(&(0..size).collect::<Vec<_>>());
        let id = add(&cluster.members[0], &cluster.members[at], false).await;
        let unstarted = list(&cluster.members[0]).await;
        let entry = unstarted.iter().find(|member| member.id == id).unwrap();
        assert_eq!((entry.name.as_str(), entry.is_learner, unstarted.len()), ("", false, size + 1));
        cluster.members[at].launch();
        cluster.members[at].wait_ready();
        assert_eq!(cluster.members[at].id().await, id);
        assert_eq!(cluster.members[at].get("before").await.as_deref(), Some("1"));
    }
    let started = acknowledged.load(Ordering::SeqCst);
    let names: Vec<String> = list(&cluster.members[2]).await.into_iter().map(|member| member.name).collect();
    assert!(["m0", "m1", "m2"].iter().all(|name| names.contains(&(*name).to_owned())), "{names:?}");
    // A member that was restarted knows who joined after it.
    cluster.members[1].kill();
    cluster.members[1].launch();
    cluster.members[1].wait_ready();
    // At one revision: the writer goes on.
    let revision = cluster.members[0].put("restarted", "1").await;
    cluster.assert_equal(revision).await;
    for (gone, by) in [(2, 0), (1, 0)] {
        let id = cluster.members[gone].id().await;
        let left = patiently(|| remove(&cluster.members[by], id)).await;
        assert_eq!(left, gone);
        let ended = cluster.members[gone].process.take().unwrap();
        let (status, said) = tokio::task::spawn_blocking(|| ended.wait_end()).await.unwrap();
        assert!(status.success(), "{said}");
        assert!(said.contains("the member has been permanently removed from the cluster"), "{said}");
    }
    let before = acknowledged.load(Ordering::SeqCst);
    assert!(before > started, "no write was acknowledged while members were removed");
    let deadline = Instant::now() + PATIENCE;
    while acknowledged.load(Ordering::SeqCst) < before + 10 {
        assert!(Instant::now() < deadline, "the last member takes no writes");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    goes_on.store(false, Ordering::SeqCst);
    writing.await.unwrap();
    let last = remove(&cluster.members[0], cluster.members[0].id().await).await.unwrap_err();
    assert_eq!(last.message(), "etcdserver: re-configuration failed due to not enough started members");
    // A removed member does not come back, with its data or without.
    cluster.members[1].launch();
    let ended = cluster.members[1].process.take().unwrap();
    let (_, said) = tokio::task::spawn_blocking(|| ended.wait_end()).await.unwrap();
    assert!(said.contains("the member has been permanently removed from the cluster"), "{said}");
}

#[tokio::test]
async fn a_leader_that_removes_itself_leaves_a_cluster_that_writes() {
    let mut cluster = Cluster::started(3);
    cluster.members[0].put("before", "1").await;
    let leader = cluster.leader().await;
    let id = cluster.members[leader].id().await;
    patiently(|| remove(&cluster.members[leader], id)).await;
    let ended = cluster.members[leader].process.take().unwrap();
    let (status, said) = tokio::task::spawn_blocking(|| ended.wait_end()).await.unwrap();
    assert!(status.success(), "{said}");
    let survivor = &cluster.members[(leader + 1) % 3];
    let mut client = survivor.kv().await;
    patiently(|| {
        let mut client = client.clone();
        async move { client.put(put("after", "1")).await }
    })
    .await;
    assert_eq!(client.range(common::get("before")).await.unwrap().into_inner().count, 1);
    assert_eq!(list(survivor).await.len(), 2);
}

#[tokio::test]
async fn a_learner_is_promoted_when_it_is_in_sync() {
    let mut cluster = Cluster::started(1);
    for number in 0..50 {
        cluster.members[0].put(&format!("k{number}"), "1").await;
    }
    let at = cluster.joiner(&[0]);
    let id = add(&cluster.members[0], &cluster.members[at], true).await;
    let began = Instant::now();
    for _ in 0..4 {
        let early = promote(&cluster.members[0], id).await.unwrap_err();
        assert_eq!(early.code(), Code::FailedPrecondition, "{early}");
        assert!(early.message().contains("in sync with leader"), "{early}");
    }
    assert!(began.elapsed() < Duration::from_secs(1), "refused at once: {:?}", began.elapsed());
    let second = MemberAddRequest { peer_ur_ls: vec!["http://127.0.0.1:1".to_owned()], is_learner: true };
    let many = cluster_of(&cluster.members[0]).await.member_add(second).await.unwrap_err();
    assert_eq!(many.message(), "etcdserver: too many learner members in cluster");
    cluster.members[at].launch();
    cluster.members[at].wait_ready();
    let mut client = cluster.members[at].kv().await;
    let refused = client.put(put("k", "v")).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: rpc not supported for learner");
    let linearizable = client.range(common::get("k0")).await.unwrap_err();
    assert_eq!(linearizable.message(), "etcdserver: rpc not supported for learner");
    let mut serializable = common::get("k0");
    serializable.serializable = true;
    assert_eq!(client.range(serializable).await.unwrap().into_inner().count, 1);
    let learner = cluster.members[at].client_port;
    let readyz = http(learner, "GET /readyz");
    assert!(readyz.starts_with("HTTP/1.1 503"), "{readyz}");
    assert!(readyz.contains("[-]non_learner failed: not supported for learner\n"), "{readyz}");
    assert!(http(learner, "GET /livez").starts_with("HTTP/1.1 200"));
    patiently(|| promote(&cluster.members[0], id)).await;
    patiently(|| {
        let mut client = client.clone();
        async move { client.put(put("k", "v")).await }
    })
    .await;
    assert!(http(learner, "GET /readyz/non_learner").starts_with("HTTP/1.1 200"));
    let again = promote(&cluster.members[1], id).await.unwrap_err();
    assert_eq!(again.message(), "etcdserver: can only promote a learner member");
    let (asked, joined) =
        (http(cluster.members[0].client_port, "GET /metrics"), http(learner, "GET /metrics"));
    for (metrics, wanted) in [
        (&asked, "etcd_server_learner_promote_successes 1"),
        (&asked, "which is in sync with leader\"} "),
        (&joined, "learner_promote_failures{Reason=\"etcdserver: can only promote a learner member\"} 1"),
        (&joined, "etcd_server_healthcheck{name=\"non_learner\",type=\"readyz\"} 1"),
        (&joined, "healthchecks_total{name=\"non_learner\",status=\"error\",type=\"readyz\"} 1"),
        (&joined, "etcd_server_feature_enabled{name=\"FastLeaseKeepAlive\",stage=\"BETA\"} 1"),
    ] {
        assert!(metrics.contains(wanted), "{wanted}\n{metrics}");
    }
    cluster.assert_equal(0).await;
}

#[tokio::test]
async fn any_member_updates_what_another_one_has_just_added() {
    let cluster = Cluster::started_with(3, &["--strict-reconfig-check=false"]);
    let leader = &cluster.members[cluster.leader().await];
    let others = cluster.members.iter().filter(|member| member.name != leader.name);
    let mut clients = Vec::new();
    for other in others {
        clients.push(cluster_of(other).await);
    }
    let mut at_leader = cluster_of(leader).await;
    let [planned, moved] = testkit::ports(2)[..] else { panic!("two ports") };
    let [planned, moved] = [planned, moved].map(|port| format!("http://127.0.0.1:{port}"));
    for round in 0..3 {
        let request = MemberAddRequest { peer_ur_ls: vec![planned.clone()], is_learner: true };
        let added = patiently(|| {
            let (mut client, request) = (at_leader.clone(), request.clone());
            async move { client.member_add(request).await }
        });
        let id = added.await.into_inner().member.unwrap().id;
        // This member need not have applied the change yet.
        let update = MemberUpdateRequest { id, peer_ur_ls: vec![moved.clone()] };
        let client = &mut clients[round % 2];
        let members = client.member_update(update).await.unwrap().into_inner().members;
        let updated = members.into_iter().find(|member| member.id == id).unwrap();
        assert_eq!(updated.peer_ur_ls, std::slice::from_ref(&moved));
        at_leader.member_remove(MemberRemoveRequest { id }).await.unwrap();
    }
}

#[tokio::test]
async fn a_member_is_found_at_its_new_address() {
    let mut cluster = Cluster::started(3);
    // A follower moves: the death of the leader would cost an election.
    let leader = cluster.leader().await;
    let away = (leader + 1) % 3;
    let id = cluster.members[away].id().await;
    cluster.members[away].kill();
    let port = testkit::ports(1)[0];
    let moved = format!("http://127.0.0.1:{port}");
    let request = MemberUpdateRequest { id, peer_ur_ls: vec![moved.clone()] };
    let members = cluster_of(&cluster.members[leader]).await.member_update(request).await.unwrap();
    let urls = members.into_inner().members.into_iter().find(|member| member.id == id).unwrap().peer_ur_ls;
    assert_eq!(urls, [moved]);
    cluster.members[leader].put("meanwhile", "1").await;
    cluster.members[away].peer_port = port;
    cluster.members[away].initial_cluster.clear(); // A restart needs none.
    cluster.members[away].launch();
    cluster.members[away].wait_ready();
    assert_eq!(cluster.members[away].get("meanwhile").await.as_deref(), Some("1"));
    cluster.assert_equal(0).await;
}

#[tokio::test]
async fn a_member_that_was_away_follows_a_leader_that_it_does_not_know() {
    // The check of their health would refuse changes while a member is away.
    let mut cluster = Cluster::started_with(3, &["--strict-reconfig-check=false"]);
    cluster.members[2].kill();
    // As a learner: a voter would be needed for the quorum before the others have confirmed it.
    let at = cluster.joiner(&[0, 1, 2]);
    let new = add(&cluster.members[0], &cluster.members[at], true).await;
    cluster.members[at].launch();
    cluster.members[at].wait_ready();
    patiently(|| promote(&cluster.members[0], new)).await;
    let id = cluster.members[0].id().await;
    patiently(|| remove(&cluster.members[1], id)).await;
    patiently(|| lead(&cluster.members, [1, at], new)).await;
    cluster.members[at].put("meanwhile", "1").await;
    // Its list holds neither the leader nor the change that added it.
    cluster.members[2].launch();
    cluster.members[2].wait_ready();
    assert_eq!(cluster.members[2].get("meanwhile").await.as_deref(), Some("1"));
    let listed: Vec<u64> = list(&cluster.members[2]).await.iter().map(|member| member.id).collect();
    assert!(listed.contains(&new) && !listed.contains(&id), "{listed:x?}");
}

/// Makes the directory of a joiner, which is down, what it was before anything had arrived.
fn forget_all(joiner: &Member) {
    let directory = Directory::open(&joiner.data_dir, None).unwrap();
    let identity = Identity::read(&directory.identity_path()).unwrap().unwrap();
    for path in [directory.wal_dir(), &directory.store_dir()] {
        std::fs::remove_dir_all(path).unwrap();
    }
    let options = WalOptions { segment_bytes: WalOptions::SEGMENT_BYTES, salt: [7; 16] };
    let start = LogPosition::default();
    drop(Wal::create(RealFs, directory.wal_dir(), &identity.log_identity(), start, options).unwrap());
    Identity { log: 0, ..identity }.write(&directory.identity_path()).unwrap(); // It is another log.
}

#[tokio::test]
async fn a_joiner_that_knows_only_members_that_are_gone_is_found_by_the_leader() {
    let mut cluster = Cluster::started_with(1, &["--strict-reconfig-check=false"]);
    let joiner = cluster.joiner(&[0]);
    let learner = add(&cluster.members[0], &cluster.members[joiner], true).await;
    cluster.members[joiner].launch();
    cluster.members[joiner].wait_ready();
    cluster.members[joiner].kill();
    forget_all(&cluster.members[joiner]);
    let at = cluster.joiner(&[0, joiner]);
    let new = add(&cluster.members[0], &cluster.members[at], false).await;
    cluster.members[at].launch();
    cluster.members[at].wait_ready();
    let gone = cluster.members[0].id().await;
    patiently(|| lead(&cluster.members, [0, at], new)).await;
    patiently(|| remove(&cluster.members[at], gone)).await;
    cluster.members[at].put("meanwhile", "1").await;
    cluster.members[joiner].launch();
    cluster.members[joiner].wait_ready();
    // Only one that has the state is promoted.
    patiently(|| promote(&cluster.members[at], learner)).await;
}

/// Asks the leader, one of `asked`, to hand over to `id`. Done when that member leads.
async fn lead(members: &[Member], asked: [usize; 2], id: u64) -> Result<(), Status> {
    for at in asked {
        let (own, leader) = (members[at].id().await, members[at].leader().await);
        if leader == own && own == id {
            return Ok(());
        }
        if leader == own {
            let request = MoveLeaderRequest { target_id: id };
            members[at].client().await.maintenance().move_leader(request).await?;
        }
    }
    Err(Status::unavailable("the member does not lead yet"))
}

#[tokio::test]
async fn what_the_cluster_does_not_say_is_refused_at_the_start() {
    let mut cluster = Cluster::started(1);
    // Not added: the counts differ.
    let at = cluster.joiner(&[0]);
    cluster.members[at].launch();
    let ended = cluster.members[at].process.take().unwrap();
    let (status, said) = tokio::task::spawn_blocking(|| ended.wait_end()).await.unwrap();
    assert!(!status.success() && said.contains("member count is unequal"), "{said}");
    // Added, and started as one of a new cluster.
    add(&cluster.members[0], &cluster.members[at], true).await;
    // The one that runs is asked at all of its URLs.
    cluster.members[at].extra.clear();
    let known = cluster.members[at].initial_cluster.clone();
    cluster.members[at].initial_cluster = format!("m0=http://127.0.0.1:1,{known}");
    cluster.members[at].launch();
    let ended = cluster.members[at].process.take().unwrap();
    let (status, said) = tokio::task::spawn_blocking(|| ended.wait_end()).await.unwrap();
    assert!(!status.success() && said.contains("set --initial-cluster-state=existing"), "{said}");
    cluster.members[at].initial_cluster = known;
    cluster.members[at].extra.push("--initial-cluster-state=existing".to_owned());
    cluster.members[at].launch();
    cluster.members[at].wait_ready();
    let bad = MemberAddRequest { peer_ur_ls: vec!["http://127.0.0.1".to_owned()], is_learner: false };
    let refused = cluster_of(&cluster.members[0]).await.member_add(bad).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: given member URLs are invalid");
    let own = MemberAddRequest { peer_ur_ls: vec![peer_url(&cluster.members[0])], is_learner: false };
    let refused = cluster_of(&cluster.members[0]).await.member_add(own).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: Peer URLs already exists");
    let refused = remove(&cluster.members[0], 7).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: member not found");
}

/// Each member judges by a list without the other's change; the leader judges again when the turn of the
/// second comes.
#[tokio::test]
async fn of_two_voters_that_are_added_at_once_to_two_members_one_is_refused() {
    let cluster = Cluster::started(2);
    // A member counts as connected after five seconds.
    let deadline = Instant::now() + PATIENCE;
    let mut added = 0;
    while added == 0 {
        let ports = testkit::ports(2);
        let add = async |at: usize| {
            let mut client = cluster.members[at].client().await.cluster();
            let peer_ur_ls = vec![format!("http://127.0.0.1:{}", ports[at])];
            client.member_add(MemberAddRequest { peer_ur_ls, is_learner: false }).await
        };
        let (one, other) = tokio::join!(add(0), add(1));
        for refused in [&one, &other].into_iter().filter_map(|added| added.as_ref().err()) {
            let texts = [
                "etcdserver: re-configuration failed due to not enough started members",
                "etcdserver: unhealthy cluster",
            ];
            assert!(texts.contains(&refused.message()), "{refused}");
        }
        added = [one, other].iter().filter(|added| added.is_ok()).count();
        assert!(Instant::now() < deadline, "no voter was added");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(added, 1, "two unstarted voters next to two members leave no quorum");
    cluster.members[0].put("still", "served").await;
}
