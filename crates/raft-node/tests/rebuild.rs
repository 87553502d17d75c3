//! Complete members rebuilt by a snapshot, with all threads and a log on a real disk.

use crate::running;
use std::sync::atomic::Ordering;

use crate::running::{Home, Running, boot, config, leader_of, open, propose, until};
use raft_node::{LogIndex, Role, StoreState};
use wal::{RealFs, Wal};

/// Returns an incompressible command, long enough that a few fill a segment of the log.
fn long(at: usize) -> String {
    let letters = (0..100_000u64).map(|place| {
        let noise = (place + 1).pow(3).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ at as u64);
        char::from(b'@' + (noise >> 58) as u8)
    });
    format!("{at} {}", letters.collect::<String>())
}

/// Proposes commands until all logs of `members` could be truncated, then creates checkpoints.
async fn write(members: &[&Running], count: usize) {
    for at in 0..count {
        propose(members[0], &long(at)).await;
    }
    for member in members {
        member.handle.read_point().await.unwrap();
        member.checkpoint();
    }
}

fn segments(home: &Home, id: u64) -> usize {
    std::fs::read_dir(home.log_dir(id)).unwrap().count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_away_is_brought_up_by_a_snapshot() {
    let home = Home::new();
    let mut members: Vec<_> = (1..=3).map(|id| Some(home.boot_trimming(id, 3, StoreState::Whole))).collect();
    leader_of(&members.iter().flatten().collect::<Vec<_>>()).await;
    propose(members[0].as_ref().unwrap(), "before").await;
    home.stop(3, members[2].take().unwrap());
    let rest: Vec<&Running> = members.iter().flatten().collect();
    leader_of(&rest).await;
    write(&rest, 40).await;
    until("old segments are gone", || segments(&home, 1) <= 3 && segments(&home, 2) <= 3).await;

    let back = home.boot_trimming(3, 3, StoreState::Whole);
    until("it has everything", || back.lines.lock().unwrap().len() == 41).await;
    assert_eq!(back.shelf.installs.load(Ordering::Relaxed), 1);
    propose(&back, "after").await;
    let other = members[0].as_ref().unwrap();
    other.handle.read_point().await.unwrap();
    assert_eq!(*back.lines.lock().unwrap(), *other.lines.lock().unwrap());
    // The installed state and the restarted log match, also after a restart.
    home.stop(3, back);
    let again = home.boot_trimming(3, 3, StoreState::Whole);
    until("it goes on", || again.lines.lock().unwrap().len() == 42).await;
    assert_eq!(again.shelf.installs.load(Ordering::Relaxed), 1);
    again.stop();
    members.into_iter().flatten().for_each(Running::stop);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_store_is_lost_is_rebuilt_and_keeps_its_log() {
    let home = Home::new();
    let mut members: Vec<_> = (1..=3).map(|id| Some(home.boot_trimming(id, 3, StoreState::Whole))).collect();
    leader_of(&members.iter().flatten().collect::<Vec<_>>()).await;
    write(&members.iter().flatten().collect::<Vec<_>>(), 40).await;
    until("old segments are gone", || (1..=3).all(|id| segments(&home, id) <= 3)).await;
    home.stop(3, members[2].take().unwrap());

    let back = home.boot_trimming(3, 3, StoreState::Lost);
    assert_eq!(back.handle.status().applied, LogIndex::ZERO);
    until("it has everything", || back.lines.lock().unwrap().len() == 40).await;
    assert_eq!(back.shelf.installs.load(Ordering::Relaxed), 1);
    let point = back.handle.read_point().await.unwrap();
    assert!(back.handle.status().applied >= point);
    assert_ne!(back.handle.status().role, Role::Leader);
    back.stop();
    members.into_iter().flatten().for_each(Running::stop);
}

#[tokio::test]
async fn a_lone_member_lets_go_of_its_log_and_starts_again() {
    let home = Home::new();
    let member = home.boot_trimming(1, 1, StoreState::Whole);
    write(&[&member], 40).await;
    until("old segments are gone", || segments(&home, 1) <= 3).await;
    home.stop(1, member);
    let (wal, _) = Wal::open(RealFs, &home.log_dir(1), running::OPTIONS).unwrap();
    assert!(wal.reader().start().index.0 > 10);
    drop(wal);
    let member = boot(config(1, 1), open(RealFs, &home.log_dir(1)), &home.wires);
    assert_eq!(propose(&member, "after").await, 41);
    home.stop(1, member);
}
