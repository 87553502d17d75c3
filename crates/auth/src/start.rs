//! Starts what users need: threads for passwords, keys for tokens, and the end of unused tokens.

use std::sync::Arc;

use state_machine::AuthTable;

use super::jwt::{Jwt, KeyError};
use super::passwords::Passwords;
use super::sessions::{Auth, Tokens, expire};
use super::signed::SignedTokens;
use config::{AuthSettings, TokenKind};
use process::shutdown::Stop;

/// Why a member without users does not start.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    #[error("start the threads that hash passwords")]
    PasswordThreads(#[source] std::io::Error),
    #[error("--auth-token")]
    Key(#[from] KeyError),
}

/// The users of a member whose state is `table`, until `stop`.
pub fn start(table: AuthTable, settings: &AuthSettings, stop: &Stop) -> Result<Arc<Auth>, AuthError> {
    let tokens = match &settings.tokens {
        TokenKind::Simple => Tokens::Simple,
        TokenKind::Jwt(options) => Tokens::Jwt(Box::new(SignedTokens::new(Jwt::load(options)?))),
        TokenKind::None => Tokens::None,
    };
    let passwords = Passwords::start(settings.bcrypt_cost).map_err(AuthError::PasswordThreads)?;
    let auth = Arc::new(Auth::new(table, passwords, tokens, settings));
    tokio::spawn(expire(Arc::clone(&auth), stop.clone()));
    Ok(auth)
}
