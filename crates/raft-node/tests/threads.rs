//! Complete members with their threads, as used by a process.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use crate::running::{
    Book, Counts, Home, Lines, Running, Shelf, Wire, Wires, boot, config, leader_of, open, propose, until,
};
use bytes::Bytes;
use raft_node::{
    Config, LogIndex, LogPosition, ProposeError, RaftLimits, ReadError, Role, StartError, StartedMember,
    TransferError, start,
};
use wal::RealFs;
use wal::testing::{Fault, SimFs};

#[tokio::test]
async fn a_lone_member_answers_stops_and_remembers() {
    let home = Home::new();
    let member = home.boot(1, 1);
    for (at, command) in ["a", "b", "c"].into_iter().enumerate() {
        assert_eq!(propose(&member, command).await, at + 1);
    }
    let point = member.handle.read_point().await.unwrap();
    let status = member.handle.status();
    assert_eq!((status.role, status.leader, status.id), (Role::Leader, Some(1), 1));
    assert!(point <= status.applied && status.applied <= status.commit && status.commit <= status.last_index);
    home.stop(1, member);

    let member = home.boot(1, 1);
    assert_eq!(propose(&member, "d").await, 4);
    assert_eq!(*member.lines.lock().unwrap(), ["a", "b", "c", "d"]);
    home.stop(1, member);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_serve_from_anywhere_and_survive_a_full_stop() {
    let home = Home::new();
    let members: Vec<_> = (1..=3).map(|id| home.boot(id, 3)).collect();
    leader_of(&members.iter().collect::<Vec<_>>()).await;
    for round in 0..10 {
        for (id, member) in (1..).zip(&members) {
            propose(member, &format!("{round} from {id}")).await;
        }
    }
    for member in &members {
        member.handle.read_point().await.unwrap();
        assert_eq!(member.lines.lock().unwrap().len(), 30, "a read point covers every answered write");
    }
    let before = members[0].lines.lock().unwrap().clone();
    for (id, member) in (1..).zip(members) {
        home.stop(id, member);
    }
    let members: Vec<_> = (1..=3).map(|id| home.boot(id, 3)).collect();
    for member in &members {
        until("the log is replayed", || member.lines.lock().unwrap().len() == 30).await;
        assert_eq!(*member.lines.lock().unwrap(), before);
    }
    members.into_iter().for_each(Running::stop);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brief_and_long_commands_keep_their_order() {
    let home = Home::new();
    let members: Vec<Running> = (1..=3).map(|id| home.boot(id, 3)).collect();
    leader_of(&members.iter().collect::<Vec<_>>()).await;
    let mut expected = Vec::new();
    for round in 0..100 {
        let command = format!("{} {round}", if round % 3 == 0 { "long" } else { "brief" });
        assert_eq!(propose(&members[round % 3], &command).await, round + 1);
        expected.push(command);
    }
    for member in &members {
        until("all is applied", || member.lines.lock().unwrap().len() == 100).await;
        assert_eq!(*member.lines.lock().unwrap(), expected);
    }
    members.into_iter().for_each(Running::stop);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_share_entries_and_syncs() {
    let home = Home::new();
    let member = home.boot(1, 1);
    propose(&member, "first").await;
    let syncs = member.counts.syncs.load(Ordering::Relaxed);
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..500 {
        let handle = member.handle.clone();
        clients.spawn(async move { handle.propose(Bytes::from(format!("c{client}"))).await.unwrap() });
    }
    let mut outcomes: Vec<usize> = clients.join_all().await;
    outcomes.sort_unstable();
    assert_eq!(outcomes, (2..=501).collect::<Vec<_>>(), "each command has a separate outcome");
    assert_eq!(member.counts.commands.load(Ordering::Relaxed), 501);
    let syncs = member.counts.syncs.load(Ordering::Relaxed) - syncs;
    assert!(syncs < 250, "{syncs} syncs for 500 commands that came together");
    assert_eq!(member.handle.status().proposals_pending, 0);
    home.stop(1, member);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_handed_over_before_a_stop() {
    let home = Home::new();
    let members: Vec<_> = (1..=3).map(|id| home.boot(id, 3)).collect();
    let leader = leader_of(&members.iter().collect::<Vec<_>>()).await;
    let follower = &members[(leader + 1) % 3];
    let id = members[leader].handle.status().id;
    assert_eq!(follower.handle.transfer_leadership(id).await, Err(TransferError::NotLeader));
    assert_eq!(follower.handle.hand_over().await, Ok(()), "who does not lead has nothing to hand over");
    assert_eq!(members[leader].handle.transfer_leadership(9).await, Err(TransferError::NoCandidate));
    members[leader].handle.hand_over().await.unwrap();
    assert_ne!(members[leader].handle.status().role, Role::Leader);
    let next = leader_of(&members.iter().collect::<Vec<_>>()).await;
    assert_ne!(next, leader);
    propose(&members[leader], "through the new leader").await;
    members.into_iter().for_each(Running::stop);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_three_go_on_and_the_third_catches_up() {
    let home = Home::new();
    let mut members: Vec<_> = (1..=3).map(|id| Some(home.boot(id, 3))).collect();
    let leader = leader_of(&members.iter().flatten().collect::<Vec<_>>()).await;
    propose(members[leader].as_ref().unwrap(), "before").await;
    home.stop(leader as u64 + 1, members[leader].take().unwrap());
    let rest: Vec<&Running> = members.iter().flatten().collect();
    leader_of(&rest).await;
    for (at, member) in rest.iter().enumerate() {
        propose(member, &format!("without it {at}")).await;
    }
    members[leader] = Some(home.boot(leader as u64 + 1, 3));
    let back = members[leader].as_ref().unwrap();
    until("it caught up", || back.lines.lock().unwrap().len() == 3).await;
    members.into_iter().flatten().for_each(Running::stop);
}

#[tokio::test]
async fn waiters_are_notified_when_the_member_stops() {
    let home = Home::new();
    let member = home.boot(1, 3); // One of three: there will never be a leader.
    let (write, read) = (member.handle.clone(), member.handle.clone());
    let write = tokio::spawn(async move { write.propose(Bytes::from_static(b"never")).await });
    let read = tokio::spawn(async move { read.read_point().await });
    let handle = member.handle.clone();
    until("one waits", || handle.status().proposals_pending == 1).await;
    home.stop(1, member);
    assert_eq!(write.await.unwrap(), Err(ProposeError::Stopped));
    assert_eq!(read.await.unwrap(), Err(ReadError::Stopped));
    assert_eq!(handle.propose(Bytes::new()).await, Err(ProposeError::Stopped));
    assert_eq!(handle.read_point().await, Err(ReadError::Stopped));
    assert_eq!(handle.hand_over().await, Err(TransferError::Stopped));
}

#[tokio::test]
async fn what_does_not_fit_is_refused_at_the_entrance() {
    let home = Home::new();
    let mut config = config(1, 3); // One of three: all requests stay pending.
    config.limits =
        RaftLimits { proposals_max: 2, command_bytes_max: 10, proposal_bytes_max: 15, ..config.limits };
    let member = boot(config, open(RealFs, &home.log_dir(1)), &home.wires);
    let long = Bytes::from_static(b"eleven bytes");
    assert_eq!(member.handle.propose(long).await, Err(ProposeError::TooLarge { bytes: 12, bytes_max: 10 }));
    let waiting = member.handle.clone();
    let waiting = tokio::spawn(async move { waiting.propose(Bytes::from_static(b"0123456789")).await });
    until("one waits", || member.handle.status().proposals_pending == 1).await;
    let second = member.handle.propose(Bytes::from_static(b"6 more")).await;
    assert_eq!(second, Err(ProposeError::TooManyRequests), "too many bytes together");
    home.stop(1, member);
    assert_eq!(waiting.await.unwrap(), Err(ProposeError::Stopped));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_limit_lets_a_command_or_a_batch_through_that_the_log_cannot_take() {
    const MIB: usize = 1 << 20;
    let home = Home::new();
    let mut config = config(1, 1);
    config.limits = RaftLimits {
        command_bytes_max: usize::MAX,
        batch_bytes_max: usize::MAX,
        proposal_bytes_max: 64 * MIB,
        ..config.limits
    };
    let member = boot(config, open(RealFs, &home.log_dir(1)), &home.wires);
    let bytes_max = RaftLimits::COMMAND_BYTES_MAX;
    for bytes in [bytes_max + 1, 16 * MIB, 20 * MIB] {
        let refused = member.handle.propose(vec![b'x'; bytes].into()).await;
        assert_eq!(refused, Err(ProposeError::TooLarge { bytes, bytes_max }));
    }
    let longest = member.handle.propose(vec![b'x'; bytes_max].into()).await;
    assert!(longest.is_ok(), "the longest command fits: {longest:?}");
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..24 {
        let handle = member.handle.clone();
        clients.spawn(async move { handle.propose(vec![b'y'; 2 * MIB].into()).await.unwrap() });
    }
    assert_eq!(clients.join_all().await.len(), 24);
    home.stop(1, member);
}

#[tokio::test]
async fn a_failed_sync_ends_the_member_and_acknowledges_nothing() {
    let disk = SimFs::new();
    let log = open(disk.clone(), Path::new("/log"));
    let member = boot(config(1, 1), log, &Wires::default());
    propose(&member, "durable").await;
    disk.fail_at(disk.calls(), Fault::InputOutput);
    assert_eq!(member.handle.propose(Bytes::from_static(b"lost")).await, Err(ProposeError::Stopped));
    until("the owner was notified", || member.fatal.get().is_some()).await;
    assert!(member.fatal.get().unwrap().what.starts_with("persist Raft entries"), "{:?}", member.fatal);
    assert_eq!(*member.lines.lock().unwrap(), ["durable"]);
    member.threads.join();
}

#[tokio::test]
async fn a_machine_that_cannot_go_on_ends_the_member() {
    for command in ["die", "brief, then die"] {
        let home = Home::new();
        let member = home.boot(1, 1);
        propose(&member, "before").await;
        assert_eq!(
            member.handle.propose(Bytes::from(command)).await,
            Err(ProposeError::Stopped),
            "{command}"
        );
        until("the owner was notified", || member.fatal.get().is_some()).await;
        assert_eq!(member.fatal.get().map(|fatal| fatal.what.as_str()), Some("apply die"));
        member.threads.join();
    }
}

#[test]
fn a_driver_that_never_ran_leaves_no_waiter() {
    let book = Book { lines: Lines::default(), applied: LogPosition::default(), shelf: Shelf::default() };
    let (wire, host) = (Arc::new(Wire { from: 1, wires: Wires::default() }), Arc::new(Counts::default()));
    let log = open(SimFs::new(), Path::new("/log"));
    let StartedMember { handle, driver, threads, .. } =
        start(config(1, 1), log, book, wire, Box::new(|fatal| panic!("{fatal}")), host, Arc::new(()))
            .unwrap();
    drop(driver);
    threads.join();
    let mut proposing = pin!(handle.propose(Bytes::new()));
    let refused = proposing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(refused, Poll::Ready(Err(ProposeError::Stopped)));
}

#[tokio::test]
async fn a_member_that_cannot_be_right_does_not_start() {
    let home = Home::new();
    let member = home.boot(1, 1);
    propose(&member, "a").await;
    home.stop(1, member);

    let attempt = |config: Config, applied: u64| {
        let applied = LogPosition::new(applied, 1);
        let book = Book { lines: Lines::default(), applied, shelf: Shelf::default() };
        let (wire, host) = (Arc::new(Wire { from: 1, wires: Wires::default() }), Arc::new(Counts::default()));
        let log = open(RealFs, &home.log_dir(1));
        start(config, log, book, wire, Box::new(|_| ()), host, Arc::new(())).map(|_| ()).unwrap_err()
    };
    assert!(matches!(attempt(config(1, 1), 99), StartError::AppliedBeyondLog { applied: LogIndex(99), .. }));
    assert!(matches!(attempt(config(1, 3), 0), StartError::State { .. }), "another cluster's log");
    let bad: [fn(&mut Config); 5] = [
        |c| c.id = 0,
        |c| c.id = 7,
        |c| c.voters = vec![1, 1],
        |c| c.heartbeat_ticks = 0,
        |c| c.election_ticks = 1,
    ];
    for (at, spoil) in bad.into_iter().enumerate() {
        let mut config = config(1, 1);
        spoil(&mut config);
        assert!(matches!(attempt(config, 0), StartError::Config { .. }), "case {at}");
    }
}
