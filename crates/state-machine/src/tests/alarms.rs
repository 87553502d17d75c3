//! Alarms: raising, asking, clearing, and what each of them stops.

use super::{World, check_all};
use crate::StateMachine;

#[test]
fn an_alarm_is_a_pair_of_kind_and_member() {
    check_all(
        "",
        &[
            ("alarm get none", "alarms [] r1"),
            ("alarm on nospace 7", "alarms [7:nospace] r1"),
            ("alarm on nospace 7", "alarms [7:nospace] r1"),
            ("alarm on corrupt 7", "alarms [7:corrupt] r1"),
            ("alarm on nospace 3", "alarms [3:nospace] r1"),
            ("alarm get none", "alarms [3:nospace 7:nospace 7:corrupt] r1"),
            ("alarm get nospace 99", "alarms [3:nospace 7:nospace] r1"),
            ("alarm get corrupt", "alarms [7:corrupt] r1"),
            ("alarm off nospace 7", "alarms [7:nospace] r1"),
            ("alarm off nospace 7", "alarms [] r1"),
            ("alarm get none", "alarms [3:nospace 7:corrupt] r1"),
        ],
    );
}

#[test]
fn clearing_needs_the_exact_pair() {
    check_all(
        "alarm on nospace 7",
        &[
            ("alarm off nospace", "alarms [] r1"),
            ("alarm off corrupt 7", "alarms [] r1"),
            ("alarm off none 7", "alarms [] r1"),
            ("alarm get none", "alarms [7:nospace] r1"),
        ],
    );
}

#[test]
fn no_kind_and_an_unknown_action_change_nothing() {
    check_all(
        "",
        &[
            ("alarm on none 7", "alarms [] r1"),
            ("alarm 9 nospace 7", "alarms [] r1"),
            ("alarm get none", "alarms [] r1"),
        ],
    );
}

#[test]
fn no_space_stops_what_would_store_something() {
    check_all(
        "put a=1; alarm on nospace 1",
        &[
            ("put a=2", "NoSpace"),
            ("put a ignore_value", "NoSpace"),
            ("txn then { put a=2 }", "NoSpace"),
            ("txn else { put a=2 }", "NoSpace"),
            ("txn then { range a }", "yes r2 { [a=1@2.2.1] of 1 r2 }"),
            ("txn then { del b }", "yes r2 { del 0 r2 }"),
            ("range a", "[a=1@2.2.1] of 1 r2"),
            ("del a", "del 1 r3"),
            ("compact 2", "compact r3"),
            ("alarm off nospace 1", "alarms [1:nospace] r3"),
            ("put a=2", "put r4"),
        ],
    );
}

#[test]
fn corrupt_stops_every_change() {
    check_all(
        "put a=1; alarm on corrupt 1",
        &[
            ("put a=2", "Corrupt"),
            ("del a", "Corrupt"),
            ("txn then { put a=2 }", "Corrupt"),
            ("txn then { del x }", "Corrupt"),
            ("txn then { txn then { range a } }", "Corrupt"),
            ("txn then { range a }", "yes r2 { [a=1@2.2.1] of 1 r2 }"),
            ("compact 2", "Corrupt"),
            ("range a", "[a=1@2.2.1] of 1 r2"),
            ("alarm on nospace 1", "alarms [1:nospace] r2"),
            ("put a=2", "Corrupt"),
            ("alarm off corrupt 1", "alarms [1:corrupt] r2"),
            ("put a=2", "NoSpace"),
        ],
    );
}

#[test]
fn an_alarm_of_any_member_counts_until_the_last_is_cleared() {
    check_all(
        "alarm on nospace 1; alarm on nospace 2; alarm off nospace 1",
        &[("put a=1", "NoSpace"), ("alarm off nospace 2", "alarms [2:nospace] r1"), ("put a=1", "put r2")],
    );
}

#[test]
fn readers_see_the_alarms_in_the_store() {
    let mut world = World::new();
    world.play("alarm on corrupt 18; alarm on nospace 4");
    let seen = |machine: &StateMachine| {
        let alarms = crate::active_alarms(machine.store()).unwrap();
        alarms.iter().map(|alarm| (alarm.alarm, alarm.member_id)).collect::<Vec<_>>()
    };
    assert_eq!(seen(&world.asked), [(1, 4), (2, 18)]);
    assert_eq!(seen(&world.asked), seen(&world.silent));
}
