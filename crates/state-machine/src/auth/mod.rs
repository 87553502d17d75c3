//! Users, roles and permissions, equivalent to etcd's auth store.
//!
//! ```text
//!   AuthChange ──▶ rules (change) ──▶ next AuthState ──▶ items of the store ──▶ AuthTable, for readers
//!   any client command ──▶ its needs ──▶ grants of its caller ──▶ applied, or rejected
//! ```
//!
//! * The state is replicated: users, roles, whether auth is enabled, and the auth revision, which
//!   each change increments. Tokens are not: each member has the ones issued by entries that it has
//!   applied since it started.
//! * Deny by default: while auth is enabled, a command without a caller is rejected, except
//!   commands that only members propose.
//! * One type determines which keys a request accesses: `mvcc::KeyRange`, which also executes the
//!   request. One function visits the operations of a transaction at every depth: [`needs`].
//! * A command carries the auth revision at which its member authenticated the user. If the
//!   revision has changed since, operations on keys are rejected with etcd's `AuthOldRevision`,
//!   equally on every member.
//! * Passwords never reach this module: the proposer verifies them.
//!
//! See docs/decisions/0046.

mod needs; // what a request does

mod grants; // what a user may do
mod state; // users and roles, and their items

mod change; // etcd's rules for changes
mod table; // for readers: the state and the tokens

use std::collections::BTreeMap;
use std::sync::Arc;

use api::Error;
use api::command::auth_change::Kind as Change;
use api::etcdserverpb::alarm_request::AlarmAction;
use mvcc::{LogIndex, Store, Writer};

use self::change::VoidedTokens;
pub use self::grants::Grants;
pub(crate) use self::needs::of_command;
pub use self::needs::{KeyAccess, Need, of_delete_range, of_lease_keys, of_put, of_range, of_txn};
pub use self::state::{AuthState, ROOT, USER_NAME_BYTES_MAX, items as auth_items, read_in as auth_in};
pub use self::table::{AuthTable, Session, TOKENS_MAX, TOKENS_OF_USER_MAX, UserGrants};
use crate::command::{AuthChange, Caller, Kind};
use crate::failure::ApplyError;

#[derive(Debug)]
pub(crate) struct AuthStore {
    table: AuthTable,
    state: Arc<AuthState>,
    /// Permissions of the users of commands applied at this auth revision.
    resolved: BTreeMap<String, Arc<UserGrants>>,
}

#[derive(Debug)]
pub(crate) enum ChangeResult {
    Done,
    Token(String),
}

impl AuthStore {
    pub fn load(store: &Store) -> Result<Self, ApplyError> {
        let state = Arc::new(AuthState::load(store)?);
        Ok(AuthStore { table: AuthTable::new(Arc::clone(&state)), state, resolved: BTreeMap::new() })
    }

    /// Loads the auth state of an installed store, keeping the same readers. Revokes all tokens,
    /// because this member has skipped changes of their users.
    pub fn reload(&mut self, store: &Store) -> Result<(), ApplyError> {
        self.state = Arc::new(AuthState::load(store)?);
        self.resolved.clear();
        self.table.void_all();
        self.table.publish(Arc::clone(&self.state));
        Ok(())
    }

    pub fn table(&self) -> &AuthTable {
        &self.table
    }

    /// Rejects a command without permission. While auth is disabled, only one flag is read.
    pub fn authorize(&mut self, store: &Store, kind: &Kind, caller: Option<&Caller>) -> Result<(), Error> {
        if !self.state.enabled || base::mutant("checked-at-propose-only") {
            return Ok(());
        }
        match kind {
            Kind::Put(_) | Kind::DeleteRange(_) | Kind::Txn(_) | Kind::LeaseRevoke(_) => {
                self.authorize_keys(store, kind, caller)
            }
            Kind::LeaseGrant(_) => named(caller).map(drop),
            Kind::Compact(_) => self.authorize_root(caller),
            // A member activates its own alarms. A client's request is proposed with its user.
            Kind::Alarm(_) if caller.is_none() => Ok(()),
            Kind::Alarm(request) if request.action == AlarmAction::Get as i32 => named(caller).map(drop),
            Kind::Alarm(_) => self.authorize_root(caller),
            Kind::Auth(change) if change::is_open(change) => Ok(()),
            Kind::Auth(_) | Kind::MemberChange(_) | Kind::SetDowngrade(_) => self.authorize_root(caller),
            // Proposed by members only.
            Kind::PublishMember(_) | Kind::LeaseExpire(_) | Kind::LeaseRenew(_) | Kind::RaiseLevel(_) => {
                Ok(())
            }
        }
    }

    fn authorize_keys(&mut self, store: &Store, kind: &Kind, caller: Option<&Caller>) -> Result<(), Error> {
        let caller = named(caller)?;
        if caller.auth_revision < self.state.revision {
            return Err(Error::AuthOldRevision);
        }
        let grants = self.grants_of(&caller.user);
        let grants = grants.grants().ok_or(Error::PermissionDenied)?;
        if grants.is_root() {
            return Ok(());
        }
        needs::of_command(kind, &mut |need| grants.check(need, store))
    }

    fn authorize_root(&mut self, caller: Option<&Caller>) -> Result<(), Error> {
        let caller = named(caller)?;
        let grants = self.grants_of(&caller.user);
        match grants.grants() {
            None => Err(Error::UserNotFound),
            Some(grants) if grants.is_root() => Ok(()),
            Some(_) => Err(Error::PermissionDenied),
        }
    }

    fn grants_of(&mut self, user: &str) -> Arc<UserGrants> {
        if let Some(grants) = self.resolved.get(user) {
            return Arc::clone(grants);
        }
        let grants = self.table.grants_of(user);
        // Do not cache unknown users: their number is unbounded.
        if grants.grants().is_some() {
            self.resolved.insert(user.to_owned(), Arc::clone(&grants));
        }
        grants
    }

    /// Executes a change in the entry at `index`. On error the state is unchanged.
    pub fn change(
        &mut self,
        writer: &mut Writer,
        index: LogIndex,
        request: AuthChange,
    ) -> Result<ChangeResult, Error> {
        let request = match request.kind.ok_or(Error::NotCapable)? {
            Change::IssueToken(request) => {
                let issued = change::issue(&self.state, request)?;
                let of_another = base::mutant("token-of-another-entry");
                let index = index.saturating_sub(u64::from(of_another));
                let token = format!("{}.{index}", issued.prefix);
                self.table.insert(&token, issued.user);
                return Ok(ChangeResult::Token(token));
            }
            request => request,
        };
        // Copy-on-write: the maps are shared with the previous state until modified.
        let mut next = AuthState::clone(&self.state);
        let effects = change::apply(&mut next, request)?;
        state::write(writer, &self.state, &next, &effects.touched)?;
        let has_changed = next.revision != self.state.revision || next.enabled != self.state.enabled;
        if has_changed {
            self.state = Arc::new(next);
            if !base::mutant("stale-permissions") {
                self.resolved.clear();
            }
            match effects.voided {
                VoidedTokens::None => {}
                VoidedTokens::OfUser(user) => self.table.void_user(&user),
                VoidedTokens::All => self.table.void_all(),
            }
            self.table.publish(Arc::clone(&self.state));
        }
        Ok(ChangeResult::Done)
    }
}

fn named(caller: Option<&Caller>) -> Result<&Caller, Error> {
    caller.filter(|caller| !caller.user.is_empty()).ok_or(Error::UserEmpty)
}

#[cfg(test)]
mod tests;
