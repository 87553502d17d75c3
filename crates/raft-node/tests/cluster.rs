//! The guarantees of a cluster, as scenarios of events at members.

use crate::common::{Book, Cluster, REQUEST_TIMEOUT_TICKS};
use raft_node::{Event, LogIndex, ProposeError, ReadError, Role};

#[test]
fn a_lone_voter_leads_at_once_and_serves() {
    let mut cluster = Cluster::new(1);
    cluster.settle();
    assert_eq!(cluster.gauges(1).role, Role::Leader);
    cluster.offer(1, "a");
    cluster.offer(1, "b");
    cluster.settle();
    assert_eq!(cluster.member(1).answered, [("a", 1), ("b", 2)]);
    cluster.ask(1, "read");
    cluster.settle();
    assert_eq!(cluster.member(1).readable, ["read"], "no network is needed to confirm it");
    assert!(cluster.sent.is_empty());
}

#[test]
fn three_members_elect_one_leader_and_apply_the_same() {
    let mut cluster = Cluster::new(3);
    let leader = cluster.elect();
    assert_eq!(leader, 1, "its timeout is the shortest");
    for name in ["a", "b", "c"] {
        cluster.offer(leader, name);
        cluster.settle();
    }
    for id in 1..=3 {
        assert_eq!(cluster.lines(id), ["a", "b", "c"], "member {id}");
    }
    assert_eq!(cluster.member(1).answered, [("a", 1), ("b", 2), ("c", 3)]);
    let leaders = (1..=3).filter(|id| cluster.gauges(*id).role == Role::Leader).count();
    assert_eq!(leaders, 1);
}

#[test]
fn commands_that_wait_together_become_one_entry() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let before = cluster.gauges(1).last_index;
    ["a", "b", "c", "d"].into_iter().for_each(|name| cluster.offer(1, name));
    cluster.settle();
    assert_eq!(cluster.gauges(1).last_index, before + 1);
    assert_eq!(cluster.member(1).answered.len(), 4);
}

#[test]
fn commands_wait_while_a_leader_syncs_and_then_go_together() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let before = cluster.gauges(1).last_index;
    cluster.member(1).syncs = false;
    for name in ["a", "b", "c"] {
        cluster.offer(1, name);
        cluster.settle();
    }
    assert_eq!(cluster.gauges(1).last_index, before + 1, "only the first was proposed");
    cluster.member(1).syncs = true;
    cluster.settle();
    assert_eq!(cluster.gauges(1).last_index, before + 2, "the others followed as one batch");
    assert_eq!(cluster.lines(3), ["a", "b", "c"]);
}

#[test]
fn a_follower_forwards_and_answers_its_own_client() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.offer(3, "from three");
    cluster.offer(2, "from two");
    cluster.settle();
    assert_eq!(cluster.member(3).answered.len(), 1);
    assert_eq!(cluster.member(2).answered.len(), 1);
    assert!(cluster.member(1).answered.is_empty());
    assert_eq!(cluster.lines(1), cluster.lines(3));
}

#[test]
fn forwarded_batches_wait_for_the_leaders_sync_too() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let before = cluster.gauges(1).last_index;
    cluster.member(1).syncs = false;
    cluster.offer(1, "own");
    cluster.settle();
    cluster.offer(2, "two");
    cluster.offer(3, "three");
    cluster.settle();
    assert_eq!(cluster.gauges(1).last_index, before + 1);
    cluster.member(1).syncs = true;
    cluster.settle();
    assert_eq!(cluster.lines(1).len(), 3);
    assert_eq!(cluster.member(2).answered.len() + cluster.member(3).answered.len(), 2);
}

#[test]
fn a_follower_keeps_one_batch_under_way_until_the_next_tick() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.isolate(&[3]);
    cluster.offer(3, "lost");
    cluster.settle();
    cluster.heal();
    cluster.offer(3, "held");
    cluster.settle();
    assert!(cluster.lines(1).is_empty(), "the second one waits for the first");
    cluster.pass(1);
    assert_eq!(cluster.lines(1), ["held"]);
    assert_eq!(cluster.member(3).answered, [("held", 1)]);
}

#[test]
fn a_held_member_goes_on_without_waiting_for_a_tick() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    // The second batch of a follower waits for the first, the third round of reads for the previous ones.
    for (write, read) in [("w1", "r1"), ("w2", "r2"), ("w3", "r3"), ("w4", "r4")] {
        cluster.offer(3, write);
        cluster.ask(3, read);
        cluster.turn(3);
    }
    cluster.settle();
    assert_eq!(cluster.member(3).answered.len(), 4);
    assert_eq!(cluster.member(3).readable.len(), 4);
}

#[test]
fn a_restarted_member_has_all_that_it_acknowledged() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    for name in ["a", "b", "c"] {
        cluster.offer(1, name);
        cluster.settle();
    }
    cluster.restart_all();
    cluster.wire.clear();
    cluster.elect();
    for id in 1..=3 {
        assert_eq!(cluster.lines(id), ["a", "b", "c"], "member {id}");
    }
}

#[test]
fn a_restarted_member_applies_only_what_its_machine_has_not() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.offer(1, "a");
    cluster.settle();
    let checkpoint = cluster.members[&2].applier.machine().clone();
    cluster.offer(1, "b");
    cluster.settle();
    cluster.restart(2, checkpoint);
    cluster.pass(3);
    assert_eq!(cluster.lines(2), ["a", "b"], "a once, b replayed");
}

#[test]
fn a_machine_ahead_of_the_remembered_commit_index_is_believed() {
    let mut cluster = Cluster::new(1);
    cluster.settle();
    cluster.offer(1, "a");
    cluster.settle();
    // The commit index of the last entry was never synced: it would have been written with the next.
    let book = cluster.members[&1].applier.machine().clone();
    cluster.restart(1, book);
    cluster.settle();
    cluster.offer(1, "b");
    cluster.settle();
    assert_eq!(cluster.lines(1), ["a", "b"]);
}

#[test]
fn a_follower_far_behind_is_served_from_the_log_files() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.isolate(&[3]);
    // Far beyond the 4 KiB that members cache in memory in these tests.
    for _ in 0..200 {
        for name in ["some longer command that takes its room in memory", "another of that kind"] {
            cluster.offer(1, name);
        }
        cluster.settle();
    }
    cluster.heal();
    cluster.pass(10);
    assert_eq!(cluster.lines(3).len(), 400);
    assert_eq!(cluster.lines(3), cluster.lines(1));
}

#[test]
fn applying_is_fed_no_faster_than_it_eats() {
    let mut cluster = Cluster::new(1);
    cluster.apply_bytes_max = 300;
    cluster.restart(1, Book::default());
    cluster.settle();
    for _ in 0..50 {
        cluster.offer(1, "a command of some length, to fill the window soon");
        cluster.settle();
    }
    assert_eq!(cluster.lines(1).len(), 50);
    cluster.restart(1, Book::default());
    cluster.settle();
    assert_eq!(cluster.lines(1).len(), 50, "the replay came in portions, in order, complete");
}

#[test]
fn leadership_moves_on_request_and_proposals_wait_meanwhile() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    assert_eq!(cluster.members[&1].node.most_caught_up(), Some(2));
    cluster.member(1).node.handle(Event::Unreachable { peer: 2 }).unwrap();
    assert_eq!(cluster.members[&1].node.most_caught_up(), Some(3), "its last answer is as recent");
    cluster.member(1).node.handle(Event::TransferLeader { to: 3 }).unwrap();
    cluster.offer(1, "during");
    cluster.offer(2, "forwarded");
    cluster.settle();
    cluster.pass(2);
    assert_eq!(cluster.gauges(3).role, Role::Leader);
    assert_eq!(cluster.member(1).answered.len(), 1, "held, then forwarded to the new leader");
    assert_eq!(cluster.lines(2).len() + usize::from(!cluster.lines(2).contains(&"forwarded".into())), 2);
}

#[test]
fn a_transfer_to_a_dead_member_is_given_up() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.member(3).up = false;
    cluster.member(1).node.handle(Event::TransferLeader { to: 3 }).unwrap();
    cluster.offer(1, "waits");
    cluster.pass(15);
    assert_eq!(cluster.gauges(1).role, Role::Leader);
    assert_eq!(cluster.member(1).answered, [("waits", 1)]);
}

#[test]
fn a_proposal_that_finds_no_leader_says_so() {
    let mut cluster = Cluster::new(3);
    cluster.isolate(&[1]);
    cluster.offer(1, "alone");
    cluster.ask(1, "alone too");
    cluster.pass(REQUEST_TIMEOUT_TICKS + 2);
    assert_eq!(cluster.member(1).failed, [("alone", ProposeError::NoLeader)]);
    assert_eq!(cluster.member(1).unread, [("alone too", ReadError::Timeout)]);
}

#[test]
fn a_proposal_waits_for_a_leader_that_comes_in_time() {
    let mut cluster = Cluster::new(3);
    cluster.offer(2, "early");
    cluster.elect();
    cluster.pass(2);
    assert_eq!(cluster.member(2).answered, [("early", 1)]);
}

#[test]
fn a_proposal_lost_with_its_leader_fails_with_that_cause() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    // The batch reaches the leader, which stops before any other member receives it.
    cluster.cut.extend([(1, 2), (1, 3)]);
    cluster.offer(3, "lost");
    cluster.settle();
    cluster.member(1).up = false;
    cluster.heal();
    cluster.pass(REQUEST_TIMEOUT_TICKS + 2);
    assert_eq!(cluster.member(3).failed, [("lost", ProposeError::TimeoutLeaderFail)]);
}

#[test]
fn a_proposal_of_a_leader_without_its_followers_blames_the_connection() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.pass(30);
    // Heartbeats arrive and prevent an election; entries are not synced.
    cluster.member(2).syncs = false;
    cluster.member(3).syncs = false;
    cluster.offer(1, "slow");
    cluster.pass(REQUEST_TIMEOUT_TICKS + 2);
    let failed = cluster.member(1).failed.clone();
    assert_eq!(failed.len(), 1);
    assert!(matches!(failed[0].1, ProposeError::Timeout | ProposeError::TimeoutConnectionLost), "{failed:?}");
}

/// It cannot determine whether its log lost entries or whether the sender is not a leader. A forged
/// heartbeat must not stop it.
#[test]
fn a_heartbeat_with_a_commit_index_beyond_the_log_is_refused() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.offer(1, "a");
    cluster.settle();
    // Member 3 returns with an empty disk under its old name.
    let blank = Cluster::new(3).members.remove(&3).unwrap();
    cluster.members.insert(3, blank);
    for _ in 0..3 {
        cluster.member(1).node.handle(Event::Tick).unwrap();
        cluster.turn(1);
        for (from, message) in std::mem::take(&mut cluster.wire) {
            if message.to == 3 {
                let event = Event::Message { from, bytes: message.bytes };
                cluster.member(3).node.handle(event).unwrap();
            }
        }
    }
    assert_eq!((cluster.gauges(3).leader, cluster.gauges(3).commit), (None, LogIndex::ZERO));
    // The next leader is unaware of member 3's acknowledgements to this one, and sends it all entries.
    cluster.member(1).node.handle(Event::TransferLeader { to: 2 }).unwrap();
    cluster.pass(10);
    assert_eq!(cluster.gauges(2).role, Role::Leader);
    assert_eq!(cluster.lines(3), cluster.lines(2));
}

#[test]
fn garbage_from_a_peer_changes_nothing() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    let before = cluster.gauges(1);
    for garbage in [&b""[..], b"\x01", b"\xff\xff\xff\xff", &[0; 300]] {
        let event = Event::Message { from: 2, bytes: garbage.to_vec().into() };
        cluster.member(1).node.handle(event).unwrap();
    }
    cluster.settle();
    assert_eq!(cluster.gauges(1), before);
}

#[test]
fn the_same_events_give_the_same_effects() {
    let run = || {
        let mut cluster = Cluster::new(5);
        cluster.elect();
        for name in ["a", "b"] {
            cluster.offer(4, name);
            cluster.pass(1);
        }
        cluster.isolate(&[1, 2]);
        cluster.pass(50);
        cluster.heal();
        cluster.pass(20);
        let mut sent: Vec<_> = cluster.sent.iter().map(|(from, m)| (*from, m.to, m.bytes.clone())).collect();
        // raft-rs iterates over its peers in hash map order, but only within a poll.
        sent.sort();
        (sent, (1..=5).map(|id| (cluster.gauges(id), cluster.lines(id))).collect::<Vec<_>>())
    };
    assert_eq!(run(), run());
}
