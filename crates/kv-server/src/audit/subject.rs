//! The subject of a request: keys, leases, members, users and roles. It contains no value, password or
//! token.
//!
//! * A subject is small for any request: 16 ranges of keys, 256 bytes of each key or name. An incomplete
//!   subject is marked.
//! * For a rejected request it contains the first range that the caller may not use, at any position.
//! * A transaction is decoded incrementally, and only as far as necessary.
//! * The match is exhaustive: a new method does not compile before its subject is written here.

use api::Method;
use api::authpb::Permission;
use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::*;
use api::kvserver::ReseedRequest;
use api::v3electionpb::{CampaignRequest, LeaderKey, LeaderRequest, ProclaimRequest, ResignRequest};
use api::v3lockpb::{LockRequest, UnlockRequest};
use base64::Engine;
use bytes::Bytes;
use mvcc::KeyRange;
use prost::Message;
use serde::Serialize;
use state_machine::KeyAccess;
use state_machine::command::{DecodeError, SHORT_TXN_FIELDS_MAX, TxnPart, TxnReader};

use crate::methods::{self, Effect};
use auth::Caller;

/// Maximum number of ranges in a line.
const RANGES_MAX: usize = 16;
/// Maximum bytes of a key, a range's end or a name in a line.
const KEY_BYTES_MAX: usize = 256;

/// The subject of a request.
#[derive(Debug, Default, Serialize)]
pub struct AuditSubject {
    /// True if the request may change the state.
    #[serde(skip)]
    pub is_change: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    keys: Vec<SubjectKeys>,
    /// The access that the caller was denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    denied: Option<SubjectKeys>,
    /// The user to determine `denied` for.
    #[serde(skip)]
    refused_user: Option<Caller>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<i64>,
    /// In hexadecimal, as tools print it.
    #[serde(skip_serializing_if = "Option::is_none")]
    member: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    of_user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    of_role: Option<String>,
    /// The request names more, or longer names.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// Keys and the access to them, in base64.
#[derive(Debug, Serialize)]
struct SubjectKeys {
    access: &'static str,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    range_end: Option<String>,
}

const READ: &str = "read";
const WRITE: &str = "write";
const DELETE: &str = "delete";
/// Access of a granted or revoked permission.
const PERMISSION: &str = "permission";

impl AuditSubject {
    /// Returns the subject of an encoded request. Undecodable parts contribute no names.
    ///
    /// `refused_user` is the user whose request was rejected.
    pub fn of(method: Method, message: Bytes, refused_user: Option<Caller>) -> AuditSubject {
        let mut subject = AuditSubject {
            is_change: methods::of(method).effect == Effect::Changes,
            refused_user,
            ..AuditSubject::default()
        };
        subject.add_request(method, message);
        subject
    }

    /// Returns the subject of a watcher, or an observer of an election.
    pub fn read(key: &[u8], range_end: &[u8]) -> AuditSubject {
        let mut subject = AuditSubject::default();
        subject.add(READ, key, range_end);
        subject
    }

    /// Returns the subject of a lease renewal.
    pub fn renewal(lease: i64) -> AuditSubject {
        AuditSubject { lease: Some(lease), ..AuditSubject::default() }
    }

    fn add(&mut self, access: &'static str, key: &[u8], range_end: &[u8]) {
        self.deny(access, key, range_end);
        if self.keys.len() == RANGES_MAX {
            self.truncated = true;
            return;
        }
        let keys = self.keys(access, key, range_end);
        self.keys.push(keys);
    }

    /// Records the first range to which the caller does not have this access.
    fn deny(&mut self, access: &'static str, key: &[u8], range_end: &[u8]) {
        let Some(caller) = self.refused_user.as_ref().filter(|_| self.denied.is_none()) else { return };
        let copy = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        let keys = KeyRange::new(copy(key), copy(range_end));
        let needed = if access == READ { KeyAccess::Read } else { KeyAccess::Write };
        if !caller.may_use(needed, &keys) {
            self.denied = Some(self.keys(access, key, range_end));
        }
    }

    fn keys(&mut self, access: &'static str, key: &[u8], range_end: &[u8]) -> SubjectKeys {
        let key = self.base64(key);
        let range_end = if range_end.is_empty() { None } else { Some(self.base64(range_end)) };
        SubjectKeys { access, key, range_end }
    }

    fn base64(&mut self, bytes: &[u8]) -> String {
        self.truncated |= bytes.len() > KEY_BYTES_MAX;
        base64::engine::general_purpose::STANDARD.encode(&bytes[..bytes.len().min(KEY_BYTES_MAX)])
    }

    fn name(&mut self, name: &str) -> Option<String> {
        let start = start_of(name);
        self.truncated |= start.len() < name.len();
        Some(start.to_owned())
    }

    fn add_request(&mut self, method: Method, message: Bytes) {
        use Method::*;
        match method {
            KvRange | KvRangeStream => {
                let range = decoded::<RangeRequest>(message);
                self.add(READ, &range.key, &range.range_end);
            }
            KvPut => self.put(&decoded(message)),
            KvDeleteRange => self.delete(&decoded(message)),
            KvTxn => self.txn(message),
            Lock => {
                let LockRequest { name, lease } = decoded(message);
                self.candidate(&name, lease);
            }
            ElectionCampaign => {
                let CampaignRequest { name, lease, .. } = decoded(message);
                self.candidate(&name, lease);
            }
            LockUnlock => self.add(DELETE, &decoded::<UnlockRequest>(message).key, b""),
            ElectionProclaim => self.leader(WRITE, decoded::<ProclaimRequest>(message).leader),
            ElectionResign => self.leader(DELETE, decoded::<ResignRequest>(message).leader),
            ElectionLeader | ElectionObserve => {
                self.add(READ, &decoded::<LeaderRequest>(message).name, b"");
            }
            LeaseGrant => self.lease = Some(decoded::<LeaseGrantRequest>(message).id),
            LeaseRevoke => self.lease = Some(decoded::<LeaseRevokeRequest>(message).id),
            LeaseTimeToLive => self.lease = Some(decoded::<LeaseTimeToLiveRequest>(message).id),
            ClusterMemberRemove => self.member(decoded::<MemberRemoveRequest>(message).id),
            ClusterMemberUpdate => self.member(decoded::<MemberUpdateRequest>(message).id),
            ClusterMemberPromote => self.member(decoded::<MemberPromoteRequest>(message).id),
            MaintenanceMoveLeader => self.member(decoded::<MoveLeaderRequest>(message).target_id),
            RepairReseed => self.member(decoded::<ReseedRequest>(message).member_id),
            MaintenanceAlarm => {
                let alarm = decoded::<AlarmRequest>(message);
                self.is_change = alarm.action != AlarmAction::Get as i32;
                self.member(alarm.member_id);
            }
            Authenticate => self.user(&decoded::<AuthenticateRequest>(message).name),
            AuthUserAdd => self.user(&decoded::<AuthUserAddRequest>(message).name),
            AuthUserGet => self.user(&decoded::<AuthUserGetRequest>(message).name),
            AuthUserDelete => self.user(&decoded::<AuthUserDeleteRequest>(message).name),
            AuthUserChangePassword => self.user(&decoded::<AuthUserChangePasswordRequest>(message).name),
            AuthUserGrantRole => {
                let AuthUserGrantRoleRequest { user, role } = decoded(message);
                self.user_and_role(&user, &role);
            }
            AuthUserRevokeRole => {
                let AuthUserRevokeRoleRequest { name, role } = decoded(message);
                self.user_and_role(&name, &role);
            }
            AuthRoleAdd => self.role(&decoded::<AuthRoleAddRequest>(message).name),
            AuthRoleGet => self.role(&decoded::<AuthRoleGetRequest>(message).role),
            AuthRoleDelete => self.role(&decoded::<AuthRoleDeleteRequest>(message).role),
            AuthRoleGrantPermission => self.granted(decoded(message)),
            AuthRoleRevokePermission => self.revoked(&decoded(message)),
            // These contain no names. Each watcher and each renewal of a stream has a subject.
            KvCompact | Watch | LeaseKeepAlive | LeaseLeases | ClusterMemberAdd | ClusterMemberList => {}
            MaintenanceStatus | MaintenanceDefragment | MaintenanceHash | MaintenanceHashKV => {}
            MaintenanceSnapshot | MaintenanceDowngrade | HealthCheck | HealthList | HealthWatch => {}
            AuthEnable | AuthDisable | AuthStatus | AuthUserList | AuthRoleList => {}
        }
    }

    fn put(&mut self, put: &PutRequest) {
        self.is_change = true;
        self.add(WRITE, &put.key, b"");
        if put.prev_kv {
            self.deny(READ, &put.key, b"");
        }
        self.lease = self.lease.or((put.lease != 0).then_some(put.lease));
    }

    fn delete(&mut self, delete: &DeleteRangeRequest) {
        self.is_change = true;
        self.add(DELETE, &delete.key, &delete.range_end);
        if delete.prev_kv {
            self.deny(READ, &delete.key, &delete.range_end);
        }
    }

    /// Adds the operations of both branches, at every depth: of a long transaction, the first ones. A
    /// rejected transaction is read up to the denied operation.
    fn txn(&mut self, message: Bytes) {
        self.is_change = false;
        if self.parts_of_txn(message).is_err() {
            (self.is_change, self.truncated) = (true, true); // The rest is not known.
        }
    }

    fn parts_of_txn(&mut self, message: Bytes) -> Result<(), DecodeError> {
        let is_refused = self.refused_user.is_some();
        let fields_max = if is_refused { usize::MAX } else { SHORT_TXN_FIELDS_MAX };
        let mut reader = TxnReader::new(message, fields_max);
        while !(self.truncated && self.keys.len() == RANGES_MAX && self.is_change)
            || (is_refused && self.denied.is_none())
        {
            let op = match reader.next_part()? {
                None => break,
                Some(TxnPart::Compare(compare)) => {
                    self.add(READ, &compare.key, &compare.range_end);
                    continue;
                }
                Some(TxnPart::Op(_, op)) => op.request,
                Some(TxnPart::Begin(_) | TxnPart::End) => continue,
            };
            match op {
                Some(Op::RequestRange(range)) => self.add(READ, &range.key, &range.range_end),
                Some(Op::RequestPut(put)) => self.put(&put),
                Some(Op::RequestDeleteRange(delete)) => self.delete(&delete),
                Some(Op::RequestTxn(_)) | None => {}
            }
        }
        Ok(())
    }

    /// Adds the name of a lock or an election, and the lease of the caller.
    fn candidate(&mut self, name: &[u8], lease: i64) {
        self.add(WRITE, name, b"");
        self.lease = (lease != 0).then_some(lease);
    }

    fn leader(&mut self, access: &'static str, leader: Option<LeaderKey>) {
        let LeaderKey { key, lease, .. } = leader.unwrap_or_default();
        self.add(access, &key, b"");
        self.lease = (lease != 0).then_some(lease);
    }

    fn member(&mut self, id: u64) {
        self.member = Some(format!("{id:x}"));
    }

    fn user(&mut self, name: &str) {
        self.of_user = self.name(name);
    }

    fn role(&mut self, name: &str) {
        self.of_role = self.name(name);
    }

    fn user_and_role(&mut self, user: &str, role: &str) {
        self.user(user);
        self.role(role);
    }

    fn granted(&mut self, AuthRoleGrantPermissionRequest { name, perm }: AuthRoleGrantPermissionRequest) {
        let Permission { key, range_end, .. } = perm.unwrap_or_default();
        self.add(PERMISSION, &key, &range_end);
        self.role(&name);
    }

    fn revoked(&mut self, request: &AuthRoleRevokePermissionRequest) {
        self.add(PERMISSION, &request.key, &request.range_end);
        self.role(&request.role);
    }
}

/// Truncates a name or a reason to the limit of a line.
pub(super) fn start_of(text: &str) -> &str {
    let mut end = text.len().min(KEY_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn decoded<M: Message + Default>(message: Bytes) -> M {
    M::decode(message).unwrap_or_default()
}
