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
//! * A token is found once for each serving thread, without a lock afterwards. Its permissions are resolved
//!   once for each auth revision.
//! * Tokens and passwords are in no log and no Debug form.

mod caller; // who asks, and what that permits
mod passwords; // bcrypt on threads of its own
mod token; // the text of a token

mod sessions; // from headers to callers

pub(crate) use caller::Caller;
pub(crate) use passwords::{COST_MAX, HashError, Passwords, decisive, is_affordable};
pub(crate) use sessions::{Auth, Credential, Unresolved, expire};
pub(crate) use token::{index_of as index_of_token, prefix as token_prefix};
