//! The member: its replicated state machine and store, and the handle that the services use.

mod checkpointer; // checkpoints and compaction, on a separate thread
mod received_snapshot; // receives the leader's store

mod apply; // applies log entries to the store
mod leader_loss; // loss of the leader, for streams that require one
mod watching; // the watch hub's thread

mod roster; // current members, for communication with peers

mod fence; // stops a corrupt member from serving
mod hasher; // hashes of the history

mod command; // commands with the types of their responses
mod handle; // the member's handle for services

mod lease_clock; // lease expiry and renewal on the leader

mod auto_compaction; // periodic compaction

mod corruption; // comparison of state between members

mod raising; // raises the command level on the leader

mod gauges; // metrics that are computed on scrape

pub(crate) use apply::Apply;
pub(crate) use auto_compaction::start as start_auto_compaction;
pub(crate) use checkpointer::{Checkpoints, StoreThread};
pub(crate) use command::{Command, response_of};
pub(crate) use corruption::{
    Differs, compare_at_start, give_up_leadership, start as start_corruption_checks,
};
pub(crate) use fence::Fence;
pub(crate) use gauges::Gauges;
pub(crate) use handle::{Ids, Member, ProposeError};
pub(crate) use hasher::Hasher;
pub(crate) use leader_loss::LeaderLoss;
pub(crate) use lease_clock::{ClockAnchor, LeaderLeases, LeaseError, run as run_lease_clock};
pub(crate) use raising::start as start_raising_level;
#[cfg(test)]
pub(crate) use received_snapshot::StagingPlace;
pub(crate) use received_snapshot::{ReceiveError, ReceivePlace, StagingDirectory};
pub(crate) use roster::{
    AnnouncedMembers, AskedDigest, AskedFigures, AskedHash, AskedLevels, AskedRecount, Figures,
    FiguresSource, ProgressAnswer,
};
pub(crate) use roster::{Reach, Roster, Standing, entries};
#[cfg(test)]
pub(crate) use watching::Watching;
pub(crate) use watching::{WatchRequest, WatchStopped, WatchStream, WatchThread};
