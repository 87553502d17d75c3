//! From headers to callers.
//!
//! A thread keeps the sessions that it has found, so that a request of a known token takes no lock and
//! verifies no signature. A session that was voided says so itself, with one atomic load.

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

use super::caller::{Caller, Origin};
use super::jwt::{Jwt, KeyError, unix_seconds};
use super::passwords::Passwords;
use super::signed::{SignedToken, SignedTokens};
use super::token;
use admission::ClientId;
use config::{AuthSettings, TokenKind};
use process::shutdown::Stop;

/// Sessions that one thread keeps: a few MiB. When there are more, it forgets all and finds them again.
const KEPT_MAX: usize = 10_000;

/// Where the gateway of a client's own says that a call comes from a request of others, as grpc-gateway does.
const GATEWAY_FIELD: &str = "grpcgateway-accept";

/// What a request says of its user, found in its headers.
#[derive(Clone, Debug, Default)]
pub enum Credential {
    /// No token, or permissions were not checked when the request came.
    #[default]
    None,
    /// A token that this member keeps, or a certificate.
    Session(Arc<Session>),
    Signed(Arc<SignedToken>),
    /// A token that this member does not know, or not yet.
    Unknown(Box<UnknownToken>),
    /// A token that it will never know.
    Invalid,
}

/// How a token shows its user.
#[derive(Debug)]
pub enum Tokens {
    /// Members keep it.
    Simple,
    Jwt(Box<SignedTokens>),
    /// None is issued, and none is valid.
    None,
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
pub enum CallerError {
    Refused(Error),
    /// The token may become known when this member has applied the entry that it names.
    Unknown {
        issued_at: Option<u64>,
    },
}

/// The users of this member's clients.
#[derive(Debug)]
pub struct Auth {
    pub table: AuthTable,
    pub passwords: Passwords,
    pub tokens: Tokens,
    /// Whether a certificate names the user of calls without a token.
    certificates_name_users: bool,
    /// Announces changes of users and roles, if watchers are to be looked at again after them.
    pub changes: Option<Receiver<()>>,
    /// When the process started, or the test.
    began: Instant,
    token_ttl: Duration,
    /// Distinguishes the sessions of two members in one process.
    number: u64,
    /// Of refused tokens and names of users; with a secret, so that no client can choose two that collide.
    hashes: RandomState,
}

/// Sessions by token: those of members, and those of signed tokens.
#[derive(Default)]
struct KeptSession {
    simple: HashMap<Box<str>, Arc<Session>>,
    signed: HashMap<Box<str>, Arc<SignedToken>>,
    /// Hashes of signed tokens that were refused, and the second in which.
    refused: HashMap<u64, u64>,
}

/// Refused tokens whose hashes are kept. With one more, all are forgotten.
const REFUSED_MAX: usize = 1024;

thread_local! {
    /// The sessions that this thread has found, of the `Auth` with this number.
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

    /// Seconds since the start, from 1.
    fn seconds(&self) -> u64 {
        self.began.elapsed().as_secs() + 1
    }

    /// Whether permissions are checked.
    pub fn is_enabled(&self) -> bool {
        self.table.is_enabled()
    }

    /// The credential of a call: the field `token` of its headers, else `authorization`, each with or without
    /// `Bearer `; else the certificate of its connection.
    pub fn credential(
        &self,
        origin: &Origin,
        headers: &HeaderMap,
        token: Option<&HeaderValue>,
        authorization: Option<&HeaderValue>,
    ) -> Credential {
        if !self.is_enabled() {
            return Credential::None;
        }
        let Some(value) = token.or(authorization) else {
            let names_user = self.certificates_name_users && !headers.contains_key(GATEWAY_FIELD);
            let certificate = origin.certificate.clone().filter(|_| names_user);
            return certificate.map_or(Credential::None, Credential::Session);
        };
        // What is no text is no token of ours, and stays unknown.
        let text = value.to_str().unwrap_or_default();
        let text = text.strip_prefix("Bearer ").unwrap_or(text);
        match &self.tokens {
            Tokens::Simple => match self.session(text) {
                Some(session) => Credential::Session(session),
                // What cannot be a token is not kept: a stream could hold 64 KiB of it.
                None if token::name(text).is_none() => Credential::Invalid,
                None => Credential::Unknown(Box::new(UnknownToken(text.to_owned()))),
            },
            Tokens::Jwt(tokens) => {
                self.signed(tokens, text, origin).map_or(Credential::Invalid, Credential::Signed)
            }
            Tokens::None => Credential::Invalid,
        }
    }

    /// As `client`, of a call through the gateway with these headers.
    pub fn gateway_client(&self, client: ClientId, headers: &HeaderMap) -> ClientId {
        let origin = Origin { client, ..Origin::default() };
        let token = headers.get("grpc-metadata-token");
        self.client(client, &self.credential(&origin, headers, token, headers.get(AUTHORIZATION)))
    }

    /// Who shares what clients share: the user of a call, if it has shown one, in place of its address.
    pub fn client(&self, client: ClientId, credential: &Credential) -> ClientId {
        let session = match credential {
            Credential::None | Credential::Unknown(_) | Credential::Invalid => return client,
            Credential::Session(session) => session,
            Credential::Signed(signed) => &signed.session,
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

    fn signed(&self, tokens: &SignedTokens, token: &str, origin: &Origin) -> Option<Arc<SignedToken>> {
        self.with_kept(|kept| {
            if let Some(signed) = kept.signed.get(token) {
                return Some(Arc::clone(signed));
            }
            // A client may send one token in each of thousands of requests, at some bytes each: it is
            // verified once in a second. One that is not valid yet may be so in the next.
            let (now, hash) = (SystemTime::now(), self.hashes.hash_one(token));
            let second = unix_seconds(now);
            if kept.refused.get(&hash) == Some(&second) {
                return None;
            }
            let Some(signed) = tokens.find(token, origin.address.map(|address| address.ip()), now) else {
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

    /// The caller at this moment. Nothing is kept of an earlier request but the token's session.
    pub fn caller(&self, credential: &Credential) -> Result<Caller, CallerError> {
        if !self.is_enabled() {
            return Ok(Caller::Unchecked);
        }
        match credential {
            Credential::None => Ok(Caller::Unnamed),
            Credential::Session(session) => self.of_session(session).map_err(CallerError::Refused),
            Credential::Signed(signed) => self.of_signed(signed).map_err(CallerError::Refused),
            Credential::Unknown(token) => match self.session(token.text()) {
                Some(session) => self.of_session(&session).map_err(CallerError::Refused),
                None => Err(CallerError::Unknown { issued_at: token::index_of(token.text()) }),
            },
            Credential::Invalid => Err(CallerError::Refused(Error::InvalidAuthToken)),
        }
    }

    /// The user of a request that was admitted before, with its permissions at this moment. Its token may
    /// have ended meanwhile.
    pub fn user_of(&self, credential: &Credential) -> Caller {
        if !self.is_enabled() {
            return Caller::Unchecked;
        }
        let session = match credential {
            Credential::None | Credential::Invalid => None,
            Credential::Session(session) => Some(Arc::clone(session)),
            Credential::Signed(signed) => Some(Arc::clone(&signed.session)),
            Credential::Unknown(token) => self.session(token.text()),
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
    // Without receivers there is nothing to announce.
    table.on_change(move || {
        let _ = sender.send(());
    });
    receiver
}

/// Voids tokens that were not used for their time to live, until the member stops.
pub async fn expire(auth: Arc<Auth>, stop: Stop) {
    // A sweep looks at every token, which takes some milliseconds for the most there may be.
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

/// Why a member without users does not start.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    #[error("start the threads that hash passwords")]
    PasswordThreads(#[source] std::io::Error),
    #[error("--auth-token")]
    Key(#[from] KeyError),
}

/// The kind of token of these settings, with the keys of its files.
pub fn load_tokens(settings: &AuthSettings) -> Result<Tokens, AuthError> {
    Ok(match &settings.tokens {
        TokenKind::Simple => Tokens::Simple,
        TokenKind::Jwt(options) => Tokens::Jwt(Box::new(SignedTokens::new(Jwt::load(options)?))),
        TokenKind::None => Tokens::None,
    })
}

/// The users of a member whose state is `table`, until `stop`.
pub fn start(table: AuthTable, settings: &AuthSettings, stop: &Stop) -> Result<Arc<Auth>, AuthError> {
    let tokens = load_tokens(settings)?;
    let passwords = Passwords::start(settings.bcrypt_cost).map_err(AuthError::PasswordThreads)?;
    let auth = Arc::new(Auth::new(table, passwords, tokens, settings));
    tokio::spawn(expire(Arc::clone(&auth), stop.clone()));
    Ok(auth)
}
