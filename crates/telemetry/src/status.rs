//! The fields of the document. Written by a member, read by `kv-server top`.

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
    /// How far that clock is from the one of the member that asked, at the least; negative if it is slow.
    /// None where this is not known.
    pub clock_off_ms: Option<i64>,
    pub version: String,
    pub etcd_version: String,
    pub name: String,
    /// Ids are in hexadecimal.
    pub id: String,
    pub cluster: String,
    /// Empty while none is known.
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
    /// Changes of the leader that this member saw in the last hour.
    pub elections_hour: u64,
    /// The slowest sync of the log in the last minute.
    pub sync_slowest_us: u64,
    /// Spans of 5 s of that minute with a sync that was too slow.
    pub syncs_slow: u64,
    /// When the quota is full, if the store grows as in the last hours.
    pub quota_full_s: Option<u64>,
    pub certificates: Vec<CertificateEnd>,
    /// The last ones, the newest first.
    pub slow_calls: Vec<SlowCall>,
    pub health: Health,
}

/// What is right or wrong, as one member sees it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    pub severity: Severity,
    /// One sentence, with the gravest reason.
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
    /// How long the link to it has been up. None of itself, and while it does not answer.
    pub linked_s: Option<u64>,
    /// How long this member has had no link to it.
    pub down_s: Option<u64>,
    /// Of the last probe of the link.
    pub round_trip_us: Option<u64>,
    /// Entries of the leader's log that it has not acknowledged. Of others, only the leader knows.
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

/// All since the start.
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
    /// Log and store bytes over these are the write amplification.
    pub command_bytes: u64,
    pub events: u64,
    pub leader_changes: u64,
    /// By this member, while it led.
    pub leases_expired: u64,
    pub snapshots_sent: u64,
    pub snapshots_received: u64,
    pub cpu_seconds: f64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Space {
    /// 0 if there is none.
    pub quota_bytes: u64,
    pub store_bytes: u64,
    pub in_use_bytes: u64,
    pub resident_bytes: u64,
    pub keys: u64,
    pub revision: u64,
    pub compact_revision: u64,
    /// Since the last compaction was finished. None if there was none since the start.
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
    /// Those that read history.
    pub lagging: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Queues {
    pub reads_running: u64,
    pub reads_waiting: u64,
    pub commands_waiting: u64,
}
