//! The machine: positions, members, restarts, and fatal errors.

use std::panic::{AssertUnwindSafe, catch_unwind};

use api::etcdserverpb::{Member, PutRequest, RequestOp, TxnRequest, request_op::Request};
use bytes::Bytes;
use mvcc::{LogPosition, MemoryBackend, StoreOptions};

use super::World;
use super::world::machine;
use crate::command::{self, Change, Kind, MemberChange, RaiseLevel};
use crate::{Answer, CommandLevel, EtcdMachine, Genesis, Lineage, Response, active_alarms, level, members};

fn member(id: u64) -> Member {
    Member { id, peer_ur_ls: vec![format!("http://m{id}:2380")], ..Member::default() }
}

fn genesis() -> Genesis {
    Genesis { members: vec![member(300), member(7)] }
}

fn put(key: &'static str) -> Bytes {
    command::encode(Kind::Put(PutRequest { key: key.into(), ..PutRequest::default() }))
}

/// Applies each command as a separate entry of term 1, starting at index 1.
fn apply(machine: &mut EtcdMachine, script: &[Bytes]) {
    for (index, command) in (machine.applied().index.0 + 1..).zip(script) {
        let at = LogPosition::new(index, 1);
        machine.apply(at, command, Answer::Unwanted).unwrap();
        machine.end_entry(at).unwrap();
    }
}

#[test]
fn a_new_cluster_begins_with_its_first_members() {
    let world = World::with_genesis(&genesis());
    assert_eq!(members(world.asked.store()).unwrap(), [member(7), member(300)]);
}

#[test]
fn a_member_publishes_its_name_and_urls_and_keeps_the_rest() {
    let mut world = World::with_genesis(&genesis());
    assert_eq!(world.play("publish 7 m1 http://a:1,http://b:2"), "published");
    let published = Member {
        name: "m1".to_owned(),
        client_ur_ls: vec!["http://a:1".to_owned(), "http://b:2".to_owned()],
        ..member(7)
    };
    assert_eq!(members(world.asked.store()).unwrap(), [published, member(300)]);
    world.play("publish 7 m1");
    let unpublished = Member { name: "m1".to_owned(), ..member(7) };
    assert_eq!(members(world.asked.store()).unwrap()[0], unpublished);
}

#[test]
fn a_stranger_publishes_nothing() {
    let mut world = World::with_genesis(&genesis());
    assert_eq!(world.play("publish 8 m8 http://a:1"), "published");
    assert_eq!(members(world.asked.store()).unwrap(), [member(7), member(300)]);
}

#[test]
fn publishing_and_alarms_move_no_revision() {
    let mut world = World::with_genesis(&genesis());
    world.play("publish 7 m1; alarm on nospace 7; alarm off nospace 7");
    assert_eq!(world.play("put a=1"), "put r2");
}

#[test]
fn commands_of_one_entry_share_its_position_and_each_has_its_revision() {
    let mut machine = machine(&Genesis::default());
    let at = LogPosition::new(1, 1);
    for key in ["a", "b", "c"] {
        machine.apply(at, &put(key), Answer::Wanted).unwrap().unwrap().unwrap();
    }
    assert_eq!(machine.applied(), LogPosition::default());
    machine.end_entry(at).unwrap();
    assert_eq!((machine.applied(), machine.store().revision()), (at, 4));
}

#[test]
fn an_entry_without_commands_moves_the_position_only() {
    let mut machine = machine(&Genesis::default());
    let at = LogPosition::new(5, 3);
    machine.end_entry(at).unwrap();
    assert_eq!((machine.applied(), machine.store().revision()), (at, 1));
}

#[test]
fn applying_an_entry_twice_is_our_bug() {
    let mut machine = machine(&Genesis::default());
    apply(&mut machine, &[put("a")]);
    let again = LogPosition::new(1, 1);
    assert!(catch_unwind(AssertUnwindSafe(|| machine.apply(again, &put("b"), Answer::Wanted))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| machine.end_entry(again))).is_err());
    let older = LogPosition::new(2, 0);
    assert!(catch_unwind(AssertUnwindSafe(|| machine.apply(older, &put("b"), Answer::Wanted))).is_err());
}

#[test]
fn what_validation_would_refuse_is_refused_by_apply_as_well() {
    let mut world = World::new();
    let empty_key = PutRequest::default();
    let nested = TxnRequest {
        success: vec![
            RequestOp {
                request: Some(Request::RequestPut(PutRequest { key: "a".into(), ..PutRequest::default() })),
            },
            RequestOp { request: Some(Request::RequestPut(empty_key.clone())) },
        ],
        ..TxnRequest::default()
    };
    let hollow = TxnRequest { success: vec![RequestOp { request: None }], ..TxnRequest::default() };
    for (kind, wanted) in [
        (Kind::Put(empty_key), api::Error::EmptyKey),
        (Kind::DeleteRange(Default::default()), api::Error::EmptyKey),
        (Kind::Txn(nested), api::Error::EmptyKey),
        (Kind::Txn(hollow), api::Error::KeyNotFound),
    ] {
        assert_eq!(world.apply_unvalidated(&command::encode(kind)), Err(wanted));
    }
    assert_eq!(world.play("range *"), "[] of 0 r1");
}

#[test]
fn a_restart_goes_on_from_the_checkpoint_and_arrives_at_the_same_bytes() {
    let backend = MemoryBackend::new();
    let open = || mvcc::open(Box::new(backend.clone()), StoreOptions::default()).unwrap();
    let (writer, _, mut maintainer) = open();
    let mut machine = EtcdMachine::new(writer, &genesis()).unwrap();
    let alarm = api::etcdserverpb::AlarmRequest { action: 1, member_id: 7, alarm: 2 };
    let log = [put("a"), put("b"), command::encode(Kind::Alarm(alarm)), put("c")];
    apply(&mut machine, &log);
    maintainer.persist().unwrap();
    let hash = machine.store().hash_kv(0).unwrap();
    drop((machine, maintainer));

    let (writer, store, _) = open();
    let applied = usize::try_from(store.applied().index.0).unwrap();
    let mut machine = EtcdMachine::new(writer, &Genesis { members: vec![member(1)] }).unwrap();
    apply(&mut machine, &log[applied..]);
    assert_eq!(machine.store().hash_kv(0).unwrap(), hash);
    assert_eq!(machine.applied().index.0, 4);
    assert_eq!(active_alarms(machine.store()).unwrap().len(), 1);
    let ids = members(machine.store()).unwrap().iter().map(|member| member.id).collect::<Vec<_>>();
    let wanted: &[u64] = if applied == 0 { &[1] } else { &[7, 300] };
    assert_eq!(ids, wanted, "a genesis counts only for a store without members");
}

#[test]
fn an_installed_store_is_all_that_the_machine_knows_afterwards() {
    // The leader's store has an alarm and more.
    let (writer, _, mut sender) =
        mvcc::open(Box::new(MemoryBackend::new()), StoreOptions::default()).unwrap();
    let mut leader = EtcdMachine::new(writer, &genesis()).unwrap();
    let alarm = api::etcdserverpb::AlarmRequest { action: 1, member_id: 7, alarm: 1 };
    apply(&mut leader, &[put("a"), put("b"), command::encode(Kind::Alarm(alarm)), put("b")]);
    sender.persist().unwrap();

    // The follower has another history: other members, and no alarm.
    let disk = MemoryBackend::new();
    let (writer, _, mut receiver) = mvcc::open(Box::new(disk.clone()), StoreOptions::default()).unwrap();
    let mut follower = EtcdMachine::new(writer, &Genesis { members: vec![member(1)] }).unwrap();
    apply(&mut follower, &[put("a")]);
    let mut staging = mvcc::Staging::begin(Box::new(disk.incoming()), &StoreOptions::default()).unwrap();
    let mut export = sender.export();
    while let Some(chunk) = export.next(1000).unwrap() {
        staging.add(&chunk).unwrap();
    }
    let at = receiver.install(staging.finish().unwrap()).unwrap();
    follower.installed().unwrap();

    assert_eq!((follower.applied(), at), (leader.applied(), leader.applied()));
    assert_eq!(active_alarms(follower.store()).unwrap(), active_alarms(leader.store()).unwrap());
    assert_eq!(members(follower.store()).unwrap(), members(leader.store()).unwrap());
    // Both reject the next entry because of the same alarm.
    let next = LogPosition::new(5, 1);
    let [ours, theirs] = [&mut follower, &mut leader].map(|machine| {
        let outcome = machine.apply(next, &put("c"), Answer::Wanted).unwrap().unwrap();
        machine.end_entry(next).unwrap();
        (outcome, machine.store().hash_kv(0).unwrap().hash)
    });
    assert_eq!(ours, theirs);
    assert_eq!(ours.0, Err(api::Error::NoSpace));
}

#[test]
fn a_record_of_ours_that_cannot_be_read_is_named() {
    for (item, value, reason) in [
        (&b"alarm/x"[..], &b""[..], "not the name of an alarm"),
        (b"alarm/123456789012345", b"", "not the name of an alarm"),
        (b"member/12345678", b"\xff", "not a member"),
        (b"member/12345678", b"", "the member differs from the name's"),
    ] {
        let (mut writer, _, _) = mvcc::open(Box::new(MemoryBackend::new()), StoreOptions::default()).unwrap();
        writer.set_item(item, Some(value));
        let fatal = EtcdMachine::new(writer, &Genesis::default()).err().expect("a damaged record");
        assert!(fatal.to_string().ends_with(reason), "{fatal}");
    }
}

#[test]
fn the_items_of_alarms_and_members_are_frozen() {
    let mut world = World::with_genesis(&Genesis { members: vec![member(7)] });
    world.play("publish 7 m1 http://a:1; alarm on nospace 258");
    let items: Vec<_> = world.asked.store().items(b"");
    let items: Vec<_> = items.iter().map(|(item, value)| (&item[..], &value[..])).collect();
    let wanted: [(&[u8], &[u8]); 2] = [
        (b"alarm/\0\0\0\x01\0\0\0\0\0\0\x01\x02", b""),
        (b"member/\0\0\0\0\0\0\0\x07", b"\x08\x07\x12\x02m1\x1a\x0ehttp://m7:2380\x22\x0ahttp://a:1"),
    ];
    assert_eq!(items, wanted);
}

fn raise(level: u32, members: &[u64]) -> Bytes {
    raise_with(level, members, 0)
}

fn raise_with(level: u32, members: &[u64], history: u64) -> Bytes {
    command::encode(Kind::RaiseLevel(RaiseLevel { level, members: members.to_vec(), history }))
}

#[test]
fn a_level_is_raised_only_by_a_command_that_counts_all_members_and_never_falls() {
    let mut world = World::with_genesis(&genesis());
    let cases = [
        (1, &[7][..], Err(api::Error::NotCapable), 0),
        (1, &[7, 300, 9][..], Ok(Response::RaiseLevel), 1),
        (0, &[7, 300][..], Ok(Response::RaiseLevel), 1),
        (1, &[][..], Err(api::Error::NotCapable), 1),
    ];
    for (level, members, outcome, reached) in cases {
        assert_eq!(world.apply_unvalidated(&raise(level, members)), outcome, "{level} {members:?}");
        assert_eq!(world.asked.level().get(), CommandLevel(reached), "{level} {members:?}");
    }
    world.assert_equal();
}

#[test]
fn a_history_has_one_id_until_a_forced_cluster_begins_another() {
    let mut machine = machine(&genesis());
    apply(&mut machine, &[put("a")]);
    let retain = Kind::MemberChange(MemberChange { change: Some(Change::Retain(7)), is_strict: false });
    for (command, wanted) in [
        (raise_with(1, &[7, 300], 4), ""), // Of a version that does not know histories.
        (raise_with(2, &[7, 300], 0), ""),
        (raise_with(2, &[7], 5), ""), // Refused.
        (raise_with(2, &[7, 300], 6), "6"),
        (raise_with(2, &[7, 300], 7), "6"),
        (command::encode(retain), ",6@2"),
        (raise_with(2, &[7], 8), "8,6@2"),
    ] {
        let at = LogPosition::new(machine.applied().index.0 + 1, 1);
        // An entry for membership changes accepts no other kind of command.
        machine.apply(at, &command, Answer::Unwanted).unwrap();
        machine.apply_change(at, &command, Answer::Unwanted).unwrap();
        machine.end_entry(at).unwrap();
        assert_eq!(Lineage::of(machine.store()).unwrap().to_string(), wanted, "{command:?}");
    }
}

/// An older version has skipped the first raise.
#[test]
fn a_member_that_missed_the_raise_changes_the_same_as_the_others_at_the_next_one() {
    let at = LogPosition::new(2, 1).index;
    let digests = [raise_with(2, &[7, 300], 5), Bytes::from_static(b"\xd2\x05\x00")].map(|first| {
        let mut machine = machine(&genesis());
        apply(&mut machine, &[first, raise_with(2, &[7, 300], 5)]);
        assert_eq!(machine.level().get(), CommandLevel(2));
        assert_eq!(Lineage::of(machine.store()).unwrap().id, 5);
        machine.store().span_digest(LogPosition::new(1, 1).index, at)
    });
    assert_eq!(digests[0], digests[1]);
}

#[test]
fn a_version_neither_applies_a_level_that_it_does_not_know_nor_opens_it() {
    let backend = MemoryBackend::new();
    let open = |known| {
        let (writer, _, maintainer) = mvcc::open(Box::new(backend.clone()), StoreOptions::default()).unwrap();
        (EtcdMachine::of_level(writer, &genesis(), CommandLevel(known)), maintainer)
    };
    let at = LogPosition::new(1, 1);
    let mut old = open(1).0.unwrap();
    let refused = old.apply(at, &raise(2, &[7, 300]), Answer::Unwanted).unwrap_err().to_string();
    assert!(
        refused.contains("knows the commands of level 1, the cluster uses those of level 2"),
        "{refused}"
    );
    assert_eq!(old.level().get(), CommandLevel(0), "nothing changed");
    drop(old);
    let (new, mut maintainer) = open(2);
    let mut new = new.unwrap();
    apply(&mut new, &[raise(2, &[7, 300])]);
    maintainer.persist().unwrap();
    drop((new, maintainer));
    let refused = open(1).0.err().map(|error| error.to_string());
    assert!(refused.as_ref().is_some_and(|text| text.contains("a downgrade is not possible")), "{refused:?}");
    assert_eq!(open(2).0.unwrap().level().get(), CommandLevel(2), "read back");
}

#[test]
fn a_leader_raises_the_level_when_every_member_has_announced_a_higher_one() {
    let members = [member(7), member(300)];
    let raised = |own, other: Option<u32>, cluster, history| {
        let announced = |id| if id == 7 { Some(own) } else { other }.map(CommandLevel);
        match level::raise(CommandLevel(cluster), &members, announced, history) {
            Some(Kind::RaiseLevel(raise)) => {
                assert_eq!(raise.history, history);
                Some((raise.level, raise.members))
            }
            _ => None,
        }
    };
    for (own, other, cluster, history, level) in [
        (1, Some(1), 0, 0, Some(1)),
        (1, Some(0), 0, 0, None),
        (1, None, 0, 0, None),
        (3, Some(2), 1, 0, Some(2)),
        (1, Some(1), 1, 0, None),
        // The history has no id.
        (1, Some(1), 1, 9, None),
        (2, Some(2), 2, 9, Some(2)),
        (2, None, 2, 9, None),
    ] {
        let wanted = level.map(|level| (level, vec![7, 300]));
        assert_eq!(raised(own, other, cluster, history), wanted, "{own} {other:?} {cluster} {history}");
    }
}
