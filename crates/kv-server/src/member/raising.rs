//! The leader raises the cluster's level of commands when all members have announced a higher one.
//!
//! A member that is listed and does not answer holds it back: it may come back as an older version.

use std::sync::Arc;
use std::time::Duration;

use state_machine::command::{self, Kind};
use state_machine::{CommandLevel, level};
use tokio::time::{MissedTickBehavior, interval};

use super::handle::{Member, ProposeError};
use process::log::causes;
use process::shutdown::Stop;

/// Between two looks. Members announce their level at each connect, and every five seconds.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Runs until the cluster has this version's level, or until `stop`.
pub(crate) fn start(member: &Arc<Member>, stop: &Stop) {
    let (member, stop) = (Arc::clone(member), stop.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = raise_to_own(&member) => {}
            () = stop.stopped() => {}
        }
    });
}

async fn raise_to_own(member: &Member) {
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while member.level.get() < CommandLevel::OWN {
        looks.tick().await;
        if member.status().leader != Some(member.ids.member) {
            continue;
        }
        let Some(raise) = next(member) else { continue };
        match member.propose_for_member(command::encode(raise)).await {
            Ok(_) => tracing::info!(level = member.level.get().0, "raised the cluster's level of commands"),
            // A member was added meanwhile.
            Err(ProposeError::Refused(_)) => {}
            Err(error) => tracing::debug!(error = causes(&error), "the level of commands was not raised"),
        }
    }
}

fn next(member: &Member) -> Option<Kind> {
    let announced = |id| match id == member.ids.member {
        true => Some(CommandLevel::OWN),
        false => member.reach.announced(id),
    };
    // A list that cannot be read ends the member where it is read to apply.
    level::raise(member.level.get(), &member.members().ok()?, announced)
}
