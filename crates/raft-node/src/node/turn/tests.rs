//! Tests of a node without its core; `tests/cluster.rs` tests whole clusters.

use std::path::Path;

use wal::testing::SimFs;
use wal::{Wal, WalOptions};

use super::*;
use crate::log::persist;

type LoneNode = Node<&'static str, &'static str>;

fn lone() -> (LoneNode, Wal<SimFs>) {
    let start = wal::LogPosition::default();
    let wal = Wal::create(
        SimFs::new(),
        Path::new("/log"),
        b"",
        start,
        WalOptions { segment_bytes: 1 << 20, salt: [7; 16] },
    )
    .unwrap();
    let setup = NodeSetup {
        core: CoreSetup::of_tests(),
        boot_nonce: 5,
        batch_bytes_max: 100,
        cache_bytes_max: 1 << 20,
        request_timeout_ticks: 20,
        read_retry_ticks: 5,
    };
    (Node::open(&setup, &[1], RecoveredLog::created(&wal), LogPosition::default()).unwrap(), wal)
}

fn settle(node: &mut LoneNode, wal: &mut Wal<SimFs>) -> Vec<NodeOutput<&'static str, &'static str>> {
    let mut turns = Vec::new();
    loop {
        let mut turn = node.turn().unwrap();
        let jobs = std::mem::take(&mut turn.effects.persist);
        let idle = jobs.is_empty() && !turn.effects.more && turn.apply.is_empty();
        if !jobs.is_empty() {
            let (durable, promises) = persist(wal, jobs).unwrap().0.redeem();
            assert!(promises.is_empty(), "a lone voter promises nothing");
            node.handle(Event::Durable(durable)).unwrap();
        }
        turns.push(turn);
        if idle {
            return turns;
        }
    }
}

#[test]
fn a_turn_tells_the_size_of_the_batch_it_proposed() {
    let (mut node, mut wal) = lone();
    settle(&mut node, &mut wal);
    ["a", "b"].into_iter().for_each(|name| node.offer(Bytes::from_static(b"12345"), name));
    let batches: Vec<_> = settle(&mut node, &mut wal).iter().filter_map(|turn| turn.batch).collect();
    assert_eq!(batches, [(2, 29 + 2 * 9)]);
}

#[test]
fn more_commands_than_a_batch_holds_make_several() {
    let (mut node, mut wal) = lone();
    settle(&mut node, &mut wal);
    (0..25).for_each(|_| node.offer(Bytes::from_static(b"123456"), "x"));
    let batches: Vec<_> =
        settle(&mut node, &mut wal).iter().filter_map(|turn| turn.batch).map(|(n, _)| n).collect();
    assert_eq!(batches, [10, 10, 5], "100 bytes hold ten commands of six bytes with their lengths");
}

#[test]
fn a_confirmed_read_waits_in_the_turn_until_its_index_is_applied() {
    let (mut node, mut wal) = lone();
    let committed = settle(&mut node, &mut wal).iter().map(|turn| turn.apply.len()).sum::<usize>();
    assert_eq!(
        (committed, node.applied()),
        (1, LogIndex::ZERO),
        "an entry that is committed and not applied"
    );
    node.ask("early");
    let turn = node.turn().unwrap();
    assert!(turn.readable.is_empty(), "read before the entry was applied");
    assert_eq!(turn.apply.len(), 1, "the reader goes to the apply step");
    node.handle(Event::Applied { index: LogIndex(1) }).unwrap();
    node.ask("in time");
    let turn = node.turn().unwrap();
    assert_eq!((turn.readable, turn.apply.len()), (vec!["in time"], 0));
}

#[test]
fn whoever_waits_when_a_node_stops_is_handed_back() {
    let (mut node, _wal) = lone();
    node.offer(Bytes::from_static(b"a"), "writer");
    node.ask("reader");
    assert_eq!(node.stop(), (vec!["writer"], vec!["reader"]));
}

#[test]
fn the_blame_for_a_lost_proposal_follows_what_happened() {
    // (leader, since when, lost peers with times, proposed at) of member 1 of a single-voter cluster.
    type Case = (Option<u64>, Ticks, &'static [(u64, Ticks)], Ticks, bool, ProposeError);
    let cases: [Case; 8] = [
        (None, 0, &[], 50, false, ProposeError::NoLeader),
        (None, 0, &[], 50, true, ProposeError::Timeout),
        (Some(2), 60, &[], 50, true, ProposeError::TimeoutLeaderFail),
        (Some(2), 60, &[], 40, true, ProposeError::Timeout),
        (Some(2), 10, &[(2, 55)], 50, true, ProposeError::TimeoutConnectionLost),
        (Some(2), 10, &[(2, 45)], 50, true, ProposeError::Timeout),
        (Some(2), 10, &[(3, 55)], 50, true, ProposeError::Timeout),
        (Some(1), 10, &[(1, 55)], 50, true, ProposeError::TimeoutConnectionLost),
    ];
    for (at, (leader, leader_since, lost, since, sent, expected)) in cases.into_iter().enumerate() {
        let (mut node, _wal) = lone();
        (node.leader, node.leader_since) = (leader, leader_since);
        node.unreachable_at = lost.iter().copied().collect();
        assert_eq!(node.why(&ExpiredProposal { reply: "x", since, sent }), expected, "case {at}");
    }
}
