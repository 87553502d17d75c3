//! Raft snapshots in scenarios: truncated logs, rebuilt followers, lost stores.

use crate::common::{Cluster, REQUEST_TIMEOUT_TICKS, agree, installs, start};
use raft_node::{Event, LogIndex, ProposeError, Role, Term, persist};
use wal::testing::{Crash, Fault};

/// Returns a cluster with member 3 isolated and the entries that it needs truncated on both other members.
fn left_behind() -> Cluster {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.write(1, 3);
    cluster.isolate(&[3]);
    cluster.write_and_trim(40);
    cluster
}

/// Returns the cluster of `left_behind` after reconnection: a snapshot is offered to member 3, and the test
/// delivers it.
fn offered() -> Cluster {
    let mut cluster = left_behind();
    cluster.streams_flow = false;
    cluster.heal();
    cluster.pass(3);
    cluster
}

/// Asserts that soon all members have this many lines, and member 3 got there by one install.
#[track_caller]
fn brought_up(cluster: &mut Cluster, count: usize) {
    cluster.pass(5);
    agree(cluster, count);
    assert_eq!(installs(cluster, 3), 1);
}

#[test]
fn the_log_is_trimmed_by_whole_segments_behind_the_checkpoint_and_the_catch_up_entries() {
    for catch_up_entries in [0, 10, 1000] {
        let mut cluster = Cluster::new(3);
        cluster.catch_up_entries = catch_up_entries;
        cluster.restart_all();
        let leader = cluster.elect();
        cluster.write(leader, 30);
        assert_eq!(start(&cluster, leader), LogIndex::ZERO, "nothing goes without a checkpoint");
        let at = cluster.checkpoint(leader);
        cluster.write(leader, 30);
        let (start, needed) = (start(&cluster, leader), at.index.saturating_sub(catch_up_entries));
        assert!(start <= needed, "{start} of {needed}");
        assert!(
            start + 10 > needed || catch_up_entries == 1000,
            "a segment holds fewer than ten: {start} of {needed}"
        );
        let gauges = cluster.gauges(leader);
        assert_eq!(
            cluster.members[&leader].node.term_at(start),
            Some(if start == LogIndex::ZERO { Term(0) } else { gauges.term })
        );
    }
}

#[test]
fn entries_after_a_checkpoint_stay_however_many_are_applied() {
    let mut cluster = Cluster::new(1);
    cluster.elect();
    cluster.write(1, 30);
    let member = cluster.member(1);
    member.checkpoint = member.applier.machine().clone();
    cluster.write(1, 60);
    let at = cluster.checkpointed(1);
    let start = start(&cluster, 1);
    assert!(LogIndex::ZERO < start && start <= at.index, "{start} of {}", at.index);
}

#[test]
fn a_log_is_trimmed_without_any_other_work_for_the_disk() {
    let mut cluster = Cluster::new(1);
    cluster.elect();
    cluster.write(1, 30);
    let at = cluster.checkpoint(1);
    assert!(start(&cluster, 1) > LogIndex::ZERO && start(&cluster, 1) <= at.index);
    cluster.offer(1, "goes on");
    cluster.settle();
    assert_eq!(cluster.lines(1).last().unwrap(), "goes on");
}

#[test]
fn a_follower_behind_the_trimmed_log_is_brought_up_by_a_snapshot() {
    let mut cluster = left_behind();
    assert!(start(&cluster, 1) > LogIndex(10));
    cluster.heal();
    brought_up(&mut cluster, 43);
    cluster.offer(3, "and goes on");
    cluster.pass(2);
    agree(&cluster, 44);
    assert!(start(&cluster, 3) >= start(&cluster, 1), "its log begins after the snapshot");
}

#[test]
fn a_follower_that_the_files_still_serve_gets_entries_and_no_snapshot() {
    let mut cluster = Cluster::new(3);
    cluster.catch_up_entries = 1000;
    cluster.restart_all();
    let leader = cluster.elect();
    cluster.isolate(&[3]);
    cluster.write(leader, 40);
    cluster.checkpoint(leader);
    cluster.heal();
    cluster.pass(5);
    agree(&cluster, 40);
    assert_eq!(installs(&cluster, 3), 0);
}

#[test]
fn a_snapshot_newer_than_its_offer_will_do() {
    let mut cluster = offered();
    let offered = cluster.streams[0].1.at;
    cluster.write(1, 20);
    let newer = cluster.checkpoint(1);
    assert!(newer > offered);
    assert_eq!(cluster.stream(), newer);
    brought_up(&mut cluster, 63);
}

#[test]
fn what_follows_a_snapshot_stays_in_the_log_while_it_streams() {
    let mut cluster = offered();
    let offered = cluster.streams[0].1.at;
    for _ in 0..5 {
        cluster.write_and_trim(20);
    }
    assert!(start(&cluster, 1) <= offered.index, "the leader keeps what its follower will ask for");
    assert!(start(&cluster, 2) > offered.index, "no member asks a follower");
    cluster.stream();
    cluster.pass(5);
    agree(&cluster, 143);
    cluster.pass(120);
    cluster.write(1, 1);
    assert!(start(&cluster, 1) > offered.index, "a hold ends");
}

#[test]
fn a_broken_stream_is_begun_again() {
    let mut cluster = left_behind();
    cluster.streams_flow = false;
    cluster.heal();
    for _ in 0..3 {
        cluster.pass(4);
        assert_eq!(cluster.streams.len(), 1, "one stream to a follower at a time");
        cluster.break_stream();
    }
    cluster.streams_flow = true;
    brought_up(&mut cluster, 43);
}

#[test]
fn a_leader_serves_reads_and_writes_while_a_snapshot_streams() {
    let mut cluster = offered();
    cluster.offer(1, "a");
    cluster.ask(1, "r");
    cluster.settle();
    assert_eq!(cluster.member(1).answered.last().unwrap().0, "a");
    assert_eq!(cluster.member(1).readable, ["r"]);
    cluster.pass(200);
    assert_eq!(cluster.gauges(1).role, Role::Leader, "a slow stream is no reason for an election");
    assert_eq!(cluster.streams.len(), 1);
}

#[test]
fn two_snapshots_in_short_order_end_with_the_newer_one() {
    for syncs in [true, false] {
        let mut cluster = offered();
        let offer = cluster.streams[0].clone();
        cluster.member(3).syncs = syncs;
        let first = cluster.stream();
        if syncs {
            cluster.settle();
        } else {
            cluster.turn(3); // The restart of the log is in progress on the disk.
        }
        cluster.write(1, 20);
        let second = cluster.checkpoint(1);
        cluster.streams.clear();
        cluster.streams.push_back(offer);
        assert!(cluster.stream() == second && second > first);
        cluster.member(3).syncs = true;
        cluster.pass(5);
        agree(&cluster, 63);
        let (ignored, installs) = (cluster.members[&3].ignored.clone(), installs(&cluster, 3));
        match syncs {
            // By then the entries had arrived, and the second snapshot had no effect.
            true => assert_eq!((ignored, installs), (vec![second], 1)),
            false => assert_eq!((ignored, installs), (vec![first], 1)),
        }
    }
}

#[test]
fn two_snapshots_in_one_turn_end_with_the_newer_one() {
    let mut cluster = offered();
    let offer = cluster.streams[0].clone();
    let first = cluster.stream();
    // It has received the first one, but was not polled yet.
    cluster.asleep = Some(3);
    cluster.write(1, 20);
    let second = cluster.checkpoint(1);
    cluster.asleep = None;
    cluster.streams.push_back(offer);
    assert!(cluster.stream() == second && second > first);
    cluster.pass(5);
    agree(&cluster, 63);
    assert_eq!(cluster.member(3).ignored, [first]);
    assert_eq!(installs(&cluster, 3), 1);
}

#[test]
fn a_stale_snapshot_is_ignored() {
    let mut cluster = offered();
    let offer = cluster.streams[0].clone();
    cluster.stream();
    cluster.pass(5);
    cluster.write(1, 5);
    agree(&cluster, 48);
    cluster.streams.push_back(offer.clone());
    let stale = cluster.stream();
    cluster.pass(2);
    assert_eq!(cluster.member(3).ignored, [stale]);
    assert!(cluster.member(3).applier.machine().staged.lock().unwrap().is_none());
    agree(&cluster, 48);
    // Also delivers the offer of a former leader.
    cluster.member(1).node.handle(Event::TransferLeader { to: 2 }).unwrap();
    cluster.settle();
    cluster.write(2, 20);
    cluster.checkpoint(1);
    cluster.streams.push_back(offer);
    let stale = cluster.stream();
    cluster.pass(2);
    assert_eq!(cluster.member(3).ignored.last(), Some(&stale));
    agree(&cluster, 68);
}

#[test]
fn a_snapshot_that_comes_twice_is_installed_once() {
    let mut cluster = offered();
    let (from, offer) = cluster.streams[0].clone();
    cluster.member(3).applies = false;
    let at = cluster.stream();
    let again = || Event::Message { from, bytes: offer.message(at) };
    // In the same poll, before the sync, before the install, after it.
    for wait in 0..3 {
        cluster.member(3).node.handle(again()).unwrap();
        match wait {
            0 => drop(cluster.turn(3)),
            _ => cluster.settle(),
        }
        assert!(cluster.member(3).ignored.is_empty(), "{wait}: what is staged is needed still");
    }
    cluster.member(3).applies = true;
    brought_up(&mut cluster, 43);
}

#[test]
fn a_machine_installs_after_the_log_has_restarted() {
    let mut cluster = offered();
    cluster.member(3).syncs = false;
    let at = cluster.stream();
    cluster.settle();
    assert_eq!(installs(&cluster, 3), 0, "the restart is not durable yet");
    let acknowledged = |cluster: &Cluster| cluster.wire.iter().any(|(from, _)| *from == 3);
    assert!(!acknowledged(&cluster));
    cluster.member(3).syncs = true;
    cluster.settle();
    assert_eq!(start(&cluster, 3), at.index);
    assert_eq!(installs(&cluster, 3), 1);
}

#[test]
fn a_member_waiting_for_its_install_does_not_stand_for_election() {
    let mut cluster = offered();
    cluster.member(3).applies = false;
    cluster.stream();
    cluster.pass(2);
    let term = cluster.gauges(3).term;
    cluster.member(1).node.handle(Event::TransferLeader { to: 3 }).unwrap();
    cluster.settle();
    assert_eq!(cluster.gauges(1).role, Role::Leader, "the transfer is not taken");
    cluster.member(1).up = false;
    cluster.member(2).up = false;
    cluster.pass(100);
    assert_eq!((cluster.gauges(3).role, cluster.gauges(3).term), (Role::Follower, term));
    assert_eq!(cluster.gauges(3).leader, None, "but it does not believe in a silent leader for ever");
    cluster.member(3).applies = true;
    cluster.member(2).up = true;
    cluster.streams.clear();
    cluster.elect();
    cluster.write(2, 1);
}

#[test]
fn a_kill_at_any_step_of_an_install_leaves_the_old_state_or_the_new_one() {
    let (mut old, mut new) = (0, 0);
    for crash in [Crash::Kill, Crash::Synced] {
        for call in 0.. {
            let mut cluster = offered();
            cluster.member(3).syncs = false;
            let at = cluster.stream();
            cluster.turn(3);
            let member = cluster.member(3);
            let jobs = std::mem::take(&mut member.jobs);
            assert!(!jobs.is_empty(), "the restart is in a job");
            member.disk.fail_at(member.disk.calls() + call, Fault::Stop);
            let persisted = persist(&mut member.wal, jobs).is_ok();
            cluster.recover(3, crash);
            cluster.streams_flow = true;
            match start(&cluster, 3) == at.index {
                true => new += 1,
                false => old += 1,
            }
            assert!(!persisted || start(&cluster, 3) == at.index, "what was durable is there");
            cluster.pass(15);
            cluster.write(1, 1);
            cluster.pass(2);
            agree(&cluster, 44);
            if persisted {
                break;
            }
        }
    }
    assert!(old > 3 && new > 3, "{old} and {new}");
}

#[test]
fn a_kill_between_restart_and_install_is_finished_at_the_next_start() {
    for staged in [true, false] {
        let mut cluster = offered();
        cluster.member(3).applies = false;
        cluster.stream();
        cluster.settle();
        if !staged {
            // The staged snapshot is lost as well: the member's log starts after its store.
            cluster.member(3).applier.machine().staged.lock().unwrap().take();
        }
        cluster.recover(3, Crash::Synced);
        cluster.streams_flow = true;
        assert_eq!(cluster.lines(3).len(), if staged { 43 } else { 0 });
        cluster.pass(15);
        agree(&cluster, 43);
    }
}

#[test]
fn a_pause_in_the_middle_of_an_install_ends_well() {
    let mut cluster = offered();
    cluster.member(3).syncs = false;
    cluster.stream();
    cluster.turn(3);
    cluster.member(3).up = false; // Stopped, far beyond an election timeout.
    cluster.pass(60);
    cluster.write(1, 20);
    cluster.checkpoint(1);
    cluster.member(3).up = true;
    cluster.member(3).syncs = true;
    cluster.streams_flow = true;
    cluster.pass(20);
    agree(&cluster, 63);
}

#[test]
fn a_leader_change_while_a_snapshot_streams_ends_well() {
    for arrives in [true, false] {
        let mut cluster = offered();
        let old = cluster.streams[0].clone();
        cluster.member(1).node.handle(Event::TransferLeader { to: 2 }).unwrap();
        cluster.pass(3);
        assert_eq!(cluster.gauges(2).role, Role::Leader);
        assert_eq!(cluster.streams.len(), 2, "the new leader makes another offer");
        if arrives {
            // Its message has an old term.
            let stale = cluster.stream();
            cluster.settle();
            assert_eq!(cluster.member(3).ignored, [stale]);
        } else {
            cluster.break_stream();
        }
        assert_eq!(old.0, 1);
        cluster.streams_flow = true;
        brought_up(&mut cluster, 43);
    }
}

#[test]
fn proposals_that_an_install_skips_fail_with_a_timeout() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    // It reaches the leader from member 3, which gets no response.
    cluster.cut.extend([(1, 3), (2, 3)]);
    cluster.offer(3, "skipped");
    cluster.settle();
    cluster.write_and_trim(40);
    cluster.heal();
    cluster.pass(5);
    agree(&cluster, 41);
    assert!(cluster.lines(3).contains(&"skipped".to_string()), "it was applied, as part of the snapshot");
    cluster.pass(REQUEST_TIMEOUT_TICKS + 2);
    let failed = cluster.member(3).failed.clone();
    assert_eq!(failed.len(), 1);
    assert!(
        matches!(
            failed[0].1,
            ProposeError::Timeout | ProposeError::TimeoutLeaderFail | ProposeError::TimeoutConnectionLost
        ),
        "{failed:?}"
    );
    assert!(cluster.member(3).answered.is_empty());
}

#[test]
fn reads_wait_for_the_install() {
    let mut cluster = offered();
    cluster.ask(3, "before");
    cluster.settle();
    assert!(cluster.member(3).readable.is_empty(), "its machine lags");
    cluster.member(3).applies = false;
    cluster.stream();
    cluster.pass(1);
    cluster.ask(3, "during");
    cluster.pass(2);
    assert!(cluster.member(3).readable.is_empty());
    cluster.member(3).applies = true;
    cluster.pass(1);
    cluster.settle();
    assert_eq!(cluster.member(3).readable, ["before", "during"]);
    assert_eq!(cluster.lines(3).len(), 43);
}

#[test]
fn entries_waiting_for_room_are_skipped_by_an_install() {
    let mut cluster = Cluster::new(3);
    cluster.apply_bytes_max = 500;
    cluster.restart_all();
    let leader = cluster.elect();
    cluster.member(3).applies = false;
    cluster.write(leader, 10); // Received by member 3, mostly beyond the capacity of its apply step.
    assert!(cluster.members[&3].node.is_starved());
    cluster.isolate(&[3]);
    cluster.write(leader, 40);
    cluster.checkpoint(leader);
    cluster.heal();
    cluster.pass(5);
    assert!(!cluster.members[&3].node.is_starved());
    cluster.member(3).applies = true;
    cluster.pass(2);
    agree(&cluster, 50);
    assert_eq!(installs(&cluster, 3), 1);
}
