//! Model of users, roles and permissions.
//!
//! * The keys of a run are numbered. A set of keys is a set of points: an even one for each key,
//!   the odd one after it for the gap up to the next key.
//! * A user may access a set if each of its points is permitted by any of its roles.
//!
//! Shares no code with `state-machine` except the types of requests and stored state.

use std::collections::{BTreeMap, BTreeSet};

use api::authpb::permission::Type;
use api::command::auth_change::Kind as Auth;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{RequestOp, TxnRequest};
use bytes::Bytes;
use raft_node::LogIndex;
use state_machine::AuthState;
use state_machine::command::{Caller, Kind};

use super::refusal::RefusalReason;

const ROOT: &str = "root";
/// Exclusive upper bound of the points of all keys: keys have two-digit numbers.
const POINTS: u32 = 200;

type Points = BTreeSet<u32>;

/// A range in request format: the key and the range end.
type RangeBytes = (Bytes, Bytes);

#[derive(Clone, Debug, PartialEq, Eq)]
struct User {
    password: Bytes,
    roles: BTreeSet<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UserModel {
    is_enabled: bool,
    /// Starts at 0; the auth revision starts at 1.
    changes: u64,
    users: BTreeMap<String, User>,
    roles: BTreeMap<String, BTreeMap<RangeBytes, i32>>,
}

#[derive(Debug, Default)]
struct Uses {
    read: Points,
    write: Points,
    /// Leases: all of their keys are written.
    leases: Vec<i64>,
}

impl UserModel {
    /// Converts the state of a store or a member to the oracle's format.
    pub fn found(state: &AuthState) -> UserModel {
        let user = |(name, user): (&String, &std::sync::Arc<api::authpb::User>)| {
            let roles = user.roles.iter().cloned().collect();
            (name.clone(), User { password: user.password.clone(), roles })
        };
        let role = |(name, role): (&String, &std::sync::Arc<api::authpb::Role>)| {
            let permissions = role.key_permission.iter();
            let written = permissions.map(|of| ((of.key.clone(), of.range_end.clone()), of.perm_type));
            (name.clone(), written.collect())
        };
        UserModel {
            is_enabled: state.enabled,
            changes: state.revision - 1,
            users: state.users.iter().map(user).collect(),
            roles: state.roles.iter().map(role).collect(),
        }
    }

    /// Returns why a command of `caller` is rejected before its execution. `keys_of` returns the
    /// keys of a lease.
    pub fn refusal(
        &self,
        kind: &Kind,
        caller: Option<&Caller>,
        keys_of: impl Fn(i64) -> Vec<Bytes>,
    ) -> Option<RefusalReason> {
        if !self.is_enabled || is_of_members(kind) {
            return None;
        }
        if let Kind::Auth(change) = kind
            && let Some(Auth::IssueToken(_)) = change.kind
        {
            return None;
        }
        let Some(caller) = caller.filter(|caller| !caller.user.is_empty()) else {
            return Some(RefusalReason::UserEmpty);
        };
        match kind {
            Kind::LeaseGrant(_) => None,
            Kind::Put(_) | Kind::DeleteRange(_) | Kind::Txn(_) | Kind::LeaseRevoke(_) => {
                if caller.auth_revision <= self.changes {
                    return Some(RefusalReason::AuthOldRevision);
                }
                let is_permitted = self.permits(&caller.user, &uses_of(kind), keys_of);
                (!is_permitted).then_some(RefusalReason::PermissionDenied)
            }
            _ if self.is_root(&caller.user) => None,
            _ if self.users.contains_key(&caller.user) => Some(RefusalReason::PermissionDenied),
            _ => Some(RefusalReason::UserNotFound),
        }
    }

    pub fn may_read(&self, user: &str, key: &Bytes, end: &Bytes) -> bool {
        let uses = Uses { read: points(key, end), ..Uses::default() };
        !self.is_enabled || self.permits(user, &uses, |_| Vec::new())
    }

    fn permits(&self, user: &str, uses: &Uses, keys_of: impl Fn(i64) -> Vec<Bytes>) -> bool {
        let attached = uses.leases.iter().flat_map(|lease| keys_of(*lease));
        let written = attached.flat_map(|key| points(&key, &Bytes::new())).chain(uses.write.iter().copied());
        let (may_read, may_write) = (self.points_of(user, Type::Read), self.points_of(user, Type::Write));
        self.is_root(user)
            || self.users.contains_key(user)
                && uses.read.is_subset(&may_read)
                && written.collect::<Points>().is_subset(&may_write)
    }

    fn is_root(&self, user: &str) -> bool {
        self.users.get(user).is_some_and(|user| user.roles.contains(ROOT))
    }

    fn points_of(&self, user: &str, wanted: Type) -> Points {
        let roles = self.users.get(user).into_iter().flat_map(|user| &user.roles);
        let permissions = roles.filter_map(|role| self.roles.get(role)).flatten();
        let granted = permissions.filter(|(_, kind)| [wanted as i32, Type::Readwrite as i32].contains(kind));
        granted.flat_map(|((key, end), _)| points(key, end)).collect()
    }

    /// Executes a change in the entry at `index`. Returns the token if one is issued.
    pub fn apply(&mut self, change: &Auth, index: LogIndex) -> Result<Option<String>, RefusalReason> {
        let before = self.clone();
        let done = match change {
            Auth::IssueToken(request) => {
                if !self.is_enabled {
                    return Err(RefusalReason::AuthNotEnabled);
                }
                self.users.get(&request.user).ok_or(RefusalReason::AuthFailed)?;
                if request.auth_revision != self.changes + 1 {
                    return Err(RefusalReason::AuthOldRevision);
                }
                return Ok(Some(format!("{}.{index}", request.prefix)));
            }
            Auth::Enable(_) => self.enable(),
            Auth::Disable(_) => {
                self.is_enabled = false;
                Ok(())
            }
            other => self.change(other),
        };
        done?;
        // Enabling auth does not change permissions.
        let is_counted = !matches!(change, Auth::Enable(_)) && is_change(change, &before, self);
        self.changes += u64::from(is_counted);
        Ok(None)
    }

    fn enable(&mut self) -> Result<(), RefusalReason> {
        if !self.is_enabled && !self.users.contains_key(ROOT) {
            return Err(RefusalReason::RootUserMissing);
        }
        if !self.is_enabled && !self.is_root(ROOT) {
            return Err(RefusalReason::RootRoleMissing);
        }
        self.is_enabled = true;
        Ok(())
    }

    fn change(&mut self, change: &Auth) -> Result<(), RefusalReason> {
        match change {
            Auth::UserAdd(request) => {
                let user = User { password: request.password_hash.clone(), roles: BTreeSet::new() };
                match self.users.insert(request.name.clone(), user) {
                    None => Ok(()),
                    Some(before) => {
                        self.users.insert(request.name.clone(), before);
                        Err(RefusalReason::UserExists)
                    }
                }
            }
            Auth::UserDelete(request) if self.is_enabled && request.name == ROOT => {
                Err(RefusalReason::Protected)
            }
            Auth::UserDelete(request) => {
                self.users.remove(&request.name).map(drop).ok_or(RefusalReason::UserNotFound)
            }
            Auth::UserChangePassword(request) => {
                self.user(&request.name)?.password = request.password_hash.clone();
                Ok(())
            }
            Auth::UserGrantRole(request) => {
                let is_there = request.role == ROOT || self.roles.contains_key(&request.role);
                let user = self.user(&request.user)?;
                if !is_there {
                    return Err(RefusalReason::RoleNotFound);
                }
                user.roles.insert(request.role.clone());
                Ok(())
            }
            Auth::UserRevokeRole(request)
                if self.is_enabled && request.name == ROOT && request.role == ROOT =>
            {
                Err(RefusalReason::Protected)
            }
            Auth::UserRevokeRole(request) => {
                let had = self.user(&request.name)?.roles.remove(&request.role);
                had.then_some(()).ok_or(RefusalReason::RoleNotGranted)
            }
            other => self.change_role(other),
        }
    }

    fn user(&mut self, name: &str) -> Result<&mut User, RefusalReason> {
        self.users.get_mut(name).ok_or(RefusalReason::UserNotFound)
    }

    fn change_role(&mut self, change: &Auth) -> Result<(), RefusalReason> {
        match change {
            Auth::RoleAdd(request) if self.roles.contains_key(&request.name) => {
                Err(RefusalReason::RoleExists)
            }
            Auth::RoleAdd(request) => {
                self.roles.insert(request.name.clone(), BTreeMap::new());
                Ok(())
            }
            Auth::RoleDelete(request) => {
                self.roles.remove(&request.role).ok_or(RefusalReason::RoleNotFound)?;
                for user in self.users.values_mut() {
                    user.roles.remove(&request.role);
                }
                Ok(())
            }
            Auth::RoleGrantPermission(request) => {
                let role = self.roles.get_mut(&request.name).ok_or(RefusalReason::RoleNotFound)?;
                let given = request.perm.clone().unwrap_or_default();
                role.insert((given.key, given.range_end), given.perm_type);
                Ok(())
            }
            Auth::RoleRevokePermission(request) => {
                let role = self.roles.get_mut(&request.role).ok_or(RefusalReason::RoleNotFound)?;
                let written = (request.key.clone(), request.range_end.clone());
                role.remove(&written).map(drop).ok_or(RefusalReason::PermissionNotGranted)
            }
            other => unreachable!("no client asks for {other:?}"),
        }
    }
}

/// Reports whether the auth revision is incremented. Repeated grants increment it, except for a
/// role of a user.
fn is_change(change: &Auth, before: &UserModel, after: &UserModel) -> bool {
    match change {
        Auth::Disable(_) | Auth::UserGrantRole(_) => before != after,
        _ => true,
    }
}

fn is_of_members(kind: &Kind) -> bool {
    matches!(kind, Kind::LeaseExpire(_) | Kind::LeaseRenew(_) | Kind::PublishMember(_) | Kind::RaiseLevel(_))
}

fn uses_of(kind: &Kind) -> Uses {
    let mut uses = Uses::default();
    match kind {
        Kind::Put(put) => uses.add(&Request::RequestPut(put.clone())),
        Kind::DeleteRange(delete) => uses.add(&Request::RequestDeleteRange(delete.clone())),
        Kind::Txn(txn) => uses.add(&Request::RequestTxn(txn.clone())),
        Kind::LeaseRevoke(revoke) => uses.leases.push(revoke.id),
        _ => {}
    }
    uses
}

impl Uses {
    fn add(&mut self, request: &Request) {
        match request {
            Request::RequestRange(range) => self.read.extend(points(&range.key, &range.range_end)),
            Request::RequestPut(put) => {
                let key = points(&put.key, &Bytes::new());
                self.write.extend(&key);
                self.read.extend(key.iter().filter(|_| put.prev_kv));
                self.leases.extend((put.lease != 0).then_some(put.lease));
            }
            Request::RequestDeleteRange(delete) => {
                let keys = points(&delete.key, &delete.range_end);
                self.write.extend(&keys);
                self.read.extend(keys.iter().filter(|_| delete.prev_kv));
            }
            Request::RequestTxn(TxnRequest { compare, success, failure }) => {
                compare.iter().for_each(|it| self.read.extend(points(&it.key, &it.range_end)));
                let ops = success.iter().chain(failure);
                let requests = ops.filter_map(|RequestOp { request }| request.as_ref());
                requests.for_each(|request| self.add(request));
            }
        }
    }
}

/// Returns the points of a key, of a range, or of all keys from a start key.
fn points(key: &[u8], end: &[u8]) -> Points {
    let point = |key: &[u8]| 2 * number(key);
    match end {
        [] => Points::from([point(key)]),
        [0] => (point(key)..POINTS).collect(),
        _ => (point(key)..point(end)).collect(),
    }
}

/// Parses the number of a key: 7 for `key07`.
fn number(key: &[u8]) -> u32 {
    key[3..].iter().fold(0, |number, digit| 10 * number + u32::from(digit - b'0'))
}

#[cfg(test)]
mod tests {
    use api::authpb::Permission;
    use api::command::AddUser;
    use api::etcdserverpb::{
        AuthEnableRequest, AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthUserGrantRoleRequest,
        DeleteRangeRequest, PutRequest, RangeRequest,
    };

    use super::*;

    fn bytes(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    /// Creates root, and a user that may read key02 to key04 and write key03.
    fn model() -> UserModel {
        let mut model = UserModel::default();
        let add = |name: &str| Auth::UserAdd(AddUser { name: name.into(), ..AddUser::default() });
        let give = |user: &str, role: &str| {
            Auth::UserGrantRole(AuthUserGrantRoleRequest { user: user.into(), role: role.into() })
        };
        let permit = |kind: Type, key: &str, end: &str| {
            let perm = Permission { perm_type: kind as i32, key: bytes(key), range_end: bytes(end) };
            Auth::RoleGrantPermission(AuthRoleGrantPermissionRequest { name: "r".into(), perm: Some(perm) })
        };
        for change in [
            add("root"),
            give("root", "root"),
            add("u"),
            Auth::RoleAdd(AuthRoleAddRequest { name: "r".into() }),
            give("u", "r"),
            permit(Type::Read, "key02", "key04"),
            permit(Type::Read, "key04", "key05"),
            permit(Type::Write, "key03", ""),
            Auth::Enable(AuthEnableRequest {}),
        ] {
            model.apply(&change, LogIndex(1)).unwrap();
        }
        model
    }

    fn txn(request: Request) -> Request {
        let success = vec![RequestOp { request: Some(request) }];
        Request::RequestTxn(TxnRequest { success, ..TxnRequest::default() })
    }

    #[test]
    fn a_user_may_do_what_its_roles_allow_at_every_depth() {
        let model = model();
        assert_eq!(model.changes, 8, "an enabling is not counted");
        let put = |key: &str, prev_kv, lease| {
            Request::RequestPut(PutRequest { key: bytes(key), prev_kv, lease, ..PutRequest::default() })
        };
        let delete = |key: &str, end: &str| {
            let (key, range_end) = (bytes(key), bytes(end));
            Request::RequestDeleteRange(DeleteRangeRequest { key, range_end, prev_kv: false })
        };
        let range = |key: &str, end: &str| {
            Request::RequestRange(RangeRequest {
                key: bytes(key),
                range_end: bytes(end),
                ..Default::default()
            })
        };
        for (request, is_permitted) in [
            (put("key03", false, 0), true),
            (put("key03", true, 0), true),
            (put("key02", false, 0), false),
            (put("key03", false, 7), false),
            (put("key03", false, 8), true),
            (delete("key03", ""), true),
            (delete("key03", "key04"), false),
            (range("key02", "key05"), true),
            (range("key02", "\0"), false),
            (range("key01", ""), false),
        ] {
            for request in [request.clone(), txn(request.clone()), txn(txn(request))] {
                let Request::RequestTxn(all) = txn(request) else { unreachable!() };
                let refusal = |user: &str, auth_revision| {
                    let caller = Caller { user: user.into(), auth_revision };
                    let keys_of =
                        |lease| if lease == 7 { vec![bytes("key05")] } else { vec![bytes("key03")] };
                    model.refusal(&Kind::Txn(all.clone()), Some(&caller), keys_of)
                };
                let denied = (!is_permitted).then_some(RefusalReason::PermissionDenied);
                assert_eq!(refusal("u", 9), denied, "{all:?}");
                assert_eq!(refusal("u", 8), Some(RefusalReason::AuthOldRevision));
                assert_eq!(refusal("root", 9), None);
                assert_eq!(refusal("v", 9), Some(RefusalReason::PermissionDenied));
                assert_eq!(refusal("", 9), Some(RefusalReason::UserEmpty));
            }
        }
    }
}
