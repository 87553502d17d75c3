//! Disks that stand still: who leads then, and who does not try to.
#![expect(clippy::unwrap_used, reason = "a test that unwraps nothing fails where it stands")]

mod common;

use common::Cluster;
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
    // What it was asked for meanwhile is answered when its disk is back.
    cluster.member(1).syncs = true;
    cluster.pass(3);
    assert_eq!(cluster.lines(1), cluster.lines(heir));
    assert_eq!(cluster.member(1).answered.last().unwrap().0, "accepted by the others");
}

#[test]
fn a_leader_that_finds_no_heir_steps_down_within_two_election_timeouts() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    // All disks stall and heartbeats are delivered: no member may campaign.
    for id in 1..=3 {
        cluster.member(id).syncs = false;
    }
    cluster.offer(1, "waits");
    cluster.pass(2 * ELECTION_TICKS);
    assert_eq!(leader(&cluster), None);
    let terms: Vec<u64> = (1..=3).map(|id| cluster.gauges(id).term).collect();
    cluster.pass(100);
    assert_eq!(leader(&cluster), None);
    assert_eq!((1..=3).map(|id| cluster.gauges(id).term).collect::<Vec<_>>(), terms, "nobody stands");
    assert!((1..=3).all(|id| cluster.gauges(id).leader.is_none()), "and everybody knows it");
    cluster.member(2).syncs = true;
    cluster.member(3).syncs = true;
    cluster.pass(40);
    assert!(matches!(leader(&cluster), Some(2 | 3)));
    cluster.member(1).syncs = true;
    cluster.pass(3);
    assert_eq!(cluster.lines(1), ["waits"]);
}

#[test]
fn a_stalled_member_does_not_stand_and_does_not_take_leadership() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.member(3).syncs = false;
    cluster.offer(1, "a");
    cluster.pass(2 * ELECTION_TICKS);
    assert_eq!(leader(&cluster), Some(1), "a follower's disk is its own trouble");
    let term = cluster.gauges(3).term;
    cluster.member(1).node.handle(Event::TransferLeader { to: 3 }).unwrap();
    cluster.pass(2 * ELECTION_TICKS);
    assert_eq!(leader(&cluster), Some(1));
    cluster.isolate(&[3]);
    cluster.pass(100);
    assert_eq!(cluster.gauges(3).term, term);
    assert_eq!((cluster.gauges(3).role, cluster.gauges(3).leader), (Role::Follower, None));
    cluster.heal();
    cluster.member(3).syncs = true;
    cluster.pass(3);
    assert_eq!(cluster.lines(3), ["a"]);
    assert_eq!(leader(&cluster), Some(1));
}

#[test]
fn whoever_gave_up_may_lead_again_when_its_disk_is_back() {
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
fn a_disk_that_is_slow_but_moves_keeps_its_leader_in_office() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.member(1).syncs = false;
    for _ in 0..30 {
        // Each job waits for most of an election timeout; there is always one under way.
        cluster.offer(1, "slow");
        cluster.settle();
        cluster.pass(ELECTION_TICKS - 1);
        let promises = cluster.member(1).sync();
        assert!(promises.is_empty(), "a leader promises nothing");
    }
    assert_eq!(leader(&cluster), Some(1));
    assert_eq!(cluster.gauges(1).term, 1);
}

#[test]
fn a_lone_voter_has_nobody_to_make_room_for() {
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
