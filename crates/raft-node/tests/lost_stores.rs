//! Members that lost their store but not their log: they vote, accept entries, and are rebuilt.

use crate::common::{Cluster, agree, installs, start};
use raft_node::{Event, LogIndex, Role};
use wal::testing::Crash;

/// Returns a cluster with truncated logs, and this many entries after the checkpoints.
fn trimmed(write: u64) -> Cluster {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.write(1, 40);
    for id in 1..=3 {
        cluster.checkpoint(id);
    }
    cluster.write(1, write);
    cluster
}

/// Returns a cluster in which member 3 has a truncated log and no store.
fn lost_store(write: u64) -> Cluster {
    let mut cluster = trimmed(write);
    assert!(start(&cluster, 3) > LogIndex(10));
    cluster.restart_lost(3);
    cluster
}

#[test]
fn a_member_whose_store_is_lost_is_rebuilt_within_its_log() {
    let mut cluster = lost_store(20);
    let (before, last) = (start(&cluster, 3), cluster.gauges(3).last_index);
    cluster.pass(15);
    agree(&cluster, 60);
    assert_eq!(installs(&cluster, 3), 1);
    assert_eq!(start(&cluster, 3), before, "the log needed no restart: what it had acknowledged is there");
    assert!(cluster.gauges(3).last_index >= last);
    assert_eq!(cluster.members[&3].applier.machine().installs, 1);
    cluster.offer(3, "back again");
    cluster.pass(2);
    agree(&cluster, 61);
}

#[test]
fn a_lagging_member_whose_store_is_lost_is_brought_up_like_any_other() {
    let mut cluster = lost_store(0);
    cluster.isolate(&[3]);
    cluster.write_and_trim(40);
    cluster.heal();
    cluster.pass(30);
    agree(&cluster, 80);
    assert_eq!(installs(&cluster, 3), 1);
}

#[test]
fn a_member_whose_store_is_lost_votes_takes_entries_and_stands_last() {
    let mut cluster = lost_store(5);
    cluster.streams_flow = false;
    cluster.pass(15);
    assert_eq!(cluster.streams.len(), 1, "it asks");
    // With member 2 down it is needed for every commit: a running stream must not block entries to it.
    cluster.member(2).up = false;
    let commit = cluster.gauges(1).commit;
    cluster.write(1, 5);
    assert_eq!(cluster.gauges(1).commit, commit + 5);
    assert!(cluster.lines(3).is_empty(), "nothing is applied to a store that is not there");
    cluster.member(1).up = false;
    cluster.member(2).up = true;
    cluster.pass(40);
    assert_eq!(
        (cluster.gauges(2).leader, cluster.gauges(3).leader),
        (None, None),
        "member 2 has its chance first"
    );
    // Together they have everything: member 2 a store, and member 3 the entries that member 2 lacks.
    cluster.break_stream();
    cluster.pass(60);
    assert_eq!(cluster.gauges(2).role, Role::Leader, "member 3 replicated what it had and handed over");
    assert_eq!(cluster.lines(2).len(), 50);
    cluster.streams_flow = true;
    cluster.member(1).up = true;
    cluster.pass(40);
    agree(&cluster, 50);
}

#[test]
fn leadership_does_not_go_to_a_member_whose_store_is_lost() {
    let mut cluster = lost_store(5);
    cluster.streams_flow = false;
    cluster.pass(15);
    cluster.member(2).up = false;
    cluster.write(1, 1);
    assert_eq!(
        cluster.member(1).node.most_caught_up(),
        Some(2),
        "member 3 is further, but would not take over"
    );
    cluster.member(2).up = true;
    cluster.streams_flow = true;
    cluster.break_stream();
    cluster.pass(60);
    agree(&cluster, 46);
    cluster.member(2).up = false;
    cluster.write(1, 1);
    assert_eq!(cluster.member(1).node.most_caught_up(), Some(3), "it has its state again");
}

#[test]
fn a_member_without_its_store_votes_for_a_member_with_all_it_acknowledged() {
    let mut cluster = lost_store(5);
    cluster.streams_flow = false;
    cluster.pass(2);
    cluster.member(1).up = false;
    cluster.pass(60);
    assert_eq!(cluster.gauges(2).role, Role::Leader);
    while !cluster.streams.is_empty() {
        cluster.break_stream(); // The old leader's and the new one's.
    }
    cluster.streams_flow = true;
    cluster.pass(15);
    cluster.member(1).up = true;
    cluster.pass(5);
    agree(&cluster, 45);
}

#[test]
fn a_request_that_no_checkpoint_serves_asks_for_one_and_keeps_the_entries_flowing() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.write(1, 40);
    cluster.checkpoint(3);
    cluster.restart_lost(3);
    cluster.pass(25);
    assert_eq!(installs(&cluster, 3), 0);
    assert!(cluster.member(1).wanted.len() >= 2, "asked again in every election timeout");
    let needed = start(&cluster, 3);
    assert!(cluster.member(1).wanted.iter().all(|wanted| *wanted == needed));
    cluster.member(2).up = false;
    cluster.write(1, 3);
    assert_eq!(cluster.lines(1).len(), 43, "the member still counts");
    cluster.member(2).up = true;
    cluster.checkpoint(1);
    cluster.pass(15);
    agree(&cluster, 43);
}

#[test]
fn a_lost_store_survives_a_change_of_leader_and_a_restart_of_its_member() {
    let mut cluster = lost_store(10);
    cluster.streams_flow = false;
    cluster.pass(15);
    cluster.restart_lost(3);
    cluster.streams.clear();
    cluster.member(1).node.handle(Event::TransferLeader { to: 2 }).unwrap();
    cluster.pass(3);
    assert_eq!(cluster.gauges(2).role, Role::Leader);
    cluster.streams_flow = true;
    cluster.pass(30);
    agree(&cluster, 50);
}

#[test]
fn a_lone_member_cannot_be_rebuilt_and_says_so() {
    let mut cluster = Cluster::new(1);
    cluster.elect();
    cluster.write(1, 30);
    cluster.checkpoint(1);
    let lost = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cluster.restart_lost(1)));
    let said = lost.unwrap_err();
    assert!(said.downcast_ref::<String>().unwrap().contains("no other member has the state"));
}

#[test]
fn a_restarted_member_begins_with_a_trimmed_log() {
    let mut cluster = trimmed(5);
    for id in 1..=3 {
        cluster.recover(id, Crash::Synced);
        assert_eq!(cluster.lines(id).len(), 40, "its checkpoint");
    }
    cluster.wire.clear();
    let leader = cluster.elect();
    cluster.write(leader, 1);
    cluster.pass(2);
    agree(&cluster, 46);
}
