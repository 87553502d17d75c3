//! `member replace`: replaces a member by a new one.

use std::time::{Duration, Instant};

use api::etcdserverpb::Member;
use tonic::{Code, Status};

use super::client::{ClusterLook, OperatorClient};
use super::plan::{self, ReplaceRefusal, ReplaceStep, Replacement};
use super::progress::{self, RunError, StepReport, later, say};
use super::start_command;

pub struct Replacing {
    client: OperatorClient,
    wanted: Replacement,
    /// Time for which an old member is silent before it is removed.
    grace: Duration,
    is_dry_run: bool,
    is_plan_printed: bool,
    /// The start of the silence of the old member, while it lasts.
    silent_since: Option<Instant>,
    /// The old member when it was last listed: the new one is started with its client URLs.
    old: Option<Member>,
    /// True once the start command of the new member was printed.
    is_start_said: bool,
    /// Highest entry that the new member was seen to have.
    entry: u64,
}

impl Replacing {
    pub fn new(client: OperatorClient, wanted: Replacement, grace: Duration, is_dry_run: bool) -> Replacing {
        Replacing {
            client,
            wanted,
            grace,
            is_dry_run,
            is_plan_printed: false,
            silent_since: None,
            old: None,
            is_start_said: false,
            entry: 0,
        }
    }

    pub async fn run(mut self, patience: Duration) -> Result<(), RunError<ReplaceRefusal>> {
        progress::run(patience, async || self.step().await).await
    }

    /// Looks at the members and takes the next step.
    async fn step(&mut self) -> Result<StepReport, RunError<ReplaceRefusal>> {
        let ClusterLook { members, answering, .. } = match self.client.look().await {
            Ok(look) => look,
            Err(status) => return later(&status, "list the members"),
        };
        let next = plan::next(&members, &self.wanted, &|id| answering.contains(&id));
        let next = next.map_err(RunError::Refused)?;
        if !std::mem::replace(&mut self.is_plan_printed, true) {
            say(&plan::shown(&next, &self.wanted, self.grace.as_secs()));
        }
        if self.is_dry_run {
            return Ok(StepReport::Done("no change was made".to_owned()));
        }
        let old = plan::old(&members, &self.wanted).ok().flatten();
        self.old = old.cloned().or_else(|| self.old.take());
        self.take(next, &members).await
    }

    async fn take(
        &mut self,
        next: ReplaceStep,
        members: &[Member],
    ) -> Result<StepReport, RunError<ReplaceRefusal>> {
        let name = self.wanted.new_name.clone();
        if !matches!(next, ReplaceStep::RemoveSilent { .. }) {
            self.silent_since = None;
        }
        match next {
            ReplaceStep::Done => Ok(StepReport::Done(format!("{name} replaced {}", self.wanted.old))),
            ReplaceStep::AwaitQuorum(refusal) => Ok(StepReport::Waits(refusal.to_string())),
            ReplaceStep::Add => match self.client.add_learner(&self.wanted.new_urls).await {
                Ok(id) => Ok(StepReport::Moved(format!("added {name} as a learner with id {id:x}"))),
                Err(status) => later(&status, "add the new member"),
            },
            ReplaceStep::AwaitStart { id } => {
                // Printed here: the response to the addition may be lost, or an earlier run added it.
                if !std::mem::replace(&mut self.is_start_said, true) {
                    say(&start_command::of(&self.wanted, members, id, self.old.as_ref()));
                }
                Ok(StepReport::Waits(format!("waiting for {name} ({id:x}) to be started")))
            }
            ReplaceStep::Promote { id } => {
                // The promotion may have succeeded although its response is lost.
                self.wanted.is_new_promoted = true;
                match self.client.promote(id).await {
                    Ok(()) => Ok(StepReport::Moved(format!("promoted {name} ({id:x})"))),
                    Err(status) => self.not_in_sync(members, id, &status).await,
                }
            }
            ReplaceStep::RemoveSilent { id } => {
                let silence = self.silent_since.get_or_insert_with(Instant::now).elapsed();
                match self.grace.checked_sub(silence).filter(|left| !left.is_zero()) {
                    Some(left) => Ok(StepReport::Nears {
                        line: format!(
                            "{} ({id:x}) is unreachable: it is removed in {} s, unless it responds",
                            self.wanted.old,
                            left.as_secs() + 1
                        ),
                        is_nearer: false,
                    }),
                    None => self.remove(id).await,
                }
            }
            ReplaceStep::Remove { id } => self.remove(id).await,
        }
    }

    async fn remove(&mut self, id: u64) -> Result<StepReport, RunError<ReplaceRefusal>> {
        // The removal may have succeeded although its response is lost.
        self.wanted.is_old_removed = true;
        match self.client.remove(id).await {
            Ok(()) => Ok(StepReport::Moved(format!("removed {} ({id:x})", self.wanted.old))),
            // By another run.
            Err(status) if status.code() == Code::NotFound => {
                Ok(StepReport::Moved(format!("{} ({id:x}) is no longer a member", self.wanted.old)))
            }
            Err(status) => later(&status, "remove the old member"),
        }
    }

    /// Reports the progress of a learner that could not be promoted.
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
        // The leader's entries grow with every write: only the new member's index shows progress.
        let is_nearer = has > self.entry;
        self.entry = has.max(self.entry);
        Ok(StepReport::Nears { line, is_nearer })
    }
}
