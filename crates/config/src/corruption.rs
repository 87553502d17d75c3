//! Settings of the corruption checks: `--corrupt-check-time`, `--compact-hash-check-time`, and two feature
//! gates.

use std::time::Duration;

use super::flags::{Flags, is_gate_on};

/// Enabled checks and their intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorruptionChecks {
    /// True if this member compares its hash with its peers before it participates in the cluster.
    pub at_start: bool,
    /// Interval at which the leader compares hashes of the latest revision.
    pub interval: Option<Duration>,
    /// Interval at which the leader compares compaction hashes.
    pub compaction_interval: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--compact-hash-check-time must be >0 (set to 0s)")]
pub struct InvalidInterval;

/// Builds the settings from flags and feature gates.
pub fn of(flags: &Flags) -> Result<CorruptionChecks, InvalidInterval> {
    let compaction_interval = flags.compact_hash_check_time;
    if compaction_interval.is_zero() {
        return Err(InvalidInterval);
    }
    let gates = flags.feature_gates.as_deref().unwrap_or_default();
    Ok(CorruptionChecks {
        at_start: is_gate_on(gates, "InitialCorruptCheck"),
        interval: Some(flags.corrupt_check_time).filter(|interval| !interval.is_zero()),
        compaction_interval: is_gate_on(gates, "CompactHashCheck").then_some(compaction_interval),
    })
}
