//! Auth: users, roles, permissions and tokens.
//!
//! * The table of methods defines the permission of each method, which is checked before the method is
//!   called. Apply checks every change again.
//! * Changes are proposed. Queries are served from this member's state, after a read point.
//! * A password is hashed here, before it is proposed. The log contains hashes only.

mod methods; // each method

use std::sync::Arc;
use std::time::SystemTime;

use api::Error;
use api::authpb::Permission;
use api::command::IssueToken;
use api::command::auth_change::Kind as Change;
use api::etcdserverpb::{AuthenticateRequest, AuthenticateResponse, ResponseHeader};
use bytes::Bytes;
use state_machine::{AuthState, ROOT};
use tonic::Status;

use super::guard::ServedCall;
use crate::member::ProposeError;
use ::auth::Requester;
use auth::{Caller, Decisive, HashError, SignError, Tokens, simple_token};

/// Maximum number of password verifications per call, repeated after concurrent changes of users or roles.
const TRIES_MAX: usize = 10;

/// The methods of the service, for one call.
pub struct AuthCalls(pub ServedCall);

fn hash_error(error: HashError) -> Status {
    match error {
        HashError::TooMany => grpc_errors::refused(Error::TooManyRequests),
        HashError::TooLong => grpc_errors::password_too_long(),
        HashError::Failed => grpc_errors::no_hash(),
    }
}

impl AuthCalls {
    /// Proposes a change for a caller. Returns the header of the response.
    async fn change(&self, requester: &Requester, change: Change) -> Result<Option<ResponseHeader>, Status> {
        let caller = self.0.member.caller(requester).await?;
        let mut header = self.0.member.propose(&caller, change).await?;
        self.0.member.fill_header(&mut header);
        Ok(header)
    }

    /// Returns the state after a read point.
    async fn state(&self) -> Result<Arc<AuthState>, Status> {
        self.0.member.read_point().await.map_err(grpc_errors::read_point)?;
        Ok(self.0.member.auth.table.state())
    }

    /// Like `state`, for methods of root. The caller is checked against the same state.
    async fn state_for_root(&self, requester: &Requester) -> Result<Arc<AuthState>, Status> {
        let state = self.state().await?;
        self.0.member.caller(requester).await?.check_root().map_err(grpc_errors::refused)?;
        Ok(state)
    }

    /// Like `state`, for root and for users that satisfy `is_own`.
    async fn state_for(
        &self,
        requester: &Requester,
        is_own: impl FnOnce(&AuthState, &Caller) -> bool,
    ) -> Result<Arc<AuthState>, Status> {
        let state = self.state().await?;
        let caller = self.0.member.caller(requester).await?;
        match caller.check_root() {
            Err(error)
                if matches!(error, Error::PermissionDenied | Error::UserNotFound)
                    && is_own(&state, &caller) => {}
            checked => checked.map_err(grpc_errors::refused)?,
        }
        Ok(state)
    }

    /// Verifies a password, and issues a token.
    async fn authenticate(
        &self,
        requester: &Requester,
        request: AuthenticateRequest,
    ) -> Result<AuthenticateResponse, Status> {
        let AuthenticateRequest { name, password } = request;
        let password = Decisive::of(&password);
        for _ in 0..TRIES_MAX {
            let state = self.state().await?;
            let issued = self.verify_and_issue(requester, &state, &name, &password).await;
            match issued {
                Err(ProposeError::Refused(Error::AuthOldRevision)) => {}
                Err(error) => return Err(error.into()),
                Ok(verified) => return verified,
            }
        }
        Err(grpc_errors::refused(Error::AuthOldRevision))
    }

    /// Makes one attempt. Fails with `AuthOldRevision` if users or roles have changed since `state`.
    async fn verify_and_issue(
        &self,
        requester: &Requester,
        state: &AuthState,
        name: &str,
        password: &Decisive,
    ) -> Result<Result<AuthenticateResponse, Status>, ProposeError> {
        let refused = |error| Ok(Err(grpc_errors::refused(error)));
        if !state.enabled {
            return refused(Error::AuthNotEnabled);
        }
        let Some(user) = state.users.get(name) else { return refused(Error::AuthFailed) };
        if user.options.as_ref().is_some_and(|options| options.no_password) {
            return Ok(Err(grpc_errors::no_password_user()));
        }
        match self.0.member.auth.passwords.verify(requester, name, password, user.password.clone()).await {
            Ok(true) => {}
            Ok(false) => return refused(Error::AuthFailed),
            Err(error) => return Ok(Err(hash_error(error))),
        }
        if let Some(issued) = self.sign(state, name)? {
            return Ok(issued);
        }
        let letters = simple_token::letters();
        let prefix = simple_token::digest(&letters);
        let issue = IssueToken { user: name.to_owned(), prefix, auth_revision: state.revision };
        let mut response = self.0.member.propose(&Caller::MEMBER, issue).await?;
        self.0.member.fill_header(&mut response.header);
        response.token = simple_token::with_letters(&response.token, &letters);
        Ok(Ok(response))
    }

    /// Returns a signed token, if they are enabled. It needs no log entry.
    fn sign(
        &self,
        state: &AuthState,
        name: &str,
    ) -> Result<Option<Result<AuthenticateResponse, Status>>, ProposeError> {
        let auth = &self.0.member.auth;
        let signed = match &auth.tokens {
            Tokens::Simple => return Ok(None),
            Tokens::None => return Ok(Some(Err(grpc_errors::refused(Error::AuthFailed)))),
            Tokens::Jwt(signed) => signed.issue(name, state.revision, SystemTime::now()),
        };
        if auth.table.revision() != state.revision || !auth.is_enabled() {
            return Err(ProposeError::Refused(Error::AuthOldRevision));
        }
        Ok(Some(match signed {
            Ok(token) => Ok(AuthenticateResponse { header: self.0.member.header(), token }),
            Err(SignError::VerifyOnly) => Err(grpc_errors::verify_only_key()),
            Err(SignError::Failed) => Err(grpc_errors::unsigned_token()),
        }))
    }

    async fn hash(&self, requester: &Requester, password: String) -> Result<Bytes, Status> {
        self.0.member.auth.passwords.hash(requester, password).await.map_err(hash_error)
    }
}

/// Returns the permissions of a role. For `root` they are its implicit ones.
fn permissions(state: &AuthState, name: &str) -> Result<Vec<Permission>, Error> {
    let role = state.roles.get(name).ok_or(Error::RoleNotFound)?;
    if name == ROOT {
        let (key, range_end) = (Bytes::new(), Bytes::from_static(b"\0"));
        return Ok(vec![Permission { perm_type: 2, key, range_end }]);
    }
    Ok(role.key_permission.clone())
}
