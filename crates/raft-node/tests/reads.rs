//! Linearizable reads in a cluster: which are confirmed, how many rounds they cost, when they fail.

use crate::common::Cluster;
use raft_node::{Event, Lane, LogIndex, ReadError, Role};

/// Returns a cluster in which the leader's response to a read of member 3 is lost.
fn unanswered() -> Cluster {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.cut.insert((1, 3));
    cluster.ask(3, "read");
    cluster.settle();
    cluster.heal();
    cluster
}

#[test]
fn a_slow_disk_of_a_follower_holds_up_no_readers_and_no_forwarded_writes() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.member(2).syncs = false;
    cluster.member(3).syncs = false;
    cluster.offer(1, "under way");
    cluster.settle();
    assert!(!cluster.members[&3].jobs.is_empty(), "its entry waits for the disk");
    cluster.ask(1, "of the leader");
    cluster.ask(3, "of the follower");
    cluster.offer(3, "forwarded");
    cluster.settle();
    assert_eq!(cluster.member(1).readable, ["of the leader"]);
    assert_eq!(cluster.member(3).readable, ["of the follower"]);
    assert_eq!(cluster.gauges(1).last_index, LogIndex(3), "the forwarded batch is in the leader's log");
    assert!(cluster.member(3).answered.is_empty());
}

#[test]
fn a_read_is_confirmed_on_any_member() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.offer(1, "a");
    cluster.settle();
    for (id, name) in [(1, "leader"), (2, "follower")] {
        cluster.ask(id, name);
        cluster.settle();
        assert_eq!(cluster.member(id).readable, [name]);
        assert_eq!(cluster.lines(id), ["a"]);
    }
}

#[test]
fn reads_that_wait_together_cost_one_round() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let before = cluster.sent.len();
    ["a", "b", "c", "d"].into_iter().for_each(|name| cluster.ask(1, name));
    cluster.settle();
    assert_eq!(cluster.member(1).readable.len(), 4);
    assert_eq!(cluster.sent.len() - before, 4, "a heartbeat to each follower and its answer");
    assert!(cluster.sent[before..].iter().all(|(_, message)| message.lane == Lane::Urgent));
}

#[test]
fn a_leader_of_a_minority_answers_no_read_index_request() {
    let mut cluster = Cluster::new(5);
    cluster.elect();
    cluster.isolate(&[1, 2]);
    cluster.ask(2, "stale");
    cluster.settle();
    assert!(cluster.member(2).readable.is_empty(), "three others may follow another leader by now");
    cluster.pass(40);
    let new_leader = (3..=5).find(|id| cluster.gauges(*id).role == Role::Leader).unwrap();
    cluster.offer(new_leader, "news");
    cluster.settle();
    cluster.heal();
    cluster.pass(20);
    cluster.ask(2, "fresh");
    cluster.settle();
    assert_eq!((cluster.member(2).readable.clone(), cluster.lines(2)), (vec!["fresh"], vec!["news".into()]));
}

#[test]
fn a_deposed_leader_confirms_no_read() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.isolate(&[1]);
    cluster.ask(1, "stale");
    cluster.settle();
    // The other members continue without it.
    cluster.pass(30);
    let new_leader = (2..=3).find(|id| cluster.gauges(*id).role == Role::Leader).unwrap();
    cluster.offer(new_leader, "news");
    cluster.settle();
    assert!(cluster.member(1).readable.is_empty());
    cluster.heal();
    cluster.pass(10);
    assert!(cluster.member(1).readable.is_empty());
    assert_eq!(cluster.member(1).unread, [("stale", ReadError::LeaderChanged)]);
    cluster.ask(1, "again");
    cluster.settle();
    assert_eq!(cluster.member(1).readable, ["again"]);
    assert_eq!(cluster.lines(1), ["news"]);
}

#[test]
fn a_read_under_way_fails_when_another_leader_takes_over() {
    let mut cluster = unanswered();
    cluster.member(1).node.handle(Event::TransferLeader { to: 2 }).unwrap();
    cluster.settle();
    assert_eq!(cluster.gauges(3).leader, Some(2));
    assert_eq!(cluster.member(3).unread, [("read", ReadError::LeaderChanged)]);
    assert!(cluster.member(3).readable.is_empty());
}

#[test]
fn a_read_whose_answer_was_lost_is_asked_again() {
    let mut cluster = unanswered();
    cluster.pass(4);
    assert!(cluster.member(3).readable.is_empty());
    cluster.pass(2);
    assert_eq!(cluster.member(3).readable, ["read"]);
}

#[test]
fn a_read_is_confirmed_over_links_slower_than_the_time_after_which_it_is_asked_again() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    cluster.ask(leader, "read");
    cluster.turn(leader);
    // Six ticks to a follower and back, while rounds are retried after five.
    for _ in 0..4 {
        let under_way = std::mem::take(&mut cluster.wire);
        for _ in 0..3 {
            cluster.member(leader).node.handle(Event::Tick).unwrap();
            cluster.turn(leader);
        }
        for (from, message) in under_way {
            cluster.member(message.to).node.handle(Event::Message { from, bytes: message.bytes }).unwrap();
        }
        for id in [1, 2, 3] {
            cluster.turn(id);
        }
    }
    assert_eq!(cluster.member(leader).readable, ["read"]);
}
