use std::path::Path;

use bytes::Bytes;
use raft::eraftpb::{ConfState, Entry, EntryType, Message, MessageType};
use wal::testing::SimFs;
use wal::{Wal, WalOptions};

use super::event::{CoreTurn, Effects};
use super::*;
use crate::log::{Durable, DurableState, LogStore, PersistJob, persist};
use crate::wire::{BatchBuilder, BatchId, Outbound, encode_all};
use crate::{Lane, LogIndex, LogPosition, Membership, Role, Term};

pub(super) struct CoreBench {
    pub core: Core,
    pub wal: Wal<SimFs>,
}

/// Returns an isolated core; the test plays its peers.
pub(super) fn bench(voters: &[u64], apply_bytes_max: usize) -> CoreBench {
    bench_of(voters, &CoreSetup { apply_bytes_max, ..CoreSetup::of_tests() }, 1 << 20)
}

pub(super) fn bench_of(voters: &[u64], setup: &CoreSetup, cache_bytes_max: usize) -> CoreBench {
    let conf = ConfState { voters: voters.to_vec(), ..ConfState::default() };
    bench_in(conf, setup, cache_bytes_max)
}

fn bench_in(conf: ConfState, setup: &CoreSetup, cache_bytes_max: usize) -> CoreBench {
    let start = wal::LogPosition::default();
    let options = WalOptions { segment_bytes: 1 << 20, salt: [7; 16] };
    let wal = Wal::create(SimFs::new(), Path::new("/log"), b"", start, options).unwrap();
    let state = DurableState { conf, ..DurableState::default() };
    let none = LogPosition::default();
    let store = LogStore::open(Box::new(wal.reader()), state, none, none, none, cache_bytes_max).unwrap();
    CoreBench { core: Core::new(setup, store, LogIndex::ZERO).unwrap(), wal }
}

impl CoreBench {
    pub fn sync(&mut self, jobs: Vec<PersistJob>) -> Vec<Outbound> {
        let (durable, promises) = persist(&mut self.wal, jobs).unwrap().0.redeem();
        self.core.handle(Event::Durable(durable)).unwrap();
        promises
    }

    /// Polls and syncs until no work is left; returns the committed entries.
    pub fn settle(&mut self) -> Vec<CommittedEntry> {
        let mut committed = Vec::new();
        loop {
            let CoreTurn { effects, committed: handed, .. } = self.core.turn().unwrap();
            committed.extend(handed);
            match effects.persist.is_empty() {
                true if effects.more => {}
                true => return committed,
                false => drop(self.sync(effects.persist)),
            }
        }
    }

    pub fn hear(&mut self, message: Message) -> Effects {
        let from = message.from;
        let bytes = encode_all(vec![message]).remove(0).bytes;
        self.core.handle(Event::Message { from, bytes }).unwrap();
        self.core.turn().unwrap().effects
    }
}

/// Returns a batch with a command of incompressible bytes, because these tests count them.
pub(super) fn batch(sequence: u64, bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new(BatchId { proposer: 2, nonce: 1, sequence }, bytes);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let noise = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let command: Vec<u8> = noise.take(bytes.div_ceil(8)).flatten().take(bytes).collect();
    builder.push(&command);
    builder.finish()
}

pub(super) fn heartbeat(term: u64) -> Message {
    Message { msg_type: MessageType::MsgHeartbeat, from: 2, to: 1, term, ..Message::default() }
}

pub(super) fn append(term: u64, index: u64, log_term: u64, sizes: &[usize]) -> Message {
    let entries = (index + 1..).zip(sizes);
    let entries: Vec<_> = entries
        .map(|(index, size)| Entry { index, term, data: batch(index, *size), ..Entry::default() })
        .collect();
    let msg_type = MessageType::MsgAppend;
    Message { msg_type, from: 2, to: 1, term, index, log_term, entries: entries.into(), ..Message::default() }
}

#[test]
fn the_first_job_makes_the_membership_durable() {
    let mut bench = bench(&[1], 1 << 20);
    let effects = bench.core.turn().unwrap().effects;
    let state = DurableState::decode(&effects.persist[0].early_states[0].1).unwrap();
    assert_eq!(state.conf.voters, [1]);
    assert_eq!((state.hard.term, state.hard.vote), (1, 1));
}

#[test]
fn an_answer_that_promises_nothing_leaves_at_once_unless_something_is_under_way() {
    let mut bench = bench(&[1, 2, 3], 1 << 20);
    let first = bench.hear(heartbeat(1)).persist;
    assert_eq!(first.len(), 1, "a new term is a promise");
    let second = bench.hear(heartbeat(1));
    assert!(second.send.is_empty(), "the term is not synced yet");
    bench.sync(first);
    bench.sync(second.persist);
    let third = bench.hear(heartbeat(1));
    assert!(third.persist.is_empty(), "no sync for a heartbeat");
    assert_eq!((third.send.len(), third.send[0].lane), (1, Lane::Urgent));
}

#[test]
fn a_lone_voter_says_nothing_of_a_term_before_that_is_durable() {
    let conf = ConfState { voters: vec![1], learners: vec![2], ..ConfState::default() };
    let mut bench = bench_in(conf, &CoreSetup::of_tests(), 1 << 20);
    let effects = bench.core.turn().unwrap().effects;
    assert!(effects.send.is_empty(), "the learner would keep entries of a term that is led again");
    let promises = bench.sync(effects.persist);
    assert_eq!(promises.iter().map(|promise| promise.to).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_change_is_not_kept_without_the_commit_index_that_came_with_it() {
    let mut bench = bench(&[1, 2, 3], 1 << 20);
    let mut message = append(4, 0, 0, &[10; 4]);
    message.commit = 3;
    for at in [1, 3] {
        message.entries[at].entry_type = EntryType::EntryConfChange;
    }
    let jobs = bench.hear(message).persist;
    let shown = |state: &[u8]| {
        let DurableState { hard, .. } = DurableState::decode(state).unwrap();
        (hard.term, hard.commit)
    };
    let early: Vec<_> = jobs[0].early_states.iter().map(|(before, state)| (*before, shown(state))).collect();
    assert_eq!(early, [(0, (4, 0)), (1, (4, 1)), (3, (4, 3))]);
    assert_eq!(jobs[0].state, None, "it is the last of these");
}

#[test]
fn an_entry_that_a_later_job_replaces_is_not_synced_yet() {
    let mut bench = bench(&[1, 2, 3, 4, 5], 1 << 20);
    let first = append(1, 0, 0, &[10; 3]);
    let mut jobs = bench.hear(first.clone()).persist;
    jobs.extend(bench.hear(Message { from: 3, ..append(2, 0, 0, &[20]) }).persist);
    // The first leader again, with its earlier messages.
    let newest = append(3, 3, 1, &[10]);
    let entries: Vec<Entry> = first.entries.into_iter().chain(newest.entries.clone()).collect();
    let again = Message { index: 0, log_term: 0, commit: 3, entries: entries.into(), ..newest };
    jobs.extend(bench.hear(again).persist);
    let later = jobs.split_off(1);
    bench.sync(jobs);
    assert!(bench.settle().is_empty(), "a crash may keep the entry of term 2");
    bench.sync(later);
    let applied: Vec<u64> = bench.settle().iter().map(|committed| committed.at.index.0).collect();
    assert_eq!(applied, [1, 2, 3]);
}

#[test]
#[should_panic(expected = "which is not under way")]
fn a_sync_of_nothing_is_a_bug() {
    let _ = bench(&[1], 1 << 20).core.handle(Event::Durable(Durable { number: 99 }));
}

#[test]
#[should_panic(expected = "applied before it was handed out")]
fn applying_ahead_is_a_bug() {
    let _ = bench(&[1], 1 << 20).core.handle(Event::Applied { index: LogIndex(99) });
}

#[test]
fn a_release_waits_for_the_sync_that_is_under_way() {
    let mut bench = bench(&[1], 8 << 20);
    bench.settle();
    // Two segments of the test's log, and a part of the third.
    for sequence in 1..=6 {
        bench.core.propose(&[batch(sequence, 500_000)]).unwrap();
        for committed in bench.settle() {
            bench.core.handle(Event::Applied { index: committed.at.index }).unwrap();
        }
    }
    bench.core.propose(&[batch(7, 10)]).unwrap();
    let under_way = bench.core.turn().unwrap().effects.persist;
    assert_eq!(under_way.len(), 1);
    let at = LogPosition::new(bench.core.last_index().0 - 1, 1);
    bench.core.handle(Event::Checkpointed { at }).unwrap();
    assert!(
        bench.core.turn().unwrap().effects.persist.is_empty(),
        "a separate job would have the number of the other"
    );
    bench.sync(under_way);
    let release = bench.core.turn().unwrap().effects.persist;
    assert!(release.len() == 1 && release[0].release.is_some() && release[0].entries.is_empty());
    bench.sync(release);
    let start = bench.wal.reader().start().index;
    assert!(start > LogIndex(1) && start <= at.index, "{start}");
    assert_eq!(bench.core.term_at(start), Some(Term(1)), "the place before the first entry is known");
    bench.core.propose(&[batch(8, 10)]).unwrap();
    assert_eq!(bench.settle().len(), 1);
}

/// raft-rs panics when a candidate wins while its log is not durable. Requests for votes are sent after the
/// sync, so such a vote is forged.
#[test]
fn a_vote_that_was_not_requested_yet_does_not_elect() {
    let mut bench = bench(&[1, 2, 3], 1 << 20);
    let jobs = bench.hear(heartbeat(1)).persist;
    bench.sync(jobs);
    let entries = bench.hear(append(1, 0, 0, &[10])).persist;
    let own_vote = bench.hear(Message { msg_type: MessageType::MsgTimeoutNow, ..heartbeat(1) }).persist;
    let role_after_a_vote = |bench: &mut CoreBench| {
        bench.hear(Message { msg_type: MessageType::MsgRequestVoteResponse, ..heartbeat(2) });
        bench.core.role()
    };
    assert_eq!(role_after_a_vote(&mut bench), Role::Candidate, "entries and vote are not durable");
    bench.sync(entries);
    assert_eq!(role_after_a_vote(&mut bench), Role::Candidate, "the vote is not durable");
    bench.sync(own_vote);
    assert_eq!(role_after_a_vote(&mut bench), Role::Leader);
}

#[test]
fn a_sync_wakes_only_a_member_that_waits_for_nothing_else() {
    let mut lone = bench(&[1], 1 << 20);
    lone.settle();
    lone.core.propose(&[batch(1, 10)]).unwrap();
    let _under_way = lone.core.turn().unwrap();
    assert!(lone.core.waits_for_sync(), "a lone voter commits by it");

    let mut member = bench(&[1, 2, 3], 1 << 20);
    let term = member.hear(heartbeat(1)).persist;
    assert!(member.core.waits_for_sync(), "nothing is said in a term that is not synced");
    member.sync(term);
    let entries = member.hear(append(1, 0, 0, &[10])).persist;
    assert!(!member.core.waits_for_sync(), "the commit index comes later");
    member.hear(Message { commit: 1, ..append(1, 1, 1, &[]) });
    assert!(member.core.waits_for_sync(), "what is committed is applied after it");
    member.sync(entries);
    assert_eq!(member.settle().len(), 1);
    assert!(!member.core.waits_for_sync());

    let own_vote = member.hear(Message { msg_type: MessageType::MsgTimeoutNow, ..heartbeat(1) }).persist;
    member.sync(own_vote);
    let entries =
        member.hear(Message { msg_type: MessageType::MsgRequestVoteResponse, ..heartbeat(2) }).persist;
    assert_eq!((member.core.role(), entries.len()), (Role::Leader, 1));
    assert!(!member.core.waits_for_sync(), "no follower has acknowledged the entry");
    member.hear(Message { msg_type: MessageType::MsgAppendResponse, index: 2, ..heartbeat(2) });
    assert!(member.core.waits_for_sync(), "with its own copy it is committed");
    member.sync(entries);
    assert_eq!(member.settle().len(), 1);
    assert!(!member.core.waits_for_sync());

    let voters = |voters: &[u64]| Membership { voters: voters.to_vec(), ..Membership::default() };
    let setup = CoreSetup { membership: Some(voters(&[1, 2])), ..CoreSetup::of_tests() };
    let mut left = bench_of(&[1, 2], &setup, 1 << 20);
    let term = left.hear(heartbeat(1)).persist;
    left.sync(term);
    let entries = left.hear(append(1, 0, 0, &[10])).persist;
    assert!(!left.core.waits_for_sync(), "the commit index comes later");
    left.core.handle(Event::Membership { at: LogIndex(1), membership: voters(&[1]) }).unwrap();
    assert!(left.core.waits_for_sync(), "left alone, it stands after it");
    left.sync(entries);
    assert_eq!(left.core.role(), Role::Leader);
}

/// Checkpoints are reported by the store thread, applied entries by the apply thread: either may come first.
/// raft-rs reads all unapplied entries when it campaigns, and panics if they are truncated.
#[test]
fn a_checkpoint_that_is_reported_before_its_entries_does_not_stop_a_campaign() {
    let mut bench = bench(&[1, 2, 3], 8 << 20);
    for index in 0..4 {
        let commit = Message { commit: index + 1, ..append(1, index, u64::from(index > 0), &[500_000]) };
        let jobs = bench.hear(commit).persist;
        bench.sync(jobs);
    }
    bench.settle();
    let at = LogPosition::new(4, 1);
    bench.core.handle(Event::Checkpointed { at }).unwrap();
    bench.settle();
    assert!(bench.core.raw.store().start().index > LogIndex::ZERO, "the log is trimmed");
    bench.hear(Message { msg_type: MessageType::MsgTimeoutNow, ..heartbeat(1) });
    assert_eq!(bench.core.role(), Role::Candidate);
    bench.core.handle(Event::Applied { index: LogIndex(4) }).unwrap();
}
