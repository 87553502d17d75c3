//! When members compare their hashes: `--corrupt-check-time`, `--compact-hash-check-time`, and two feature
//! gates.

use std::time::Duration;

use super::flags::{Flags, is_gate_on};

/// The checks that are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorruptionChecks {
    /// Whether this member compares its hash with others before it takes part.
    pub at_start: bool,
    /// Time between two comparisons of the newest state, by the leader.
    pub interval: Option<Duration>,
    /// Time between two comparisons of the hashes of compactions, by the leader.
    pub compaction_interval: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--compact-hash-check-time must be >0 (set to 0s)")]
pub struct InvalidInterval;

/// The checks of a command line.
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
