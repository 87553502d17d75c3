//! Stalled disks: which member leads, and which members do not campaign.

use crate::common::Cluster;
use raft_node::{Event, Role};

const ELECTION_TICKS: u64 = 10;

fn leader(cluster: &Cluster) -> Option<u64> {
    (1..=3).filter(|id| cluster.members[id].up).find(|id| cluster.gauges(*id).role == Role::Leader)
}

#[test]
fn a_leader_whose_disk_stalls_hands_over_within_two_election_timeouts() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.write(1, 2);
    cluster.member(1).syncs = false;
    cluster.offer(1, "accepted by the others");
    cluster.settle();
    cluster.pass(ELECTION_TICKS);
    assert_eq!(leader(&cluster), Some(1), "a slow sync is no stalled disk");
    cluster.pass(ELECTION_TICKS);
    let heir = leader(&cluster).unwrap();
    assert_ne!(heir, 1);
    cluster.offer(heir, "goes on");
    cluster.settle();
    assert_eq!(cluster.member(heir).answered.last().unwrap().0, "goes on");
    assert!(cluster.lines(1).len() == 2, "nothing is applied that is not synced here");
    // Requests received in the meantime complete when its disk is back.
    cluster.member(1).syncs = true;
    cluster.pass(3);
    assert_eq!(cluster.lines(1), cluster.lines(heir));
    assert_eq!(cluster.member(1).answered.last().unwrap().0, "accepted by the others");
}

#[test]
fn a_leader_that_gave_up_may_lead_again_when_its_disk_is_back() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.member(1).syncs = false;
    cluster.offer(1, "a");
    cluster.pass(2 * ELECTION_TICKS);
    let heir = leader(&cluster).unwrap();
    cluster.member(1).syncs = true;
    cluster.pass(3);
    cluster.member(heir).node.handle(Event::TransferLeader { to: 1 }).unwrap();
    cluster.pass(3);
    assert_eq!(leader(&cluster), Some(1));
}

#[test]
fn a_lone_voter_keeps_leadership() {
    let mut cluster = Cluster::new(1);
    cluster.elect();
    cluster.member(1).syncs = false;
    cluster.offer(1, "a");
    cluster.pass(100);
    assert_eq!(cluster.gauges(1).role, Role::Leader);
    cluster.member(1).syncs = true;
    cluster.settle();
    assert_eq!(cluster.lines(1), ["a"]);
}

#[test]
fn a_leader_without_anything_to_sync_is_not_stalled() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.member(1).syncs = false;
    cluster.pass(100);
    assert_eq!(leader(&cluster), Some(1));
}
