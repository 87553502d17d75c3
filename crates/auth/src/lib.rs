//! Authentication of clients on this member: tokens, callers and passwords.
//!
//! ```text
//!   headers ──▶ Requester ──Auth::caller──▶ Caller ──▶ checks of reads; the caller of a command
//!   Authenticate ──▶ Passwords (own threads) ──▶ a proposed token ──▶ known on every member
//! ```
//!
//! * While auth is disabled a request costs a single atomic load.
//! * A caller is resolved for each request and again after each wait: applied permission changes
//!   take effect with the next request.
//! * A token is looked up once per serving thread, later requests take no lock, and its signature
//!   is verified once. The permissions of its user are resolved once per auth revision.
//! * Invalid signatures are limited per address: see `failures`.
//! * Without a token, the connection's certificate names the user, if that is enabled.
//! * Tokens and passwords appear neither in logs nor in Debug output.

mod caller; // authenticated users, and what they may do
mod jwt; // tokens that are signed
mod passwords; // bcrypt on separate threads
mod requester; // connections, and identities in headers
mod token; // the text of a token that members keep
mod turns; // jobs shared out by where they come from

mod failures; // signatures that are wrong, by address
mod signed; // signed tokens that are right

mod sessions; // from headers to callers; the start of all that

pub use caller::Caller;
pub use jwt::SignError;
pub use passwords::{COST_MAX, Decisive, HashError, is_affordable};
pub use requester::{Connection, Identity, Requester, caller_of};
pub use sessions::{Auth, AuthError, CallerError, Tokens, load_tokens, start};
pub use turns::network;
pub mod simple_token {
    pub use super::token::{digest, letters, with_letters};
}
