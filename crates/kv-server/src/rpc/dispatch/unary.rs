//! Calls with one request and one response.

use admission::{Pass, charged};
use api::etcdserverpb::TxnRequest;
use api::etcdserverpb::auth_server::Auth as _;
use api::etcdserverpb::cluster_server::Cluster as _;
use api::etcdserverpb::kv_server::Kv as _;
use api::etcdserverpb::lease_server::Lease as _;
use api::etcdserverpb::maintenance_server::Maintenance as _;
use api::health::health_server::Health as _;
use api::kvserver::repair_server::Repair as _;
use api::v3electionpb::election_server::Election as _;
use api::v3lockpb::lock_server::Lock as _;
use api::{Error, Method};
use base::ClientId;
use bytes::Bytes;
use grpc_errors::RequestForm;
use grpc_server::http2::{Answer, Room, framed};
use prost::Message;
use state_machine::command::{self, DecodeError, SHORT_TXN_FIELDS_MAX};
use state_machine::validate;
use std::pin::pin;
use std::sync::Arc;
use tonic::{Request, Response, Status};

use super::super::auth::AuthCalls;
use super::super::cluster::ClusterCalls;
use super::super::health::Health;
use super::super::kv::LargeAnswer;
use super::super::maintenance::Maintenance;
use super::super::repair::Repair;
use super::{Call, Dispatcher, decoded, revision_in};
use crate::member::Member;
use crate::methods;
use ::auth::Requester;

/// Size up to which a short transaction is decoded in the calling task. Larger ones use a blocking thread,
/// since they may have thousands of operations. Other messages have few fields.
const DECODED_HERE_BYTES_MAX: usize = 64 << 10;

impl Dispatcher {
    /// Serves a call with auditing and usage sampling.
    pub(super) async fn recorded(
        &self,
        call: &Call,
        message: Bytes,
        room: Room<'_>,
    ) -> Result<Answer<LargeAnswer>, Status> {
        let audited = self.audited(call, &message);
        let usage = self.member().usage.as_ref();
        let sampled = usage.and_then(|usage| usage.sample(call.method, &message));
        let answering = pin!(self.answer(call, message, room));
        let answer = self.guarded(call, answering).await;
        let frame = match &answer {
            Ok(Answer::Whole(frame) | Answer::WithMetadata(_, frame)) => Some(frame),
            Ok(Answer::Long(_)) | Err(_) => None,
        };
        if let Some(line) = audited {
            let revision = frame.and_then(|frame| revision_in(frame));
            line.end(answer.as_ref().map(|_| revision));
        }
        if let Some(sample) = sampled {
            sample.end(&self.client(&call.requester), frame);
        }
        answer
    }

    /// Returns the name of the caller: its user, or its address.
    fn client(&self, requester: &Requester) -> String {
        let caller = self.member().auth.user_of(&requester.identity);
        let address = || requester.ip().map_or_else(String::new, |address| address.to_string());
        caller.user().map_or_else(address, str::to_owned)
    }

    /// Decodes the request, calls the method of its service, and encodes the response. Metadata is checked
    /// after decoding, as in etcd.
    #[expect(clippy::too_many_lines, reason = "an arm for each method")]
    async fn answer(
        &self,
        call: &Call,
        message: Bytes,
        room: Room<'_>,
    ) -> Result<Answer<LargeAnswer>, Status> {
        let bytes_max = methods::message_bytes_max(call.method, self.member().limits.message_bytes_max());
        if message.len() > bytes_max {
            return Err(grpc_errors::too_large(message.len(), bytes_max));
        }
        let parts = room.for_parts();
        macro_rules! answer_of {
            ($service:expr, $method:ident) => {{
                let service = $service;
                let request = decoded(message, RequestForm::Unary)?;
                self.check(call).map_err(grpc_errors::refused)?;
                encoded(service.$method(Request::new(request)).await?)
            }};
        }
        match call.method {
            Method::KvRange => answer_of!(self.key_space(call, parts), range),
            Method::KvPut => answer_of!(self.key_space(call, parts), put),
            Method::KvDeleteRange => answer_of!(self.key_space(call, parts), delete_range),
            Method::KvTxn => {
                let mut service = self.key_space(call, parts);
                let (request, memory) = self.admit_txn(call, message, room).await?;
                service.txn_memory = memory;
                encoded(service.txn(Request::new(request)).await?)
            }
            Method::KvCompact => answer_of!(self.key_space(call, parts), compact),
            Method::LeaseGrant => answer_of!(self.leases(call, parts), lease_grant),
            Method::LeaseRevoke => answer_of!(self.leases(call, parts), lease_revoke),
            Method::LeaseTimeToLive => answer_of!(self.leases(call, parts), lease_time_to_live),
            Method::LeaseLeases => answer_of!(self.leases(call, parts), lease_leases),
            Method::Lock => answer_of!(self.locks(call, parts), lock),
            Method::LockUnlock => answer_of!(self.locks(call, parts), unlock),
            Method::ElectionCampaign => answer_of!(self.elections(call, parts), campaign),
            Method::ElectionProclaim => answer_of!(self.elections(call, parts), proclaim),
            Method::ElectionLeader => answer_of!(self.elections(call, parts), leader),
            Method::ElectionResign => answer_of!(self.elections(call, parts), resign),
            Method::ClusterMemberAdd => answer_of!(ClusterCalls(self.served(call, parts)), member_add),
            Method::ClusterMemberRemove => answer_of!(ClusterCalls(self.served(call, parts)), member_remove),
            Method::ClusterMemberUpdate => answer_of!(ClusterCalls(self.served(call, parts)), member_update),
            Method::ClusterMemberList => answer_of!(ClusterCalls(self.served(call, parts)), member_list),
            Method::ClusterMemberPromote => {
                answer_of!(ClusterCalls(self.served(call, parts)), member_promote)
            }
            Method::MaintenanceAlarm => answer_of!(Maintenance(self.served(call, parts)), alarm),
            Method::MaintenanceStatus => answer_of!(Maintenance(self.served(call, parts)), status),
            Method::MaintenanceDefragment => answer_of!(Maintenance(self.served(call, parts)), defragment),
            Method::MaintenanceHash => answer_of!(Maintenance(self.served(call, parts)), hash),
            Method::MaintenanceHashKV => answer_of!(Maintenance(self.served(call, parts)), hash_kv),
            Method::MaintenanceMoveLeader => answer_of!(Maintenance(self.served(call, parts)), move_leader),
            Method::MaintenanceDowngrade => answer_of!(Maintenance(self.served(call, parts)), downgrade),
            Method::RepairReseed => answer_of!(Repair(self.served(call, parts)), reseed),
            Method::HealthCheck => answer_of!(Health, check),
            Method::HealthList => answer_of!(Health, list),
            Method::AuthEnable => answer_of!(AuthCalls(self.served(call, parts)), auth_enable),
            Method::AuthDisable => answer_of!(AuthCalls(self.served(call, parts)), auth_disable),
            Method::AuthStatus => answer_of!(AuthCalls(self.served(call, parts)), auth_status),
            Method::Authenticate => answer_of!(AuthCalls(self.served(call, parts)), authenticate),
            Method::AuthUserAdd => answer_of!(AuthCalls(self.served(call, parts)), user_add),
            Method::AuthUserGet => answer_of!(AuthCalls(self.served(call, parts)), user_get),
            Method::AuthUserList => answer_of!(AuthCalls(self.served(call, parts)), user_list),
            Method::AuthUserDelete => answer_of!(AuthCalls(self.served(call, parts)), user_delete),
            Method::AuthUserChangePassword => {
                answer_of!(AuthCalls(self.served(call, parts)), user_change_password)
            }
            Method::AuthUserGrantRole => answer_of!(AuthCalls(self.served(call, parts)), user_grant_role),
            Method::AuthUserRevokeRole => answer_of!(AuthCalls(self.served(call, parts)), user_revoke_role),
            Method::AuthRoleAdd => answer_of!(AuthCalls(self.served(call, parts)), role_add),
            Method::AuthRoleGet => answer_of!(AuthCalls(self.served(call, parts)), role_get),
            Method::AuthRoleList => answer_of!(AuthCalls(self.served(call, parts)), role_list),
            Method::AuthRoleDelete => answer_of!(AuthCalls(self.served(call, parts)), role_delete),
            Method::AuthRoleGrantPermission => {
                answer_of!(AuthCalls(self.served(call, parts)), role_grant_permission)
            }
            Method::AuthRoleRevokePermission => {
                answer_of!(AuthCalls(self.served(call, parts)), role_revoke_permission)
            }
            Method::KvRangeStream
            | Method::Watch
            | Method::LeaseKeepAlive
            | Method::MaintenanceSnapshot
            | Method::ElectionObserve
            | Method::HealthWatch => unreachable!("`begin` returns it as a stream"),
        }
    }
}

/// Encodes a response, which holds its memory until it was sent.
fn encoded<T: Message>(response: Response<T>) -> Result<Answer<LargeAnswer>, Status> {
    let (metadata, message, mut extensions) = response.into_parts();
    if let Some(large) = LargeAnswer::take(&mut extensions) {
        return Ok(Answer::Long(large));
    }
    let frame = framed(&message)?;
    drop(message);
    let memory = extensions.remove::<Arc<Pass>>().and_then(Arc::into_inner);
    let frame = charged(frame, memory);
    Ok(match metadata.is_empty() {
        true => Answer::Whole(frame),
        false => Answer::WithMetadata(Box::new(metadata.into_headers()), frame),
    })
}

/// A transaction, and its validation result.
type ReadTxn = Result<(TxnRequest, Result<(), Error>), DecodeError>;

/// Memory of a transaction that is not short; see `txn_memory` of the service `KV`.
type TxnMemory = Option<Box<Pass>>;

impl Dispatcher {
    /// Decodes a transaction with apply's decoder, which limits nesting. It rejects too many operations while
    /// decoding; etcd does after checking the metadata.
    async fn admit_txn(
        &self,
        call: &Call,
        message: Bytes,
        room: Room<'_>,
    ) -> Result<(TxnRequest, TxnMemory), Status> {
        let member = self.member();
        let here = match message.len() <= DECODED_HERE_BYTES_MAX {
            true => read_txn(message.clone(), member.limits.txn_ops_max, SHORT_TXN_FIELDS_MAX),
            false => Err(DecodeError::TooMany),
        };
        let (read, memory) = match here {
            Err(DecodeError::TooMany) => {
                Box::pin(convert_txn(member, call.requester.client(), message, room)).await?
            }
            here => (here, None),
        };
        if !matches!(read, Err(DecodeError::Malformed(_) | DecodeError::Field)) {
            self.check(call).map_err(grpc_errors::refused)?;
        }
        let (request, valid) = read.map_err(|error| grpc_errors::undecodable(&error))?;
        valid.map_err(grpc_errors::refused)?;
        Ok((request, memory))
    }
}

fn read_txn(message: Bytes, ops_max: usize, fields_max: usize) -> ReadTxn {
    let request = command::decode_short_txn(message, ops_max, fields_max)?;
    let valid = validate::txn(&request, ops_max);
    Ok((request, valid))
}

/// Decodes a transaction on a blocking thread. If it has many fields, they are only counted there at first,
/// and it waits for memory in its encoded form.
async fn convert_txn(
    member: &Member,
    client: ClientId,
    message: Bytes,
    room: Room<'_>,
) -> Result<(ReadTxn, TxnMemory), Status> {
    let (admission, ops_max) = (&member.admission, member.limits.txn_ops_max);
    let first = message.clone();
    let read_or_count = move || match read_txn(first.clone(), ops_max, SHORT_TXN_FIELDS_MAX) {
        // If it cannot be counted, the error is the decoder's.
        Err(DecodeError::TooMany) => {
            let fields = command::txn_fields(first.clone(), ops_max);
            fields.map_err(|_| read_txn(first, ops_max, usize::MAX))
        }
        read => Err(read),
    };
    let fields = match admission.convert(client, read_or_count).await? {
        Ok(fields) => fields,
        Err(read) => return Ok((read, None)),
    };
    // Its client may read responses slowly, which should not delay other transactions.
    room.wait().await;
    let memory = admission.txn(client, fields).await?;
    // The memory is held until decoding finishes, even if the call is cancelled.
    let read = move || (read_txn(message, ops_max, usize::MAX), Some(Box::new(memory)));
    admission.convert(client, read).await
}
