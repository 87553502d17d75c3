//! First starts of restored members that are interrupted, or that meet members of another cluster.

use std::path::PathBuf;

use crate::archive::{archiver, lone_cluster, restore, wait_for};
use crate::common::{Cluster, Member, get};

const CONFIRMED: &str = "membership confirmed by peers";
const CANDIDATE: &str = "became candidate at term";
const LEADS: &str = "became leader at term";
/// Text of the rejection that a founder with another first state receives.
const UNLIKE: &str = "started from another snapshot";

/// An archive with three puts of key `a`; each of its revisions is one first state.
struct Source {
    archive: PathBuf,
    last: i64,
    _kept: (Cluster, tempfile::TempDir),
}

impl Source {
    async fn new() -> Source {
        let (cluster, directory, archive) = lone_cluster();
        let source = &cluster.members[0];
        let archiver = archiver(source, &archive, &[]);
        archiver.wait_for("archiving");
        source.put("a", "1").await;
        source.put("a", "2").await;
        let last = source.put("a", "3").await;
        wait_for(&archive, last).await;
        archiver.kill();
        Source { archive, last, _kept: (cluster, directory) }
    }

    /// Replaces the directory of a stopped member.
    fn restore(&self, member: &Member, revision: i64) {
        drop(std::fs::remove_dir_all(&member.data_dir));
        let (is_made, said) = restore(&self.archive, member, &[&format!("--revision={revision}")]);
        assert!(is_made, "{said}");
    }
}

/// Member 0 campaigns first, and logs that it does.
fn set_timeouts(cluster: &mut Cluster) {
    for (at, member) in cluster.members.iter_mut().enumerate() {
        let (heartbeat, election) = if at == 0 { (50, 700) } else { (400, 4000) };
        member.extra = vec![
            format!("--heartbeat-interval={heartbeat}"),
            format!("--election-timeout={election}"),
            "--log-level=debug".to_owned(),
        ];
    }
}

/// Starts the first `count` members and kills them when member 0 is a candidate. Returns whether it did not
/// become the leader.
fn interrupt(cluster: &mut Cluster, count: usize) -> bool {
    set_timeouts(cluster);
    cluster.members[..count].iter_mut().for_each(Member::launch);
    for member in &cluster.members[..count] {
        member.running().wait_for(CONFIRMED);
    }
    cluster.members[0].running().wait_for(CANDIDATE);
    let others = &mut cluster.members[1..count];
    others.iter_mut().for_each(Member::kill);
    let led = cluster.members[0].running().said().contains(LEADS);
    cluster.members[0].kill();
    cluster.members.iter_mut().for_each(|member| member.extra.clear());
    !led
}

async fn interrupted_first_start_finds_a_leader(source: &Source) {
    for is_restored in [true, false] {
        let mut cluster = Cluster::new(3);
        if is_restored {
            cluster.members.iter().for_each(|member| source.restore(member, source.last));
        }
        interrupt(&mut cluster, 3);
        cluster.start();
        let revision = cluster.members[0].put("b", "1").await;
        let last = if is_restored { source.last } else { 1 };
        assert!(revision > last, "{revision} after {last}");
        cluster.assert_equal(revision).await;
    }
}

/// Members 0 and 1 have one first state. Member 1 is restored to another one before it has voted, and starts the
/// cluster with member 2. The vote of member 0 must not count as its start.
async fn member_that_only_voted_takes_the_clusters_state(source: &Source) {
    let mut cluster = Cluster::new(3);
    let has_only_voted = (0..20).any(|_| {
        cluster.members[..2].iter().for_each(|member| source.restore(member, source.last - 1));
        interrupt(&mut cluster, 2)
    });
    assert!(has_only_voted, "member 0 was elected each time");
    cluster.members[1..].iter().for_each(|member| source.restore(member, source.last));
    cluster.members[1..].iter_mut().for_each(Member::launch);
    cluster.members[1..].iter().for_each(Member::wait_ready);
    let mut revision = 0;
    for number in 0..20 {
        revision = cluster.members[1].put(&format!("b{number}"), "1").await;
    }
    cluster.members[0].launch();
    cluster.members[0].wait_ready();
    assert_eq!(cluster.members[0].get("a").await.as_deref(), Some("3"), "the state of the other two");
    cluster.assert_equal(revision).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_that_was_interrupted_finds_a_leader() {
    interrupted_first_start_finds_a_leader(&Source::new().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_has_only_voted_takes_the_state_of_the_cluster() {
    member_that_only_voted_takes_the_clusters_state(&Source::new().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "20 rounds of both, about five minutes"]
async fn first_starts_succeed_in_every_round() {
    let source = Source::new().await;
    for _ in 0..20 {
        interrupted_first_start_finds_a_leader(&source).await;
        member_that_only_voted_takes_the_clusters_state(&source).await;
    }
}

/// All members were restored to another state and started again but one, which kept its old directory.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_a_cluster_that_was_restored_since_does_not_disturb_it() {
    let source = Source::new().await;
    let mut cluster = Cluster::new(3);
    cluster.members.iter().for_each(|member| source.restore(member, source.last - 1));
    cluster.start();
    // More entries and terms than the new cluster has.
    for at in [0, 1, 2, 0] {
        for number in 0..10 {
            cluster.members[at].put(&format!("old{number}"), "1").await;
        }
        cluster.members[at].kill();
        cluster.members[at].launch();
        cluster.members[at].wait_ready();
    }
    cluster.members.iter_mut().for_each(Member::kill);
    cluster.members[1..].iter().for_each(|member| source.restore(member, source.last));
    cluster.members[1..].iter_mut().for_each(Member::launch);
    cluster.members[1..].iter().for_each(Member::wait_ready);
    cluster.members[1].put("new", "1").await;
    cluster.members[0].launch();
    cluster.members[0].running().wait_for(UNLIKE);
    for number in 0..20 {
        cluster.members[1 + number % 2].put(&format!("new{number}"), "1").await;
    }
    let mut client = cluster.members[2].kv().await;
    let found = client.range(get("old0")).await.unwrap().into_inner();
    assert_eq!(found.count, 0, "no entry of the old cluster");
}
