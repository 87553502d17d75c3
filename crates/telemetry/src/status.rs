//! The fields of the status document. Written by a member, read by `kvctl top`.

use serde::{Deserialize, Serialize};

use crate::metrics::{CallCounts, SlowCall};
use crate::usage::Rows;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Document {
    /// Milliseconds since the start of the process.
    pub uptime_ms: u64,
    /// Milliseconds since the epoch, by the clock of the member.
    pub now_ms: u64,
    /// Minimum difference of that clock to the clock of the requesting member; negative if it is slow. None
    /// if unknown.
    pub clock_off_ms: Option<i64>,
    pub version: String,
    pub etcd_version: String,
    pub name: String,
    /// Hexadecimal, like all ids.
    pub id: String,
    pub cluster: String,
    /// Empty while unknown.
    pub leader: String,
    /// leader, follower, candidate or learner.
    pub role: String,
    pub members: Vec<MemberStatus>,
    pub raft: RaftStatus,
    pub counters: Counters,
    pub calls: Vec<CallCounts>,
    pub space: Space,
    pub alarms: Vec<Alarm>,
    pub watch: WatchStatus,
    pub leases: u64,
    pub queues: Queues,
    /// None without `--metrics-top`.
    pub top: Option<Rows>,
    /// Leader changes that this member saw in the last hour.
    pub elections_hour: u64,
    /// The slowest sync of the log in the last minute.
    pub sync_slowest_us: u64,
    /// Spans of 5 s of that minute with a sync that was too slow.
    pub syncs_slow: u64,
    /// Time until the quota is reached at the growth of the last hours.
    pub quota_full_s: Option<u64>,
    pub certificates: Vec<CertificateEnd>,
    /// The most recent slow calls, latest first.
    pub slow_calls: Vec<SlowCall>,
    pub health: Health,
}

/// The health of the cluster, as seen by one member.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    pub severity: Severity,
    /// One sentence with the most severe reason.
    pub text: String,
    pub findings: Vec<Finding>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    #[default]
    Good,
    Warn,
    Bad,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Finding {
    pub severity: Severity,
    pub text: String,
    pub todo: String,
    /// A heading of docs/operate/troubleshoot.md.
    pub see: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CertificateEnd {
    pub port: String,
    /// Seconds left; negative once it has expired.
    pub ends_s: i64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberStatus {
    pub id: String,
    pub name: String,
    pub is_self: bool,
    pub is_leader: bool,
    pub is_learner: bool,
    /// Age of the link to it. None for the member itself, and while it is unreachable.
    pub linked_s: Option<u64>,
    /// Time since this member lost its link to it.
    pub down_s: Option<u64>,
    /// Result of the last probe of the link.
    pub round_trip_us: Option<u64>,
    /// Entries of the leader's log that it has not acknowledged. Known for all members only by the leader.
    pub lag: Option<u64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RaftStatus {
    pub term: u64,
    pub commit: u64,
    pub applied: u64,
    pub last_index: u64,
    pub proposals_pending: u64,
}

/// Counters since the start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    pub puts: u64,
    pub deletes: u64,
    pub ranges: u64,
    pub txns: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    pub log_bytes: u64,
    pub store_bytes: u64,
    /// Bytes of commands. Log and store bytes divided by these are the write amplification.
    pub command_bytes: u64,
    pub events: u64,
    pub leader_changes: u64,
    /// Leases expired by this member while it was the leader.
    pub leases_expired: u64,
    pub snapshots_sent: u64,
    pub snapshots_received: u64,
    pub cpu_seconds: f64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Space {
    /// 0 if there is no quota.
    pub quota_bytes: u64,
    pub store_bytes: u64,
    pub in_use_bytes: u64,
    pub resident_bytes: u64,
    pub keys: u64,
    pub revision: u64,
    pub compact_revision: u64,
    /// Time since the last compaction finished. None if there was none since the start.
    pub compacted_s: Option<u64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Alarm {
    pub member: String,
    pub alarm: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WatchStatus {
    pub streams: u64,
    pub watchers: u64,
    /// Watchers that read history.
    pub lagging: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Queues {
    pub reads_running: u64,
    pub reads_waiting: u64,
    pub commands_waiting: u64,
}
