//! Behavior of each operation of the log.

use crate::common;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::common::{DIR, IDENTITY, OPTIONS, append, at, create, dir, entries, open, payload};
use wal::testing::{Crash, Fault, SimFs};
use wal::{Entry, Error, Fs, LogIndex, LogPosition, PAYLOAD_BYTES_MAX, SyncResult, Term, Wal, WalOptions};

/// Runs a script on a log with tiny segments, and compares the result, `indexes@terms`.
///
/// `3` appends entry 3, `3*5` entries 3 to 5, `t2` continues in term 2, `sync`, `reopen`, `release=7`,
/// `restart=9`; `big` makes subsequent payloads 3,000 bytes long, `small` 10.
fn check(script: &str, expected: &str) {
    let fs = SimFs::new();
    let mut wal = create(&fs);
    let (mut term, mut bytes) = (1, 10);
    for word in script.split_whitespace() {
        let number = |text: &str| text.parse::<u64>().unwrap();
        if let Some(new) = word.strip_prefix('t') {
            term = number(new);
        } else if let Some(index) = word.strip_prefix("release=") {
            wal.release_before(LogIndex(number(index))).unwrap();
        } else if let Some(index) = word.strip_prefix("restart=") {
            wal.restart_at(at(number(index), term), b"restarted").unwrap();
        } else if let Some((from, to)) = word.split_once('*') {
            (number(from)..=number(to)).for_each(|at| append(&mut wal, at, term, &payload(at, term, bytes)));
        } else {
            match word {
                "sync" => drop(wal.sync().unwrap()),
                "big" => bytes = 3000,
                "small" => bytes = 10,
                "reopen" => {
                    drop(wal);
                    wal = open(&fs).unwrap().0;
                }
                _ => append(&mut wal, number(word), term, &payload(number(word), term, bytes)),
            }
        }
    }
    assert_eq!(describe(&wal), expected, "{script}");
    drop(wal);
    assert_eq!(describe(&open(&fs).unwrap().0), expected, "{script}, opened anew");
}

/// Formats `start: first-last@term ...`, and verifies the payloads.
fn describe(wal: &Wal<SimFs>) -> String {
    let mut runs: Vec<(u64, u64, u64)> = Vec::new();
    for entry in entries(wal).unwrap() {
        let (index, term) = (entry.index.0, entry.term.0);
        assert_eq!(entry.payload, payload(index, term, entry.payload.len()));
        assert_eq!(entry.kind, common::kind(index));
        assert_eq!(wal.reader().term(entry.index), Some(entry.term));
        match runs.last_mut() {
            Some(run) if run.2 == term => run.1 = index,
            _ => runs.push((index, index, term)),
        }
    }
    let start = wal.reader().start();
    let runs: Vec<String> = runs.iter().map(|(from, to, term)| format!("{from}-{to}@{term}")).collect();
    format!("{}: {}", start.index, runs.join(" "))
}

#[test]
fn entries_are_read_back_in_index_order() {
    check("", "0: ");
    check("1 sync", "0: 1-1@1");
    check("1*20 sync", "0: 1-20@1");
    check("1*3 sync 4 5 sync 6 sync", "0: 1-6@1");
    check("1*3 t2 4*6 t5 7 sync", "0: 1-3@1 4-6@2 7-7@5");
}

#[test]
fn an_index_that_exists_replaces_the_tail() {
    check("1*9 sync t2 5 sync", "0: 1-4@1 5-5@2");
    check("1*9 t2 5 6 sync", "0: 1-4@1 5-6@2");
    check("1*9 sync t2 5*9 t3 7 sync", "0: 1-4@1 5-6@2 7-7@3");
    check("1*9 sync t2 1 sync", "0: 1-1@2");
    check("1 t2 1 t3 1 t4 1*3 sync", "0: 1-3@4");
}

#[test]
fn a_conflict_may_reach_into_earlier_segments() {
    check("big 1*12 sync t2 3 sync", "0: 1-2@1 3-3@2");
    check("big 1*6 sync 7*12 sync t2 11 t3 5 t4 2 sync", "0: 1-1@1 2-2@4");
    check("big 1*6 sync 7*12 t2 3*20 sync t3 4 sync reopen 5 sync", "0: 1-2@1 3-3@2 4-5@3");
}

#[test]
fn a_release_gives_back_whole_segments_only() {
    // Two payloads of 3,000 bytes and the header page fill a segment of 8 KiB.
    check("big 1*2 sync 3*4 sync 5*6 sync 7 sync release=4", "2: 3-7@1");
    check("big 1*2 sync 3*4 sync 5*6 sync 7 sync release=5", "4: 5-7@1");
    check("big 1*2 sync 3*4 sync 5*6 sync 7 sync release=8", "6: 7-7@1");
    check("big 1*2 sync 3*4 sync release=1 release=0", "0: 1-4@1");
    check("small 1*9 sync release=10", "0: 1-9@1");
}

#[test]
fn a_release_after_a_conflict_follows_the_log_that_counts() {
    check("big 1*2 sync 3*4 sync 5*6 sync t2 4*9 sync 10 sync t3 release=8", "3: 4-10@2");
    check("big 1*2 sync 3*4 sync 5*6 sync t2 2*3 sync 4*5 sync 6 sync release=5", "3: 4-6@2");
}

#[test]
fn a_restart_discards_everything_and_goes_on_behind_its_start() {
    check("1*9 sync restart=20", "20: ");
    check("1*9 sync t3 restart=20 21*23 sync", "20: 21-23@3");
    check("big 1*9 sync 10*12 t2 restart=40 small 41 sync reopen 42 sync", "40: 41-42@2");
    check("1*9 restart=9 t2 10 sync restart=30 31 sync", "30: 31-31@2");
}

#[test]
fn every_opening_goes_on_where_the_last_one_ended() {
    check("1 sync reopen 2 sync reopen 3 sync reopen reopen 4 sync", "0: 1-4@1");
    check("big 1*5 sync reopen t2 3 sync reopen release=3 reopen 4 sync", "2: 3-4@2");
}

fn refused(what: &str, act: impl FnOnce(&mut Wal<SimFs>)) {
    let fs = SimFs::new();
    let mut wal = create(&fs);
    for index in 1..=4 {
        append(&mut wal, index, 5, &payload(index, 5, 5000));
        wal.sync().unwrap();
    }
    wal.release_before(LogIndex(3)).unwrap();
    let outcome = catch_unwind(AssertUnwindSafe(|| act(&mut wal)));
    let panic = outcome.expect_err(what);
    let message =
        panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    assert!(message.unwrap().contains(what), "{message:?} does not say {what:?}");
}

#[test]
fn a_breach_of_the_laws_by_our_own_code_panics() {
    refused("gap in the log", |wal| append(wal, 6, 5, b""));
    refused("was released", |wal| append(wal, 1, 5, b""));
    refused("after one of term 5", |wal| append(wal, 5, 4, b""));
    refused("after one of term 5", |wal| append(wal, 4, 4, b""));
    refused("bytes", |wal| append(wal, 5, 5, &vec![0; PAYLOAD_BYTES_MAX + 1]));
    refused("a state of", |wal| wal.put_state(&vec![0; PAYLOAD_BYTES_MAX + 1]));
    refused("do not exist", |wal| drop(wal.release_before(LogIndex(6))));
}

#[test]
fn a_group_costs_one_write_and_one_sync() {
    let fs = SimFs::new();
    let mut wal = create(&fs);
    for index in 1..=10 {
        append(&mut wal, index, 1, &[7; 100]);
    }
    wal.put_state(b"vote");
    let before = fs.calls();
    let synced = wal.sync().unwrap();
    assert_eq!(fs.calls() - before, 2);
    assert_eq!(synced, SyncResult { bytes: 10 * 136 + 40, frames: 11, cuts: 0 });
    assert_eq!(wal.group_bytes(), 0);
}

#[test]
fn a_sync_of_nothing_touches_nothing() {
    let fs = SimFs::new();
    let mut wal = create(&fs);
    let before = fs.calls();
    assert_eq!(wal.sync().unwrap(), SyncResult::default());
    assert_eq!(fs.calls(), before);
}

#[test]
fn what_is_not_synced_is_not_read() {
    let fs = SimFs::new();
    let mut wal = create(&fs);
    let reader = wal.reader();
    append(&mut wal, 1, 1, b"one");
    assert_eq!(wal.last(), at(1, 1));
    assert!(wal.group_bytes() > 0);
    assert_eq!((reader.last(), reader.term(LogIndex(1))), (at(0, 0), None));
    assert!(reader.read(LogIndex(1), 100).unwrap().is_empty());
    wal.sync().unwrap();
    assert_eq!((reader.last(), reader.term(LogIndex(1))), (at(1, 1), Some(Term(1))));
    assert_eq!(reader.read(LogIndex(1), 100).unwrap()[0].payload, b"one");
}

#[test]
fn a_read_gives_at_least_one_entry_and_otherwise_keeps_its_bound() {
    let fs = SimFs::new();
    let mut wal = create(&fs);
    (1..=50).for_each(|index| append(&mut wal, index, 1, &payload(index, 1, 1000)));
    wal.sync().unwrap();
    let reader = wal.reader();
    for (from, bound, expected) in
        [(1, 0, 1), (1, 999, 1), (1, 2000, 2), (7, 2999, 2), (49, 100_000, 2), (50, 0, 1), (51, 100, 0)]
    {
        let found = reader.read(LogIndex(from), bound).unwrap();
        assert_eq!(found.len(), expected, "from {from} with {bound} bytes");
        assert!(found.iter().zip(from..).all(|(entry, index)| entry.index.0 == index));
    }
    assert_eq!(reader.read(LogIndex(1), usize::MAX).unwrap().len(), 50);
}

#[test]
fn released_entries_are_told_apart_from_entries_to_come() {
    let fs = SimFs::new();
    let mut wal = create(&fs);
    for index in 1..=4 {
        append(&mut wal, index, 1, &payload(index, 1, 5000));
        wal.sync().unwrap();
    }
    assert_eq!(wal.release_before(LogIndex(3)).unwrap(), 2);
    let reader = wal.reader();
    for index in [0, 1, 2] {
        match reader.read(LogIndex(index), 10) {
            Err(Error::Released { index: reported, first }) => assert_eq!((reported.0, first.0), (index, 3)),
            other => panic!("entry {index}: {other:?}"),
        }
    }
    assert_eq!(reader.term(LogIndex(1)), None);
    assert_eq!(reader.term(LogIndex(2)), Some(Term(1)), "the start has a term");
    assert_eq!(reader.read(LogIndex(3), 0).unwrap().len(), 1);
    assert!(reader.read(LogIndex(5), 0).unwrap().is_empty());
}

#[test]
fn the_latest_state_is_found_whatever_was_released() {
    let fs = SimFs::new();
    let mut wal = create(&fs);
    assert_eq!(open(&fs.crashed(Crash::Kill, &mut || false)).unwrap().1.state, None);
    wal.put_state(b"old");
    wal.put_state(b"newer");
    for index in 1..=6 {
        append(&mut wal, index, 1, &payload(index, 1, 5000));
        wal.sync().unwrap();
    }
    wal.release_before(LogIndex(6)).unwrap();
    drop(wal);
    let (wal, found) = open(&fs).unwrap();
    assert_eq!(found.state.as_deref(), Some(&b"newer"[..]));
    drop(wal);
    assert_eq!(open(&fs).unwrap().1.state.as_deref(), Some(&b"newer"[..]));
}

#[test]
fn an_empty_state_is_a_state() {
    let fs = SimFs::new();
    let mut wal = create(&fs);
    wal.put_state(b"");
    wal.sync().unwrap();
    drop(wal);
    assert_eq!(open(&fs).unwrap().1.state, Some(Vec::new()));
}

#[test]
fn a_log_begins_behind_the_start_it_is_given() {
    let fs = SimFs::new();
    let mut wal = Wal::create(fs.clone(), dir(), IDENTITY, at(41, 7), OPTIONS).unwrap();
    append(&mut wal, 42, 8, b"answer");
    wal.sync().unwrap();
    drop(wal);
    let (_, found) = open(&fs).unwrap();
    assert_eq!((found.start, found.last, found.identity.as_slice()), (at(41, 7), at(42, 8), IDENTITY));
}

#[test]
fn a_log_is_made_once_and_opened_only_if_made() {
    let fs = SimFs::new();
    assert!(!Wal::exists(&fs, dir()).unwrap());
    assert!(matches!(open(&fs), Err(Error::Missing { .. })));
    drop(create(&fs));
    assert!(Wal::exists(&fs, dir()).unwrap());
    let again = Wal::create(fs.clone(), dir(), IDENTITY, LogPosition::default(), OPTIONS);
    assert!(matches!(again, Err(Error::Exists { .. })));
    open(&fs).unwrap();
}

#[test]
fn full_segments_are_used_again() {
    let fs = SimFs::new();
    let mut wal = create(&fs);
    for index in 1..=40 {
        append(&mut wal, index, 1, &payload(index, 1, 5000));
        wal.sync().unwrap();
        wal.release_before(LogIndex(index)).unwrap();
        let files = fs.list(dir()).unwrap();
        assert!(files.len() <= 3, "entry {index}: {files:?}");
    }
    assert!(fs.list(dir()).unwrap().contains(&"spare.tmp".to_string()));
    drop(wal);
    let (wal, found) = open(&fs).unwrap();
    assert_eq!(found.last, at(40, 1));
    assert_eq!(entries(&wal).unwrap().last().unwrap().payload, payload(40, 1, 5000));
}

#[test]
fn zeros_go_ahead_of_small_groups_and_not_of_large_ones() {
    let options = WalOptions { segment_bytes: 4 << 20, salt: [7; 16] };
    for (bytes, zeros_ahead) in [(300, true), (30_000, false)] {
        let fs = SimFs::new();
        let mut wal = Wal::create(fs.clone(), dir(), IDENTITY, LogPosition::default(), options).unwrap();
        let frames: u64 = (1..=100)
            .map(|index| {
                append(&mut wal, index, 1, &payload(index, 1, bytes));
                wal.sync().unwrap().bytes
            })
            .sum();
        let ahead = fs.bytes(&common::segment(1)).len() as u64 - frames - 4096;
        assert_eq!(ahead > 4096, zeros_ahead, "{ahead} bytes after groups of {bytes}");
        drop(wal);
        assert_eq!(open(&fs).unwrap().1.last, at(100, 1));
    }
}

#[test]
fn segments_that_were_read_in_are_removed_instead() {
    let fs = SimFs::new();
    let mut wal = create(&fs);
    for index in 1..=3 {
        append(&mut wal, index, 1, &payload(index, 1, 5000));
        wal.sync().unwrap();
    }
    drop(wal);
    let (mut wal, _) = open(&fs).unwrap();
    assert_eq!(wal.release_before(LogIndex(4)).unwrap(), 3);
    assert_eq!(fs.list(dir()).unwrap(), ["0000000000000004.wal"]);
    for index in 4..=6 {
        append(&mut wal, index, 1, &payload(index, 1, 5000));
        wal.sync().unwrap();
    }
    assert_eq!(wal.release_before(LogIndex(7)).unwrap(), 3);
    assert_eq!(fs.list(dir()).unwrap(), ["0000000000000007.wal", "spare.tmp"]);
}

#[test]
fn restarts_without_progress_make_no_segments() {
    let fs = SimFs::new();
    let mut wal = create(&fs);
    append(&mut wal, 1, 1, b"one");
    wal.sync().unwrap();
    drop(wal);
    for _ in 0..5 {
        drop(open(&fs).unwrap());
    }
    assert_eq!(fs.list(dir()).unwrap().len(), 2, "the used segment, sealed, and a fresh one");
}

#[test]
fn after_a_failed_sync_every_call_fails() {
    for fault in [Fault::InputOutput, Fault::NoSpace] {
        for later in 0..2 {
            let fs = SimFs::new();
            let mut wal = create(&fs);
            append(&mut wal, 1, 1, b"one");
            fs.fail_at(fs.calls() + later, fault);
            let error = wal.sync().unwrap_err();
            assert!(error.to_string().starts_with("write and sync log segment /wal/"), "{error}");
            append(&mut wal, 2, 1, b"two");
            wal.put_state(b"state");
            assert!(matches!(wal.sync(), Err(Error::Poisoned)));
            assert!(matches!(wal.release_before(LogIndex(1)), Err(Error::Poisoned)));
            assert!(matches!(wal.restart_at(at(9, 9), b""), Err(Error::Poisoned)));
            assert!(matches!(wal.close(), Err(Error::Poisoned)));
        }
    }
}

#[test]
fn a_failure_in_an_append_is_told_by_the_next_sync() {
    let fs = SimFs::new();
    let mut wal = create(&fs);
    for index in 1..=3 {
        append(&mut wal, index, 1, &payload(index, 1, 5000));
        wal.sync().unwrap();
    }
    fs.fail_at(fs.calls() + 1, Fault::InputOutput);
    append(&mut wal, 2, 2, b"conflict that needs a cut");
    append(&mut wal, 3, 2, b"goes nowhere");
    assert!(matches!(wal.sync(), Err(Error::Io { .. })));
    assert!(matches!(wal.sync(), Err(Error::Poisoned)));
}

#[test]
fn a_group_that_nobody_syncs_is_written_before_it_fills_the_memory() {
    let fs = SimFs::new();
    let options = WalOptions { segment_bytes: WalOptions::SEGMENT_BYTES, salt: [7; 16] };
    let mut wal = Wal::create(fs.clone(), dir(), IDENTITY, LogPosition::default(), options).unwrap();
    let payload = vec![3; 1 << 20];
    for index in 1..=20 {
        wal.append(Entry { index: LogIndex(index), term: Term(1), kind: 0, payload: &payload });
        assert!(wal.group_bytes() <= 10 << 20);
    }
    let synced = wal.sync().unwrap();
    assert_eq!((synced.frames, synced.bytes), (20, 20 * ((1 << 20) + 36)), "all are reported, once");
}

#[test]
fn a_conflict_that_finds_a_full_group_goes_to_a_segment_below_it() {
    let fs = SimFs::new();
    let options = WalOptions { segment_bytes: 8 << 20, ..OPTIONS };
    let mut wal = Wal::create(fs.clone(), dir(), IDENTITY, LogPosition::default(), options).unwrap();
    for index in 1..=8 {
        append(&mut wal, index, 1, &payload(index, 1, 1 << 20));
    }
    // The group is written, which fills its segment: the next segment starts after entry 8.
    append(&mut wal, 5, 2, &payload(5, 2, 10));
    wal.sync().unwrap();
    assert_eq!(describe(&wal), "0: 1-4@1 5-5@2");
    drop(wal);
    assert_eq!(describe(&open(&fs).unwrap().0), "0: 1-4@1 5-5@2");
}

#[test]
fn the_longest_payload_survives() {
    let fs = SimFs::new();
    let mut wal = create(&fs);
    let long = payload(1, 1, PAYLOAD_BYTES_MAX);
    append(&mut wal, 1, 1, &long);
    append(&mut wal, 2, 1, b"short");
    wal.sync().unwrap();
    drop(wal);
    let (wal, found) = open(&fs).unwrap();
    assert_eq!((found.last, found.torn_bytes), (at(2, 1), 0));
    assert!(wal.reader().read(LogIndex(1), 0).unwrap()[0].payload == long);
}

#[test]
fn identities_bound_their_length() {
    let fs = SimFs::new();
    let outcome = catch_unwind(|| {
        Wal::create(fs, Path::new(DIR), &[0; 1025], LogPosition::default(), OPTIONS).map(drop)
    });
    assert!(outcome.is_err());
    let fs = SimFs::new();
    drop(Wal::create(fs.clone(), dir(), &[1; 1024], LogPosition::default(), OPTIONS).unwrap());
    assert_eq!(open(&fs).unwrap().1.identity, [1; 1024]);
}
