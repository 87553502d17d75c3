//! Alarms in the store, and which members' alarms block changes. `tests/scripts` covers the
//! requests.

use api::Error;
use api::command::{MemberChange, RaiseLevel, member_change::Change};
use api::etcdserverpb::Member;

use super::World;
use crate::command::{self, Kind};
use crate::{Answer, EtcdMachine, Genesis, Response, corrupt_stops_changes, members};

#[test]
fn readers_see_the_alarms_in_the_store() {
    let mut world = World::new();
    world.play("alarm on corrupt 18; alarm on nospace 4");
    let seen = |machine: &EtcdMachine| {
        let alarms = crate::active_alarms(machine.store()).unwrap();
        alarms.iter().map(|alarm| (alarm.alarm, alarm.member_id)).collect::<Vec<_>>()
    };
    assert_eq!(seen(&world.asked), [(1, 4), (2, 18)]);
    assert_eq!(seen(&world.asked), seen(&world.silent));
}

/// Creates a cluster of these voters and `~` learners, with a raised command level.
fn cluster(listed: &str) -> World {
    let member = |word: &str| {
        let id = word.trim_start_matches('~').parse().unwrap();
        Member { id, is_learner: word.starts_with('~'), ..Member::default() }
    };
    let genesis = Genesis { members: listed.split(' ').map(member).collect() };
    let ids = genesis.members.iter().map(|member| member.id).collect();
    let mut world = World::with_genesis(&genesis);
    let raised = world.apply(Kind::RaiseLevel(RaiseLevel { level: 1, members: ids, history: 0 }));
    assert_eq!(raised, Ok(Response::RaiseLevel));
    world
}

/// Raises (`+3`) or clears (`-3`) the alarm CORRUPT of a member, removes it (`x3`), or promotes it
/// (`^3`).
fn step(world: &mut World, word: &str) {
    let id = &word[1..];
    let change = match &word[..1] {
        "+" => return drop(world.play(&format!("alarm on corrupt {id}"))),
        "-" => return drop(world.play(&format!("alarm off corrupt {id}"))),
        "x" => Change::Remove(id.parse().unwrap()),
        _ => Change::Promote(id.parse().unwrap()),
    };
    world.at.index += 1;
    let request = MemberChange { change: Some(change), is_strict: false };
    let command = command::encode(Kind::MemberChange(request));
    for machine in [&mut world.asked, &mut world.silent] {
        machine.apply_change(world.at, &command, Answer::Wanted).unwrap().unwrap().unwrap();
        machine.end_entry(world.at).unwrap();
    }
}

#[test]
fn corrupt_members_stop_changes_unless_the_others_are_a_majority_of_the_voters() {
    for (listed, steps, goes_on) in [
        ("1 2 3", "+3", true),
        ("1 2 3", "+3 +2", false),
        ("1 2 3", "+3 +2 -2", true),
        ("1 2 3 4 5", "+1 +5", true),
        ("1 2 3 4", "+1 +4", false),
        ("1 2", "+2", false),
        ("1", "+1", false),
        // The alarm does not identify a member.
        ("1 2 3", "+0", false),
        ("1 2 3", "+3 +0", false),
        ("1 2 3", "+9", false),
        // Learners do not count towards the majority.
        ("1 2 ~3", "+3", true),
        ("1 2 ~3 ~4", "+2", false),
        ("1 2 ~3", "+2 ^3", true),
        // Removed members are ignored. The rest is judged by the current membership.
        ("1 2 3", "+3 x3", true),
        ("1 2", "+2 x2", true),
        ("1 2 3", "+3 x2", false),
    ] {
        let mut world = cluster(listed);
        world.play("grant 5 60");
        steps.split(' ').for_each(|word| step(&mut world, word));
        let cases = ["put a=1", "del a", "txn then { put a=1 }", "grant 6 60", "revoke 5", "compact 1"].map(
            |command| {
                let refused = world.play(command) == format!("{:?}", Error::Corrupt);
                (command, !refused)
            },
        );
        assert!(cases.iter().all(|(_, accepted)| *accepted == goes_on), "{listed}, {steps}: {cases:?}");
        let stops = corrupt_stops_changes(world.asked.store()).unwrap();
        assert_eq!(stops, !goes_on, "{listed}, {steps}, as readers see it");
    }
}

#[test]
fn below_its_level_any_corrupt_member_stops_changes() {
    let listed = ["1", "2", "3"].map(|id| Member { id: id.parse().unwrap(), ..Member::default() });
    let mut world = World::with_genesis(&Genesis { members: listed.to_vec() });
    assert_eq!(world.play("alarm on corrupt 3; put a=1"), "Corrupt");
    let ids = members(world.asked.store()).unwrap().iter().map(|member| member.id).collect();
    world.apply(Kind::RaiseLevel(RaiseLevel { level: 1, members: ids, history: 0 })).unwrap();
    assert_eq!(world.play("put a=1"), "put r2");
}
