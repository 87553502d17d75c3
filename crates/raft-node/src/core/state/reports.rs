//! What the other members have reported to this leader of their states.
//!
//! A member reports with each acknowledgement and each answer to a heartbeat. So a leader that knows the log
//! of a member has a report as well, unless the member is of a version that makes none. A report becomes old:
//! a member that was not heard of for some time may have lost its disk.

use std::collections::BTreeMap;

use crate::types::{LogIndex, NodeId};

struct AppliedReport {
    applied: LogIndex,
    ticks_left: u32,
}

#[derive(Default)]
pub(crate) struct Reports(BTreeMap<NodeId, AppliedReport>);

impl Reports {
    /// `applied`: 0 of a member without a state. It holds for so many ticks.
    pub fn note(&mut self, member: NodeId, applied: LogIndex, ticks: u32) {
        self.0.insert(member, AppliedReport { applied, ticks_left: ticks });
    }

    pub fn forget(&mut self, member: NodeId) {
        self.0.remove(&member);
    }

    /// What the member has applied, 0 if its report is old. None if it has made none.
    pub fn applied(&self, member: NodeId) -> Option<LogIndex> {
        let report = self.0.get(&member)?;
        Some(if report.ticks_left > 0 { report.applied } else { LogIndex::ZERO })
    }

    pub fn tick(&mut self) {
        self.0.values_mut().for_each(|report| report.ticks_left = report.ticks_left.saturating_sub(1));
    }

    pub fn retain(&mut self, keeps: impl Fn(NodeId) -> bool) {
        self.0.retain(|member, _| keeps(*member));
    }
}
