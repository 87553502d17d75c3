//! Who a client is, on this member: tokens, callers and passwords.
//!
//! ```text
//!   headers ──▶ Credential ──Auth::caller──▶ Caller ──▶ checks of reads; the caller of a command
//!   Authenticate ──▶ Passwords (own threads) ──▶ a proposed token ──▶ known on every member
//! ```
//!
//! * While permissions are not checked a request costs one atomic load.
//! * A caller is made again for each request and after each wait: a change of permissions that was applied
//!   here counts for the next request.
//! * A token is found once for each serving thread, without a lock afterwards, and its signature is verified
//!   once. The permissions of its user are resolved once for each auth revision.
//! * Wrong signatures are bounded for each address: see `failures`.
//! * Without a token the user is the one whom the certificate of the connection names, if certificates do.
//! * Tokens and passwords are in no log and no Debug form.

mod caller; // where calls come from, who asks, and what that permits
mod jwt; // tokens that are signed
mod passwords; // bcrypt on separate threads
mod token; // the text of a token that members keep
mod turns; // jobs shared out by where they come from

mod failures; // signatures that are wrong, by address
mod signed; // signed tokens that are right

mod sessions; // from headers to callers; the start of all that

pub use caller::{Caller, Origin, caller_of};
pub use jwt::SignError;
pub use passwords::{Applicant, COST_MAX, Decisive, HashError, is_affordable};
pub use sessions::{Auth, AuthError, CallerError, Credential, Tokens, load_tokens, start};
pub use turns::network;
pub mod simple_token {
    pub use super::token::{digest, letters, with_letters};
}
