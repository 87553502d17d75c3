use raft::eraftpb::{Entry, Snapshot};

use super::*;
use crate::core::event::{Effects, Event, Setup};
use crate::core::tests::{Bench, bench_of};
use crate::wire::{BatchBuilder, BatchId};
use crate::{EmptyLog, Position};

fn bench() -> Bench {
    unconfirmed(&[1, 2, 3])
}

fn unconfirmed(voters: &[u64]) -> Bench {
    bench_of(voters, &Setup { empty_log: EmptyLog::Unconfirmed, ..Setup::of_tests() }, 1 << 20)
}

fn from_peer(msg_type: MessageType, term: u64) -> Message {
    Message { msg_type, from: 2, to: 1, term, ..Message::default() }
}

fn append(term: u64, after: Position, entries: &[u64]) -> Message {
    let mut batch = BatchBuilder::new(BatchId { proposer: 2, nonce: 1, sequence: 1 }, 10);
    batch.push(b"command");
    let data = batch.finish();
    let entry =
        |(term, index): (&u64, u64)| Entry { term: *term, index, data: data.clone(), ..Entry::default() };
    let entries: Vec<Entry> = entries.iter().zip(after.index + 1..).map(entry).collect();
    Message {
        index: after.index,
        log_term: after.term,
        entries: entries.into(),
        ..from_peer(MessageType::MsgAppend, term)
    }
}

/// A request of a candidate whose log is as good as any.
fn candidacy(msg_type: MessageType, term: u64) -> Message {
    Message { index: 100, log_term: term - 1, ..from_peer(msg_type, term) }
}

fn says_something(effects: &Effects) -> bool {
    !effects.send.is_empty() || effects.persist.iter().any(|job| !job.promises.is_empty())
}

/// The votes that the member gives in answer to `message`, of either kind.
fn votes(bench: &mut Bench, message: Message) -> usize {
    let effects = bench.hear(message);
    let promised = bench.sync_all(effects.persist);
    let sent = effects.send.into_iter().chain(promised);
    let decoded = sent.map(|message| crate::wire::decode(1, message.to, message.bytes).unwrap());
    let is_vote = |message: &Message| {
        use MessageType::{MsgRequestPreVoteResponse, MsgRequestVoteResponse};
        matches!(message.msg_type, MsgRequestVoteResponse | MsgRequestPreVoteResponse) && !message.reject
    };
    decoded.filter(is_vote).count()
}

fn confirm(bench: &mut Bench, confirmation: Confirmation) {
    bench.core.handle(Event::Confirmed(confirmation)).unwrap();
    bench.settle();
}

fn catch_up(term: u64, index: u64) -> Confirmation {
    Confirmation::CatchUp { until: Position { index, term } }
}

#[test]
fn an_unconfirmed_member_says_nothing_and_does_not_campaign() {
    let mut bench = bench();
    let mut snapshot = from_peer(MessageType::MsgSnapshot, 3);
    *snapshot.mut_snapshot() = Snapshot::default();
    let metadata = snapshot.mut_snapshot().mut_metadata();
    (metadata.index, metadata.term) = (7, 2);
    metadata.mut_conf_state().voters = vec![1, 2, 3];
    for message in [
        candidacy(MessageType::MsgRequestVote, 3),
        candidacy(MessageType::MsgRequestPreVote, 3),
        append(3, Position::default(), &[1, 2, 3]),
        from_peer(MessageType::MsgHeartbeat, 3),
        from_peer(MessageType::MsgTimeoutNow, 3),
        snapshot,
    ] {
        let kind = message.msg_type;
        let effects = bench.hear(message);
        assert!(!says_something(&effects), "{kind:?}");
        assert_eq!(
            effects.snapshots_ignored.len(),
            usize::from(kind == MessageType::MsgSnapshot),
            "what is staged is released"
        );
    }
    for _ in 0..100 {
        bench.core.handle(Event::Tick).unwrap();
        assert!(!says_something(&bench.core.turn().unwrap()));
    }
    assert_eq!((bench.core.term(), bench.core.last_index()), (0, 0));
}

#[test]
fn a_new_member_votes_and_campaigns_once_it_is_confirmed() {
    let mut bench = bench();
    confirm(&mut bench, Confirmation::New);
    assert_eq!(votes(&mut bench, candidacy(MessageType::MsgRequestVote, 3)), 1);
    (0..20).for_each(|_| bench.core.handle(Event::Tick).unwrap());
    assert_eq!(bench.core.role(), Role::Candidate);
}

#[test]
fn a_member_that_catches_up_takes_entries_and_votes_when_it_has_them() {
    let mut bench = bench();
    confirm(&mut bench, catch_up(5, 4));
    assert_eq!(bench.core.term(), 5);
    let stale = bench.hear(append(4, Position::default(), &[1, 1, 4, 4]));
    drop(bench.sync_all(stale.persist));
    assert_eq!(bench.core.last_index(), 0, "a leader of an earlier term may contradict what it acknowledged");
    let taken = bench.hear(append(5, Position::default(), &[1, 1, 4]));
    assert!(says_something(&taken), "entries of this term are acknowledged");
    drop(bench.sync_all(taken.persist));
    for kind in [MessageType::MsgRequestVote, MessageType::MsgRequestPreVote] {
        assert_eq!(
            votes(&mut bench, candidacy(kind, 9)),
            0,
            "it lacks an entry that it may have acknowledged"
        );
    }
    let rest = bench.hear(append(5, Position { index: 3, term: 4 }, &[4]));
    drop(bench.sync_all(rest.persist));
    assert!(!bench.core.is_held());
    // It trusts its leader for an election timeout.
    (0..10).for_each(|_| bench.core.handle(Event::Tick).unwrap());
    bench.settle();
    assert_eq!(votes(&mut bench, candidacy(MessageType::MsgRequestVote, 9)), 1);
}

#[test]
fn an_entry_of_a_later_term_ends_the_wait() {
    let mut bench = bench();
    confirm(&mut bench, catch_up(5, 400));
    let taken = bench.hear(append(6, Position::default(), &[1, 6]));
    drop(bench.sync_all(taken.persist));
    assert!(!bench.core.is_held());
}

#[test]
fn it_does_not_vote_in_a_term_in_which_it_may_have_voted() {
    let mut bench = unconfirmed(&[1, 2]);
    confirm(&mut bench, catch_up(5, 0));
    assert!(!bench.core.is_held(), "of two members the other one has everything");
    assert_eq!(votes(&mut bench, candidacy(MessageType::MsgRequestVote, 5)), 0);
    assert_eq!(votes(&mut bench, candidacy(MessageType::MsgRequestVote, 6)), 1);
}

#[test]
fn what_it_waits_for_survives_a_restart() {
    let mut bench = bench();
    confirm(&mut bench, catch_up(5, 4));
    let state = bench.core.raw.store().state.clone();
    let read = crate::log::DurableState::decode(&state.encode()).unwrap();
    assert_eq!(read.catch_up, Some(Position { index: 4, term: 5 }));
    assert_eq!((read.hard.term, read.hard.vote), (5, 1));
}

#[test]
fn a_forged_term_confirms_nothing() {
    let mut bench = bench();
    for term in [0, 1 << 62, u64::MAX] {
        confirm(&mut bench, catch_up(term, 4));
        assert!(bench.core.is_unconfirmed(), "{term}");
    }
}

#[test]
fn a_lone_voter_is_never_held() {
    let bench = unconfirmed(&[1]);
    assert!(!bench.core.is_held());
}
