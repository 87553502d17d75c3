//! Each method, as tonic calls it.

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
        let (asker, request) = self.admit(request)?;
        let header = self.change(&asker, Change::Enable(request)).await?;
        Ok(Reply::new(AuthEnableResponse { header }))
    }

    async fn auth_disable(
        &self,
        request: Request<AuthDisableRequest>,
    ) -> Result<Reply<AuthDisableResponse>, Status> {
        let (asker, request) = self.admit(request)?;
        let header = self.change(&asker, Change::Disable(request)).await?;
        Ok(Reply::new(AuthDisableResponse { header }))
    }

    async fn auth_status(
        &self,
        request: Request<AuthStatusRequest>,
    ) -> Result<Reply<AuthStatusResponse>, Status> {
        let (asker, _) = self.admit(request)?;
        // Needs no token, but rejects an invalid one, as in etcd.
        asker.caller(&self.member).await?;
        let state = self.state().await?;
        let header = self.member.header();
        let AuthState { enabled, revision, .. } = *state;
        Ok(Reply::new(AuthStatusResponse { header, enabled, auth_revision: revision }))
    }

    async fn authenticate(
        &self,
        request: Request<AuthenticateRequest>,
    ) -> Result<Reply<AuthenticateResponse>, Status> {
        let (asker, request) = self.admit(request)?;
        self.authenticate(&asker, request).await.map(Reply::new)
    }

    async fn user_add(
        &self,
        request: Request<AuthUserAddRequest>,
    ) -> Result<Reply<AuthUserAddResponse>, Status> {
        let (asker, AuthUserAddRequest { name, password, options, .. }) = self.admit(request)?;
        // Checked before hashing: a name that cannot be stored should not wait for the hash in memory.
        if name.len() > USER_NAME_BYTES_MAX {
            return Err(grpc_errors::refused(Error::RequestTooLarge));
        }
        let password_hash = match &options {
            Some(options) if options.no_password => Bytes::new(),
            Some(_) | None => self.hash(&asker, password).await?,
        };
        let header = self.change(&asker, Change::UserAdd(AddUser { name, options, password_hash })).await?;
        Ok(Reply::new(AuthUserAddResponse { header }))
    }

    async fn user_get(
        &self,
        request: Request<AuthUserGetRequest>,
    ) -> Result<Reply<AuthUserGetResponse>, Status> {
        let (asker, request) = self.admit(request)?;
        let state = self.state_for(&asker, |_, caller| caller.user() == Some(&request.name)).await?;
        let user = state.users.get(&request.name).ok_or(Error::UserNotFound).map_err(grpc_errors::refused)?;
        let header = self.member.header();
        Ok(Reply::new(AuthUserGetResponse { header, roles: user.roles.clone() }))
    }

    async fn user_list(
        &self,
        request: Request<AuthUserListRequest>,
    ) -> Result<Reply<AuthUserListResponse>, Status> {
        let (asker, _) = self.admit(request)?;
        let state = self.state_for_root(&asker).await?;
        let header = self.member.header();
        Ok(Reply::new(AuthUserListResponse { header, users: state.users.keys().cloned().collect() }))
    }

    async fn user_delete(
        &self,
        request: Request<AuthUserDeleteRequest>,
    ) -> Result<Reply<AuthUserDeleteResponse>, Status> {
        let (asker, request) = self.admit(request)?;
        let header = self.change(&asker, Change::UserDelete(request)).await?;
        Ok(Reply::new(AuthUserDeleteResponse { header }))
    }

    /// Changes a password. Without a password it uses the hash in the request; with neither, no password
    /// authenticates the user, as in etcd.
    async fn user_change_password(
        &self,
        request: Request<AuthUserChangePasswordRequest>,
    ) -> Result<Reply<AuthUserChangePasswordResponse>, Status> {
        let (asker, request) = self.admit(request)?;
        let AuthUserChangePasswordRequest { name, password, hashed_password } = request;
        if name.len() > USER_NAME_BYTES_MAX {
            return Err(grpc_errors::refused(Error::UserNotFound));
        }
        let password_hash = match password.is_empty() {
            false => {
                drop(hashed_password); // It may be long, and the hash may have to wait.
                self.hash(&asker, password).await?
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
        let header = self.change(&asker, change).await?;
        Ok(Reply::new(AuthUserChangePasswordResponse { header }))
    }

    async fn user_grant_role(
        &self,
        request: Request<AuthUserGrantRoleRequest>,
    ) -> Result<Reply<AuthUserGrantRoleResponse>, Status> {
        let (asker, request) = self.admit(request)?;
        let header = self.change(&asker, Change::UserGrantRole(request)).await?;
        Ok(Reply::new(AuthUserGrantRoleResponse { header }))
    }

    async fn user_revoke_role(
        &self,
        request: Request<AuthUserRevokeRoleRequest>,
    ) -> Result<Reply<AuthUserRevokeRoleResponse>, Status> {
        let (asker, request) = self.admit(request)?;
        let header = self.change(&asker, Change::UserRevokeRole(request)).await?;
        Ok(Reply::new(AuthUserRevokeRoleResponse { header }))
    }

    async fn role_add(
        &self,
        request: Request<AuthRoleAddRequest>,
    ) -> Result<Reply<AuthRoleAddResponse>, Status> {
        let (asker, request) = self.admit(request)?;
        let header = self.change(&asker, Change::RoleAdd(request)).await?;
        Ok(Reply::new(AuthRoleAddResponse { header }))
    }

    async fn role_get(
        &self,
        request: Request<AuthRoleGetRequest>,
    ) -> Result<Reply<AuthRoleGetResponse>, Status> {
        let (asker, request) = self.admit(request)?;
        let has_role = |state: &AuthState, caller: &Caller| {
            let user = caller.user().and_then(|name| state.users.get(name));
            user.is_some_and(|user| user.roles.contains(&request.role))
        };
        let state = self.state_for(&asker, has_role).await?;
        let perm = permissions(&state, &request.role).map_err(grpc_errors::refused)?;
        Ok(Reply::new(AuthRoleGetResponse { header: self.member.header(), perm }))
    }

    async fn role_list(
        &self,
        request: Request<AuthRoleListRequest>,
    ) -> Result<Reply<AuthRoleListResponse>, Status> {
        let (asker, _) = self.admit(request)?;
        let state = self.state_for_root(&asker).await?;
        let header = self.member.header();
        Ok(Reply::new(AuthRoleListResponse { header, roles: state.roles.keys().cloned().collect() }))
    }

    async fn role_delete(
        &self,
        request: Request<AuthRoleDeleteRequest>,
    ) -> Result<Reply<AuthRoleDeleteResponse>, Status> {
        let (asker, request) = self.admit(request)?;
        let header = self.change(&asker, Change::RoleDelete(request)).await?;
        Ok(Reply::new(AuthRoleDeleteResponse { header }))
    }

    async fn role_grant_permission(
        &self,
        request: Request<AuthRoleGrantPermissionRequest>,
    ) -> Result<Reply<AuthRoleGrantPermissionResponse>, Status> {
        let (asker, request) = self.admit(request)?;
        let header = self.change(&asker, Change::RoleGrantPermission(request)).await?;
        Ok(Reply::new(AuthRoleGrantPermissionResponse { header }))
    }

    async fn role_revoke_permission(
        &self,
        request: Request<AuthRoleRevokePermissionRequest>,
    ) -> Result<Reply<AuthRoleRevokePermissionResponse>, Status> {
        let (asker, request) = self.admit(request)?;
        let header = self.change(&asker, Change::RoleRevokePermission(request)).await?;
        Ok(Reply::new(AuthRoleRevokePermissionResponse { header }))
    }
}
