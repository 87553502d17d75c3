//! Requests of user clients: auth changes, tokens, and requests that may be rejected.

use api::authpb::Permission;
use api::authpb::permission::Type;
use api::command::auth_change::Kind as Auth;
use api::command::{AddUser, AuthChange, IssueToken, SetPassword};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest,
    AuthRoleGrantPermissionRequest, AuthRoleRevokePermissionRequest, AuthUserDeleteRequest,
    AuthUserGrantRoleRequest, AuthUserRevokeRoleRequest, DeleteRangeRequest, PutRequest, RequestOp,
    TxnRequest,
};
use bytes::Bytes;
use state_machine::ROOT;
use state_machine::command::Kind;

use super::ask::Ask;
use super::draw::{Draw, neighbours};

const USERS: [&str; 3] = ["u0", "u1", "u2"];
const ROLES: [&str; 3] = ["r0", "r1", "r2"];
/// Number of lease ids chosen by lease clients.
const LEASES: u64 = 6;
const TYPES: [Type; 3] = [Type::Read, Type::Write, Type::Readwrite];

impl Draw<'_> {
    /// Draws a user and a request. `auth_revision` is that of the requested member.
    pub fn ask_as_user(mut self, auth_revision: u64) -> (&'static str, Ask) {
        let user = *self.chance.pick(&USERS);
        let ask = match self.chance.within(0, 100) {
            0..25 => {
                let change = self.change();
                let user = if self.chance.per_mille(900) { ROOT } else { user };
                return (user, Ask::Write(changed(change)));
            }
            25..30 => {
                let issue = IssueToken { user: user.into(), prefix: format!("{:x}", self.id), auth_revision };
                Ask::Write(changed(Auth::IssueToken(issue)))
            }
            30..55 => Ask::Write(Kind::Put(self.put_of_user())),
            55..65 => Ask::Write(Kind::DeleteRange(self.delete_of_user())),
            65..85 => {
                let depth = self.chance.within(0, 3);
                Ask::Write(Kind::Txn(self.txn_of_user(depth)))
            }
            85..95 => Ask::Read(self.range()),
            _ => Ask::Serializable(self.range()),
        };
        (user, ask)
    }

    fn put_of_user(&mut self) -> PutRequest {
        let prev_kv = self.chance.per_mille(500);
        let lease = if self.chance.per_mille(200) { self.chance.within(1, LEASES + 1) as i64 } else { 0 };
        PutRequest { prev_kv, lease, ..self.put() }
    }

    fn delete_of_user(&mut self) -> DeleteRangeRequest {
        let (key, range_end) = neighbours(self.config.keys, self.chance);
        DeleteRangeRequest { key, range_end, prev_kv: self.chance.per_mille(300) }
    }

    /// Creates an operation nested in `depth` transactions. Does not change a key twice.
    fn txn_of_user(&mut self, depth: u64) -> TxnRequest {
        let request = match self.chance.within(0, 3) {
            _ if depth > 0 => Request::RequestTxn(self.txn_of_user(depth - 1)),
            0 => Request::RequestRange(self.range()),
            1 => Request::RequestDeleteRange(self.delete_of_user()),
            _ => Request::RequestPut(self.put_of_user()),
        };
        TxnRequest { success: vec![RequestOp { request: Some(request) }], ..TxnRequest::default() }
    }

    fn change(&mut self) -> Auth {
        let user = if self.chance.per_mille(100) { ROOT } else { *self.chance.pick(&USERS) };
        let role = *self.chance.pick(&ROLES);
        let (user, role) = (user.to_owned(), role.to_owned());
        match self.chance.within(0, 20) {
            0..6 => self.step_to_enable(),
            6 if self.chance.per_mille(500) => Auth::Disable(AuthDisableRequest {}),
            6 | 7 => Auth::UserAdd(AddUser { name: user, password_hash: self.password(), options: None }),
            8 if self.chance.per_mille(500) => Auth::UserDelete(AuthUserDeleteRequest { name: user }),
            8 => Auth::UserChangePassword(SetPassword { name: user, password_hash: self.password() }),
            9..11 => Auth::UserGrantRole(AuthUserGrantRoleRequest { user, role }),
            11 => Auth::UserRevokeRole(AuthUserRevokeRoleRequest { name: user, role }),
            12 | 13 => Auth::RoleAdd(AuthRoleAddRequest { name: role }),
            14 if self.chance.per_mille(300) => Auth::RoleDelete(AuthRoleDeleteRequest { role }),
            14..19 => {
                let (key, range_end) = self.granted();
                let perm_type = *self.chance.pick(&TYPES) as i32;
                let perm = Some(Permission { perm_type, key, range_end });
                Auth::RoleGrantPermission(AuthRoleGrantPermissionRequest { name: role, perm })
            }
            _ => {
                let (key, range_end) = self.granted();
                Auth::RoleRevokePermission(AuthRoleRevokePermissionRequest { role, key, range_end })
            }
        }
    }

    fn step_to_enable(&mut self) -> Auth {
        let name = || ROOT.to_owned();
        match self.chance.within(0, 3) {
            0 => Auth::UserAdd(AddUser { name: name(), password_hash: self.password(), options: None }),
            1 => Auth::UserGrantRole(AuthUserGrantRoleRequest { user: name(), role: name() }),
            _ => Auth::Enable(AuthEnableRequest {}),
        }
    }

    fn granted(&mut self) -> (Bytes, Bytes) {
        let (key, end) = neighbours(self.config.keys, self.chance);
        (key, if self.chance.per_mille(200) { Bytes::from_static(b"\0") } else { end })
    }

    fn password(&mut self) -> Bytes {
        Bytes::from(self.id.to_string())
    }
}

fn changed(change: Auth) -> Kind {
    Kind::Auth(AuthChange { kind: Some(change) })
}
