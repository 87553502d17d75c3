//! Each method.

use api::Error;
use api::command::auth_change::Kind as Change;
use api::command::{AddUser, SetPassword};
use api::etcdserverpb::auth_server::Auth as AuthMethods;
use api::etcdserverpb::*;
use base64::Engine;
use bytes::Bytes;
use state_machine::{AuthState, USER_NAME_BYTES_MAX};
use tonic::{Request, Response as Reply, Status};

use super::{AuthCalls, permissions};
use auth::{COST_MAX, Caller, is_affordable};

#[tonic::async_trait]
impl AuthMethods for AuthCalls {
    async fn auth_enable(
        &self,
        request: Request<AuthEnableRequest>,
    ) -> Result<Reply<AuthEnableResponse>, Status> {
        let (requester, request) = self.0.parts(request);
        let header = self.change(requester, Change::Enable(request)).await?;
        Ok(Reply::new(AuthEnableResponse { header }))
    }

    async fn auth_disable(
        &self,
        request: Request<AuthDisableRequest>,
    ) -> Result<Reply<AuthDisableResponse>, Status> {
        let (requester, request) = self.0.parts(request);
        let header = self.change(requester, Change::Disable(request)).await?;
        Ok(Reply::new(AuthDisableResponse { header }))
    }

    async fn auth_status(
        &self,
        request: Request<AuthStatusRequest>,
    ) -> Result<Reply<AuthStatusResponse>, Status> {
        let (requester, _) = self.0.parts(request);
        // Needs no token, but rejects an invalid one, as in etcd.
        self.0.member.caller(requester).await?;
        let state = self.state().await?;
        let header = self.0.member.header();
        let AuthState { enabled, revision, .. } = *state;
        Ok(Reply::new(AuthStatusResponse { header, enabled, auth_revision: revision }))
    }

    async fn authenticate(
        &self,
        request: Request<AuthenticateRequest>,
    ) -> Result<Reply<AuthenticateResponse>, Status> {
        let (requester, request) = self.0.parts(request);
        self.authenticate(requester, request).await.map(Reply::new)
    }

    async fn user_add(
        &self,
        request: Request<AuthUserAddRequest>,
    ) -> Result<Reply<AuthUserAddResponse>, Status> {
        let (requester, AuthUserAddRequest { name, password, options, .. }) = self.0.parts(request);
        // Checked before hashing: a name that cannot be stored should not wait for the hash in memory.
        if name.len() > USER_NAME_BYTES_MAX {
            return Err(grpc_errors::refused(Error::RequestTooLarge));
        }
        let password_hash = match &options {
            Some(options) if options.no_password => Bytes::new(),
            Some(_) | None => self.hash(requester, password).await?,
        };
        let header =
            self.change(requester, Change::UserAdd(AddUser { name, options, password_hash })).await?;
        Ok(Reply::new(AuthUserAddResponse { header }))
    }

    async fn user_get(
        &self,
        request: Request<AuthUserGetRequest>,
    ) -> Result<Reply<AuthUserGetResponse>, Status> {
        let (requester, request) = self.0.parts(request);
        let state = self.state_for(requester, |_, caller| caller.user() == Some(&request.name)).await?;
        let user = state.users.get(&request.name).ok_or(Error::UserNotFound).map_err(grpc_errors::refused)?;
        let header = self.0.member.header();
        Ok(Reply::new(AuthUserGetResponse { header, roles: user.roles.clone() }))
    }

    async fn user_list(
        &self,
        request: Request<AuthUserListRequest>,
    ) -> Result<Reply<AuthUserListResponse>, Status> {
        let (requester, _) = self.0.parts(request);
        let state = self.state_for_root(requester).await?;
        let header = self.0.member.header();
        Ok(Reply::new(AuthUserListResponse { header, users: state.users.keys().cloned().collect() }))
    }

    async fn user_delete(
        &self,
        request: Request<AuthUserDeleteRequest>,
    ) -> Result<Reply<AuthUserDeleteResponse>, Status> {
        let (requester, request) = self.0.parts(request);
        let header = self.change(requester, Change::UserDelete(request)).await?;
        Ok(Reply::new(AuthUserDeleteResponse { header }))
    }

    /// Changes a password. Without a password it uses the hash in the request; with neither, no password
    /// authenticates the user, as in etcd.
    async fn user_change_password(
        &self,
        request: Request<AuthUserChangePasswordRequest>,
    ) -> Result<Reply<AuthUserChangePasswordResponse>, Status> {
        let (requester, request) = self.0.parts(request);
        let AuthUserChangePasswordRequest { name, password, hashed_password } = request;
        if name.len() > USER_NAME_BYTES_MAX {
            return Err(grpc_errors::refused(Error::UserNotFound));
        }
        let password_hash = match password.is_empty() {
            false => {
                drop(hashed_password); // It may be long, and the hash may have to wait.
                self.hash(requester, password).await?
            }
            true => {
                let decoded = base64::engine::general_purpose::STANDARD.decode(hashed_password);
                let hash = decoded.map_err(|_| grpc_errors::malformed_hash())?;
                if !is_affordable(&hash) {
                    return Err(grpc_errors::costly_hash(COST_MAX));
                }
                hash.into()
            }
        };
        let change = Change::UserChangePassword(SetPassword { name, password_hash });
        let header = self.change(requester, change).await?;
        Ok(Reply::new(AuthUserChangePasswordResponse { header }))
    }

    async fn user_grant_role(
        &self,
        request: Request<AuthUserGrantRoleRequest>,
    ) -> Result<Reply<AuthUserGrantRoleResponse>, Status> {
        let (requester, request) = self.0.parts(request);
        let header = self.change(requester, Change::UserGrantRole(request)).await?;
        Ok(Reply::new(AuthUserGrantRoleResponse { header }))
    }

    async fn user_revoke_role(
        &self,
        request: Request<AuthUserRevokeRoleRequest>,
    ) -> Result<Reply<AuthUserRevokeRoleResponse>, Status> {
        let (requester, request) = self.0.parts(request);
        let header = self.change(requester, Change::UserRevokeRole(request)).await?;
        Ok(Reply::new(AuthUserRevokeRoleResponse { header }))
    }

    async fn role_add(
        &self,
        request: Request<AuthRoleAddRequest>,
    ) -> Result<Reply<AuthRoleAddResponse>, Status> {
        let (requester, request) = self.0.parts(request);
        let header = self.change(requester, Change::RoleAdd(request)).await?;
        Ok(Reply::new(AuthRoleAddResponse { header }))
    }

    async fn role_get(
        &self,
        request: Request<AuthRoleGetRequest>,
    ) -> Result<Reply<AuthRoleGetResponse>, Status> {
        let (requester, request) = self.0.parts(request);
        let has_role = |state: &AuthState, caller: &Caller| {
            let user = caller.user().and_then(|name| state.users.get(name));
            user.is_some_and(|user| user.roles.contains(&request.role))
        };
        let state = self.state_for(requester, has_role).await?;
        let perm = permissions(&state, &request.role).map_err(grpc_errors::refused)?;
        Ok(Reply::new(AuthRoleGetResponse { header: self.0.member.header(), perm }))
    }

    async fn role_list(
        &self,
        request: Request<AuthRoleListRequest>,
    ) -> Result<Reply<AuthRoleListResponse>, Status> {
        let (requester, _) = self.0.parts(request);
        let state = self.state_for_root(requester).await?;
        let header = self.0.member.header();
        Ok(Reply::new(AuthRoleListResponse { header, roles: state.roles.keys().cloned().collect() }))
    }

    async fn role_delete(
        &self,
        request: Request<AuthRoleDeleteRequest>,
    ) -> Result<Reply<AuthRoleDeleteResponse>, Status> {
        let (requester, request) = self.0.parts(request);
        let header = self.change(requester, Change::RoleDelete(request)).await?;
        Ok(Reply::new(AuthRoleDeleteResponse { header }))
    }

    async fn role_grant_permission(
        &self,
        request: Request<AuthRoleGrantPermissionRequest>,
    ) -> Result<Reply<AuthRoleGrantPermissionResponse>, Status> {
        let (requester, request) = self.0.parts(request);
        let header = self.change(requester, Change::RoleGrantPermission(request)).await?;
        Ok(Reply::new(AuthRoleGrantPermissionResponse { header }))
    }

    async fn role_revoke_permission(
        &self,
        request: Request<AuthRoleRevokePermissionRequest>,
    ) -> Result<Reply<AuthRoleRevokePermissionResponse>, Status> {
        let (requester, request) = self.0.parts(request);
        let header = self.change(requester, Change::RoleRevokePermission(request)).await?;
        Ok(Reply::new(AuthRoleRevokePermissionResponse { header }))
    }
}
