//! `member replace`: a new member takes the place of another one.

use std::time::Duration;

use api::etcdserverpb::Member;
use tonic::{Code, Status};

use super::client::{ClusterLook, OperatorClient};
use super::plan::{self, ReplaceRefusal, ReplaceStep, Replacement};
use super::progress::{self, RunError, StepReport, later, say};

pub struct Replacing {
    pub client: OperatorClient,
    pub wanted: Replacement,
    /// It has said how the new member is started.
    pub is_start_said: bool,
    /// The newest entry that the new member was seen to have.
    pub entry: u64,
}

impl Replacing {
    pub async fn run(mut self, patience: Duration) -> Result<(), RunError<ReplaceRefusal>> {
        progress::run(patience, async || self.step().await).await
    }

    /// Looks at the members and takes the next step.
    async fn step(&mut self) -> Result<StepReport, RunError<ReplaceRefusal>> {
        let ClusterLook { members, answering, .. } = match self.client.look().await {
            Ok(look) => look,
            Err(status) => return later(&status, "list the members"),
        };
        let name = self.wanted.new_name.clone();
        let next = plan::next(&members, &self.wanted, &|id| answering.contains(&id));
        match next.map_err(RunError::Refused)? {
            ReplaceStep::Done => {
                Ok(StepReport::Done(format!("{name} is in the place of {}", self.wanted.old)))
            }
            ReplaceStep::AwaitQuorum(refusal) => Ok(StepReport::Waits(refusal.to_string())),
            ReplaceStep::Add => match self.client.add_learner(&self.wanted.new_urls).await {
                Ok(id) => Ok(StepReport::Moved(format!("added {name} as a learner with id {id:x}"))),
                Err(status) => later(&status, "add the new member"),
            },
            ReplaceStep::AwaitStart { id } => {
                // Said here: the answer to the addition may be lost, or have been that of an earlier run.
                if !std::mem::replace(&mut self.is_start_said, true) {
                    self.start_line(&members, id);
                }
                Ok(StepReport::Waits(format!("waiting for {name} ({id:x}) to be started")))
            }
            ReplaceStep::Promote { id } => {
                // It may be promoted although the answer is lost.
                self.wanted.is_new_promoted = true;
                match self.client.promote(id).await {
                    Ok(()) => Ok(StepReport::Moved(format!("promoted {name} ({id:x})"))),
                    Err(status) => self.not_in_sync(&members, id, &status).await,
                }
            }
            ReplaceStep::Remove { id } => {
                // It may be removed although the answer is lost.
                self.wanted.is_old_removed = true;
                match self.client.remove(id).await {
                    Ok(()) => Ok(StepReport::Moved(format!("removed {} ({id:x})", self.wanted.old))),
                    // By another run.
                    Err(status) if status.code() == Code::NotFound => {
                        Ok(StepReport::Moved(format!("{} ({id:x}) is no member any more", self.wanted.old)))
                    }
                    Err(status) => later(&status, "remove the old member"),
                }
            }
        }
    }

    /// How far a learner is that could not be promoted.
    async fn not_in_sync(
        &mut self,
        members: &[Member],
        id: u64,
        status: &Status,
    ) -> Result<StepReport, RunError<ReplaceRefusal>> {
        let waits = later::<ReplaceRefusal>(status, "promote the new member")?;
        let Some(learner) = members.iter().find(|member| member.id == id) else { return Ok(waits) };
        let Some(learner) = self.client.status(learner).await else { return Ok(waits) };
        let Some(leader) = members.iter().find(|member| member.id == learner.leader) else {
            return Ok(waits);
        };
        let Some(leader) = self.client.status(leader).await else { return Ok(waits) };
        let (has, of) = (learner.raft_applied_index, leader.raft_index);
        let line = format!("waiting for {} to be in sync: entry {has} of {of}", self.wanted.new_name);
        // The leader's entries grow with every write: only what the new member has is progress.
        let is_nearer = has > self.entry;
        self.entry = has.max(self.entry);
        Ok(StepReport::Nears { line, is_nearer })
    }

    /// Says how the new member is started.
    fn start_line(&self, members: &[Member], id: u64) {
        let Replacement { new_name, new_urls, .. } = &self.wanted;
        // The new member finds the others by their URLs: any separate name will do.
        let name = |member: &Member| match member.name == *new_name || member.name.is_empty() {
            true => format!("{:x}", member.id),
            false => member.name.clone(),
        };
        let entry = |member: &Member| {
            let urls = member.peer_ur_ls.iter().map(|url| format!("{}={url}", name(member)));
            urls.collect::<Vec<_>>()
        };
        let others = members.iter().filter(|member| member.id != id);
        let mut cluster: Vec<String> = others.flat_map(entry).collect();
        cluster.extend(new_urls.iter().map(|url| format!("{new_name}={url}")));
        say(&format!(
            "start it now, with an empty data directory: kv-server --name {new_name} --initial-advertise-peer-urls {} \
             --initial-cluster {} --initial-cluster-state existing … (its id is {id:x})",
            new_urls.join(","),
            cluster.join(",")
        ));
    }
}
