//! The auth state for readers on any thread, and the tokens that this member knows.
//!
//! * `is_enabled` is one atomic load. Nothing else is read while permissions are not checked.
//! * The state is replaced as a whole; a reader keeps the one that it took.
//! * A token belongs to a [`Session`]. A session that was voided stays void: a holder sees it with one atomic
//!   load.
//! * The age of a token is in ticks of the caller, since there is no clock here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use super::grants::Grants;
use super::state::{AuthState, ROOT};

/// Tokens that a member keeps: some 30 MB. Beyond it new ones are not kept, and their owners authenticate
/// again.
pub const TOKENS_MAX: usize = 100_000;

/// The auth state and the tokens of this member. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AuthTable(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    is_enabled: AtomicBool,
    revision: AtomicU64,
    state: RwLock<Arc<AuthState>>,
    tokens: RwLock<Tokens>,
}

/// By token. Its Debug form is without the tokens.
#[derive(Default)]
struct Tokens(BTreeMap<String, Arc<Session>>);

impl std::fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} tokens", self.0.len())
    }
}

impl AuthTable {
    pub(super) fn new(state: Arc<AuthState>) -> AuthTable {
        AuthTable(Arc::new(Shared {
            is_enabled: AtomicBool::new(state.enabled),
            revision: AtomicU64::new(state.revision),
            state: RwLock::new(state),
            tokens: RwLock::default(),
        }))
    }

    /// Whether permissions are checked.
    pub fn is_enabled(&self) -> bool {
        self.0.is_enabled.load(Ordering::Acquire)
    }

    /// The auth revision.
    pub fn revision(&self) -> u64 {
        self.0.revision.load(Ordering::Acquire)
    }

    /// The state at this moment.
    pub fn state(&self) -> Arc<AuthState> {
        Arc::clone(&self.0.state.read())
    }

    /// The session of a token.
    pub fn session(&self, token: &str) -> Option<Arc<Session>> {
        self.0.tokens.read().0.get(token).map(Arc::clone)
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.0.tokens.read().0.len()
    }

    /// Voids the tokens that were not used since `ttl` ticks. Ticks count from 1.
    pub fn sweep(&self, now: u64, ttl: u64) {
        self.void(|session| {
            // 0: issued since the last sweep.
            let unused = session.used.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
            unused.is_err_and(|used| used.saturating_add(ttl) <= now)
        });
    }

    /// Voids all tokens of this member. To be called when a start has replayed the log: a token that had ended
    /// would begin again.
    pub fn forget_tokens(&self) {
        self.void_all();
    }

    pub(super) fn publish(&self, state: Arc<AuthState>) {
        let (is_enabled, revision) = (state.enabled, state.revision);
        *self.0.state.write() = state;
        self.0.revision.store(revision, Ordering::Release);
        self.0.is_enabled.store(is_enabled, Ordering::Release);
    }

    pub(super) fn insert(&self, token: &str, user: String) {
        let mut tokens = self.0.tokens.write();
        if tokens.0.len() < TOKENS_MAX {
            tokens.0.insert(token.to_owned(), Arc::new(Session::new(user)));
        }
    }

    pub(super) fn void_user(&self, user: &str) {
        self.void(|session| session.user == user);
    }

    pub(super) fn void_all(&self) {
        self.void(|_| true);
    }

    fn void(&self, is_void: impl Fn(&Session) -> bool) {
        self.0.tokens.write().0.retain(|_, session| {
            let is_void = is_void(session);
            if is_void {
                session.is_void.store(true, Ordering::Release);
            }
            !is_void
        });
    }
}

/// What a token stands for.
#[derive(Debug)]
pub struct Session {
    user: String,
    used: AtomicU64,
    is_void: AtomicBool,
    /// As of the last request.
    grants: Mutex<Option<Arc<UserGrants>>>,
}

impl Session {
    fn new(user: String) -> Session {
        Session { user, used: AtomicU64::new(0), is_void: AtomicBool::new(false), grants: Mutex::new(None) }
    }

    /// The name of the user.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The token is in use at this tick.
    pub fn touch(&self, now: u64) {
        if self.used.load(Ordering::Relaxed) != now {
            self.used.store(now, Ordering::Relaxed);
        }
    }

    /// Whether the token authenticates its user no more.
    pub fn is_void(&self) -> bool {
        self.is_void.load(Ordering::Acquire)
    }

    /// The grants of the user, resolved once for each auth revision.
    pub fn grants(&self, table: &AuthTable) -> Arc<UserGrants> {
        let mut known = self.grants.lock();
        match &*known {
            Some(grants) if grants.revision() == table.revision() => Arc::clone(grants),
            Some(_) | None => {
                let grants = Arc::new(UserGrants::resolve(&table.state(), &self.user));
                *known = Some(Arc::clone(&grants));
                grants
            }
        }
    }
}

/// What a user may do at one auth revision.
#[derive(Debug)]
pub struct UserGrants {
    revision: u64,
    grants: Option<Grants>,
}

impl UserGrants {
    /// Looks at all roles of the user.
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

    /// The auth revision that they are of.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The grants, if there is such a user.
    pub fn grants(&self) -> Option<&Grants> {
        self.grants.as_ref()
    }
}
