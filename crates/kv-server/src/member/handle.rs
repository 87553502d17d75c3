//! The member's handle for services: proposals, reads, authentication and limits.
//!
//! * `node` builds it once, and every connection shares it. Its fields are never replaced.
//! * Writes use [`Member::propose`]. Linearizable reads call [`Member::read_point`] first.
//! * A put encodes its command once and takes no lock here.

use std::sync::Arc;
use std::time::Duration;

use api::Method;
use api::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmType, Member as MemberEntry, ResponseHeader, alarm_request::AlarmAction,
};
use mvcc::{LogIndex, Store};
use raft_node::{Handle, ReadError, Status, TransferError};
use state_machine::command::{self, Change, MemberChange};
use state_machine::{ClusterLevel, Outcome, level};
use tokio::time::{Instant, timeout_at};

use bytes::Bytes;

use super::checkpointer::Checkpoints;
use super::command::{Command, EncodedCommand, response_of};
use super::fence::Fence;
use super::hasher::Hasher;
use super::leader_loss::LeaderLoss;
use super::roster::{Reach, Roster};
use super::watching::Watching;
use crate::audit::{AuditLog, AuditedCall};
use admission::Admission;
use auth::{Auth, Caller, CallerError, Requester};
use config::{MemberLimits, Reconfiguration};
use telemetry::metrics::{Metrics, Stage, timed};
use telemetry::usage::Usage;

/// Timeout of a leadership transfer. A responsive successor takes over within a few round trips.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval between two quorum checks.
const QUORUM_PAUSE: Duration = Duration::from_millis(20);

/// Handles of all parts of a member that services use.
pub struct Member {
    pub raft: Handle<Outcome>,
    pub store: Store,
    pub ids: Ids,
    /// Command level that the cluster has reached.
    pub level: ClusterLevel,
    pub limits: MemberLimits,
    pub metrics: Arc<Metrics>,
    /// Handle of the store thread: physical compaction and requests.
    pub checkpoints: Checkpoints,
    /// Limits for reads and large commands.
    pub admission: Arc<Admission>,
    /// Raised while the state of this member is known to be corrupt.
    pub fence: Arc<Fence>,
    pub hasher: Hasher,
    pub watching: Watching,
    /// Leader losses, for streams that require a leader.
    pub leader_loss: LeaderLoss,
    pub reconfiguration: Reconfiguration,
    pub roster: Arc<Roster>,
    pub reach: Arc<dyn Reach>,
    pub auth: Arc<Auth>,
    /// Set with `--audit-log`.
    pub audit: Option<Arc<AuditLog>>,
    /// Set with `--metrics-top`.
    pub usage: Option<Arc<Usage>>,
}

/// Ids in response headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    pub cluster: u64,
    pub member: u64,
}

impl Ids {
    /// Returns the size of the header that etcd puts before a request in its log, and counts against
    /// `--max-request-bytes`: tag and length, and the request's id as a varint. The upper 16 bits of that id
    /// are the lower 16 bits of the member id; the other 48 bits count up from the start time.
    pub fn request_header_bytes(&self) -> usize {
        const TAG_AND_LENGTH: usize = 3;
        const ID_TAG: usize = 1;
        let id_bits = 48 + (u16::BITS - (self.member as u16).leading_zeros());
        TAG_AND_LENGTH + ID_TAG + id_bits.div_ceil(7) as usize
    }
}

/// Reason why a command has no response.
#[derive(Debug, thiserror::Error)]
pub enum ProposeError {
    #[error("refused")]
    Refused(#[source] api::Error),
    #[error("not replicated")]
    Raft(#[source] raft_node::ProposeError),
}

impl From<ProposeError> for tonic::Status {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::Refused(error) => grpc_errors::refused(error),
            ProposeError::Raft(error) => grpc_errors::proposal(error),
        }
    }
}

impl Member {
    /// Replicates a caller's command and returns its response once it is applied on this member. Apply checks
    /// the caller's permissions.
    pub async fn propose<C: Command>(
        &self,
        caller: &Caller,
        command: C,
    ) -> Result<C::Response, ProposeError> {
        self.propose_encoded(self.encode(caller, command)?).await
    }

    /// Encodes the command for a proposal. Fails while a member may not support it.
    pub fn encode<C: Command>(&self, caller: &Caller, command: C) -> Result<EncodedCommand<C>, ProposeError> {
        let kind = command.into_kind();
        if level::needed(&kind) > self.level.get() {
            return Err(ProposeError::Refused(api::Error::NotCapable));
        }
        let command = command::encode_for(kind, caller.for_command());
        if command.len() + self.ids.request_header_bytes() > self.limits.request_bytes_max {
            return Err(ProposeError::Refused(api::Error::RequestTooLarge));
        }
        Ok(EncodedCommand::new(command))
    }

    /// Replicates a membership change and returns all members after it. Otherwise like `propose`.
    pub async fn propose_change(
        &self,
        caller: &Caller,
        change: Change,
    ) -> Result<Vec<MemberEntry>, ProposeError> {
        let is_strict = self.reconfiguration.is_strict;
        let command = self.encode(caller, MemberChange { change: Some(change), is_strict })?;
        let changed = replicated(self.raft.propose_change(command.bytes)).await?;
        let response = changed.map_err(|error| match error {
            // The leader rejected it as a membership change.
            api::Error::NotCapable if is_strict => ProposeError::Refused(api::Error::MemberNotEnoughStarted),
            error => ProposeError::Refused(error),
        })?;
        Ok(response_of::<MemberChange>(response))
    }

    /// Replicates a command returned by `encode`.
    pub async fn propose_encoded<C: Command>(
        &self,
        command: EncodedCommand<C>,
    ) -> Result<C::Response, ProposeError> {
        let outcome = replicated(self.raft.propose(command.bytes)).await?;
        outcome.map(response_of::<C>).map_err(ProposeError::Refused)
    }

    /// Replicates a command of the member itself. Exempt from the limits on pending client proposals.
    pub async fn propose_for_member(&self, command: Bytes) -> Result<(), ProposeError> {
        replicated(self.raft.propose_for_member(command)).await?.map(drop).map_err(ProposeError::Refused)
    }

    /// Authenticates a request. Waits until the entry that issued the token is applied on this member.
    pub async fn caller(&self, requester: &Requester) -> Result<Caller, tonic::Status> {
        let identity = &requester.identity;
        match self.auth.caller(identity) {
            Ok(caller) => Ok(caller),
            Err(CallerError::Refused(error)) => Err(grpc_errors::refused(error)),
            Err(CallerError::Unknown { issued_at }) => {
                if issued_at.is_some_and(|index| LogIndex(index) > self.status().applied) {
                    // Boxed, so that the future of every other call stays small.
                    Box::pin(self.read_point()).await.map_err(grpc_errors::read_point)?;
                }
                let invalid = |_| grpc_errors::refused(api::Error::InvalidAuthToken);
                self.auth.caller(identity).map_err(invalid)
            }
        }
    }

    /// Starts the line of a call in the audit log, if that is enabled.
    pub fn audited(&self, requester: &Requester, method: Method) -> Option<AuditedCall> {
        Some(self.audit.as_ref()?.begin(requester.clone(), method))
    }

    /// Waits until this member has applied all entries that were committed at the time of the call.
    pub async fn read_point(&self) -> Result<(), ReadError> {
        let read_point = timed(Stage::ReadIndex, self.raft.read_point()).await;
        if matches!(read_point, Err(ReadError::Timeout)) {
            self.metrics.raft.read_indexes_slow.inc();
        }
        read_point.map(drop)
    }

    /// Transfers leadership if this member leads, to avoid an election. Failures are only logged.
    pub async fn hand_over(&self) {
        note_hand_over(self.raft.hand_over()).await;
    }

    /// Transfers leadership to member `to`. Otherwise like `hand_over`.
    pub async fn hand_over_to(&self, to: u64) {
        note_hand_over(self.raft.transfer_leadership(to)).await;
    }

    /// Returns once there was no contact with a quorum for `within`.
    pub async fn without_quorum(&self, within: Duration) {
        let mut answered = Instant::now();
        loop {
            match timeout_at(answered + within, self.raft.read_point_for_member()).await {
                Ok(Ok(_)) => answered = Instant::now(),
                Ok(Err(_)) if answered.elapsed() < within => {}
                Ok(Err(_)) | Err(_) => return,
            }
            tokio::time::sleep(QUORUM_PAUSE).await;
        }
    }

    pub fn status(&self) -> Status {
        self.raft.status()
    }

    /// Completes a response header with ids and term. A revision of 0 is replaced by the store's current one;
    /// the state machine sets only the revision.
    pub fn fill_header(&self, header: &mut Option<ResponseHeader>) {
        let header = header.get_or_insert_default();
        if header.revision == 0 {
            header.revision = self.store.revision();
        }
        self.identify(header);
    }

    /// Returns a header at the store's current revision. Defragment, MoveLeader and Snapshot responses have
    /// none.
    pub fn header(&self) -> Option<ResponseHeader> {
        let mut header = None;
        self.fill_header(&mut header);
        header
    }

    /// Returns a header without a revision, for Cluster responses.
    pub fn header_without_revision(&self) -> Option<ResponseHeader> {
        let mut header = ResponseHeader::default();
        self.identify(&mut header);
        Some(header)
    }

    fn identify(&self, header: &mut ResponseHeader) {
        header.cluster_id = self.ids.cluster;
        header.member_id = self.ids.member;
        header.raft_term = self.status().term.0;
    }

    /// Returns the cluster's active alarms as applied on this member.
    pub fn alarms(&self) -> Result<Vec<AlarmMember>, state_machine::ApplyError> {
        state_machine::active_alarms(&self.store)
    }

    /// Reports whether alarms CORRUPT stop this member from serving, or all members from accepting changes.
    pub fn is_stopped_as_corrupt(&self) -> bool {
        self.fence.is_up() || state_machine::corrupt_stops_changes(&self.store).unwrap_or(true)
    }

    /// Returns the cluster's members as applied here, by id.
    pub fn members(&self) -> Result<Vec<MemberEntry>, state_machine::ApplyError> {
        state_machine::members(&self.store)
    }

    pub fn live_keys(&self) -> i64 {
        let everything = mvcc::KeyRange::new(Bytes::from_static(b"\0"), Bytes::from_static(b"\0"));
        let options = mvcc::RangeOptions { limit: 0, fetch: mvcc::Fetch::CountOnly };
        self.store.range(&everything, 0, &options).map_or(0, |range| range.count)
    }

    /// Reports whether `cost` more bytes fit the quota. True for requests that store no data.
    pub fn has_room(&self, cost: u64) -> bool {
        match u64::try_from(self.limits.quota_bytes) {
            Ok(quota) => cost == 0 || self.store.size().allocated.saturating_add(cost) < quota,
            Err(_) => true, // A negative quota is unlimited.
        }
    }

    /// Raises the alarm NOSPACE for this member: all members reject puts until the alarm is disarmed.
    pub async fn raise_no_space(&self) -> Result<(), ProposeError> {
        let alarm = Self::alarm(self.ids.member, AlarmType::Nospace);
        self.propose(&Caller::MEMBER, alarm).await.map(drop)
    }

    /// Raises the alarm CORRUPT for a member, which then serves no keys until the alarm is disarmed. Member
    /// 0 denotes the cluster: all members reject writes of keys and leases.
    pub async fn raise_corrupt(&self, member: u64) -> Result<(), ProposeError> {
        let alarm = self.encode(&Caller::MEMBER, Self::alarm(member, AlarmType::Corrupt))?;
        self.propose_for_member(alarm.bytes).await
    }

    fn alarm(member_id: u64, alarm: AlarmType) -> AlarmRequest {
        let action = AlarmAction::Activate as i32;
        AlarmRequest { action, member_id, alarm: alarm as i32 }
    }
}

/// Awaits a proposal and records its duration as replication time.
async fn replicated(
    proposing: impl Future<Output = Result<Outcome, raft_node::ProposeError>>,
) -> Result<Outcome, ProposeError> {
    timed(Stage::Replication, proposing).await.map_err(ProposeError::Raft)
}

async fn note_hand_over(moving: impl Future<Output = Result<(), TransferError>>) {
    match tokio::time::timeout(TRANSFER_TIMEOUT, moving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "leadership transfer failed"),
        Err(_) => tracing::warn!("leadership transfer timed out"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_with_the_header_that_etcd_gives_it() {
        for (member, bytes) in [
            (0x8e9e_05c5_2164_694d, 13),
            (0xffff_ffff_ffff_8000, 14),
            (0xffff_ffff_ffff_7fff, 13),
            (0xffff_ffff_ffff_0100, 13),
            (0xffff_ffff_ffff_00ff, 12),
            (0xffff_ffff_ffff_0001, 11),
            (0xffff_ffff_ffff_0000, 11),
        ] {
            assert_eq!(Ids { cluster: 1, member }.request_header_bytes(), bytes, "{member:x}");
        }
    }
}
