//! etcd's rules for auth changes: users, roles and permissions.
//!
//! A pure function of the previous state and the request. Errors are etcd's, in etcd's order of
//! checks.

use std::sync::Arc;

use api::Error;
use api::authpb::{Permission, Role, User};
use api::command::auth_change::Kind as Change;
use api::command::{AddUser, IssueToken, SetPassword};
use api::etcdserverpb::{
    AuthRoleGrantPermissionRequest, AuthRoleRevokePermissionRequest, AuthUserGrantRoleRequest,
    AuthUserRevokeRoleRequest,
};
use bytes::Bytes;

use super::state::{AuthState, ROOT, TouchedNames};
use crate::command::AuthChange;

/// Maximum length of a token that a member accepts; longer than any that members propose.
const TOKEN_PREFIX_BYTES_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct AuthEffects {
    pub touched: TouchedNames,
    pub voided: VoidedTokens,
}

#[derive(Debug)]
pub(super) struct IssuedToken {
    pub user: String,
    pub prefix: String,
}

#[derive(Debug, Default)]
pub(super) enum VoidedTokens {
    #[default]
    None,
    OfUser(String),
    All,
}

/// Reports whether a change needs no authenticated user: a user without a token must be able to get
/// one.
pub(super) fn is_open(change: &AuthChange) -> bool {
    matches!(change.kind, Some(Change::IssueToken(_)))
}

/// Executes a change. After an error the state must be discarded.
pub(super) fn apply(state: &mut AuthState, change: Change) -> Result<AuthEffects, Error> {
    match change {
        Change::Enable(_) => enable(state),
        Change::Disable(_) => disable(state),
        // Handled by `issue`; does not change the state.
        Change::IssueToken(_) => Err(Error::NotCapable),
        Change::UserAdd(request) => add_user(state, request),
        Change::UserDelete(request) => delete_user(state, request.name),
        Change::UserChangePassword(request) => change_password(state, request),
        Change::UserGrantRole(request) => grant_role(state, &request),
        Change::UserRevokeRole(request) => revoke_role(state, &request),
        Change::RoleAdd(request) => add_role(state, request.name),
        Change::RoleDelete(request) => delete_role(state, request.role),
        Change::RoleGrantPermission(request) => grant_permission(state, request),
        Change::RoleRevokePermission(request) => revoke_permission(state, &request),
    }
}

/// The auth revision stays the same.
fn enable(state: &mut AuthState) -> Result<AuthEffects, Error> {
    if state.enabled {
        return Ok(AuthEffects::default());
    }
    let root = state.users.get(ROOT).ok_or(Error::RootUserNotExist)?;
    if !root.roles.iter().any(|role| role == ROOT) {
        return Err(Error::RootRoleNotExist);
    }
    state.enabled = true;
    Ok(AuthEffects::default())
}

fn disable(state: &mut AuthState) -> Result<AuthEffects, Error> {
    if !state.enabled {
        return Ok(AuthEffects::default());
    }
    state.enabled = false;
    changed(state, TouchedNames::default(), VoidedTokens::All)
}

pub(super) fn issue(state: &AuthState, request: IssueToken) -> Result<IssuedToken, Error> {
    if !state.enabled {
        return Err(Error::AuthNotEnabled);
    }
    let user = state.users.get(&request.user).ok_or(Error::AuthFailed)?;
    if has_no_password(user) || request.prefix.len() > TOKEN_PREFIX_BYTES_MAX {
        return Err(Error::AuthFailed);
    }
    if request.auth_revision != state.revision {
        return Err(Error::AuthOldRevision);
    }
    Ok(IssuedToken { user: request.user, prefix: request.prefix })
}

fn has_no_password(user: &User) -> bool {
    user.options.as_ref().is_some_and(|options| options.no_password)
}

fn add_user(state: &mut AuthState, request: AddUser) -> Result<AuthEffects, Error> {
    if request.name.is_empty() {
        return Err(Error::UserEmpty);
    }
    if state.users.contains_key(&request.name) {
        return Err(Error::UserAlreadyExist);
    }
    let mut user = User {
        name: Bytes::copy_from_slice(request.name.as_bytes()),
        options: Some(request.options.unwrap_or_default()),
        ..User::default()
    };
    if !has_no_password(&user) {
        user.password = Bytes::copy_from_slice(&request.password_hash);
    }
    state.users_mut().insert(request.name.clone(), Arc::new(user));
    changed(state, user_named(request.name), VoidedTokens::None)
}

fn delete_user(state: &mut AuthState, name: String) -> Result<AuthEffects, Error> {
    if state.enabled && name == ROOT {
        return Err(Error::InvalidAuthMgmt);
    }
    if !state.users.contains_key(&name) {
        return Err(Error::UserNotFound);
    }
    state.users_mut().remove(&name);
    changed(state, user_named(name.clone()), VoidedTokens::OfUser(name))
}

fn change_password(state: &mut AuthState, request: SetPassword) -> Result<AuthEffects, Error> {
    let user = state.user_mut(&request.name)?;
    user.password = match has_no_password(user) {
        true => Bytes::new(),
        false => Bytes::copy_from_slice(&request.password_hash),
    };
    changed(state, user_named(request.name.clone()), VoidedTokens::OfUser(request.name))
}

/// Grants a role. Without effect, even on the auth revision, if the user has it already.
fn grant_role(state: &mut AuthState, request: &AuthUserGrantRoleRequest) -> Result<AuthEffects, Error> {
    let user = state.users.get(&request.user).ok_or(Error::UserNotFound)?;
    if request.role != ROOT && !state.roles.contains_key(&request.role) {
        return Err(Error::RoleNotFound);
    }
    match user.roles.binary_search(&request.role) {
        Ok(_) => Ok(AuthEffects::default()),
        Err(at) => {
            state.user_mut(&request.user)?.roles.insert(at, request.role.clone());
            changed(state, user_named(request.user.clone()), VoidedTokens::None)
        }
    }
}

fn revoke_role(state: &mut AuthState, request: &AuthUserRevokeRoleRequest) -> Result<AuthEffects, Error> {
    if state.enabled && request.name == ROOT && request.role == ROOT {
        return Err(Error::InvalidAuthMgmt);
    }
    let user = state.users.get(&request.name).ok_or(Error::UserNotFound)?;
    let at = user.roles.binary_search(&request.role).map_err(|_| Error::RoleNotGranted)?;
    state.user_mut(&request.name)?.roles.remove(at);
    changed(state, user_named(request.name.clone()), VoidedTokens::None)
}

fn add_role(state: &mut AuthState, name: String) -> Result<AuthEffects, Error> {
    if name.is_empty() {
        return Err(Error::RoleEmpty);
    }
    if state.roles.contains_key(&name) {
        return Err(Error::RoleAlreadyExist);
    }
    let role = Role { name: Bytes::copy_from_slice(name.as_bytes()), key_permission: Vec::new() };
    state.roles_mut().insert(name.clone(), Arc::new(role));
    changed(state, role_named(name), VoidedTokens::None)
}

fn delete_role(state: &mut AuthState, name: String) -> Result<AuthEffects, Error> {
    if state.enabled && name == ROOT {
        return Err(Error::InvalidAuthMgmt);
    }
    if !state.roles.contains_key(&name) {
        return Err(Error::RoleNotFound);
    }
    state.roles_mut().remove(&name);
    let mut users = Vec::new();
    for (user_name, user) in state.users_mut() {
        if let Ok(at) = user.roles.binary_search(&name) {
            Arc::make_mut(user).roles.remove(at);
            users.push(user_name.clone());
        }
    }
    changed(state, TouchedNames { users, roles: vec![name] }, VoidedTokens::None)
}

fn grant_permission(
    state: &mut AuthState,
    request: AuthRoleGrantPermissionRequest,
) -> Result<AuthEffects, Error> {
    let Permission { perm_type, key, range_end } = request.perm.ok_or(Error::PermissionNotGiven)?;
    if !is_range(&key, &range_end) {
        return Err(Error::InvalidAuthMgmt);
    }
    let role = state.role_mut(&request.name)?;
    let (key, range_end) = (Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&range_end));
    match position(role, &key, &range_end) {
        Ok(at) => role.key_permission[at].perm_type = perm_type,
        Err(at) => role.key_permission.insert(at, Permission { perm_type, key, range_end }),
    }
    changed(state, role_named(request.name), VoidedTokens::None)
}

fn revoke_permission(
    state: &mut AuthState,
    request: &AuthRoleRevokePermissionRequest,
) -> Result<AuthEffects, Error> {
    let role = state.roles.get(&request.role).ok_or(Error::RoleNotFound)?;
    let at = position(role, &request.key, &request.range_end).map_err(|_| Error::PermissionNotGranted)?;
    state.role_mut(&request.role)?.key_permission.remove(at);
    changed(state, role_named(request.role.clone()), VoidedTokens::None)
}

/// Returns the position of the permission with exactly this range, or its insertion point.
fn position(role: &Role, key: &[u8], range_end: &[u8]) -> Result<usize, usize> {
    role.key_permission.binary_search_by(|permission| {
        (permission.key.as_ref(), permission.range_end.as_ref()).cmp(&(key, range_end))
    })
}

fn is_range(key: &[u8], range_end: &[u8]) -> bool {
    !key.is_empty() && (range_end.is_empty() || range_end == b"\0" || key < range_end)
}

/// Increments the auth revision. After the last revision all changes are rejected.
fn changed(state: &mut AuthState, touched: TouchedNames, voided: VoidedTokens) -> Result<AuthEffects, Error> {
    state.revision = state.revision.checked_add(1).ok_or(Error::NoSpace)?;
    Ok(AuthEffects { touched, voided })
}

fn user_named(name: String) -> TouchedNames {
    TouchedNames { users: vec![name], roles: Vec::new() }
}

fn role_named(name: String) -> TouchedNames {
    TouchedNames { users: Vec::new(), roles: vec![name] }
}
