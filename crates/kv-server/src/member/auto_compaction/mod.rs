//! Automatic compaction, by `--auto-compaction-mode` and `--auto-compaction-retention`.
//!
//! Every member samples the revision, so that a new leader has the history. Only the leader proposes. A
//! failed compaction is retried at the next interval. While auth is enabled, it is proposed as root.

mod schedule; // time and revision of compactions

use std::sync::Arc;

use api::etcdserverpb::CompactionRequest;
use state_machine::ROOT;
use state_machine::command::{self, Kind};
use tokio::time::{MissedTickBehavior, interval};

use super::handle::{Member, ProposeError};
use config::Retention;
use process::log::causes;
use process::shutdown::Stop;
use schedule::Schedule;

/// Starts automatic compaction if `retention` is set. It runs until `stop`.
pub(crate) fn start(member: &Arc<Member>, retention: Option<Retention>, stop: &Stop) {
    if let Some(retention) = retention {
        tokio::spawn(run(Arc::clone(member), retention, stop.clone()));
    }
}

async fn run(member: Arc<Member>, retention: Retention, stop: Stop) {
    let mut schedule = Schedule::new(retention);
    let mut turns = interval(schedule.interval());
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    turns.tick().await; // The first tick completes immediately.
    loop {
        schedule.sample(member.store.revision());
        tokio::select! {
            _ = turns.tick() => {}
            () = stop.stopped() => return,
        }
        let due = schedule.turn(member.store.revision());
        // The revision of a fenced member may be wrong.
        let decides = member.status().leader == Some(member.ids.member) && !member.fence.is_up();
        if let Some(revision) = due.filter(|_| decides) {
            tracing::info!(revision, ?retention, "starting auto compaction");
            match compact(&member, revision).await {
                Ok(()) => {
                    tracing::info!(revision, ?retention, "completed auto compaction");
                    schedule.done(revision);
                }
                Err(error) => tracing::warn!(revision, error = causes(&error), "failed auto compaction"),
            }
        }
    }
}

async fn compact(member: &Member, revision: i64) -> Result<(), ProposeError> {
    let request = CompactionRequest { revision, physical: false };
    let permissions = &member.auth.table;
    let caller = permissions.is_enabled().then(|| (ROOT, permissions.revision()));
    match member.propose_for_member(command::encode_for(Kind::Compact(request), caller)).await {
        Ok(()) | Err(ProposeError::Refused(api::Error::Compacted)) => Ok(()),
        Err(error) => Err(error),
    }
}
