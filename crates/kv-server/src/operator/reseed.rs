//! `member reseed`: a member that an alarm CORRUPT names takes over the leader's state, and serves again.

use std::time::Duration;

use api::etcdserverpb::Member;
use tonic::{Code, Status};

use super::client::{Client, may_pass};
use super::progress::{Said, say};
use super::reseed_plan::{self, Cluster, Refusal, Step};

/// Between two looks at the member.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Why a re-seeding ended early.
#[derive(Debug, thiserror::Error)]
pub enum ReseedError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("{0}")]
    Call(String),
    #[error("no progress within {seconds} s: {reason}. Run again to go on")]
    Stuck { seconds: u64, reason: String },
}

pub struct Reseeding {
    pub client: Client,
    /// Name or id of the member.
    pub wanted: String,
    /// Time without progress after which the command gives up.
    pub patience: Duration,
}

/// What a look at the cluster led to.
enum Stepped {
    Moved(String),
    Waits(String),
    Done(String),
}

impl Reseeding {
    pub async fn run(mut self) -> Result<(), ReseedError> {
        let mut said = Said::new();
        loop {
            match self.step().await? {
                Stepped::Done(line) => {
                    say(&line);
                    return Ok(());
                }
                Stepped::Moved(line) => said.line(line, true),
                Stepped::Waits(line) => said.line(line, false),
            }
            if said.without_progress() >= self.patience {
                let (seconds, reason) = (self.patience.as_secs(), said.last());
                return Err(ReseedError::Stuck { seconds, reason });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn step(&mut self) -> Result<Stepped, ReseedError> {
        let members = match self.client.members().await {
            Ok(members) => members,
            Err(status) => return later(&status, "list the members"),
        };
        self.client.add_endpoints(&members);
        let alarms = match self.client.alarms().await {
            Ok(alarms) => alarms,
            Err(status) => return later(&status, "list the alarms"),
        };
        let (mut answering, mut leader) = (Vec::new(), 0);
        for member in &members {
            if let Some(status) = self.client.status(member).await {
                answering.push(member.id);
                leader = if status.leader == 0 { leader } else { status.leader };
            }
        }
        let view = Cluster { members: &members, alarms: &alarms, answering: &answering, leader };
        match reseed_plan::next(&view, &self.wanted)? {
            Step::Nothing => {
                Ok(Stepped::Done(format!("no alarm CORRUPT names {}: there is nothing to do", self.wanted)))
            }
            Step::AwaitAnswer => Ok(Stepped::Waits(format!("waiting for {} to answer", self.wanted))),
            Step::Reseed(member) => self.reseed(member).await,
        }
    }

    /// Asks the member to take over the leader's state, and clears the alarm once it has.
    async fn reseed(&mut self, member: &Member) -> Result<Stepped, ReseedError> {
        let (name, id) = (&self.wanted, member.id);
        // What the cluster is asked meanwhile is asked of others: this member applies nothing.
        self.client.avoid(member);
        match self.client.reseed(member).await {
            Ok(0) => Ok(Stepped::Waits(format!("waiting for {name} ({id:x}) to get the leader's state"))),
            Ok(installed) => match self.client.disarm_corrupt(id).await {
                Ok(()) => {
                    let line = format!(
                        "{name} ({id:x}) has the leader's state up to entry {installed}, and serves again"
                    );
                    Ok(Stepped::Done(line))
                }
                Err(status) => later(&status, "clear the alarm"),
            },
            Err(status) if status.code() == Code::Unimplemented => {
                let line =
                    format!("{name} ({id:x}) is of a version that cannot be re-seeded: use member replace");
                Err(ReseedError::Call(line))
            }
            // The alarm is known here and not there yet, or is cleared by another run.
            Err(status) if status.code() == Code::FailedPrecondition => {
                Ok(Stepped::Moved(status.message().to_owned()))
            }
            Err(status) => later(&status, &format!("re-seed {name}")),
        }
    }
}

/// The line of a call that may succeed later; otherwise the end.
fn later(status: &Status, action: &str) -> Result<Stepped, ReseedError> {
    let line = format!("{action}: {}", status.message());
    if may_pass(status) { Ok(Stepped::Waits(line)) } else { Err(ReseedError::Call(line)) }
}
