//! Changes, errors and permission checks, on two machines that must stay equal.

use api::authpb::{Permission, UserAddOptions};
use api::command::auth_change::Kind as Change;
use api::command::{AddUser, IssueToken, SetPassword};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    AlarmRequest, AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest,
    AuthRoleGrantPermissionRequest, AuthRoleRevokePermissionRequest, AuthUserDeleteRequest,
    AuthUserGrantRoleRequest, AuthUserRevokeRoleRequest, CompactionRequest, Compare, DeleteRangeRequest,
    LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::command::encode_for;
use crate::tests::World;
use crate::{Outcome, Response};

fn add_user(name: &str) -> Change {
    let password_hash = Bytes::from_static(b"hash");
    Change::UserAdd(AddUser { name: name.to_owned(), options: None, password_hash })
}

fn delete_user(name: &str) -> Change {
    Change::UserDelete(AuthUserDeleteRequest { name: name.to_owned() })
}

fn set_password(name: &str) -> Change {
    Change::UserChangePassword(SetPassword {
        name: name.to_owned(),
        password_hash: Bytes::from_static(b"h2"),
    })
}

fn grant_role(user: &str, role: &str) -> Change {
    Change::UserGrantRole(AuthUserGrantRoleRequest { user: user.to_owned(), role: role.to_owned() })
}

fn revoke_role(name: &str, role: &str) -> Change {
    Change::UserRevokeRole(AuthUserRevokeRoleRequest { name: name.to_owned(), role: role.to_owned() })
}

fn add_role(name: &str) -> Change {
    Change::RoleAdd(AuthRoleAddRequest { name: name.to_owned() })
}

fn delete_role(role: &str) -> Change {
    Change::RoleDelete(AuthRoleDeleteRequest { role: role.to_owned() })
}

fn permit(name: &str, perm_type: i32, key: &str, range_end: &str) -> Change {
    let perm = Permission { perm_type, key: key.to_owned().into(), range_end: range_end.to_owned().into() };
    Change::RoleGrantPermission(AuthRoleGrantPermissionRequest { name: name.to_owned(), perm: Some(perm) })
}

fn forbid(role: &str, key: &str, range_end: &str) -> Change {
    Change::RoleRevokePermission(AuthRoleRevokePermissionRequest {
        role: role.to_owned(),
        key: key.to_owned().into(),
        range_end: range_end.to_owned().into(),
    })
}

fn enable() -> Change {
    Change::Enable(AuthEnableRequest {})
}

fn disable() -> Change {
    Change::Disable(AuthDisableRequest {})
}

fn issue(user: &str, auth_revision: u64) -> Change {
    Change::IssueToken(IssueToken { user: user.to_owned(), prefix: "letters".to_owned(), auth_revision })
}

fn of(change: Change) -> Kind {
    Kind::Auth(AuthChange { kind: Some(change) })
}

impl World {
    fn as_user(&mut self, user: &str, kind: Kind) -> Outcome {
        let auth_revision = self.asked.auth().revision();
        self.apply_unvalidated(&encode_for(kind, Some((user, auth_revision))))
    }

    fn change(&mut self, change: Change) -> Result<(), Error> {
        self.as_user(ROOT, of(change)).map(drop)
    }

    fn all(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            let shown = format!("{change:?}");
            assert_eq!(self.change(change), Ok(()), "{shown}");
        }
    }

    /// Asserts that a restart would load the current state.
    fn assert_stored(&self) {
        let stored = auth_in(&self.asked.store().items(b"")).unwrap();
        assert_eq!(stored, *self.asked.auth().state());
        self.assert_equal();
    }
}

/// Auth is on. `u` has READWRITE of [b, d), `r` READ and `w` WRITE of it, `x` has no role.
fn guarded() -> World {
    let mut world = World::new();
    world.all([add_user(ROOT), grant_role(ROOT, ROOT)]);
    for (user, perm_type) in [("u", 2), ("r", 0), ("w", 1)] {
        world.all([
            add_user(user),
            add_role(user),
            permit(user, perm_type, "b", "d"),
            grant_role(user, user),
        ]);
    }
    world.all([add_user("x"), enable()]);
    world
}

#[test]
fn changes_follow_etcds_rules() {
    use Error::*;
    let mut world = World::new();
    let no_password = UserAddOptions { no_password: true };
    for (change, answer, revision) in [
        (enable(), Err(RootUserNotExist), 1),
        (disable(), Ok(()), 1),
        (issue("u", 1), Err(AuthNotEnabled), 1),
        (add_user(""), Err(UserEmpty), 1),
        (add_user(ROOT), Ok(()), 2),
        (add_user(ROOT), Err(UserAlreadyExist), 2),
        (enable(), Err(RootRoleNotExist), 2),
        (grant_role("absent", ROOT), Err(UserNotFound), 2),
        (grant_role(ROOT, "r"), Err(RoleNotFound), 2),
        (grant_role(ROOT, ROOT), Ok(()), 3),
        (grant_role(ROOT, ROOT), Ok(()), 3),
        (add_role(""), Err(RoleEmpty), 3),
        (add_role("r"), Ok(()), 4),
        (add_role("r"), Err(RoleAlreadyExist), 4),
        (permit("r", 0, "", ""), Err(InvalidAuthMgmt), 4),
        (permit("r", 0, "b", "a"), Err(InvalidAuthMgmt), 4),
        (permit("nothing", 0, "a", "b"), Err(RoleNotFound), 4),
        (permit("r", 0, "a", "b"), Ok(()), 5),
        (permit("r", 0, "a", "b"), Ok(()), 6),
        (permit("r", 1, "a", ""), Ok(()), 7),
        (forbid("r", "a", "\0"), Err(PermissionNotGranted), 7),
        (forbid("nothing", "a", "b"), Err(RoleNotFound), 7),
        (forbid("r", "a", "b"), Ok(()), 8),
        (add_user("u"), Ok(()), 9),
        (grant_role("u", "r"), Ok(()), 10),
        (revoke_role("u", ROOT), Err(RoleNotGranted), 10),
        (revoke_role("absent", "r"), Err(UserNotFound), 10),
        (set_password("absent"), Err(UserNotFound), 10),
        (set_password("u"), Ok(()), 11),
        (enable(), Ok(()), 11),
        (enable(), Ok(()), 11),
        (issue("u", 11), Ok(()), 11),
        (issue("u", 10), Err(AuthOldRevision), 11),
        (issue("absent", 11), Err(AuthFailed), 11),
        (delete_user(ROOT), Err(InvalidAuthMgmt), 11),
        (revoke_role(ROOT, ROOT), Err(InvalidAuthMgmt), 11),
        (delete_role(ROOT), Err(InvalidAuthMgmt), 11),
        (delete_role("nothing"), Err(RoleNotFound), 11),
        (delete_role("r"), Ok(()), 12),
        (revoke_role("u", "r"), Err(RoleNotGranted), 12),
        (
            Change::UserAdd(AddUser {
                name: "cert".into(),
                options: Some(no_password),
                ..AddUser::default()
            }),
            Ok(()),
            13,
        ),
        (issue("cert", 13), Err(AuthFailed), 13),
        (delete_user("u"), Ok(()), 14),
        (delete_user("u"), Err(UserNotFound), 14),
        (disable(), Ok(()), 15),
        (delete_user(ROOT), Ok(()), 16),
    ] {
        let shown = format!("{change:?}");
        assert_eq!(world.change(change), answer, "{shown}");
        assert_eq!(world.asked.auth().revision(), revision, "{shown}");
        world.assert_stored();
    }
    let none = world.apply_unvalidated(&encode_for(Kind::Auth(AuthChange { kind: None }), None));
    assert_eq!(none, Err(NotCapable));
}

#[test]
fn what_no_item_can_hold_is_refused_and_changes_nothing() {
    let mut world = World::new();
    let long = "n".repeat(300);
    assert_eq!(world.change(add_user(&long)), Err(Error::RequestTooLarge));
    assert_eq!(world.change(add_role(&long)), Err(Error::RequestTooLarge));
    world.all([add_role("r")]);
    assert_eq!(world.change(permit("r", 0, &"k".repeat(70_000), "")), Err(Error::RequestTooLarge));
    assert_eq!(world.asked.auth().revision(), 2);
    world.assert_stored();
}

fn put(key: &str, lease: i64, prev_kv: bool) -> Kind {
    Kind::Put(PutRequest { key: key.to_owned().into(), lease, prev_kv, ..PutRequest::default() })
}

fn delete(key: &str, range_end: &str, prev_kv: bool) -> Kind {
    Kind::DeleteRange(DeleteRangeRequest {
        key: key.to_owned().into(),
        range_end: range_end.to_owned().into(),
        prev_kv,
    })
}

fn op(kind: Kind) -> RequestOp {
    let request = match kind {
        Kind::Put(request) => Request::RequestPut(request),
        Kind::DeleteRange(request) => Request::RequestDeleteRange(request),
        Kind::Txn(request) => Request::RequestTxn(request),
        other => panic!("not an operation: {other:?}"),
    };
    RequestOp { request: Some(request) }
}

fn read(key: &str, range_end: &str) -> RequestOp {
    let (key, range_end) = (key.to_owned().into(), range_end.to_owned().into());
    RequestOp {
        request: Some(Request::RequestRange(RangeRequest { key, range_end, ..RangeRequest::default() })),
    }
}

/// Places the operation in either branch, at several depths.
fn at_each_depth(operation: &RequestOp) -> Vec<Kind> {
    let mut found = Vec::new();
    let mut wrapped = operation.clone();
    for depth in 0..5 {
        let ops = vec![wrapped.clone()];
        let txn = match depth % 2 {
            0 => TxnRequest { success: ops, ..TxnRequest::default() },
            _ => TxnRequest { failure: ops, ..TxnRequest::default() },
        };
        found.push(Kind::Txn(txn.clone()));
        wrapped = op(Kind::Txn(txn));
    }
    found
}

#[test]
fn a_command_needs_permission_for_each_key_that_it_names_at_every_depth() {
    let mut world = guarded();
    // (command, and which of u, r, w, x may execute it)
    let leaves = [
        (op(put("b", 0, false)), "uw"),
        (op(put("b", 0, true)), "u"),
        (op(put("a", 0, false)), ""),
        (op(delete("b", "d", false)), "uw"),
        (op(delete("b", "d", true)), "u"),
        (op(delete("b", "e", false)), ""),
        (op(delete("b", "\0", false)), ""),
        (read("b", "d"), "ur"),
        (read("b", "\0"), ""),
        (read("d", ""), ""),
    ];
    let mut commands: Vec<(Kind, &str)> = Vec::new();
    for (leaf, allowed) in leaves {
        match leaf.request.clone() {
            Some(Request::RequestPut(request)) => commands.push((Kind::Put(request), allowed)),
            Some(Request::RequestDeleteRange(request)) => {
                commands.push((Kind::DeleteRange(request), allowed))
            }
            _ => {}
        }
        commands.extend(at_each_depth(&leaf).into_iter().map(|txn| (txn, allowed)));
    }
    for (key, range_end, allowed) in [("b", "", "ur"), ("b", "\0", ""), ("a", "", "")] {
        let (key, range_end) = (key.to_owned().into(), range_end.to_owned().into());
        let compare = Compare { key, range_end, ..Compare::default() };
        commands.push((Kind::Txn(TxnRequest { compare: vec![compare], ..TxnRequest::default() }), allowed));
    }
    for (command, allowed) in commands {
        for user in ["u", "r", "w", "x", "absent", ROOT] {
            let is_allowed = allowed.contains(user) || user == ROOT;
            match world.as_user(user, command.clone()) {
                Ok(_) => assert!(is_allowed, "{user}: {command:?}"),
                Err(Error::PermissionDenied) => assert!(!is_allowed, "{user}: {command:?}"),
                Err(other) => panic!("{user}: {command:?}: {other:?}"),
            }
        }
        assert_eq!(world.apply_unvalidated(&encode_for(command, None)), Err(Error::UserEmpty));
    }
    world.assert_stored();
}

#[test]
fn a_lease_gives_no_power_over_the_keys_that_are_attached_to_it() {
    let mut world = guarded();
    let grant = |id| Kind::LeaseGrant(LeaseGrantRequest { id, ttl: 60 });
    let revoke = |id| Kind::LeaseRevoke(LeaseRevokeRequest { id });
    assert_eq!(world.apply_unvalidated(&encode_for(grant(7), None)), Err(Error::UserEmpty));
    world.as_user("x", grant(7)).unwrap();
    world.as_user(ROOT, put("z", 7, false)).unwrap();
    for kind in [
        put("b", 7, false),
        Kind::Txn(TxnRequest { success: vec![op(put("b", 7, false))], ..Default::default() }),
    ] {
        assert_eq!(world.as_user("u", kind), Err(Error::PermissionDenied), "z is not u's");
    }
    assert_eq!(world.as_user("u", revoke(7)), Err(Error::PermissionDenied));
    assert_eq!(world.apply_unvalidated(&encode_for(revoke(7), None)), Err(Error::UserEmpty));
    world.as_user("u", grant(8)).unwrap();
    world.as_user("u", put("b", 8, false)).unwrap();
    assert_eq!(world.as_user("r", revoke(8)), Err(Error::PermissionDenied));
    world.as_user("u", revoke(8)).unwrap();
    world.as_user(ROOT, revoke(7)).unwrap();
    world.assert_stored();
}

/// The cost depends on the granted intervals, not on the keys: 3,000 puts that attach to a lease
/// with 20,000 keys.
#[test]
fn a_lease_with_many_keys_is_checked_by_the_intervals_that_are_granted() {
    let mut world = guarded();
    world.all([permit("u", 1, "f", "g"), permit("u", 1, "h", "")]);
    let grant = |id| Kind::LeaseGrant(LeaseGrantRequest { id, ttl: 60 });
    world.as_user("u", grant(7)).unwrap();
    for number in 0..10_000 {
        for first in ["b", "f"] {
            world.as_user("u", put(&format!("{first}{number}"), 7, false)).unwrap();
        }
    }
    world.as_user("u", put("h", 7, false)).unwrap();
    let many = |key: &str| {
        let success = (0..3000).map(|number| op(put(&format!("{key}{number}"), 7, false))).collect();
        Kind::Txn(TxnRequest { success, ..TxnRequest::default() })
    };
    world.as_user("u", many("c")).unwrap();
    // After, between and before the granted intervals.
    for other in ["z", "d", "g", "h\0", "a"] {
        world.as_user(ROOT, put(other, 7, false)).unwrap();
        assert_eq!(world.as_user("u", many("c")), Err(Error::PermissionDenied), "{other}");
        world.as_user(ROOT, delete(other, "", false)).unwrap();
    }
    world.as_user("u", many("c")).unwrap();
    world.assert_stored();
}

#[test]
fn a_token_and_a_refusal_copy_no_users_and_no_roles() {
    let mut world = guarded();
    let before = world.asked.auth().state();
    let revision = world.asked.auth().revision();
    world.as_user("x", of(issue("u", revision))).unwrap();
    for refused in [add_user("u"), delete_user("y"), revoke_role("u", "w"), forbid("r", "x", "y")] {
        assert!(world.change(refused).is_err());
    }
    assert!(Arc::ptr_eq(&before, &world.asked.auth().state()));
    world.all([permit("r", 0, "k", "")]);
    let after = world.asked.auth().state();
    assert!(Arc::ptr_eq(&before.users, &after.users) && !Arc::ptr_eq(&before.roles, &after.roles));
}

#[test]
fn permissions_count_from_the_next_command_on() {
    let mut world = guarded();
    let put = || put("b", 0, false);
    world.as_user("u", put()).unwrap();
    world.all([forbid("u", "b", "d")]);
    assert_eq!(world.as_user("u", put()), Err(Error::PermissionDenied));
    world.all([permit("u", 1, "b", "")]);
    world.as_user("u", put()).unwrap();
    world.all([delete_user("u")]);
    assert_eq!(world.as_user("u", put()), Err(Error::PermissionDenied));
}

#[test]
fn commands_of_an_older_auth_revision_are_refused() {
    let mut world = guarded();
    let auth_revision = world.asked.auth().revision();
    let put = encode_for(put("b", 0, false), Some(("u", auth_revision)));
    world.apply_unvalidated(&put).unwrap();
    world.all([forbid("r", "b", "d")]);
    assert_eq!(world.apply_unvalidated(&put), Err(Error::AuthOldRevision), "any change counts");
    world.all([disable()]);
    world.apply_unvalidated(&put).unwrap();
}

#[test]
fn management_is_roots_and_members_need_no_user() {
    let mut world = guarded();
    let compact = || Kind::Compact(CompactionRequest { revision: 1, physical: false });
    let alarm = |action| Kind::Alarm(AlarmRequest { action, member_id: 7, alarm: 1 });
    for (kind, answers) in [
        (compact(), [Err(Error::UserEmpty), Err(Error::PermissionDenied)]),
        (of(add_role("new")), [Err(Error::UserEmpty), Err(Error::PermissionDenied)]),
        (of(disable()), [Err(Error::UserEmpty), Err(Error::PermissionDenied)]),
        (of(enable()), [Err(Error::UserEmpty), Err(Error::PermissionDenied)]),
        (alarm(1), [Ok(()), Err(Error::PermissionDenied)]),
        (alarm(0), [Ok(()), Ok(())]),
    ] {
        let [unnamed, of_user] = answers;
        assert_eq!(world.apply_unvalidated(&encode_for(kind.clone(), None)).map(drop), unnamed, "{kind:?}");
        assert_eq!(world.as_user("u", kind.clone()).map(drop), of_user, "{kind:?}");
    }
    world.assert_stored();
}

fn token(outcome: Outcome) -> String {
    match outcome {
        Ok(Response::Authenticate(response)) => response.token,
        other => panic!("no token: {other:?}"),
    }
}

#[test]
fn tokens_end_with_their_user_with_a_new_password_and_unused() {
    let mut world = guarded();
    let table = world.asked.auth().clone();
    let login = |world: &mut World, user| {
        let revision = world.asked.auth().revision();
        let token = token(world.apply_unvalidated(&encode_for(of(issue(user, revision)), None)));
        assert_eq!(token, format!("letters.{}", world.at.index));
        let session = world.asked.auth().session(&token).unwrap();
        assert_eq!((session.user(), session.is_void()), (user, false));
        assert_eq!(world.silent.auth().session(&token).unwrap().user(), user, "known on every member");
        (token, session)
    };
    let (u, u_session) = login(&mut world, "u");
    let (x, x_session) = login(&mut world, "x");
    world.all([set_password("u")]);
    assert!(u_session.is_void() && table.session(&u).is_none() && !x_session.is_void());
    world.all([add_role("y"), permit("y", 0, "y", ""), grant_role("x", "y")]);
    let grants = x_session.grants(&table);
    assert!(grants.grants().unwrap().permits(KeyAccess::Read, &mvcc::KeyRange::one("y".into())));
    world.all([delete_role("y")]);
    let grants = x_session.grants(&table);
    assert!(!grants.grants().unwrap().permits(KeyAccess::Read, &mvcc::KeyRange::one("y".into())));
    world.all([delete_user("x")]);
    assert!(x_session.is_void() && table.session(&x).is_none());
    let (w, w_session) = login(&mut world, "w");
    table.sweep(1, 10);
    w_session.touch(5);
    table.sweep(15, 10);
    assert!(table.session(&w).is_some(), "used up to the end of tick 5");
    table.sweep(16, 10);
    assert!(w_session.is_void() && table.session(&w).is_none());
    let (_, r_session) = login(&mut world, "r");
    world.all([disable()]);
    assert!(r_session.is_void() && table.tokens() == 0 && !table.is_enabled());
}

#[test]
fn a_user_has_a_bounded_number_of_tokens_which_share_their_grants() {
    let mut world = guarded();
    let table = world.asked.auth().clone();
    for number in 0..=TOKENS_OF_USER_MAX {
        table.insert(&format!("u.{number}"), "u".to_owned());
    }
    table.insert("x.0", "x".to_owned());
    let (first, second) = (table.session("u.1").unwrap(), table.session("u.2").unwrap());
    assert!(table.session("u.0").is_none(), "the oldest has ended");
    assert_eq!(table.tokens(), TOKENS_OF_USER_MAX + 1);
    let shared = |table: &AuthTable| Arc::ptr_eq(&first.grants(table), &second.grants(table));
    assert!(shared(&table));
    let before = first.grants(&table);
    world.all([permit("u", 0, "later", "")]);
    assert!(shared(&table) && !Arc::ptr_eq(&before, &first.grants(&table)));
    assert!(Arc::ptr_eq(&first.grants(&table), &Session::of_user("u".to_owned()).grants(&table)));
    // A sweep drops outdated permissions of unused tokens.
    world.all([permit("u", 0, "later still", "")]);
    table.sweep(1, 10);
    drop(before);
    assert!(first.grants.load().is_none() && second.grants.load().is_none());
    // Without the user there are no permissions to share or cache.
    world.all([delete_user("u")]);
    assert!(first.is_void() && table.tokens() == 1);
    assert!(table.grants_of("u").grants().is_none());
    table.insert("u.again", "u".to_owned());
    assert_eq!(table.tokens(), 2);
}

#[test]
fn a_full_table_ends_the_oldest_token_of_the_user_with_most() {
    let table = guarded().asked.auth().clone();
    let log_in = |user: &str, number: usize| table.insert(&format!("{user}.{number}"), user.to_owned());
    let is_kept = |user: &str, number: usize| table.session(&format!("{user}.{number}")).is_some();
    let users = TOKENS_MAX / TOKENS_OF_USER_MAX;
    for number in 0..TOKENS_OF_USER_MAX {
        (0..users).for_each(|user| log_in(&format!("u{user}"), number));
    }
    assert_eq!(table.tokens(), TOKENS_MAX);
    let first = table.session("u0.0").unwrap();
    log_in("x", 0);
    assert!(is_kept("x", 0) && first.is_void());
    log_in("x", 1);
    assert!(is_kept("x", 0) && is_kept("x", 1) && !is_kept("u1", 0) && is_kept("u0", 1));
    // The user with the most tokens loses one.
    log_in("u2", TOKENS_OF_USER_MAX);
    assert!(is_kept("u2", TOKENS_OF_USER_MAX) && !is_kept("u2", 0) && is_kept("u3", 0) && is_kept("x", 0));
    assert_eq!(table.tokens(), TOKENS_MAX);
    table.void_all();
    // If many users have one token each, the oldest token is revoked.
    (0..=TOKENS_MAX).for_each(|user| log_in(&format!("{user}"), 0));
    assert!(!is_kept("0", 0) && is_kept("1", 0) && is_kept(&TOKENS_MAX.to_string(), 0));
    assert_eq!(table.tokens(), TOKENS_MAX);
}

/// Users, roles, permissions and keys of the property test: few, so that changes collide.
const NAMES: [&str; 4] = [ROOT, "a", "b", "c"];

fn any_change() -> impl Strategy<Value = Change> {
    let name = || prop::sample::select(&NAMES[..]);
    let key = || prop::sample::select(&["k", "l", "m"][..]);
    let end = || prop::sample::select(&["", "l", "n", "\0"][..]);
    prop_oneof![
        name().prop_map(add_user),
        name().prop_map(delete_user),
        (name(), name()).prop_map(|(user, role)| grant_role(user, role)),
        (name(), name()).prop_map(|(user, role)| revoke_role(user, role)),
        name().prop_map(add_role),
        name().prop_map(delete_role),
        (name(), 0..4_i32, key(), end()).prop_map(|(role, kind, key, end)| permit(role, kind, key, end)),
        (name(), key(), end()).prop_map(|(role, key, end)| forbid(role, key, end)),
    ]
}

/// Reports whether a user may write a key, by checking every role and permission.
fn may_write(state: &AuthState, user: &str, key: &str) -> bool {
    let Some(user) = state.users.get(user) else { return false };
    user.roles.iter().any(|name| {
        let permissions = state.roles.get(name).map_or(&[][..], |role| &role.key_permission);
        name == ROOT
            || permissions.iter().any(|permission| {
                let (from, end) = (&permission.key[..], &permission.range_end[..]);
                let key = key.as_bytes();
                let is_within = match end {
                    b"" => key == from,
                    b"\0" => from <= key,
                    end => from <= key && key < end,
                };
                is_within && [1, 2].contains(&permission.perm_type)
            })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn after_any_changes_exactly_what_was_granted_is_permitted(
        changes in prop::collection::vec(any_change(), 1..40)
    ) {
        let mut world = World::new();
        world.all([add_user(ROOT), grant_role(ROOT, ROOT), enable()]);
        for change in changes {
            let before = world.asked.auth().state();
            let refused = world.change(change).is_err();
            let after = world.asked.auth().state();
            prop_assert!(!refused || before == after, "a refusal changes nothing");
            prop_assert!(after.users.values().all(|user| user.roles.is_sorted()));
            for user in NAMES {
                for key in ["j", "k", "l", "m", "z"] {
                    let outcome = world.as_user(user, put(key, 0, false));
                    prop_assert_eq!(outcome.is_ok(), may_write(&after, user, key), "{} {}", user, key);
                }
            }
            world.assert_stored();
        }
    }
}
