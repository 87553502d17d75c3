use std::path::Path;

use wal::testing::SimFs;
use wal::{LogIndex, Term, WalOptions};

use super::*;

fn found(state: Option<Vec<u8>>, start: u64, last: u64) -> RecoveredLog<SimFs> {
    let at = |index| wal::LogPosition::new(index, u64::from(index > 0));
    let wal = Wal::create(
        SimFs::new(),
        Path::new("/log"),
        b"",
        at(0),
        WalOptions { segment_bytes: 1 << 20, salt: [7; 16] },
    )
    .unwrap();
    RecoveredLog { reader: wal.reader(), state, start: at(start), last: at(last) }
}

fn state(voters: &[u64], commit: u64) -> Option<Vec<u8>> {
    let mut state = DurableState::default();
    (state.conf.voters, state.hard.commit, state.hard.term) = (voters.to_vec(), commit, 1);
    Some(state.encode())
}

fn at(index: u64) -> LogPosition {
    LogPosition::new(index, 1)
}

#[test]
fn a_new_member_begins_with_the_voters_it_was_told() {
    let begun = durable_state(&[3, 1, 2], None, &found(None, 0, 0), at(0), StoreState::Whole).unwrap();
    assert_eq!(begun.conf.voters, [1, 2, 3]);
    assert_eq!(begun.hard.term, 0);
}

#[test]
fn an_old_member_goes_on_where_it_was() {
    let found = found(state(&[1, 2, 3], 5), 0, 9);
    let begun = durable_state(&[2, 1, 3], None, &found, at(7), StoreState::Whole).unwrap();
    assert_eq!((begun.hard.commit, begun.hard.term), (5, 1));
}

#[test]
fn logs_that_cannot_be_right_are_refused() {
    let voters = &[1, 2, 3][..];
    let cases = [
        (found(state(&[1, 2], 5), 0, 9), 0, "belongs to a cluster"),
        (found(state(voters, 10), 0, 9), 0, "entries are lost"),
        (found(state(voters, 5), 0, 9), 10, "entries are lost"),
        (found(state(voters, 5), 3, 9), 2, "begins after entry 3"),
        (found(None, 0, 9), 0, "holds no Raft state"),
        (found(Some(vec![9, 9]), 0, 9), 0, "state version"),
    ];
    for (found, applied, expected) in cases {
        let refused = durable_state(voters, None, &found, at(applied), StoreState::Whole).unwrap_err();
        assert!(refused.what.contains(expected), "{refused}");
    }
}

#[test]
fn a_log_that_begins_later_wants_a_machine_that_has_come_so_far_or_none() {
    let voters = &[1, 2, 3][..];
    let begun =
        |applied, store| durable_state(voters, None, &found(state(voters, 5), 3, 9), at(applied), store);
    assert!(begun(3, StoreState::Whole).is_ok());
    assert!(begun(9, StoreState::Whole).is_ok());
    assert!(begun(0, StoreState::Whole).is_err());
    assert!(begun(0, StoreState::Lost).is_ok());
}

#[test]
fn a_log_with_another_entry_than_the_machine_applied_is_refused() {
    let options = WalOptions { segment_bytes: 1 << 20, salt: [7; 16] };
    let mut wal =
        Wal::create(SimFs::new(), Path::new("/log"), b"", wal::LogPosition::default(), options).unwrap();
    wal.append(wal::Entry { index: LogIndex(1), term: Term(1), kind: 0, payload: b"" });
    wal.sync().unwrap();
    let last = wal.last();
    let begun = |term| {
        let found =
            RecoveredLog { last, ..RecoveredLog { state: state(&[1], 1), ..RecoveredLog::created(&wal) } };
        durable_state(&[1], None, &found, LogPosition::new(1, term), StoreState::Whole)
    };
    assert!(begun(1).is_ok());
    assert!(begun(2).unwrap_err().what.contains("holds one of term 1"));
}

#[test]
fn the_membership_of_a_whole_store_is_newer_or_older_than_that_of_the_log_and_counts() {
    let membership = Membership { voters: vec![2, 1], learners: vec![9] };
    let begun = |log: Option<Vec<u8>>, store| {
        let last = if log.is_some() { 9 } else { 0 };
        durable_state(&[1, 2, 3], Some(&membership), &found(log, 0, last), at(0), store).unwrap().conf
    };
    let of_log = state(&[1, 2, 3], 5);
    assert_eq!(begun(of_log.clone(), StoreState::Whole), membership.to_conf());
    assert_eq!(begun(of_log, StoreState::Lost).voters, [1, 2, 3]);
    assert_eq!(begun(None, StoreState::Lost), membership.to_conf());
    assert_eq!(membership.to_conf().voters, [1, 2]);
}
