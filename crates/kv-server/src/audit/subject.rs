//! What a request names: keys, leases, members, users and roles. Never a value, a password or a token.
//!
//! * A subject is small for any request: 16 ranges of keys, 256 bytes of each key or name. A subject
//!   that has less than the request says so.
//! * Of a refused request it names the first range that the caller may not use, wherever the request has it.
//! * A transaction is not decoded as a whole, and read no further than it has to be.
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

use auth::Caller;
use grpc_server::methods::{self, Effect};

/// Ranges that a line has.
const RANGES_MAX: usize = 16;
/// Bytes of a key, a range's end or a name that a line has.
const KEY_BYTES_MAX: usize = 256;

/// What a request names.
#[derive(Debug, Default, Serialize)]
pub struct AuditSubject {
    /// Whether the request may change something.
    #[serde(skip)]
    pub is_change: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    keys: Vec<SubjectKeys>,
    /// What the caller may not do.
    #[serde(skip_serializing_if = "Option::is_none")]
    denied: Option<SubjectKeys>,
    /// To find `denied`.
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
    /// The request names more, or names it at greater length.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// Keys and what is to be done with them, in base64.
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
/// Of a permission that is granted or revoked.
const PERMISSION: &str = "permission";

impl AuditSubject {
    /// The subject of an encoded request. What cannot be decoded names nothing.
    ///
    /// `refused_user`: the user whom the request was refused to.
    pub fn of(method: Method, message: Bytes, refused_user: Option<Caller>) -> AuditSubject {
        let mut subject = AuditSubject {
            is_change: methods::of(method).effect == Effect::Changes,
            refused_user,
            ..AuditSubject::default()
        };
        if method == Method::KvTxn {
            subject.is_change = false;
            if subject.txn(message).is_err() {
                (subject.is_change, subject.truncated) = (true, true); // The rest is not known.
            }
            return subject;
        }
        match method.service() {
            "etcdserverpb.KV" | "etcdserverpb.Watch" => subject.of_keys(method, message),
            "v3lockpb.Lock" | "v3electionpb.Election" => subject.of_names(method, message),
            "etcdserverpb.Auth" => subject.of_auth(method, message),
            _ => subject.of_rest(method, message),
        }
        subject
    }

    /// A watcher, or an observer of an election.
    pub fn read(key: &[u8], range_end: &[u8]) -> AuditSubject {
        let mut subject = AuditSubject::default();
        subject.add(READ, key, range_end);
        subject
    }

    /// The renewal of a lease.
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

    /// Notes the first range that the caller may not use so.
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

    fn of_keys(&mut self, method: Method, message: Bytes) {
        match method {
            Method::KvRange | Method::KvRangeStream => {
                let range = decoded::<RangeRequest>(message);
                self.add(READ, &range.key, &range.range_end);
            }
            Method::KvPut => self.put(&decoded(message)),
            Method::KvDeleteRange => self.delete(&decoded(message)),
            // A transaction is described above, a watcher by its stream. Compact names a revision.
            _ => {}
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

    /// The operations of both branches, at every depth: of a long transaction, the first ones. A refused one
    /// is read up to what is denied.
    fn txn(&mut self, message: Bytes) -> Result<(), DecodeError> {
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

    fn of_names(&mut self, method: Method, message: Bytes) {
        match method {
            Method::Lock => {
                let LockRequest { name, lease } = decoded(message);
                self.add(WRITE, &name, b"");
                self.lease = (lease != 0).then_some(lease);
            }
            Method::LockUnlock => self.add(DELETE, &decoded::<UnlockRequest>(message).key, b""),
            Method::ElectionCampaign => {
                let CampaignRequest { name, lease, .. } = decoded(message);
                self.add(WRITE, &name, b"");
                self.lease = (lease != 0).then_some(lease);
            }
            Method::ElectionProclaim => self.leader(WRITE, decoded::<ProclaimRequest>(message).leader),
            Method::ElectionResign => self.leader(DELETE, decoded::<ResignRequest>(message).leader),
            Method::ElectionLeader | Method::ElectionObserve => {
                self.add(READ, &decoded::<LeaderRequest>(message).name, b"");
            }
            _ => {}
        }
    }

    fn leader(&mut self, access: &'static str, leader: Option<LeaderKey>) {
        let LeaderKey { key, lease, .. } = leader.unwrap_or_default();
        self.add(access, &key, b"");
        self.lease = (lease != 0).then_some(lease);
    }

    fn of_auth(&mut self, method: Method, message: Bytes) {
        let (user, role) = match method {
            Method::Authenticate => (Some(decoded::<AuthenticateRequest>(message).name), None),
            Method::AuthUserAdd => (Some(decoded::<AuthUserAddRequest>(message).name), None),
            Method::AuthUserGet => (Some(decoded::<AuthUserGetRequest>(message).name), None),
            Method::AuthUserDelete => (Some(decoded::<AuthUserDeleteRequest>(message).name), None),
            Method::AuthUserChangePassword => {
                (Some(decoded::<AuthUserChangePasswordRequest>(message).name), None)
            }
            Method::AuthUserGrantRole => {
                let AuthUserGrantRoleRequest { user, role } = decoded(message);
                (Some(user), Some(role))
            }
            Method::AuthUserRevokeRole => {
                let AuthUserRevokeRoleRequest { name, role } = decoded(message);
                (Some(name), Some(role))
            }
            Method::AuthRoleAdd => (None, Some(decoded::<AuthRoleAddRequest>(message).name)),
            Method::AuthRoleGet => (None, Some(decoded::<AuthRoleGetRequest>(message).role)),
            Method::AuthRoleDelete => (None, Some(decoded::<AuthRoleDeleteRequest>(message).role)),
            Method::AuthRoleGrantPermission => {
                let AuthRoleGrantPermissionRequest { name, perm } = decoded(message);
                let Permission { key, range_end, .. } = perm.unwrap_or_default();
                self.add(PERMISSION, &key, &range_end);
                (None, Some(name))
            }
            Method::AuthRoleRevokePermission => {
                let AuthRoleRevokePermissionRequest { role, key, range_end } = decoded(message);
                self.add(PERMISSION, &key, &range_end);
                (None, Some(role))
            }
            // These name nothing.
            _ => (None, None),
        };
        self.of_user = user.and_then(|name| self.name(&name));
        self.of_role = role.and_then(|name| self.name(&name));
    }

    fn of_rest(&mut self, method: Method, message: Bytes) {
        let member = |id: u64| Some(format!("{id:x}"));
        match method {
            Method::LeaseGrant => self.lease = Some(decoded::<LeaseGrantRequest>(message).id),
            Method::LeaseRevoke => self.lease = Some(decoded::<LeaseRevokeRequest>(message).id),
            Method::LeaseTimeToLive => self.lease = Some(decoded::<LeaseTimeToLiveRequest>(message).id),
            Method::ClusterMemberRemove => self.member = member(decoded::<MemberRemoveRequest>(message).id),
            Method::ClusterMemberUpdate => self.member = member(decoded::<MemberUpdateRequest>(message).id),
            Method::ClusterMemberPromote => self.member = member(decoded::<MemberPromoteRequest>(message).id),
            Method::MaintenanceMoveLeader => {
                self.member = member(decoded::<MoveLeaderRequest>(message).target_id)
            }
            Method::RepairReseed => self.member = member(decoded::<ReseedRequest>(message).member_id),
            Method::MaintenanceAlarm => {
                let alarm = decoded::<AlarmRequest>(message);
                self.is_change = alarm.action != AlarmAction::Get as i32;
                self.member = member(alarm.member_id);
            }
            // These name nothing.
            _ => {}
        }
    }
}

/// As much of a name or a reason as a line has.
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
