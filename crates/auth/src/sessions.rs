//! Resolves request headers to callers.
//!
//! Each thread caches the sessions that it has looked up, so that a request with a known token
//! takes no lock and verifies no signature. A revoked session is detected with a single atomic
//! load.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use api::Error;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use state_machine::{AuthTable, Session};
use tokio::sync::watch::{Receiver, channel};

use super::caller::Caller;
use super::jwt::{Jwt, KeyError, unix_seconds};
use super::passwords::Passwords;
use super::requester::{Connection, Identity, Requester, UnknownToken};
use super::signed::{SignedToken, SignedTokens};
use super::token;
use admission::ClientId;
use config::{AuthSettings, TokenKind};
use process::shutdown::Stop;

/// Maximum number of cached sessions per thread: a few MiB. Beyond it, the cache is cleared.
const KEPT_MAX: usize = 10_000;

/// Header with which grpc-gateway marks forwarded requests. Their certificate is not used.
const GATEWAY_FIELD: &str = "grpcgateway-accept";

#[derive(Debug)]
pub enum Tokens {
    /// Stored by members.
    Simple,
    Jwt(Box<SignedTokens>),
    /// No tokens are issued or accepted.
    None,
}

/// Reason why there is no caller.
#[derive(Debug)]
pub enum CallerError {
    Refused(Error),
    /// The token may become known when this member has applied the entry that issued it.
    Unknown {
        issued_at: Option<u64>,
    },
}

#[derive(Debug)]
pub struct Auth {
    pub table: AuthTable,
    pub passwords: Passwords,
    pub tokens: Tokens,
    /// True if a certificate names the user of calls without a token.
    certificates_name_users: bool,
    /// Notifies of changes of users and roles, if watchers must be checked again after them.
    pub changes: Option<Receiver<()>>,
    /// Start time of the process, or of the test.
    began: Instant,
    token_ttl: Duration,
    /// Distinguishes the sessions of two members in a process.
    number: u64,
    /// Hasher for rejected tokens and user names. Seeded, so that clients cannot choose colliding
    /// values.
    hashes: RandomState,
}

#[derive(Default)]
struct KeptSession {
    simple: HashMap<Box<str>, Arc<Session>>,
    signed: HashMap<Box<str>, Arc<SignedToken>>,
    /// Hashes of rejected signed tokens, with the second of the rejection.
    refused: HashMap<u64, u64>,
}

/// Maximum number of rejected tokens to remember. Beyond it, all are dropped.
const REFUSED_MAX: usize = 1024;

thread_local! {
    /// Sessions cached by this thread, for the `Auth` with this number.
    static KEPT: RefCell<(u64, KeptSession)> = RefCell::default();
}

impl Auth {
    pub fn new(table: AuthTable, passwords: Passwords, tokens: Tokens, settings: &AuthSettings) -> Auth {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Auth {
            passwords,
            tokens,
            certificates_name_users: settings.certificates_name_users,
            changes: settings.rechecks_watchers.then(|| changes_of(&table)),
            began: Instant::now(),
            token_ttl: settings.token_ttl,
            number,
            hashes: RandomState::new(),
            table,
        }
    }

    /// Returns the seconds since the start, from 1.
    fn seconds(&self) -> u64 {
        self.began.elapsed().as_secs() + 1
    }

    pub fn is_enabled(&self) -> bool {
        self.table.is_enabled()
    }

    /// Returns the sender of a call on `connection`. Its identity is the header `token`, else
    /// `authorization`, each with or without `Bearer `; else the certificate of its connection.
    pub fn requester(
        &self,
        connection: &Connection,
        headers: &HeaderMap,
        token: Option<&HeaderValue>,
        authorization: Option<&HeaderValue>,
    ) -> Requester {
        let identity = self.identity(connection, headers, token, authorization);
        let client = self.client(connection.client, &identity);
        Requester { connection: Connection { client, ..connection.clone() }, identity }
    }

    fn identity(
        &self,
        connection: &Connection,
        headers: &HeaderMap,
        token: Option<&HeaderValue>,
        authorization: Option<&HeaderValue>,
    ) -> Identity {
        if !self.is_enabled() {
            return Identity::None;
        }
        let Some(value) = token.or(authorization) else {
            let names_user = self.certificates_name_users && !headers.contains_key(GATEWAY_FIELD);
            let certificate = connection.certificate.clone().filter(|_| names_user);
            return certificate.map_or(Identity::None, Identity::Session);
        };
        // A non-text value is not a token of ours, and stays unknown.
        let text = value.to_str().unwrap_or_default();
        let text = text.strip_prefix("Bearer ").unwrap_or(text);
        match &self.tokens {
            Tokens::Simple => match self.session(text) {
                Some(session) => Identity::Session(session),
                // What cannot be a token is not kept: a stream could hold 64 KiB of it.
                None if token::name(text).is_none() => Identity::Invalid,
                None => Identity::Unknown(Box::new(UnknownToken(text.to_owned()))),
            },
            Tokens::Jwt(tokens) => {
                self.signed(tokens, text, connection).map_or(Identity::Invalid, Identity::Signed)
            }
            Tokens::None => Identity::Invalid,
        }
    }

    /// Returns the quota key of a call through the gateway with these headers.
    pub fn gateway_client(&self, client: ClientId, headers: &HeaderMap) -> ClientId {
        let connection = Connection { client, ..Connection::default() };
        let token = headers.get("grpc-metadata-token");
        self.requester(&connection, headers, token, headers.get(AUTHORIZATION)).client()
    }

    /// Returns the quota key of a call: the authenticated user if there is one, else the address.
    fn client(&self, client: ClientId, identity: &Identity) -> ClientId {
        let session = match identity {
            Identity::None | Identity::Unknown(_) | Identity::Invalid => return client,
            Identity::Session(session) => session,
            Identity::Signed(signed) => &signed.session,
        };
        ClientId { caller: self.hashes.hash_one(session.user()), ..client }
    }

    fn with_kept<T>(&self, find: impl FnOnce(&mut KeptSession) -> T) -> T {
        KEPT.with_borrow_mut(|(number, kept)| {
            if *number != self.number || kept.simple.len() + kept.signed.len() >= KEPT_MAX {
                *kept = KeptSession::default();
                *number = self.number;
            }
            find(kept)
        })
    }

    fn session(&self, token: &str) -> Option<Arc<Session>> {
        self.with_kept(|kept| {
            match kept.simple.get(token) {
                Some(session) if !session.is_void() => return Some(Arc::clone(session)),
                Some(_) => drop(kept.simple.remove(token)),
                None => {}
            }
            let session = self.table.session(&token::name(token)?)?;
            kept.simple.insert(token.into(), Arc::clone(&session));
            Some(session)
        })
    }

    fn signed(
        &self,
        tokens: &SignedTokens,
        token: &str,
        connection: &Connection,
    ) -> Option<Arc<SignedToken>> {
        self.with_kept(|kept| {
            if let Some(signed) = kept.signed.get(token) {
                return Some(Arc::clone(signed));
            }
            // A client may send the same token in thousands of small requests: verify it once per
            // second. A token that is not valid yet may be in the next second.
            let (now, hash) = (SystemTime::now(), self.hashes.hash_one(token));
            let second = unix_seconds(now);
            if kept.refused.get(&hash) == Some(&second) {
                return None;
            }
            let Some(signed) = tokens.find(token, connection.address.map(|address| address.ip()), now) else {
                if kept.refused.len() >= REFUSED_MAX {
                    kept.refused.clear();
                }
                kept.refused.insert(hash, second);
                return None;
            };
            kept.signed.insert(token.into(), Arc::clone(&signed));
            Some(signed)
        })
    }

    /// Returns the caller at this time. Only the token's session is cached between requests.
    pub fn caller(&self, identity: &Identity) -> Result<Caller, CallerError> {
        if !self.is_enabled() {
            return Ok(Caller::Unchecked);
        }
        match identity {
            Identity::None => Ok(Caller::Unnamed),
            Identity::Session(session) => self.of_session(session).map_err(CallerError::Refused),
            Identity::Signed(signed) => self.of_signed(signed).map_err(CallerError::Refused),
            Identity::Unknown(token) => match self.session(token.text()) {
                Some(session) => self.of_session(&session).map_err(CallerError::Refused),
                None => Err(CallerError::Unknown { issued_at: token::index_of(token.text()) }),
            },
            Identity::Invalid => Err(CallerError::Refused(Error::InvalidAuthToken)),
        }
    }

    /// Returns the user of an already admitted request, with its current permissions. The token may
    /// have expired since.
    pub fn user_of(&self, identity: &Identity) -> Caller {
        if !self.is_enabled() {
            return Caller::Unchecked;
        }
        let session = match identity {
            Identity::None | Identity::Invalid => None,
            Identity::Session(session) => Some(Arc::clone(session)),
            Identity::Signed(signed) => Some(Arc::clone(&signed.session)),
            Identity::Unknown(token) => self.session(token.text()),
        };
        let Some(session) = session else { return Caller::Unnamed };
        let grants = session.grants(&self.table);
        Caller::User { session, revision: grants.revision(), grants }
    }

    fn of_session(&self, session: &Arc<Session>) -> Result<Caller, Error> {
        if session.is_void() {
            return Err(Error::InvalidAuthToken);
        }
        session.touch(self.seconds());
        let grants = session.grants(&self.table);
        Ok(Caller::User { session: Arc::clone(session), revision: grants.revision(), grants })
    }

    fn of_signed(&self, signed: &SignedToken) -> Result<Caller, Error> {
        if signed.expires_at.is_some_and(|end| unix_seconds(SystemTime::now()) >= end) {
            return Err(Error::InvalidAuthToken);
        }
        let session = Arc::clone(&signed.session);
        let grants = session.grants(&self.table);
        Ok(Caller::User { session, grants, revision: signed.revision })
    }
}

fn changes_of(table: &AuthTable) -> Receiver<()> {
    let (sender, receiver) = channel(());
    // Without receivers the notification is dropped.
    table.on_change(move || {
        let _ = sender.send(());
    });
    receiver
}

/// Revokes tokens that were not used for their time to live, until the member stops.
pub async fn expire(auth: Arc<Auth>, stop: Stop) {
    // A sweep visits every token, which takes some milliseconds for the maximum number.
    let sweep_every = Duration::from_secs((auth.token_ttl.as_secs() / 20).clamp(1, 15));
    loop {
        tokio::select! {
            () = tokio::time::sleep(sweep_every) => {}
            () = stop.stopped() => return,
        }
        if auth.table.tokens() > 0 {
            auth.table.sweep(auth.seconds(), auth.token_ttl.as_secs());
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    #[error("start the password hashing threads")]
    PasswordThreads(#[source] std::io::Error),
    #[error("--auth-token")]
    Key(#[from] KeyError),
}

/// Loads the configured type of tokens, including its key files.
pub fn load_tokens(settings: &AuthSettings) -> Result<Tokens, AuthError> {
    Ok(match &settings.tokens {
        TokenKind::Simple => Tokens::Simple,
        TokenKind::Jwt(options) => Tokens::Jwt(Box::new(SignedTokens::new(Jwt::load(options)?))),
        TokenKind::None => Tokens::None,
    })
}

/// Starts the authentication of a member with the state `table`, until `stop`.
pub fn start(table: AuthTable, settings: &AuthSettings, stop: &Stop) -> Result<Arc<Auth>, AuthError> {
    let tokens = load_tokens(settings)?;
    let passwords = Passwords::start(settings.bcrypt_cost).map_err(AuthError::PasswordThreads)?;
    let auth = Arc::new(Auth::new(table, passwords, tokens, settings));
    tokio::spawn(expire(Arc::clone(&auth), stop.clone()));
    Ok(auth)
}
