//! From headers to callers.
//!
//! A thread keeps the sessions that it has found, so that a request of a known token takes no lock. A session
//! that was voided says so itself, with one atomic load.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::Error;
use http::HeaderValue;
use state_machine::{AuthTable, Session};

use super::caller::Caller;
use super::passwords::Passwords;
use crate::process::shutdown::Stop;

/// Sessions that one thread keeps: a few MiB. When there are more, it forgets all and finds them again.
const KEPT_MAX: usize = 10_000;

/// What a request says of its user, found in its headers.
#[derive(Clone, Debug, Default)]
pub enum Credential {
    /// No token, or permissions were not checked when the request came.
    #[default]
    None,
    Session(Arc<Session>),
    /// A token that this member does not know, or not yet.
    Unknown(Box<UnknownToken>),
}

/// Its Debug form is without the token.
#[derive(Clone)]
pub struct UnknownToken(String);

impl std::fmt::Debug for UnknownToken {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a token")
    }
}

impl UnknownToken {
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// Why there is no caller.
#[derive(Debug)]
pub enum Unresolved<'c> {
    Refused(Error),
    /// The token may become known when this member has applied more.
    Unknown(&'c UnknownToken),
}

/// The users of this member's clients.
#[derive(Debug)]
pub struct Auth {
    pub table: AuthTable,
    pub passwords: Passwords,
    /// Seconds since the start, from 1; advanced by [`expire`].
    tick: AtomicU64,
    token_ttl: Duration,
    /// Tells the sessions of two members in one process apart.
    number: u64,
}

/// Sessions by token.
type Kept = HashMap<Box<str>, Arc<Session>>;

thread_local! {
    /// The sessions that this thread has found, of the `Auth` with this number.
    static KEPT: RefCell<(u64, Kept)> = RefCell::default();
}

impl Auth {
    pub fn new(table: AuthTable, passwords: Passwords, token_ttl: Duration) -> Auth {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Auth { table, passwords, tick: AtomicU64::new(1), token_ttl, number }
    }

    /// Whether permissions are checked.
    pub fn is_enabled(&self) -> bool {
        self.table.is_enabled()
    }

    /// The credential in the headers: `token`, else `authorization`, each with or without `Bearer `.
    pub fn credential(&self, token: Option<&HeaderValue>, authorization: Option<&HeaderValue>) -> Credential {
        if !self.is_enabled() {
            return Credential::None;
        }
        let Some(value) = token.or(authorization) else { return Credential::None };
        // What is no text is no token of ours, and stays unknown.
        let text = value.to_str().unwrap_or_default();
        let text = text.strip_prefix("Bearer ").unwrap_or(text);
        match self.session(text) {
            Some(session) => Credential::Session(session),
            None => Credential::Unknown(Box::new(UnknownToken(text.to_owned()))),
        }
    }

    fn session(&self, token: &str) -> Option<Arc<Session>> {
        KEPT.with_borrow_mut(|(number, kept)| {
            if *number != self.number || kept.len() >= KEPT_MAX {
                kept.clear();
                *number = self.number;
            }
            match kept.get(token) {
                Some(session) if !session.is_void() => return Some(Arc::clone(session)),
                Some(_) => drop(kept.remove(token)),
                None => {}
            }
            let session = self.table.session(token)?;
            kept.insert(token.into(), Arc::clone(&session));
            Some(session)
        })
    }

    /// The caller at this moment. Nothing is kept of an earlier request but the token's session.
    pub fn caller<'c>(&self, credential: &'c Credential) -> Result<Caller, Unresolved<'c>> {
        if !self.is_enabled() {
            return Ok(Caller::Unchecked);
        }
        match credential {
            Credential::None => Ok(Caller::Unnamed),
            Credential::Session(session) => self.of_session(session).map_err(Unresolved::Refused),
            Credential::Unknown(token) => match self.session(token.text()) {
                Some(session) => self.of_session(&session).map_err(Unresolved::Refused),
                None => Err(Unresolved::Unknown(token)),
            },
        }
    }

    fn of_session(&self, session: &Arc<Session>) -> Result<Caller, Error> {
        if session.is_void() {
            return Err(Error::InvalidAuthToken);
        }
        session.touch(self.tick.load(Ordering::Relaxed));
        Ok(Caller::User { session: Arc::clone(session), grants: session.grants(&self.table) })
    }
}

/// Voids tokens that were not used for their time to live, until the member stops.
pub async fn expire(auth: Arc<Auth>, stop: Stop) {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    // A sweep looks at every token, which takes some milliseconds for the most there may be.
    let sweep_every = (auth.token_ttl.as_secs() / 20).clamp(1, 15);
    loop {
        tokio::select! {
            _ = seconds.tick() => {}
            () = stop.stopped() => return,
        }
        let tick = auth.tick.fetch_add(1, Ordering::Relaxed) + 1;
        if tick.is_multiple_of(sweep_every) && auth.table.tokens() > 0 {
            auth.table.sweep(tick, auth.token_ttl.as_secs());
        }
    }
}
