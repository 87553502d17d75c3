//! Maintenance: status, alarms, hashes, leadership, snapshots, downgrades.

mod downgrade;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use api::Error;
use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::maintenance_server::Maintenance as MaintenanceMethods;
use api::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse,
    DowngradeRequest, DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse,
    MoveLeaderRequest, MoveLeaderResponse, SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse,
};
use futures_util::stream::Stream;
use mvcc::{KvHash, Meter};
use state_machine::{Failure, Lineage};
use tonic::{Request, Response as Reply, Status};

use crate::member::Member;
use crate::rpc::guard::ServedCall;
use crate::rpc::snapshot;
use ::auth::Requester;
use admission::ClientId;
use api::version;
use telemetry::metrics::UnderWay;

/// Number of active alarms above which clients cannot add more. etcd accepts any member id and any kind,
/// and so any number of them. Every member holds each alarm in memory and in its catalog. Seven members
/// have 14 alarms of the existing kinds.
const ALARMS_MAX: usize = 100;

/// The methods of the service, for one call.
pub struct Maintenance(pub ServedCall);

fn status(member: &Member) -> Result<StatusResponse, Status> {
    let raft = member.status();
    let size = member.store.size();
    let alarms = member.alarms().map_err(grpc_errors::record)?;
    let no_leader = raft.leader.is_none().then(|| Error::NoLeader.message().to_owned());
    Ok(StatusResponse {
        header: member.header(),
        version: version::ETCD.to_owned(),
        // Clients divide by sizes, and etcd's are never 0: its empty file holds a few pages.
        db_size: to_i64(size.allocated).max(1),
        leader: raft.leader.unwrap_or(0),
        raft_index: raft.commit.0,
        raft_term: raft.term.0,
        raft_applied_index: raft.applied.0,
        errors: no_leader.into_iter().chain(alarms.iter().map(alarm_text)).collect(),
        db_size_in_use: to_i64(size.in_use).max(1),
        is_learner: member.roster.is_learner(),
        storage_version: version::CLUSTER.to_owned(),
        db_size_quota: member.limits.quota_bytes,
        downgrade_info: Some(downgrade::shown(member)?),
    })
}

fn to_i64(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Formats an alarm in protobuf's text form, which omits zeros.
fn alarm_text(alarm: &AlarmMember) -> String {
    let mut parts = Vec::new();
    if alarm.member_id != 0 {
        parts.push(format!("memberID:{}", alarm.member_id));
    }
    match AlarmType::try_from(alarm.alarm) {
        Ok(AlarmType::None) => {}
        Ok(kind) => parts.push(format!("alarm:{}", kind.as_str_name())),
        Err(_) => parts.push(format!("alarm:{}", alarm.alarm)),
    }
    parts.join(" ")
}

/// Reports whether a request exceeds the maximum number of alarms. Checked before consensus, so concurrent
/// requests may still exceed it. A member that raises its own NOSPACE is not checked.
fn is_beyond_alarms_max(request: &AlarmRequest, active: &[AlarmMember]) -> bool {
    let AlarmRequest { action, member_id, alarm } = *request;
    let is_active = || active.contains(&AlarmMember { member_id, alarm });
    action == AlarmAction::Activate as i32 && active.len() >= ALARMS_MAX && !is_active()
}

async fn alarm(
    member: &Member,
    requester: &Requester,
    request: AlarmRequest,
) -> Result<AlarmResponse, Status> {
    let caller = member.caller(requester).await?;
    match AlarmAction::try_from(request.action) {
        Ok(AlarmAction::Get) => caller.check_named(),
        Ok(AlarmAction::Activate | AlarmAction::Deactivate) | Err(_) => caller.check_root(),
    }
    .map_err(grpc_errors::refused)?;
    if AlarmAction::try_from(request.action).is_err() {
        return Err(grpc_errors::unknown_alarm_action());
    }
    if is_beyond_alarms_max(&request, &member.alarms().map_err(grpc_errors::record)?) {
        return Err(grpc_errors::refused(Error::TooManyRequests));
    }
    let mut response = member.propose(&caller, request).await?;
    member.fill_header(&mut response.header);
    Ok(response)
}

/// Hashes all of history on another thread, with bounded concurrency.
async fn hash(member: &Member, client: ClientId, at: i64) -> Result<KvHash, Status> {
    let (admission, store) = (&member.admission, member.store.clone());
    let hash = move |meter: &dyn Meter| store.hash_kv_metered(at, meter).map_err(Failure::from);
    admission.within(&admission.hashes, client, hash).await
}

async fn move_leader(member: &Member, target: u64) -> Result<(), Status> {
    if member.status().leader != Some(member.ids.member) {
        return Err(grpc_errors::refused(Error::NotLeader));
    }
    let members = member.members().map_err(grpc_errors::record)?;
    if !members.iter().any(|member| member.id == target && !member.is_learner) {
        return Err(grpc_errors::refused(Error::BadLeaderTransferee));
    }
    if target == member.ids.member {
        return Ok(());
    }
    member.raft.transfer_leadership(target).await.map_err(grpc_errors::transfer)
}

#[tonic::async_trait]
impl MaintenanceMethods for Maintenance {
    type SnapshotStream = Pin<Box<dyn Stream<Item = Result<SnapshotResponse, Status>> + Send>>;

    async fn alarm(&self, request: Request<AlarmRequest>) -> Result<Reply<AlarmResponse>, Status> {
        let (requester, request) = self.0.parts(request);
        alarm(&self.0.member, requester, request).await.map(Reply::new)
    }

    async fn status(&self, _request: Request<StatusRequest>) -> Result<Reply<StatusResponse>, Status> {
        let mut reply = Reply::new(status(&self.0.member)?);
        let lineage = Lineage::of(&self.0.member.store).map_err(grpc_errors::record)?;
        if lineage.is_known() {
            let text = lineage.to_string().parse().expect("letters, digits, commas and @ are ASCII");
            reply.metadata_mut().insert(Lineage::METADATA, text);
        }
        Ok(reply)
    }

    /// Returns the hash of the latest history: equal on members with equal state. etcd hashes its file's
    /// buckets here, which only bbolt could reproduce.
    async fn hash(&self, _request: Request<HashRequest>) -> Result<Reply<HashResponse>, Status> {
        let client = self.0.requester.client();
        let began = Instant::now();
        let hashed = hash(&self.0.member, client, 0).await?;
        self.0.member.metrics.disk.hash_seconds.observe(began.elapsed().as_secs_f64());
        let mut response = HashResponse { header: self.0.member.header(), hash: hashed.hash };
        response.header.get_or_insert_default().revision = hashed.revision;
        Ok(Reply::new(response))
    }

    async fn hash_kv(&self, request: Request<HashKvRequest>) -> Result<Reply<HashKvResponse>, Status> {
        let (requester, request) = self.0.parts(request);
        let began = Instant::now();
        let hashed = hash(&self.0.member, requester.client(), request.revision).await?;
        self.0.member.metrics.disk.hash_revision_seconds.observe(began.elapsed().as_secs_f64());
        let mut response = HashKvResponse {
            header: self.0.member.header(),
            hash: hashed.hash,
            compact_revision: hashed.compact_revision,
            hash_revision: hashed.hash_revision,
        };
        response.header.get_or_insert_default().revision = hashed.revision;
        Ok(Reply::new(response))
    }

    async fn move_leader(
        &self,
        request: Request<MoveLeaderRequest>,
    ) -> Result<Reply<MoveLeaderResponse>, Status> {
        move_leader(&self.0.member, request.get_ref().target_id).await?;
        Ok(Reply::new(MoveLeaderResponse { header: None }))
    }

    /// Waits for all pending space reclamation, which runs automatically. Reads and writes continue in the
    /// meantime. Like etcd's, the response has no header.
    async fn defragment(
        &self,
        _request: Request<DefragmentRequest>,
    ) -> Result<Reply<DefragmentResponse>, Status> {
        let disk = &self.0.member.metrics.disk;
        let began = Instant::now();
        let _running = UnderWay::new(&disk.defragments_running);
        if !self.0.member.checkpoints.defragment().await {
            return Err(grpc_errors::refused(Error::Stopped));
        }
        disk.defragment_seconds.observe(began.elapsed().as_secs_f64());
        Ok(Reply::new(DefragmentResponse { header: None }))
    }

    /// Sends the state of this member, leader or not. Like etcd's, the messages have no header.
    async fn snapshot(
        &self,
        _request: Request<SnapshotRequest>,
    ) -> Result<Reply<Self::SnapshotStream>, Status> {
        let client = self.0.requester.client();
        Ok(Reply::new(Box::pin(snapshot::stream(Arc::clone(&self.0.member), client).await?)))
    }

    async fn downgrade(
        &self,
        request: Request<DowngradeRequest>,
    ) -> Result<Reply<DowngradeResponse>, Status> {
        let (requester, request) = self.0.parts(request);
        downgrade::execute(&self.0.member, requester, &request).await.map(Reply::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_reads_as_protobuf_text() {
        for (member_id, alarm, text) in [
            (42, 1, "memberID:42 alarm:NOSPACE"),
            (u64::MAX, 2, "memberID:18446744073709551615 alarm:CORRUPT"),
            (0, 1, "alarm:NOSPACE"),
            (7, 0, "memberID:7"),
            (7, 9, "memberID:7 alarm:9"),
        ] {
            assert_eq!(alarm_text(&AlarmMember { member_id, alarm }), text);
        }
    }
}
