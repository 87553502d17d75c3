//! The memory of a core is bounded in bytes, regardless of entry sizes and of slow peers.

use raft::Storage as _;
use raft::eraftpb::{Message, MessageType};

use super::event::Effects;
use super::state::{INFLIGHT_BYTES_MAX, inflight_messages_max};
use super::tests::{CoreBench, append, batch, bench_of, heartbeat};
use super::*;
use crate::wire::Outbound;
use crate::{LogPosition, RaftLimits, Role};

const MIB: usize = 1 << 20;

fn setup(entry_bytes_max: usize) -> CoreSetup {
    CoreSetup { apply_bytes_max: 8 * MIB, entry_bytes_max, ..CoreSetup::of_tests() }
}

/// Returns a leader of three members in term 2; the test plays its followers.
pub(super) fn leader(entry_bytes_max: usize, cache_bytes_max: usize) -> CoreBench {
    let mut bench = bench_of(&[1, 2, 3], &setup(entry_bytes_max), cache_bytes_max);
    let jobs = bench.hear(heartbeat(1)).persist;
    bench.sync(jobs);
    let jobs = bench.hear(Message { msg_type: MessageType::MsgTimeoutNow, ..heartbeat(1) }).persist;
    bench.sync(jobs);
    let vote = Message { msg_type: MessageType::MsgRequestVoteResponse, ..heartbeat(2) };
    let jobs = bench.hear(vote).persist;
    assert_eq!(bench.core.role(), Role::Leader);
    bench.sync(jobs);
    bench
}

pub(super) fn acknowledge(bench: &mut CoreBench, from: u64, index: u64) -> Effects {
    let msg_type = MessageType::MsgAppendResponse;
    bench.hear(Message { msg_type, from, to: 1, term: 2, index, ..Message::default() })
}

/// Bytes of entries in messages to `peer`.
fn bulk(sent: &[Outbound], peer: u64) -> usize {
    let to_peer = sent.iter().filter(|message| message.to == peer && message.lane == crate::Lane::Bulk);
    to_peer.map(|message| message.bytes.len()).sum()
}

/// Proposes and syncs until the leader rejects; returns the number of accepted batches and the sent
/// messages.
pub(super) fn propose_all(bench: &mut CoreBench, bytes: usize, count: usize) -> (usize, Vec<Outbound>) {
    let mut sent = Vec::new();
    for taken in 0..count {
        if bench.core.propose(&[batch(taken as u64 + 1, bytes)]).is_err() {
            return (taken, sent);
        }
        let effects = bench.core.turn().unwrap().effects;
        sent.extend(effects.send);
        sent.extend(bench.sync(effects.persist));
        sent.extend(bench.core.turn().unwrap().effects.send);
    }
    (count, sent)
}

#[test]
fn the_window_to_a_follower_is_one_of_bytes() {
    for (entry, messages) in [(100, 64), (MIB, 64), (2 * MIB, 32), (8 * MIB, 8), (15 * MIB, 4), (64 * MIB, 4)]
    {
        assert_eq!(inflight_messages_max(entry), messages, "entries of {entry} bytes");
    }
}

#[test]
fn a_leader_takes_no_more_than_its_bound_of_uncommitted_bytes() {
    let bytes = 8 * MIB;
    let mut bench = leader(bytes, MIB);
    let (taken, _) = propose_all(&mut bench, bytes, 1000);
    let (held, bound) = (taken * bytes, RaftLimits::UNCOMMITTED_BYTES_MAX as usize);
    assert!(held <= bound && held + 2 * bytes > bound, "{taken} of {bytes} bytes");
}

#[test]
fn a_follower_that_acknowledges_nothing_holds_no_more_than_the_window() {
    let bytes = 8 * MIB;
    let mut bench = leader(bytes + 100, MIB);
    // Member 2 is known to follow; member 3 acknowledges all, so that all entries commit and more can be
    // proposed.
    acknowledge(&mut bench, 2, 1);
    acknowledge(&mut bench, 3, 1);
    let mut to_silent = 0;
    for _ in 0..80 * MIB / bytes {
        let (taken, sent) = propose_all(&mut bench, bytes, 1);
        assert_eq!(taken, 1, "what commits makes room");
        to_silent += bulk(&sent, 2);
        let last = bench.core.last_index();
        let effects = acknowledge(&mut bench, 3, last.0);
        to_silent += bulk(&effects.send, 2);
        bench.core.handle(Event::Applied { index: last }).unwrap();
    }
    assert!(to_silent <= INFLIGHT_BYTES_MAX + 2 * bytes, "{to_silent} in entries of {bytes}");
    assert!(to_silent >= INFLIGHT_BYTES_MAX / 4, "{to_silent} in entries of {bytes}");
}

#[test]
fn what_is_committed_and_synced_leaves_the_cache_whatever_its_size() {
    for bytes in [1_000, 3 * MIB] {
        let mut bench = leader(8 * MIB, 2 * MIB);
        acknowledge(&mut bench, 3, 1);
        for _ in 0..(12 * MIB / bytes).min(3_000) {
            propose_all(&mut bench, bytes, 1);
            let last = bench.core.last_index();
            acknowledge(&mut bench, 3, last.0);
            bench.core.handle(Event::Applied { index: last }).unwrap();
        }
        bench.core.turn().unwrap();
        let cached = bench.core.raw.store().cached_bytes();
        assert!(cached <= 2 * MIB, "{cached} bytes in entries of {bytes}");
    }
}

#[test]
fn a_follower_far_behind_is_read_to_in_portions() {
    let mut bench = leader(8 * MIB, MIB);
    acknowledge(&mut bench, 3, 1);
    for _ in 0..60 {
        propose_all(&mut bench, MIB / 2, 1);
        let last = bench.core.last_index();
        acknowledge(&mut bench, 3, last.0);
        bench.core.handle(Event::Applied { index: last }).unwrap();
    }
    // It responds to the probe, and then receives a window of entries, in messages of limited size.
    let effects = acknowledge(&mut bench, 2, 1);
    let longest = effects.send.iter().map(|message| message.bytes.len()).max().unwrap();
    assert!(longest <= RaftLimits::MESSAGE_BYTES_MAX as usize + MIB / 2, "{longest}");
    assert!(bulk(&effects.send, 2) <= INFLIGHT_BYTES_MAX);
}

#[test]
fn a_candidate_with_much_to_apply_reads_a_bounded_part_of_it() {
    // 40 MiB are committed and none of it is applied; campaigning makes raft-rs scan all of it.
    let mut bench = bench_of(&[1, 2, 3], &CoreSetup { apply_bytes_max: 1, ..setup(MIB) }, MIB);
    for index in 0..40 {
        let message = Message { commit: index, ..append(1, index, u64::from(index > 0), &[MIB]) };
        let jobs = bench.hear(message).persist;
        bench.sync(jobs);
        bench.core.turn().unwrap();
    }
    let wide = bench.core.raw.store().entries(2, 40, None, raft::GetEntriesContext::empty(false));
    let bytes: usize = wide.unwrap().iter().map(|entry| entry.data.len()).sum();
    assert!(bytes <= 4 * MIB, "{bytes}");
    for _ in 0..30 {
        bench.core.handle(Event::Tick).unwrap();
    }
    assert_eq!(bench.core.role(), Role::Candidate);
}

#[test]
#[should_panic(expected = "of what was never handed out")]
fn a_checkpoint_ahead_of_the_machine_is_a_bug() {
    let at = LogPosition::new(99, 1);
    let _ = bench_of(&[1], &setup(MIB), MIB).core.handle(Event::Checkpointed { at });
}
