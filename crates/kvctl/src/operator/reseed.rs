//! `member reseed`: a member with a CORRUPT alarm replaces its state with the leader's, and resumes service.

use std::time::Duration;

use api::etcdserverpb::Member;
use tonic::Code;

use super::client::{ClusterLook, OperatorClient};
use super::progress::{self, RunError, StepReport, later};
use super::reseed_plan::{self, KnownCluster, ReseedRefusal, ReseedStep};

pub struct Reseeding {
    pub client: OperatorClient,
    /// Name or ID of the member.
    pub wanted: String,
    /// Member whose alarm was cleared by this run, and the message to print once the member has applied that.
    pub cleared: Option<(Member, String)>,
}

impl Reseeding {
    pub async fn run(mut self, patience: Duration) -> Result<(), RunError<ReseedRefusal>> {
        progress::run(patience, async || self.step().await).await
    }

    async fn step(&mut self) -> Result<StepReport, RunError<ReseedRefusal>> {
        if let Some((member, line)) = self.cleared.take() {
            return self.served(member, line).await;
        }
        let ClusterLook { members, answering, leader } = match self.client.look().await {
            Ok(look) => look,
            Err(status) => return later(&status, "list the members"),
        };
        let alarms = match self.client.alarms().await {
            Ok(alarms) => alarms,
            Err(status) => return later(&status, "list the alarms"),
        };
        let view = KnownCluster { members: &members, alarms: &alarms, answering: &answering, leader };
        match reseed_plan::next(&view, &self.wanted).map_err(RunError::Refused)? {
            ReseedStep::Nothing => {
                Ok(StepReport::Done(format!("no CORRUPT alarm names {}: nothing to do", self.wanted)))
            }
            ReseedStep::AwaitAnswer => {
                Ok(StepReport::Waits(format!("waiting for {} to answer", self.wanted)))
            }
            ReseedStep::AwaitLeader { leader } => Ok(StepReport::Waits(format!(
                "waiting for the leader {leader:x} to transfer leadership: an alarm CORRUPT names it too"
            ))),
            ReseedStep::Reseed(member) => self.reseed(member).await,
        }
    }

    /// Requests that the member install the leader's state, and clears the alarm once it has.
    async fn reseed(&mut self, member: &Member) -> Result<StepReport, RunError<ReseedRefusal>> {
        let (name, id) = (&self.wanted, member.id);
        // Use other endpoints for further requests: this member has stopped applying.
        self.client.avoid(member);
        match self.client.reseed(member).await {
            Ok(0) => {
                Ok(StepReport::Waits(format!("waiting for {name} ({id:x}) to receive the leader's state")))
            }
            Ok(installed) => match self.client.disarm_corrupt(id).await {
                Ok(()) => {
                    let line = format!(
                        "{name} ({id:x}) has the leader's state up to entry {installed}, and serves again"
                    );
                    self.served(member.clone(), line).await
                }
                Err(status) => later(&status, "clear the alarm"),
            },
            Err(status) if status.code() == Code::Unimplemented => {
                let line =
                    format!("{name} ({id:x}) runs a version that cannot be rebuilt: use member replace");
                Err(RunError::Call(line))
            }
            // The member has not applied the alarm yet, or another run has cleared it.
            Err(status) if status.code() == Code::FailedPrecondition => {
                Ok(StepReport::Moved(status.message().to_owned()))
            }
            Err(status) => later(&status, &format!("re-seed {name}")),
        }
    }

    /// Completes once the member has applied the cleared alarm; it may lag, and does not serve requests
    /// before. If it has no installed state, there is a new alarm.
    async fn served(&mut self, member: Member, line: String) -> Result<StepReport, RunError<ReseedRefusal>> {
        let report = match self.client.reseed(&member).await {
            Ok(0) => return Ok(StepReport::Moved(format!("a new alarm CORRUPT names {}", self.wanted))),
            Ok(_) => Ok(StepReport::Waits(format!("waiting for {} to serve again", self.wanted))),
            Err(status) if status.code() == Code::FailedPrecondition => return Ok(StepReport::Done(line)),
            Err(status) => later(&status, &format!("ask {}", self.wanted)),
        };
        self.cleared = Some((member, line));
        report
    }
}
