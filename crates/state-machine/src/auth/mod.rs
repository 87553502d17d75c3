//! Users, roles and permissions, as etcd's auth store has them.
//!
//! ```text
//!   AuthChange ──▶ rules (change) ──▶ next AuthState ──▶ items of the store ──▶ AuthTable, for readers
//!   any command of a client ──▶ its needs ──▶ grants of its caller ──▶ applied, or refused
//! ```
//!
//! * The state is replicated: users, roles, whether permissions are checked, and the auth revision, which
//!   each change increments. Tokens are not: each member keeps those whose issue it has applied since it
//!   started.
//! * Deny by default: while permissions are checked, a command without a caller is refused, except those that
//!   only members propose.
//! * One type says which keys a request touches: `mvcc::KeyRange`, which also executes it. One function walks
//!   over a transaction, at every depth: [`needs`].
//! * A command carries the auth revision at which its member looked at the user. If the revision has moved,
//!   operations on keys are refused with etcd's `AuthOldRevision`, equally on every member.
//! * No password is known here, and no hash is compared: verification is the proposer's.
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

/// The auth store as apply changes it.
#[derive(Debug)]
pub(crate) struct AuthStore {
    table: AuthTable,
    state: Arc<AuthState>,
    /// Grants of users whose commands were applied at this auth revision.
    resolved: BTreeMap<String, Arc<UserGrants>>,
}

/// What a change gave.
#[derive(Debug)]
pub(crate) enum ChangeResult {
    Done,
    /// A token was issued.
    Token(String),
}

impl AuthStore {
    /// The auth state of a store.
    pub fn load(store: &Store) -> Result<Self, ApplyError> {
        let state = Arc::new(AuthState::load(store)?);
        Ok(AuthStore { table: AuthTable::new(Arc::clone(&state)), state, resolved: BTreeMap::new() })
    }

    /// The auth state of an installed store, for the same readers. Tokens of before are void: this member did
    /// not see what happened to their users.
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

    /// Refuses a command that its caller may not execute. One flag is read while permissions are not checked.
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
            // A member raises its own alarms. A client's request was proposed with its caller.
            Kind::Alarm(_) if caller.is_none() => Ok(()),
            Kind::Alarm(request) if request.action == AlarmAction::Get as i32 => named(caller).map(drop),
            Kind::Alarm(_) => self.authorize_root(caller),
            Kind::Auth(change) if change::is_open(change) => Ok(()),
            Kind::Auth(_) | Kind::MemberChange(_) | Kind::SetDowngrade(_) => self.authorize_root(caller),
            // Commands of members.
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
        // Names of no user would be without number.
        if grants.grants().is_some() {
            self.resolved.insert(user.to_owned(), Arc::clone(&grants));
        }
        grants
    }

    /// Executes a change in the entry at `index`. A refusal changes nothing.
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
        // The maps are shared with the state before until one changes.
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
