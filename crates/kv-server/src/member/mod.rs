//! This member: the replicated state machine over its store, and the handle through which services use it.

mod checkpointer; // checkpoints and compaction, on a separate thread
mod received_snapshot; // a store that the leader sends

mod apply; // where the log meets the store
mod leader_loss; // for streams that ask for a leader
mod watching; // the thread of the watch hub

mod roster; // the members, for those who talk to them

mod fence; // keeps a corrupt member from serving
mod hasher; // hashes of its history

mod handle; // this member, as the services see it

mod lease_clock; // time for leases, on the leader

mod auto_compaction; // compactions without a client

mod corruption; // hashes that are compared between members

mod raising; // the level of commands, by the leader

mod gauges; // its metrics that are read when asked for

pub(crate) use apply::Apply;
pub(crate) use auto_compaction::start as start_auto_compaction;
pub(crate) use checkpointer::{Checkpoints, StoreThread};
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
