//! Three members as processes: any member serves, a single member or all of them may crash.

use crate::common;
use std::time::{Duration, Instant};

use crate::common::{Cluster, PATIENCE};

#[tokio::test]
async fn any_member_writes_and_every_member_reads_it() {
    let cluster = Cluster::started(3);
    for (at, writer) in cluster.members.iter().enumerate() {
        let key = format!("k{at}");
        let revision = writer.put(&key, &key).await;
        assert_eq!(revision, 2 + at as i64);
        for reader in &cluster.members {
            assert_eq!(reader.get(&key).await.as_deref(), Some(key.as_str()));
        }
    }
    cluster.assert_equal(0).await;
}

#[tokio::test]
async fn the_death_of_the_leader_costs_an_election_and_no_write() {
    let mut cluster = Cluster::started(3);
    cluster.members[0].put("before", "1").await;
    let leader = cluster.leader().await;
    cluster.members[leader].kill();
    let survivor = &cluster.members[(leader + 1) % 3];
    survivor.put("after", "x").await;
    cluster.members[leader].launch();
    cluster.members[leader].wait_ready();
    assert_eq!(cluster.members[leader].get("after").await.as_deref(), Some("x"));
    assert_eq!(cluster.members[leader].get("before").await.as_deref(), Some("1"));
    cluster.assert_equal(0).await;
}

#[tokio::test]
async fn a_leader_that_is_asked_to_end_hands_over_first() {
    let mut cluster = Cluster::started(3);
    let leader = cluster.leader().await;
    let survivor = (leader + 1) % 3;
    cluster.members[leader].running().terminate();
    let ended = cluster.members[leader].process.take().unwrap();
    let (status, said) = tokio::task::spawn_blocking(|| ended.wait_end()).await.unwrap();
    assert!(status.success(), "{said}");
    assert!(!said.contains("leadership transfer "), "{said}");
    cluster.members[survivor].put("after", "x").await;
}

#[tokio::test]
async fn what_was_acknowledged_survives_the_death_of_all() {
    let mut cluster = Cluster::started(3);
    let mut acknowledged = Vec::new();
    for number in 0..200 {
        let (key, member) = (format!("k{number}"), &cluster.members[number % 3]);
        acknowledged.push((key.clone(), member.put(&key, &number.to_string()).await));
    }
    cluster.members.iter_mut().for_each(common::Member::kill);
    cluster.start();
    let mut client = cluster.members[1].kv().await;
    for (number, (key, revision)) in acknowledged.iter().enumerate() {
        let pair = client.range(common::get(key)).await.unwrap().into_inner().kvs.pop().expect(key);
        assert_eq!((pair.mod_revision, pair.value), (*revision, number.to_string().into()));
    }
    cluster.assert_equal(0).await;
}

#[tokio::test]
async fn a_wiped_member_gives_no_vote_to_a_member_that_lacks_what_it_acknowledged() {
    let mut cluster = Cluster::started(3);
    let leader = cluster.leader().await;
    let (wiped, lagging) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.members[lagging].kill();
    cluster.members[leader].put("acknowledged", "x").await;
    cluster.members[leader].kill();
    cluster.members[wiped].kill();
    std::fs::remove_dir_all(&cluster.members[wiped].data_dir).unwrap();
    cluster.members[wiped].launch();
    // No other member is up when it queries the cluster for its membership.
    cluster.members[wiped].running().wait_for("waiting for a majority of peers");
    cluster.members[lagging].launch();
    // Three times the duration of an election. The absence of an election has no event to wait for.
    tokio::time::sleep(Duration::from_secs(6)).await;
    for at in [wiped, lagging] {
        assert!(!cluster.members[at].running().said().contains("ready to serve"), "they elected a leader");
    }
    cluster.members[leader].launch();
    for member in &cluster.members {
        member.wait_ready();
        assert_eq!(member.get("acknowledged").await.as_deref(), Some("x"));
    }
    cluster.assert_equal(0).await;
}

#[tokio::test]
async fn two_of_three_new_members_begin_and_the_third_joins_without_an_election() {
    let mut cluster = Cluster::new(3);
    cluster.members[0].launch();
    cluster.members[1].launch();
    cluster.members[0].wait_ready();
    cluster.members[1].wait_ready();
    cluster.members[0].put("a", "1").await;
    let before = cluster.members[0].leader().await;
    cluster.members[2].launch();
    cluster.members[2].wait_ready();
    assert_eq!(cluster.members[2].get("a").await.as_deref(), Some("1"));
    for member in &cluster.members {
        assert_eq!(member.leader().await, before, "the third member cost an election");
    }
    cluster.assert_equal(0).await;
}

#[tokio::test]
async fn a_member_with_an_empty_disk_does_not_come_back_as_itself() {
    let mut cluster = Cluster::started(3);
    cluster.members[0].put("a", "1").await;
    let member = &mut cluster.members[2];
    member.kill();
    std::fs::remove_dir_all(&member.data_dir).unwrap();
    member.launch();
    let (status, said) = member.process.take().unwrap().wait_end();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("has already been bootstrapped"), "{said}");
}

/// Heartbeats wake a member ten times per second, and sled's seven threads once each. Other periodic work is
/// rare.
#[test]
fn a_member_without_clients_is_seldom_woken() {
    const LONGEST: Duration = Duration::from_secs(10);
    const WAKE_UPS_MAX: u64 = 300;
    let cluster = Cluster::started(3);
    let wake_ups = || -> Vec<u64> {
        let of = |member: &common::Member| woken(member.running().pid());
        cluster.members.iter().map(of).collect()
    };
    // The first seconds include an election and connection attempts.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = wake_ups();
        std::thread::sleep(LONGEST);
        let counts: Vec<u64> = wake_ups().iter().zip(before).map(|(now, before)| now - before).collect();
        if counts.iter().all(|count| *count <= WAKE_UPS_MAX) {
            return;
        }
        assert!(Instant::now() < deadline, "{counts:?} wake-ups in ten seconds");
    }
}

/// Returns the number of voluntary context switches of all threads of a process.
fn woken(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |thread: std::fs::DirEntry| {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.map_or(0, |count| count.trim().parse::<u64>().unwrap())
    };
    threads.map(|thread| of(thread.unwrap())).sum()
}
