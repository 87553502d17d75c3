//! This member, as the services see it: where to propose, where to read, who is asked, what is allowed.
//!
//! * Built once by `node` and shared by every connection; nothing in it is ever replaced.
//! * Whoever writes goes through [`Member::propose`]; whoever must not read the past calls
//!   [`Member::read_point`] first.
//!
//! One put: the command is encoded once, no lock is taken here.

use std::sync::Arc;

use api::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmType, Member as MemberEntry, alarm_request::AlarmAction,
};
use mvcc::Store;
use raft_node::{Handle, ReadError, Status};
use state_machine::command::{self, Kind};
use state_machine::{Outcome, Response};
use tokio::sync::Semaphore;

use crate::metrics::Metrics;
use crate::settings::Limits;
use crate::store_thread::Checkpoints;

/// Everything that a service may touch.
pub struct Member {
    pub raft: Handle<Outcome>,
    pub store: Store,
    pub ids: Ids,
    pub limits: Limits,
    pub metrics: Arc<Metrics>,
    /// The store's thread: how far physical compaction is, and what can be asked of it.
    pub checkpoints: Checkpoints,
    /// Turns of large ranges; the service of them says how many there are.
    pub large_ranges: Arc<Semaphore>,
}

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    pub cluster: u64,
    pub member: u64,
}

/// Why a command has no response.
#[derive(Debug, thiserror::Error)]
pub enum ProposeError {
    #[error("refused")]
    Refused(#[source] api::Error),
    #[error("not replicated")]
    Raft(#[source] raft_node::ProposeError),
}

impl Member {
    /// Replicates a command and returns its response once it was applied here.
    pub async fn propose(&self, kind: Kind) -> Result<Response, ProposeError> {
        let command = command::encode(kind);
        if command.len() > self.limits.request_bytes_max {
            return Err(ProposeError::Refused(api::Error::RequestTooLarge));
        }
        let outcome = self.raft.propose(command).await.map_err(ProposeError::Raft)?;
        outcome.map_err(ProposeError::Refused)
    }

    /// Waits until this member has applied everything that was committed when the call began.
    pub async fn read_point(&self) -> Result<(), ReadError> {
        self.raft.read_point().await.map(drop)
    }

    /// The member's Raft gauges.
    pub fn status(&self) -> Status {
        self.raft.status()
    }

    /// The cluster's active alarms as applied here.
    pub fn alarms(&self) -> Result<Vec<AlarmMember>, state_machine::Fatal> {
        state_machine::active_alarms(&self.store)
    }

    /// The cluster's members as applied here, by id.
    pub fn members(&self) -> Result<Vec<MemberEntry>, state_machine::Fatal> {
        state_machine::members(&self.store)
    }

    /// True if something of `cost` bytes may still be stored. A request that stores nothing always may.
    pub fn has_room(&self, cost: u64) -> bool {
        match u64::try_from(self.limits.quota_bytes) {
            Ok(quota) => cost == 0 || self.store.size().allocated.saturating_add(cost) < quota,
            Err(_) => true, // A negative quota means none.
        }
    }

    /// Tells the whole cluster that this member is full: no member stores anything until the alarm is cleared.
    pub async fn raise_no_space(&self) -> Result<(), ProposeError> {
        let request = AlarmRequest {
            action: AlarmAction::Activate as i32,
            member_id: self.ids.member,
            alarm: AlarmType::Nospace as i32,
        };
        self.propose(Kind::Alarm(request)).await.map(drop)
    }
}
