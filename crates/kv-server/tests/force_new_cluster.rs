//! `--force-new-cluster`: the last of three members continues as a single-member cluster with its data, and
//! further members are added again.

use crate::common::{Cluster, Member, PATIENCE, READY, add, get, http};
use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::{AlarmRequest, AlarmType, MemberAddRequest, RangeRequest};

const FORCE: &str = "--force-new-cluster";

async fn names(member: &Member) -> Vec<String> {
    let members = member.client().await.members(true).await.unwrap();
    members.into_iter().map(|member| member.name).collect()
}

fn start_again(member: &mut Member, flags: &[&str]) {
    member.extra = flags.iter().map(|flag| (*flag).to_owned()).collect();
    member.launch();
    member.wait_ready();
}

#[tokio::test]
async fn the_last_member_goes_on_alone_with_its_data_and_others_are_added_again() {
    let mut cluster = Cluster::started(3);
    for number in 0..50 {
        cluster.members[0].put(&format!("k{number}"), "v").await;
    }
    let revision = cluster.members[0].put("last", "1").await;
    // Entries acknowledged only by the other members would be lost: wait until the first member has them.
    cluster.assert_equal(revision).await;
    let id = cluster.members[0].id().await;
    cluster.members.iter_mut().for_each(Member::kill);
    for gone in &cluster.members[1..] {
        std::fs::remove_dir_all(&gone.data_dir).unwrap();
    }
    let survivor = &mut cluster.members[0];
    for round in 0..2 {
        start_again(survivor, &[FORCE]);
        assert_eq!(survivor.id().await, id);
        assert_eq!(names(survivor).await, ["m0"], "round {round}");
        assert_eq!(survivor.get("last").await.as_deref(), Some("1"));
        assert_eq!(survivor.put("round", &round.to_string()).await, revision + 1 + round);
        survivor.kill();
    }
    // The flag is needed once: the other members remain removed.
    start_again(survivor, &[]);
    assert_eq!(names(survivor).await, ["m0"]);
    assert_eq!(survivor.get("k49").await.as_deref(), Some("v"));
    let joiner = cluster.joiner(&[0]);
    let url = format!("http://127.0.0.1:{}", cluster.members[joiner].peer_port);
    let request = MemberAddRequest { peer_ur_ls: vec![url], is_learner: false };
    let mut client = cluster.members[0].client().await.cluster();
    client.member_add(request).await.unwrap();
    cluster.members[joiner].launch();
    cluster.members[joiner].wait_ready();
    let (first, second) = (&cluster.members[0], &cluster.members[joiner]);
    let revision = second.put("together", "1").await;
    assert_eq!(first.get("together").await.as_deref(), Some("1"));
    assert_eq!(second.get("k0").await.as_deref(), Some("v"));
    assert_eq!(first.hash_kv(revision).await, second.hash_kv(revision).await);
    // A flag left in a unit file does not remove members that were added since.
    let survivor = &mut cluster.members[0];
    survivor.kill();
    survivor.extra = vec![FORCE.to_owned()];
    survivor.launch();
    let (status, said) = survivor.process.take().unwrap().wait_end();
    assert!(!status.success() && said.contains("others have been added since: remove the flag"), "{said}");
    start_again(survivor, &[]);
    assert_eq!(survivor.get("together").await.as_deref(), Some("1"));
}

/// Otherwise the other members would stop as removed, and lose the entries that only they have.
#[tokio::test]
async fn a_member_is_not_forced_while_another_one_answers() {
    let mut cluster = Cluster::started(3);
    cluster.members[0].kill();
    let start = |member: &mut Member| {
        member.launch();
        member.process.take().unwrap().wait_end()
    };
    cluster.leader().await;
    cluster.members[1].put("without", "1").await;
    let survivor = &mut cluster.members[0];
    survivor.extra = vec![FORCE.to_owned()];
    let (status, said) = start(survivor);
    assert!(!status.success() && said.contains("Stop all other members first"), "{said}");
    start_again(survivor, &[]);
    assert_eq!(survivor.get("without").await.as_deref(), Some("1"));
    cluster.members[2].put("still", "1").await;
}

#[tokio::test]
async fn entries_that_are_in_the_log_and_in_no_checkpoint_are_kept() {
    let mut cluster = Cluster::started(3);
    let leader = cluster.leader().await;
    let revision = cluster.members[leader].put("a", "1").await;
    cluster.members.iter_mut().for_each(Member::kill);
    let survivor = &mut cluster.members[leader];
    start_again(survivor, &[FORCE]);
    assert_eq!(survivor.get("a").await.as_deref(), Some("1"), "acknowledged at {revision}");
    assert_eq!(names(survivor).await.len(), 1);
}

#[tokio::test]
async fn a_learner_goes_on_alone_as_a_voter() {
    let mut cluster = Cluster::started(1);
    cluster.members[0].put("a", "1").await;
    let joiner = cluster.joiner(&[0]);
    let url = format!("http://127.0.0.1:{}", cluster.members[joiner].peer_port);
    let request = MemberAddRequest { peer_ur_ls: vec![url], is_learner: true };
    cluster.members[0].client().await.cluster().member_add(request).await.unwrap();
    cluster.members[joiner].launch();
    cluster.members[joiner].wait_ready();
    cluster.members.iter_mut().for_each(Member::kill);
    let survivor = &mut cluster.members[joiner];
    start_again(survivor, &[FORCE]);
    assert_eq!(names(survivor).await, ["m1"]);
    assert_eq!(survivor.get("a").await.as_deref(), Some("1"));
    survivor.put("b", "2").await;
}

/// The joiner has all entries since the first, and never received a snapshot.
#[tokio::test]
async fn a_joiner_without_a_state_goes_on_with_its_log() {
    let mut cluster = Cluster::started(1);
    let revision = cluster.members[0].put("a", "1").await;
    let joiner = cluster.joiner(&[0]);
    let url = format!("http://127.0.0.1:{}", cluster.members[joiner].peer_port);
    let request = MemberAddRequest { peer_ur_ls: vec![url], is_learner: false };
    cluster.members[0].client().await.cluster().member_add(request).await.unwrap();
    cluster.members[joiner].launch();
    cluster.members[joiner].wait_ready();
    cluster.members[0].put("b", "1").await;
    cluster.members.iter_mut().for_each(Member::kill);
    let survivor = &mut cluster.members[joiner];
    std::fs::remove_dir_all(survivor.data_dir.join("store")).unwrap();
    for round in 0..2 {
        start_again(survivor, &[FORCE]);
        assert_eq!(names(survivor).await, ["m1"], "round {round}");
        assert_eq!(survivor.get("a").await.as_deref(), Some("1"));
        assert_eq!(survivor.put("round", &round.to_string()).await, revision + 2 + round);
        survivor.kill();
    }
    // Later writes are in the same log.
    start_again(survivor, &[]);
    assert_eq!(survivor.get("round").await.as_deref(), Some("1"));
}

/// Replay depends on the initial members: they determine which raise of the command level is valid, and the
/// level determines whether an alarm CORRUPT blocks a put.
#[tokio::test]
async fn a_joiner_replays_its_log_from_the_list_that_the_cluster_began_with() {
    let mut cluster = Cluster::started(1);
    let deadline = std::time::Instant::now() + PATIENCE;
    while !http(cluster.members[0].client_port, "GET /metrics").contains("kv_server_command_level 2") {
        assert!(std::time::Instant::now() < deadline, "the level is not raised");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let client = cluster.members[0].client().await;
    // The last joiner's list includes the previous joiner, which is not an initial member either.
    for is_learner in [false, true] {
        let others: Vec<usize> = (0..cluster.members.len()).collect();
        let joiner = cluster.joiner(&others);
        let url = format!("http://127.0.0.1:{}", cluster.members[joiner].peer_port);
        let request = MemberAddRequest { peer_ur_ls: vec![url], is_learner };
        add(&cluster.members[0], request).await;
        cluster.members[joiner].launch();
        cluster.members[joiner].wait_ready();
    }
    let mut alarms = client.maintenance();
    let (member_id, alarm) = (cluster.members[2].id().await, AlarmType::Corrupt as i32);
    for (action, key) in [(AlarmAction::Activate, "meanwhile"), (AlarmAction::Deactivate, "after")] {
        alarms.alarm(AlarmRequest { action: action as i32, member_id, alarm }).await.unwrap();
        cluster.members[0].put(key, "1").await;
    }
    let own = RangeRequest { serializable: true, ..get("after") };
    while cluster.members[2].kv().await.range(own.clone()).await.map_or(0, |found| found.get_ref().count) == 0
    {
        assert!(std::time::Instant::now() < deadline, "the learner does not follow");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    cluster.members.iter_mut().for_each(Member::kill);
    let survivor = &mut cluster.members[2];
    std::fs::remove_dir_all(survivor.data_dir.join("store")).unwrap();
    for flags in [&[FORCE][..], &[]] {
        start_again(survivor, flags);
        assert_eq!(names(survivor).await, ["m2"]);
        assert_eq!(survivor.get("after").await.as_deref(), Some("1"));
        assert_eq!(survivor.get("meanwhile").await.as_deref(), Some("1"), "it was acknowledged");
        survivor.kill();
        // Like a crash before the first checkpoint.
        std::fs::remove_dir_all(survivor.data_dir.join("store")).unwrap();
    }
}

#[tokio::test]
async fn on_a_first_start_it_has_no_effect() {
    let cluster = Cluster::started_with(3, &[FORCE]);
    let said = cluster.members[0].running().said();
    assert!(said.contains(READY) && !said.contains("forced a new cluster"), "{said}");
    // A single cluster, instead of three.
    for (number, member) in cluster.members.iter().enumerate() {
        member.put("a", &number.to_string()).await;
    }
    assert_eq!(cluster.members[0].get("a").await.as_deref(), Some("2"));
    assert_eq!(cluster.members[1].leader().await, cluster.members[2].leader().await);
}
