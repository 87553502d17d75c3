//! A member: the production code, on disks that survive crashes.

mod store_disk; // the disk under a store

mod lease_tasks; // what a leader's tasks for leases wait for
mod leasing; // what it holds for leases
mod machine; // the replicated store, watched
mod roster; // whom it talks to
mod watching; // the watch hub

mod site; // one member and its disks

mod decay; // what its log disk confirmed and does not keep
mod start; // how it comes up

pub(crate) use lease_tasks::{LeaseEvent, LeaseTasks, Question, TaskResult, Then, is_task};
pub(crate) use leasing::{BootClock, Leasing};
pub(crate) use machine::{SharedTruth, membership_in};
pub(crate) use roster::{MemberStanding, is_in, peer_url};
pub(crate) use site::{
    Clock, CommandRoute, DiskDelay, Job, LocalDone, LocalTurn, MemberError, MemberStage, SimMember,
    StartKnowledge,
};
pub(crate) use store_disk::StoreDisk;
pub(crate) use watching::MemberHub;
