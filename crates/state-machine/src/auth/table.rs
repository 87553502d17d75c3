//! Auth state for readers on any thread, and the tokens of this member.
//!
//! * `is_enabled` is a single atomic load. While auth is disabled, no other state is read.
//! * The state is immutable and replaced as a whole; readers keep their snapshot.
//! * A token belongs to a [`Session`]. Revocation is permanent and visible to holders with a single
//!   atomic load.
//! * Tokens are limited per user and in total. A new token beyond the limit revokes the oldest one
//!   of the user, or of the user with the most tokens.
//! * Permissions of a user are resolved once per auth revision and shared by all its sessions.
//! * Token age is measured in ticks of the caller, since this crate has no clock.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use parking_lot::{Mutex, RwLock};

use super::grants::Grants;
use super::state::{AuthState, ROOT};

/// Maximum number of tokens per member: some 30 MB. Beyond it, the oldest token of the user with
/// the most tokens is revoked.
pub const TOKENS_MAX: usize = 100_000;

/// Maximum number of tokens per user: some 3 MB. Beyond it, the user's oldest token is revoked and
/// its holder has to authenticate again.
pub const TOKENS_OF_USER_MAX: usize = 10_000;

/// Auth state and tokens of this member. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AuthTable(Arc<AuthShared>);

#[derive(Debug)]
struct AuthShared {
    is_enabled: AtomicBool,
    revision: AtomicU64,
    state: RwLock<Arc<AuthState>>,
    tokens: RwLock<TokenTable>,
    resolved: Mutex<ResolvedGrants>,
    observer: ChangeHook,
}

/// Called after each change of the state.
#[derive(Default)]
struct ChangeHook(OnceLock<Box<dyn Fn() + Send + Sync>>);

impl std::fmt::Debug for ChangeHook {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an observer")
    }
}

/// Permissions of users requested at one auth revision. Bounded by the number of users.
#[derive(Debug, Default)]
struct ResolvedGrants {
    revision: u64,
    of_users: BTreeMap<String, Arc<UserGrants>>,
}

/// Tokens and their sessions. The Debug output omits the tokens.
#[derive(Default)]
struct TokenTable {
    sessions: BTreeMap<Arc<str>, Arc<Session>>,
    of_users: BTreeMap<String, BTreeMap<u64, Arc<str>>>,
    issued: u64,
}

impl std::fmt::Debug for TokenTable {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} tokens", self.sessions.len())
    }
}

impl TokenTable {
    fn insert(&mut self, token: &str, user: String) {
        if self.of_users.get(&user).is_some_and(|tokens| tokens.len() >= TOKENS_OF_USER_MAX) {
            self.void_oldest(&user);
        } else if self.sessions.len() >= TOKENS_MAX {
            self.void_of_most();
        }
        let number = self.issued;
        self.issued += 1;
        let token: Arc<str> = token.into();
        self.of_users.entry(user.clone()).or_default().insert(number, Arc::clone(&token));
        self.sessions.insert(token, Arc::new(Session::new(user, number)));
    }

    /// Revokes a token of the user with the most tokens; on a tie, the oldest token. Scans all
    /// users, which is cheap compared with the password hash.
    fn void_of_most(&mut self) {
        let rank = |tokens: &BTreeMap<u64, Arc<str>>| (tokens.len(), Reverse(tokens.keys().next().copied()));
        let most = self.of_users.iter().max_by_key(|(_, tokens)| rank(tokens));
        if let Some(user) = most.map(|(user, _)| user.clone()) {
            self.void_oldest(&user);
        }
    }

    fn void_oldest(&mut self, user: &str) {
        let Some(tokens) = self.of_users.get_mut(user) else { return };
        let oldest = tokens.pop_first();
        if tokens.is_empty() {
            self.of_users.remove(user);
        }
        if let Some(session) = oldest.and_then(|(_, token)| self.sessions.remove(&token)) {
            session.void();
        }
    }

    fn void(&mut self, is_void: impl Fn(&Session) -> bool) {
        let TokenTable { sessions, of_users, .. } = self;
        sessions.retain(|_, session| {
            let is_void = is_void(session);
            if is_void {
                session.void();
                if let Some(tokens) = of_users.get_mut(&session.user) {
                    tokens.remove(&session.number);
                    if tokens.is_empty() {
                        of_users.remove(&session.user);
                    }
                }
            }
            !is_void
        });
    }
}

impl AuthTable {
    pub(super) fn new(state: Arc<AuthState>) -> AuthTable {
        AuthTable(Arc::new(AuthShared {
            is_enabled: AtomicBool::new(state.enabled),
            revision: AtomicU64::new(state.revision),
            state: RwLock::new(state),
            tokens: RwLock::default(),
            resolved: Mutex::default(),
            observer: ChangeHook::default(),
        }))
    }

    /// Reports whether permissions are checked.
    pub fn is_enabled(&self) -> bool {
        self.0.is_enabled.load(Ordering::Acquire)
    }

    /// Sets a callback that runs after each change is visible to readers. It is called by apply and
    /// must not block. Only the first call has an effect.
    pub fn on_change(&self, observer: impl Fn() + Send + Sync + 'static) {
        drop(self.0.observer.0.set(Box::new(observer)));
    }

    pub fn revision(&self) -> u64 {
        self.0.revision.load(Ordering::Acquire)
    }

    pub fn state(&self) -> Arc<AuthState> {
        Arc::clone(&self.0.state.read())
    }

    pub fn session(&self, token: &str) -> Option<Arc<Session>> {
        self.0.tokens.read().sessions.get(token).map(Arc::clone)
    }

    pub fn tokens(&self) -> usize {
        self.0.tokens.read().sessions.len()
    }

    /// Returns the permissions of a user, shared between callers at the same auth revision.
    pub fn grants_of(&self, user: &str) -> Arc<UserGrants> {
        let state = self.state();
        let mut resolved = self.0.resolved.lock();
        if resolved.revision < state.revision {
            *resolved = ResolvedGrants { revision: state.revision, of_users: BTreeMap::new() };
        }
        match resolved.of_users.get(user) {
            Some(grants) if grants.revision == state.revision => Arc::clone(grants),
            Some(_) | None => {
                let grants = Arc::new(UserGrants::resolve(&state, user));
                // Do not cache unknown users: their number is unbounded.
                if grants.grants.is_some() && resolved.revision == state.revision {
                    resolved.of_users.insert(user.to_owned(), Arc::clone(&grants));
                }
                grants
            }
        }
    }

    /// Revokes tokens that were not used for more than `ttl` ticks; a use may be at the end of its
    /// tick. Ticks start at 1.
    pub fn sweep(&self, now: u64, ttl: u64) {
        let revision = self.revision();
        self.void(|session| {
            session.forget_grants_before(revision);
            // 0: issued since the last sweep.
            let unused = session.used.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
            unused.is_err_and(|used| used.saturating_add(ttl) < now)
        });
    }

    pub(super) fn publish(&self, state: Arc<AuthState>) {
        let (is_enabled, revision) = (state.enabled, state.revision);
        *self.0.state.write() = state;
        self.0.revision.store(revision, Ordering::Release);
        self.0.is_enabled.store(is_enabled, Ordering::Release);
        if let Some(observer) = self.0.observer.0.get() {
            observer();
        }
    }

    pub(super) fn insert(&self, token: &str, user: String) {
        self.0.tokens.write().insert(token, user);
    }

    pub(super) fn void_user(&self, user: &str) {
        self.void(|session| session.user == user);
    }

    /// Revokes all tokens of this member. Must also be called after a restart has replayed the log,
    /// which would otherwise restore revoked tokens.
    pub fn void_all(&self) {
        self.void(|_| true);
    }

    fn void(&self, is_void: impl Fn(&Session) -> bool) {
        self.0.tokens.write().void(is_void);
    }
}

/// An authenticated user, with a token of this member or by other means.
#[derive(Debug)]
pub struct Session {
    user: String,
    number: u64,
    used: AtomicU64,
    is_void: AtomicBool,
    pub(super) grants: ArcSwapOption<UserGrants>,
}

impl Session {
    fn new(user: String, number: u64) -> Session {
        let (used, is_void) = (AtomicU64::new(0), AtomicBool::new(false));
        Session { user, number, used, is_void, grants: ArcSwapOption::empty() }
    }

    /// Creates a session without a stored token.
    pub fn of_user(user: String) -> Session {
        Session::new(user, 0)
    }

    pub fn user(&self) -> &str {
        &self.user
    }

    pub fn touch(&self, now: u64) {
        if self.used.load(Ordering::Relaxed) != now {
            self.used.store(now, Ordering::Relaxed);
        }
    }

    fn void(&self) {
        self.is_void.store(true, Ordering::Release);
    }

    pub fn is_void(&self) -> bool {
        self.is_void.load(Ordering::Acquire)
    }

    /// Returns the permissions of the user at the latest auth revision. Neither locks nor allocates
    /// unless the revision has changed.
    pub fn grants(&self, table: &AuthTable) -> Arc<UserGrants> {
        match self.grants.load_full() {
            Some(grants) if grants.revision() == table.revision() => grants,
            Some(_) | None => {
                let grants = table.grants_of(&self.user);
                self.grants.store(Some(Arc::clone(&grants)));
                grants
            }
        }
    }

    /// Drops permissions of older revisions, so that unused tokens do not keep them in memory.
    fn forget_grants_before(&self, revision: u64) {
        if self.grants.load().as_ref().is_some_and(|grants| grants.revision() < revision) {
            self.grants.store(None);
        }
    }
}

#[derive(Debug)]
pub struct UserGrants {
    revision: u64,
    grants: Option<Grants>,
}

impl UserGrants {
    pub fn resolve(state: &AuthState, user: &str) -> UserGrants {
        let grants = state.users.get(user).map(|user| match user.roles.iter().any(|role| role == ROOT) {
            true => Grants::root(),
            false => {
                let roles = user.roles.iter().filter_map(|role| state.roles.get(role));
                Grants::of(roles.flat_map(|role| &role.key_permission))
            }
        });
        UserGrants { revision: state.revision, grants }
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the permissions, or `None` if the user does not exist.
    pub fn grants(&self) -> Option<&Grants> {
        self.grants.as_ref()
    }
}
