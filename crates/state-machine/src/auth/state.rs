//! Users and roles in memory, and their items in the store.
//!
//! | item | value |
//! |---|---|
//! | `auth-enabled` | one byte, 1; absent otherwise |
//! | `auth-revision` | eight bytes, big endian; absent while it is 1 |
//! | `auth-user/` and the name | a protobuf `authpb.User` |
//! | `auth-role/` and the name | a protobuf `authpb.Role` |

use std::collections::BTreeMap;
use std::sync::Arc;

use api::Error;
use api::authpb::{Role, User};
use bytes::Bytes;
use mvcc::{ITEM_BYTES_MAX, ITEM_KEY_BYTES_MAX, Store, Writer};
use prost::Message;

use crate::failure::ApplyError;

/// User that must exist, and role with all permissions.
pub const ROOT: &str = "root";

const PREFIX: &[u8] = b"auth-";
const ENABLED: &[u8] = b"auth-enabled";
const REVISION: &[u8] = b"auth-revision";
const USER: &[u8] = b"auth-user/";
const ROLE: &[u8] = b"auth-role/";

pub const USER_NAME_BYTES_MAX: usize = ITEM_KEY_BYTES_MAX - USER.len();

/// Users, roles, and whether auth is enabled. Clones share the maps until one of them is modified.
#[derive(Clone, Debug, PartialEq)]
pub struct AuthState {
    /// True if permissions are checked.
    pub enabled: bool,
    /// Incremented by each change; initially 1.
    pub revision: u64,
    /// Users by name. Their roles are sorted.
    pub users: Arc<BTreeMap<String, Arc<User>>>,
    /// Roles by name. Their permissions are sorted by key and range end.
    pub roles: Arc<BTreeMap<String, Arc<Role>>>,
}

impl Default for AuthState {
    fn default() -> Self {
        AuthState { enabled: false, revision: 1, users: Arc::default(), roles: Arc::default() }
    }
}

impl AuthState {
    pub(super) fn load(store: &Store) -> Result<Self, ApplyError> {
        read_in(&store.items(PREFIX))
    }

    pub(super) fn users_mut(&mut self) -> &mut BTreeMap<String, Arc<User>> {
        Arc::make_mut(&mut self.users)
    }

    pub(super) fn roles_mut(&mut self) -> &mut BTreeMap<String, Arc<Role>> {
        Arc::make_mut(&mut self.roles)
    }

    /// Returns a user for modification. Copies the maps only if the user exists.
    pub(super) fn user_mut(&mut self, name: &str) -> Result<&mut User, Error> {
        if !self.users.contains_key(name) {
            return Err(Error::UserNotFound);
        }
        self.users_mut().get_mut(name).map(Arc::make_mut).ok_or(Error::UserNotFound)
    }

    /// Returns a role for modification. Copies the maps only if the role exists.
    pub(super) fn role_mut(&mut self, name: &str) -> Result<&mut Role, Error> {
        if !self.roles.contains_key(name) {
            return Err(Error::RoleNotFound);
        }
        self.roles_mut().get_mut(name).map(Arc::make_mut).ok_or(Error::RoleNotFound)
    }
}

pub fn read_in(items: &[(Bytes, Bytes)]) -> Result<AuthState, ApplyError> {
    let mut state = AuthState::default();
    for (item, value) in items {
        let broken = |reason| ApplyError::Item { item: item.to_vec(), reason };
        let name =
            |name: &[u8]| String::from_utf8(name.to_vec()).map_err(|_| broken("a name that is not text"));
        if item == ENABLED {
            state.enabled = value.as_ref() == [1];
        } else if item == REVISION {
            let revision = value.as_ref().try_into().map_err(|_| broken("not an auth revision"))?;
            state.revision = u64::from_be_bytes(revision);
        } else if let Some(of) = item.strip_prefix(USER) {
            let user = User::decode(value.clone()).map_err(|_| broken("not a user"))?;
            state.users_mut().insert(name(of)?, Arc::new(user));
        } else if let Some(of) = item.strip_prefix(ROLE) {
            let role = Role::decode(value.clone()).map_err(|_| broken("not a role"))?;
            state.roles_mut().insert(name(of)?, Arc::new(role));
        }
    }
    Ok(state)
}

pub type AuthItem = (Vec<u8>, Vec<u8>);

/// Returns the items of a new store with this state, ordered by name.
pub fn items(state: &AuthState) -> Result<Vec<AuthItem>, Error> {
    let mut items = Vec::new();
    if state.enabled {
        items.push((ENABLED.to_vec(), vec![1]));
    }
    if state.revision != 1 {
        items.push((REVISION.to_vec(), state.revision.to_be_bytes().to_vec()));
    }
    for (name, role) in state.roles.iter() {
        items.push(checked(item(ROLE, name), role.encode_to_vec())?);
    }
    for (name, user) in state.users.iter() {
        items.push(checked(item(USER, name), user.encode_to_vec())?);
    }
    Ok(items)
}

/// An item to set, or to remove.
type ItemChange = (Vec<u8>, Option<Vec<u8>>);

#[derive(Debug, Default)]
pub(super) struct TouchedNames {
    pub users: Vec<String>,
    pub roles: Vec<String>,
}

/// Writes the difference between two states. Fails before the first write if an item would be too
/// large.
pub(super) fn write(
    writer: &mut Writer,
    before: &AuthState,
    after: &AuthState,
    touched: &TouchedNames,
) -> Result<(), Error> {
    let mut items: Vec<ItemChange> = Vec::new();
    if after.enabled != before.enabled {
        items.push((ENABLED.to_vec(), after.enabled.then(|| vec![1])));
    }
    if after.revision != before.revision {
        items.push((REVISION.to_vec(), Some(after.revision.to_be_bytes().to_vec())));
    }
    for name in &touched.users {
        items.push(written(item(USER, name), after.users.get(name).map(|user| user.encode_to_vec()))?);
    }
    for name in &touched.roles {
        items.push(written(item(ROLE, name), after.roles.get(name).map(|role| role.encode_to_vec()))?);
    }
    for (item, value) in items {
        writer.set_item(&item, value.as_deref());
    }
    Ok(())
}

fn written(item: Vec<u8>, value: Option<Vec<u8>>) -> Result<ItemChange, Error> {
    match value {
        Some(value) => checked(item, value).map(|(item, value)| (item, Some(value))),
        None => Ok((item, None)),
    }
}

/// Rejects an item beyond the limits of the store: a name above 246 bytes, or a role above 64 KiB.
fn checked(item: Vec<u8>, value: Vec<u8>) -> Result<AuthItem, Error> {
    let fits = item.len() <= ITEM_KEY_BYTES_MAX && item.len() + value.len() <= ITEM_BYTES_MAX;
    if fits { Ok((item, value)) } else { Err(Error::RequestTooLarge) }
}

fn item(prefix: &[u8], name: &str) -> Vec<u8> {
    [prefix, name.as_bytes()].concat()
}
