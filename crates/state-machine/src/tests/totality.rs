//! Apply is total: any committed bytes have the same outcome on every machine, and the next command is
//! applied.

use api::command::auth_change::Kind as Change;
use api::command::{AddUser, PublishMember};
use api::etcdserverpb::{AlarmRequest, AuthRoleAddRequest, CompactionRequest, Member, PutRequest};
use bytes::{BufMut, Bytes, BytesMut};
use mvcc::REVISION_MAX;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::World;
use crate::command::{self, AuthChange, Kind};
use crate::{AuthState, Genesis, members};

pub fn field(tag: u32, content: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    encode_key(tag, WireType::LengthDelimited, &mut out);
    encode_varint(content.len() as u64, &mut out);
    out.put_slice(content);
    out.freeze()
}

/// Nested transactions, `levels` in all. The innermost puts `k`.
pub fn nested_txn(levels: usize) -> Bytes {
    let put = field(2, &field(1, b"k"));
    let mut txn = field(2, &put);
    for _ in 1..levels {
        txn = field(2, &field(4, &txn));
    }
    txn
}

fn put(key: &'static str) -> Bytes {
    command::encode(Kind::Put(PutRequest { key: key.into(), ..PutRequest::default() }))
}

#[test]
fn bytes_that_are_no_command_are_refused_and_the_next_command_is_applied() {
    let mut world = World::new();
    let future_kind = b"\xd2\x05\x00";
    let invalid_utf8 = field(6, &field(2, b"\xff\xfe"));
    for bytes in [&b"\xff"[..], b"", b"\x0a", b"\x0a\xff\xff\xff\xff\x0f", future_kind, &invalid_utf8] {
        let outcome = world.apply_unvalidated(&Bytes::copy_from_slice(bytes));
        assert_eq!(outcome, Err(api::Error::NotCapable), "{bytes:?}");
    }
    assert!(world.apply_unvalidated(&put("a")).is_ok());
    world.assert_equal();
}

#[test]
fn a_transaction_nested_as_deep_as_etcd_takes_is_applied() {
    for levels in [48, 49, 50, 100, 128] {
        let mut world = World::new();
        let outcome = world.apply_unvalidated(&field(3, &nested_txn(levels)));
        assert!(outcome.is_ok(), "{levels} levels: {outcome:?}");
        assert_eq!(world.play("range k"), "[k=@2.2.1] of 1 r2", "{levels} levels");
        world.assert_equal();
    }
}

#[test]
fn a_transaction_nested_deeper_is_refused_whatever_its_depth() {
    let mut world = World::new();
    for levels in [130, 1000, 50_000] {
        let outcome = world.apply_unvalidated(&field(3, &nested_txn(levels)));
        assert_eq!(outcome, Err(api::Error::TooManyOps), "{levels} levels");
    }
    assert_eq!(world.play("range k"), "[] of 0 r1");
    world.assert_equal();
}

#[test]
fn a_name_that_no_item_can_hold_is_refused() {
    let member = Member { id: 7, peer_ur_ls: vec!["http://m7:2380".to_owned()], ..Member::default() };
    let mut world = World::with_genesis(&Genesis { members: vec![member.clone()] });
    let long = PublishMember { member_id: 7, name: "n".repeat(70_000), client_urls: Vec::new() };
    let outcome = world.apply_unvalidated(&command::encode(Kind::PublishMember(long)));
    assert_eq!(outcome, Err(api::Error::RequestTooLarge));
    assert_eq!(members(world.asked.store()).unwrap(), [member]);
    world.assert_equal();
}

#[test]
fn numbers_out_of_range_are_refused_or_change_nothing() {
    let mut world = World::new();
    world.play("put a=1");
    for revision in [i64::MIN, -1, i64::MAX] {
        let request = CompactionRequest { revision, physical: true };
        assert!(world.apply_unvalidated(&command::encode(Kind::Compact(request))).is_err(), "{revision}");
    }
    for (action, alarm) in [(-1, 1), (77, 1), (0, -5), (2, i32::MIN), (1, 77), (2, 77)] {
        let request = AlarmRequest { action, member_id: u64::MAX, alarm };
        assert!(world.apply_unvalidated(&command::encode(Kind::Alarm(request))).is_ok());
    }
    for lease in [i64::MIN, -1, i64::MAX] {
        let request = PutRequest { key: "a".into(), lease, ..PutRequest::default() };
        assert!(world.apply_unvalidated(&command::encode(Kind::Put(request))).is_err(), "{lease}");
    }
    world.assert_equal();
}

#[test]
fn a_command_that_would_pass_the_last_revision_is_refused_and_changes_nothing() {
    let mut world = World::imported(REVISION_MAX - 4, &AuthState::default());
    let before = "put a=1; grant 1 9; grant 2 9; put b=1 lease=1; put c=1 lease=2; renew 1 0 1 2; put d=1";
    assert_eq!(world.play(before), format!("put r{}", REVISION_MAX));
    let items = world.asked.store().items(b"");
    for refused in [
        "put a=2",
        "put new=1",
        "del a",
        "del *",
        "txn then { put a=2 }",
        "txn if version(a)=9 then { range a } else { del a..z }",
        "txn then { txn then { put a=2 } }",
        "revoke 1",
        "expire 1 60000 1 2",
    ] {
        assert_eq!(world.play(refused), "NoSpace", "{refused}");
    }
    assert_eq!(world.asked.store().items(b""), items);
    for (served, answer) in [
        ("range * count", format!("[] of 4 r{REVISION_MAX}")),
        (
            "txn then { range d }",
            format!("yes r{REVISION_MAX} {{ [d=1@{0}.{0}.1] of 1 r{0} }}", REVISION_MAX),
        ),
        ("grant 3 9", format!("lease 3 9s r{REVISION_MAX}")),
        ("renew 1 70000 1", "renewed".to_owned()),
        ("alarm on nospace 1; alarm off nospace 1", format!("alarms [1:nospace] r{REVISION_MAX}")),
        (&format!("compact {REVISION_MAX}"), format!("compact r{REVISION_MAX}")),
    ] {
        assert_eq!(world.play(served), answer, "{served}");
    }
}

#[test]
fn leases_expire_as_long_as_each_of_them_has_a_revision() {
    let mut world = World::imported(REVISION_MAX - 3, &AuthState::default());
    world.play("grant 1 9; grant 2 9; put b=1 lease=1; put c=1 lease=2; renew 1 0 1 2");
    assert_eq!(world.play("expire 1 60000 1 2"), "expired 1");
    assert_eq!(world.play("expire 1 60000 2"), "NoSpace");
    assert_eq!(
        world.play("range * keys"),
        format!("[c=@{0}.{0}.1] of 1 r{1}", REVISION_MAX - 1, REVISION_MAX)
    );
}

#[test]
fn the_auth_revision_has_an_end_too() {
    let mut world = World::imported(7, &AuthState { revision: u64::MAX, ..AuthState::default() });
    for change in [
        Change::RoleAdd(AuthRoleAddRequest { name: "reader".to_owned() }),
        Change::UserAdd(AddUser { name: "anna".to_owned(), ..AddUser::default() }),
    ] {
        let kind = Kind::Auth(AuthChange { kind: Some(change) });
        assert_eq!(world.apply_unvalidated(&command::encode(kind)), Err(api::Error::NoSpace));
    }
    assert!(world.apply_unvalidated(&put("a")).is_ok());
    world.assert_equal();
}
