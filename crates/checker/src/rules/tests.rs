use super::*;
use crate::leases::LeaseInput;
use crate::operation::KeyRecord;
use std::borrow::Cow;

const START: Revision = 10;

fn record(key: u32, value: u64, created: Revision, modified: Revision, version: i64) -> KeyRecord {
    KeyRecord { key, value, created, modified, version, lease: 0 }
}

fn began(number: u64, request: Request) -> Input {
    let began = Duration::from_millis(number);
    let (client, member) = (0, 0);
    Input::Began(ClientOperation { number, client, member, request, began, ended: None, outcome: None })
}

fn ended(number: u64, outcome: CallOutcome) -> Input {
    Input::Ended(number, Duration::from_millis(number + 1), outcome)
}

fn written(revision: Revision, previous: &[KeyRecord]) -> CallOutcome {
    CallOutcome::Written { revision, previous: Some(previous.to_vec()) }
}

fn found(revision: Revision, records: &[KeyRecord]) -> CallOutcome {
    CallOutcome::Found { revision, records: records.to_vec() }
}

fn put(writes: &[(u32, u64)]) -> Request {
    Request::Put(writes.iter().map(|&(key, value)| Write { key, value, lease: 0 }).collect())
}

fn watched(watcher: usize, changes: &[KeyChange]) -> Input {
    Input::Watched { watcher, at: Duration::from_millis(1), changes: changes.to_vec(), before: Vec::new() }
}

fn changed(record: KeyRecord) -> KeyChange {
    KeyChange { revision: record.modified, key: record.key, record: Some(record) }
}

use crate::operation::Write;

/// Two watchers and every kind of operation, without a contradiction. Tests refer to list indexes.
fn healthy() -> Vec<Input> {
    let (first, second, third) =
        (record(1, 100, 11, 11, 1), record(1, 101, 11, 12, 2), record(2, 102, 12, 12, 1));
    let swapped = record(2, 103, 12, 13, 2);
    let late = record(3, 105, 15, 15, 1);
    let pair = [changed(second), changed(third)];
    let gone = KeyChange { revision: 14, key: 1, record: None };
    vec![
        began(0, put(&[(1, 100)])),
        ended(0, written(11, &[])), // 1
        watched(0, &[changed(first)]),
        watched(1, &[changed(first)]), // 3
        began(1, put(&[(1, 101), (2, 102)])),
        watched(0, &pair), // 5: before the answer
        ended(1, CallOutcome::Written { revision: 12, previous: None }),
        watched(1, &pair), // 7
        began(2, Request::Read { keys: vec![1], serializable: false }),
        ended(2, found(12, &[second])), // 9
        began(3, Request::Read { keys: vec![1, 2], serializable: true }),
        ended(3, found(11, &[first])), // 11
        began(4, Request::Swap(Write { key: 2, value: 103, lease: 0 }, 12)),
        ended(4, written(13, &[third])), // 13
        watched(0, &[changed(swapped)]),
        watched(1, &[changed(swapped)]), // 15
        began(5, Request::Swap(Write { key: 2, value: 104, lease: 0 }, 12)),
        ended(5, found(13, &[swapped])), // 17
        began(6, Request::Delete(1)),
        watched(0, &[gone]), // 19
        ended(6, written(14, &[second])),
        watched(1, &[gone]), // 21
        began(7, Request::Delete(1)),
        ended(7, found(14, &[])), // 23
        began(8, put(&[(3, 105)])),
        ended(8, CallOutcome::Unknown("timeout".into())), // 25
        watched(0, &[changed(late)]),
        watched(1, &[changed(late)]), // 27
        Input::Progress { watcher: 0, revision: 20 },
        Input::Progress { watcher: 1, revision: 20 }, // 29
        began(9, Request::Read { keys: vec![1, 2, 3], serializable: false }),
        ended(9, found(20, &[swapped, late])), // 31
    ]
}

/// Returns the rule that a list of inputs violates.
fn broken(inputs: Vec<Input>) -> Option<Cow<'static, str>> {
    let mut checker = Checker::new(START, 2);
    inputs.into_iter().find_map(|input| checker.take(input).err()).map(|violation| {
        assert!(!violation.evidence.is_empty(), "{violation}");
        violation.rule
    })
}

#[test]
fn a_healthy_cluster_passes_and_everything_is_compared() {
    let mut checker = Checker::new(START, 2);
    for input in healthy() {
        checker.take(input).unwrap();
    }
    let expected = CheckCounts {
        writes: 4,
        linearizable_reads: 4,
        serializable_reads: 1,
        unknown: 1,
        events: 12,
        ..CheckCounts::default()
    };
    assert_eq!(checker.checked, expected);
    assert_eq!((checker.waiting_len(), checker.unresolved_len(), checker.late_watchers(20)), (0, 0, vec![]));
    assert!(checker.unexplained.is_empty() && checker.in_flight.is_empty());
    assert_eq!(checker.waiting_size(), 0);
}

#[test]
fn what_waits_is_counted_with_what_it_holds() {
    let mut checker = Checker::new(START, 1);
    let keys: Vec<u32> = (0..1000).collect();
    let records: Vec<_> = keys.iter().map(|&key| record(key, 1, 11, 11, 1)).collect();
    checker.take(began(0, Request::Read { keys, serializable: true })).unwrap();
    checker.take(ended(0, found(11, &records))).unwrap();
    assert_eq!((checker.waiting_len(), checker.waiting_size()), (1, 2001));
}

/// Name, a modification of [`healthy`], and the rule that it violates.
type Lie = (&'static str, fn(&mut Vec<Input>), &'static str);

const STATE: &str = "an answer is not the state at its revision";

const LIES_OF_ANSWERS: &[Lie] = &[
    (
        "a linearizable read of an older state",
        |i| i[9] = ended(2, found(11, &[record(1, 100, 11, 11, 1)])),
        "a linearizable operation answers from before what was seen before it began",
    ),
    (
        "an older value under a new revision",
        |i| i[9] = ended(2, found(12, &[record(1, 100, 11, 11, 1)])),
        STATE,
    ),
    (
        "a read of another lease",
        |i| i[9] = ended(2, found(12, &[KeyRecord { lease: 7, ..record(1, 101, 11, 12, 2) }])),
        STATE,
    ),
    (
        "an event with another lease",
        |i| i[2] = watched(0, &[changed(KeyRecord { lease: 7, ..record(1, 100, 11, 11, 1) })]),
        "the changes of a revision are not those of its write",
    ),
    (
        "a key that is missing in an answer",
        |i| i[31] = ended(9, found(20, &[record(2, 103, 12, 13, 2)])),
        STATE,
    ),
    (
        "a serializable read that never was",
        |i| i[11] = ended(3, found(11, &[record(2, 102, 12, 12, 1)])),
        STATE,
    ),
    ("a wrong version", |i| i[9] = ended(2, found(12, &[record(1, 101, 11, 12, 3)])), STATE),
    ("a wrong previous value", |i| i[13] = ended(4, written(13, &[])), STATE),
    (
        "a key that was not asked for",
        |i| i[9] = ended(2, found(12, &[record(2, 102, 12, 12, 1)])),
        "an answer holds a key that was not asked for",
    ),
    (
        "a key that is answered twice, the second time with an older value",
        |i| i[9] = ended(2, found(12, &[record(1, 101, 11, 12, 2), record(1, 100, 11, 11, 1)])),
        "an answer holds a key twice",
    ),
    (
        "a serializable read without a revision",
        |i| i[11] = ended(3, found(0, &[record(9, 9, 9, 9, 9)])),
        "an answer has no revision",
    ),
    (
        "a revision that cannot be counted down from",
        |i| i[11] = ended(3, found(Revision::MIN, &[])),
        "an answer has no revision",
    ),
    (
        "one revision for two writes",
        |i| i[6] = ended(1, CallOutcome::Written { revision: 11, previous: None }),
        "a write has a revision that was seen before it began",
    ),
    (
        "a write that is executed twice",
        |i| i.extend([watched(0, &[changed(record(3, 105, 15, 21, 2))])]),
        "a watcher received a value that no client writes, or that was written before",
    ),
    (
        "a deletion of no client",
        |i| i.extend([watched(0, &[KeyChange { revision: 21, key: 2, record: None }])]),
        "a key was deleted, and no client deleted it",
    ),
    (
        "a swap on a wrong condition",
        |i| i[12] = began(4, Request::Swap(Write { key: 2, value: 103, lease: 0 }, 11)),
        "a transaction took the wrong branch",
    ),
    (
        "a swap refused against its condition",
        |i| i[16] = began(5, Request::Swap(Write { key: 2, value: 104, lease: 0 }, 13)),
        "a transaction took the wrong branch",
    ),
];

const LIES_OF_WATCHERS: &[Lie] = &[
    ("an event dropped by the second watcher", |i| drop(i.remove(15)), "a watcher did not receive an event"),
    ("an event dropped by the first watcher", |i| drop(i.remove(14)), "a watcher did not receive an event"),
    (
        "an event received twice",
        |i| i.insert(3, i[2].clone()),
        "a watcher received an event twice, or after a newer one",
    ),
    ("two events in the other order", |i| i.swap(3, 7), "a watcher did not receive an event"),
    (
        "an acknowledged write that is lost",
        |i| {
            i.drain(14..16);
        },
        "an acknowledged write is not what watchers received",
    ),
    (
        "a revision split by both watchers",
        |i| {
            let Input::Watched { changes, .. } = i[5].clone() else { panic!() };
            i.splice(5..6, [watched(0, &changes[..1]), watched(0, &changes[1..])]);
        },
        "the changes of a revision are not those of its write",
    ),
    (
        "a revision split by one watcher",
        |i| {
            let Input::Watched { changes, .. } = i[7].clone() else { panic!() };
            i.splice(7..8, [watched(1, &changes[..1]), watched(1, &changes[1..])]);
        },
        "two watchers received different changes of one revision",
    ),
    (
        "progress ahead of an event",
        |i| i.insert(14, Input::Progress { watcher: 0, revision: 13 }),
        "an acknowledged write is not what watchers received",
    ),
    (
        "an event after progress",
        |i| i.extend([began(10, put(&[(9, 109)])), watched(0, &[changed(record(9, 109, 18, 18, 1))])]),
        "a watcher received an event after it had received everything up to a later revision",
    ),
    (
        "two events in the other order at all watchers",
        |i| {
            let [older, newer] =
                [(110, 21), (111, 22)].map(|(value, at)| record(value as u32, value, at, at, 1));
            i.extend([began(10, put(&[(110, 110)])), began(11, put(&[(111, 111)]))]);
            i.push(watched(0, &[changed(newer), changed(older)]));
        },
        "a watcher received an event after it had received everything up to a later revision",
    ),
];

#[test]
fn every_planted_lie_is_found() {
    for (lie, plant, rule) in LIES_OF_ANSWERS.iter().chain(LIES_OF_WATCHERS) {
        let mut inputs = healthy();
        plant(&mut inputs);
        assert_eq!(broken(inputs).as_deref(), Some(*rule), "{lie}");
    }
}

#[test]
fn leases_that_end_early_and_hashes_that_differ_are_found() {
    use crate::leases::LeaseGrant;
    let kept = LeaseGrant { member: 0, sent: Duration::ZERO, ttl: Duration::from_secs(2) };
    let leased = record(7, 100, 11, 11, 1);
    let gone = [KeyChange { revision: 12, key: 7, record: None }];
    let inputs = |at| {
        vec![
            Input::Lease(3, LeaseInput::Granted { keys: vec![7], kept: kept.clone(), asked: kept.ttl }),
            began(0, put(&[(7, 100)])),
            ended(0, CallOutcome::Written { revision: 11, previous: None }),
            watched(0, &[changed(leased)]),
            Input::Watched {
                watcher: 0,
                at: Duration::from_millis(at),
                changes: gone.to_vec(),
                before: Vec::new(),
            },
        ]
    };
    assert_eq!(broken(inputs(2100)), None);
    let early = broken(inputs(1900));
    assert_eq!(early.as_deref(), Some("the keys of a lease were deleted before its time was over"));
    let hashed =
        |member, hash| Input::Hashed(Hash { member, at: Duration::ZERO, revision: 11, compacted: 1, hash });
    assert_eq!(broken(vec![hashed(0, 5), hashed(1, 5)]), None);
    let differ = broken(vec![hashed(0, 5), hashed(1, 6)]);
    assert_eq!(differ.as_deref(), Some("members have different hashes at one revision"));
}

#[test]
fn two_concurrent_writes_may_not_share_a_revision() {
    let inputs = vec![
        began(0, put(&[(1, 100)])),
        began(1, put(&[(2, 101)])),
        ended(0, written(11, &[])),
        ended(1, written(11, &[])),
    ];
    assert_eq!(broken(inputs).as_deref(), Some("two writes were acknowledged at one revision"));
}

#[test]
fn a_write_of_unknown_outcome_may_be_executed_later_or_never() {
    let gone = |revision| KeyChange { revision, key: 1, record: None };
    let before = [began(0, put(&[(1, 100)])), ended(0, written(11, &[]))];
    let lost = [began(1, Request::Delete(1)), ended(1, CallOutcome::Unknown("timeout".into()))];
    let shown = [watched(0, &[changed(record(1, 100, 11, 11, 1))])];
    let never: Vec<_> = before.iter().chain(&lost).chain(&shown).cloned().collect();
    assert_eq!(broken(never.clone()), None);
    let later = [watched(0, &[gone(30)])];
    assert_eq!(broken(never.iter().chain(&later).cloned().collect()), None);
    let again = [
        began(2, put(&[(1, 101)])),
        watched(0, &[changed(record(1, 101, 31, 31, 1))]),
        ended(2, written(31, &[])),
        watched(0, &[gone(32)]),
    ];
    let twice = never.into_iter().chain(later).chain(again).collect();
    assert_eq!(broken(twice).as_deref(), Some("a key was deleted, and no client deleted it"));
}

#[test]
fn a_deletion_of_no_client_at_the_end_of_the_run_is_found() {
    let mut checker = Checker::new(START, 1);
    let inputs = [
        began(0, put(&[(1, 100)])),
        watched(0, &[changed(record(1, 100, 11, 11, 1))]),
        ended(0, written(11, &[])),
        // It is aborted with its client.
        began(1, put(&[(2, 101)])),
        watched(0, &[KeyChange { revision: 12, key: 1, record: None }]),
    ];
    inputs.into_iter().for_each(|input| checker.take(input).unwrap());
    let found = checker.close(Duration::from_secs(1)).unwrap_err();
    assert_eq!(found.rule, "a key was deleted, and no client deleted it");
}

#[test]
fn a_deletion_in_flight_at_the_end_of_the_run_may_have_been_executed() {
    let mut checker = Checker::new(START, 1);
    let inputs = [
        began(0, put(&[(1, 100)])),
        watched(0, &[changed(record(1, 100, 11, 11, 1))]),
        ended(0, written(11, &[])),
        began(1, Request::Delete(1)),
        watched(0, &[KeyChange { revision: 12, key: 1, record: None }]),
    ];
    inputs.into_iter().for_each(|input| checker.take(input).unwrap());
    checker.close(Duration::from_secs(1)).unwrap();
}

#[test]
fn memory_is_bounded_while_operations_are_answered() {
    let mut checker = Checker::new(0, 1);
    for number in 0..25_000 {
        let revision = number as Revision + 1;
        let previous = checker.history.state(1, revision - 1);
        checker.take(began(number, put(&[(1, number)]))).unwrap();
        let previous: Vec<_> = previous.into_iter().collect();
        checker.take(ended(number, written(revision, &previous))).unwrap();
        let change = changed(record(1, number, 1, revision, revision));
        checker.take(watched(0, &[change])).unwrap();
    }
    assert_eq!(checker.checked.writes, 25_000);
    assert!(checker.acknowledged.len() <= 10_001, "{}", checker.acknowledged.len());
    assert!(checker.unseen.is_empty() && checker.waiting.is_empty() && checker.in_flight.is_empty());
}

#[test]
fn a_watcher_from_far_back_receives_what_the_others_did() {
    let (first, second) = (record(1, 100, 11, 11, 1), record(1, 101, 11, 12, 2));
    let history = [changed(first), changed(second)];
    let replayed = |from: Revision, to: Revision, changes: &[KeyChange]| {
        let (member, at, changes) = (0, Duration::from_millis(9), changes.to_vec());
        let replay = Input::Replayed(Replay { member, at, from, to, changes });
        broken(healthy().into_iter().take(8).chain([replay]).collect())
    };
    let other = changed(record(1, 999, 11, 11, 1));
    for (from, to, changes) in [
        (11, 12, &history[..]),
        (11, 11, &history),
        (12, 12, &history[1..2]),
        (13, 12, &[]),
        (1, 11, &history),
    ] {
        let pair = changed(record(2, 102, 12, 12, 1));
        let changes: Vec<_> =
            changes.iter().copied().chain((to == 12 && from < 13).then_some(pair)).collect();
        assert_eq!(replayed(from, to, &changes), None, "{from} {to}");
    }
    for (from, to, changes) in
        [(11, 12, &history[1..]), (11, 11, &[][..]), (11, 11, &[other]), (12, 12, &history)]
    {
        let rule = replayed(from, to, changes);
        assert_eq!(
            rule.as_deref(),
            Some("a watcher from an old revision received another history"),
            "{from} {to}"
        );
    }
}
