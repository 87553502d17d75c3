//! Cluster: membership and its changes.
//!
//! * This member checks whether a change is safe (`checks`). The state machine checks whether it is valid.
//! * Only the leader knows which members are in sync; all other members request that from it.

mod checks; // safety checks of membership changes

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::Error;
use api::etcdserverpb::cluster_server::Cluster as ClusterMethods;
use api::etcdserverpb::{
    Member as MemberEntry, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
    MemberUpdateRequest, MemberUpdateResponse,
};
use futures_util::future::join_all;
use raft_node::Progress;
use state_machine::command::{Change, MemberAdd, MemberUpdate};
use tonic::{Request, Response, Status};

use self::checks::MembersView;
use super::guard::ServedCall;
use ::auth::Requester;
use config::Urls;
use data_dir::added_member_id;
use telemetry::metrics::Reason;

/// A learner reports its progress with its next heartbeat response, so a learner that has just caught up
/// can be promoted, as in etcd. A learner with a log far from the leader's is rejected immediately.
const REPORT_TIMEOUT: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The methods of the service, for one call.
pub struct ClusterCalls(pub ServedCall);

impl ClusterCalls {
    /// Rejects the id of an unknown member.
    fn check_known(&self, id: u64) -> Result<(), Status> {
        let members = self.0.member.members().map_err(grpc_errors::record)?;
        let is_known = members.iter().any(|member| member.id == id);
        if is_known { Ok(()) } else { Err(grpc_errors::refused(Error::MemberNotFound)) }
    }

    /// Rejects an unsafe change, if this member is configured to check.
    async fn judge(&self, check: impl FnOnce(&MembersView<'_>) -> Result<(), Error>) -> Result<(), Status> {
        if !self.0.member.reconfiguration.is_strict {
            return Ok(());
        }
        let members = self.0.member.members().map_err(grpc_errors::record)?;
        let out_of_sync = self.out_of_sync(&members).await?;
        let now = Instant::now();
        let active_for =
            |id| self.0.member.reach.active_since(id).map(|since| now.saturating_duration_since(since));
        let view = MembersView {
            members: &members,
            own: self.0.member.ids.member,
            active_for: &active_for,
            out_of_sync: &out_of_sync,
        };
        check(&view).map_err(grpc_errors::refused)
    }

    async fn out_of_sync(&self, members: &[MemberEntry]) -> Result<Vec<u64>, Status> {
        let voters = members.iter().filter(|member| !member.is_learner);
        let asked = voters.map(async |member| (member.id, self.progress_of(member.id).await));
        out_of_sync(join_all(asked).await)
    }

    /// Proposes the change and returns all members after it.
    async fn change(&self, requester: &Requester, change: Change) -> Result<Vec<MemberEntry>, Status> {
        let caller = self.0.member.caller(requester).await?;
        Ok(self.0.member.propose_change(&caller, change).await?)
    }

    async fn promote(&self, requester: &Requester, id: u64) -> Result<Vec<MemberEntry>, Status> {
        self.check_known(id)?;
        let began = Instant::now();
        loop {
            let progress = self.progress_of(id).await?;
            if progress.is_in_sync() {
                break;
            }
            if !progress.has_log() || began.elapsed() > REPORT_TIMEOUT {
                return Err(grpc_errors::refused(Error::LearnerNotReady));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.judge(checks::may_promote).await?;
        self.change(requester, Change::Promote(id)).await
    }

    /// Returns the progress of a member as the leader knows it.
    async fn progress_of(&self, id: u64) -> Result<Progress, Status> {
        let member = &self.0.member;
        let leader = member.status().leader.ok_or_else(|| grpc_errors::refused(Error::NoLeader))?;
        let progress = if leader == member.ids.member {
            member.raft.progress_of(id).await
        } else {
            member.reach.ask_progress(leader, id).await
        };
        progress.ok_or_else(|| grpc_errors::refused(Error::Timeout))
    }
}

/// Returns the voters that are not in sync according to the leader; unknown voters count, since they may
/// have no state. Fails if the progress of all voters is unknown.
fn out_of_sync(answers: Vec<(u64, Result<Progress, Status>)>) -> Result<Vec<u64>, Status> {
    let in_sync = |answer: &Result<Progress, Status>| answer.as_ref().is_ok_and(Progress::is_in_sync);
    let found = answers.iter().filter(|(_, answer)| !in_sync(answer)).map(|(id, _)| *id).collect();
    match answers.into_iter().map(|(_, answer)| answer).reduce(Result::or) {
        Some(Err(error)) => Err(error),
        Some(Ok(_)) | None => Ok(found),
    }
}

fn peer_urls(texts: &[String]) -> Result<Vec<String>, Status> {
    let bad = || grpc_errors::refused(Error::MemberBadURLs);
    let urls = Urls::collect(texts.iter().map(String::as_str)).map_err(|_| bad())?;
    let can_be_dialled = urls.iter().all(|url| !url.host().is_empty());
    if can_be_dialled { Ok(urls.texts()) } else { Err(bad()) }
}

#[tonic::async_trait]
impl ClusterMethods for ClusterCalls {
    async fn member_list(
        &self,
        request: Request<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        if request.get_ref().linearizable {
            self.0.member.read_point().await.map_err(grpc_errors::read_point)?;
        }
        let members = self.0.member.members().map_err(grpc_errors::record)?;
        Ok(Response::new(MemberListResponse { header: self.0.member.header_without_revision(), members }))
    }

    async fn member_add(
        &self,
        request: Request<MemberAddRequest>,
    ) -> Result<Response<MemberAddResponse>, Status> {
        let (requester, MemberAddRequest { peer_ur_ls, is_learner }) = self.0.parts(request);
        let peer_urls = peer_urls(&peer_ur_ls)?;
        self.judge(|view| checks::may_add(view, is_learner)).await?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let id = added_member_id(peer_urls.iter().map(String::as_str), now);
        let learners_max = self.0.member.reconfiguration.learners_max;
        let members = self
            .change(requester, Change::Add(MemberAdd { id, peer_urls, is_learner, learners_max }))
            .await?;
        let member = members.iter().find(|member| member.id == id).cloned();
        Ok(Response::new(MemberAddResponse {
            header: self.0.member.header_without_revision(),
            member,
            members,
        }))
    }

    async fn member_remove(
        &self,
        request: Request<MemberRemoveRequest>,
    ) -> Result<Response<MemberRemoveResponse>, Status> {
        let (requester, request) = self.0.parts(request);
        let id = request.id;
        self.judge(|view| checks::may_remove(view, id)).await?;
        // A removed member may learn of its removal only from its peers' rejections.
        let is_own = id == self.0.member.ids.member && !self.0.member.roster.is_removed();
        let members = tokio::select! {
            biased;
            changed = self.change(requester, Change::Remove(id)) => changed?,
            () = self.0.member.roster.removed(), if is_own => {
                let mut members = self.0.member.members().map_err(grpc_errors::record)?;
                members.retain(|member| member.id != id);
                members
            }
        };
        Ok(Response::new(MemberRemoveResponse { header: self.0.member.header_without_revision(), members }))
    }

    async fn member_update(
        &self,
        request: Request<MemberUpdateRequest>,
    ) -> Result<Response<MemberUpdateResponse>, Status> {
        let (requester, MemberUpdateRequest { id, peer_ur_ls }) = self.0.parts(request);
        let peer_urls = match peer_urls(&peer_ur_ls) {
            Ok(peer_urls) => peer_urls,
            // Otherwise the change itself reports it: this member may not have applied a recent addition.
            Err(bad) => return Err(self.check_known(id).err().unwrap_or(bad)),
        };
        let members = self.change(requester, Change::Update(MemberUpdate { id, peer_urls })).await?;
        Ok(Response::new(MemberUpdateResponse { header: self.0.member.header_without_revision(), members }))
    }

    async fn member_promote(
        &self,
        request: Request<MemberPromoteRequest>,
    ) -> Result<Response<MemberPromoteResponse>, Status> {
        let (requester, request) = self.0.parts(request);
        let promotions = &self.0.member.metrics.promotions;
        match self.promote(requester, request.id).await {
            Ok(members) => {
                promotions.successes.inc();
                let header = self.0.member.header_without_revision();
                Ok(Response::new(MemberPromoteResponse { header, members }))
            }
            Err(status) => {
                let reason = Reason { Reason: status.message().to_owned() };
                promotions.failures.get_or_create(&reason).inc();
                Err(status)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use raft_node::LogIndex;

    use super::*;

    #[test]
    fn a_voter_without_an_answer_is_not_in_sync() {
        let at = |applied| {
            let [matched, last_index] = [LogIndex(1_000_000); 2];
            Ok(Progress { matched, applied: LogIndex(applied), last_index })
        };
        let lost = || Err(Status::unavailable("lost"));
        let found = |answers: Vec<Result<Progress, Status>>| out_of_sync((1..).zip(answers).collect()).ok();
        assert_eq!(found(vec![at(1_000_000), at(0), at(1_000_000)]), Some(vec![2]));
        assert_eq!(found(vec![at(1_000_000), lost(), at(0)]), Some(vec![2, 3]));
        assert_eq!(found(vec![lost(), lost()]), None);
        assert_eq!(found(vec![]), Some(vec![]));
    }
}
