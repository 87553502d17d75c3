//! Flags of the commands that measure watchers, leases and transactions.

use super::go;
use super::sending::{Reporting, Sending, Writing};
use clap::Args;
use std::time::Duration;

/// Flags of `watch`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Load")]
pub struct WatchFlags {
    /// Watch streams
    #[arg(long, default_value_t = 10)]
    pub streams: usize,
    /// Watchers on each stream
    #[arg(long, default_value_t = 100)]
    pub watch_per_stream: usize,
    /// Watched keys, written round-robin
    #[arg(long, default_value_t = 1)]
    pub watched_key_total: usize,
    /// Number of puts
    #[arg(long, default_value_t = 1000)]
    pub put_total: u64,
    /// Duration at --put-rate, instead of --put-total
    #[arg(long, default_value = "0s", value_parser = go::duration, conflicts_with = "put_total")]
    pub duration: Duration,
    /// Maximum puts per second (0: no limit)
    #[arg(long, default_value_t = 0.0)]
    pub put_rate: f64,
    /// Open loop: send at --put-rate even if the server is slower; latency counts from the intended send time
    #[arg(long)]
    pub open_loop: bool,
    /// Key size in bytes
    #[arg(long, default_value_t = 32)]
    pub key_size: usize,
    /// Number of distinct keys
    #[arg(long, default_value_t = 1)]
    pub key_space_size: u64,
    /// Watch keys in order instead of at random
    #[arg(long)]
    pub sequential_keys: bool,
    #[command(flatten)]
    pub reporting: Reporting,
}

/// Flags of `watch-latency`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Load")]
pub struct WatchLatencyFlags {
    /// Watch streams
    #[arg(long, default_value_t = 10)]
    pub streams: usize,
    /// Watchers on each stream, all of the same key
    #[arg(long, default_value_t = 10)]
    pub watchers_per_stream: usize,
    /// Number of puts
    #[arg(long, default_value_t = 1000)]
    pub put_total: u64,
    /// Duration at --put-rate, instead of --put-total
    #[arg(long, default_value = "0s", value_parser = go::duration, conflicts_with = "put_total")]
    pub duration: Duration,
    /// Maximum puts per second (0: no limit)
    #[arg(long, default_value_t = 100.0)]
    pub put_rate: f64,
    /// Open loop: send at --put-rate even if the server is slower; latency counts from the intended send time
    #[arg(long)]
    pub open_loop: bool,
    /// Key size in bytes
    #[arg(long, default_value_t = 32)]
    pub key_size: usize,
    /// Value size in bytes
    #[arg(long, default_value_t = 32)]
    pub val_size: usize,
    /// Request the previous value of each event
    #[arg(long)]
    pub prevkv: bool,
    #[command(flatten)]
    pub reporting: Reporting,
}

/// Flags of `watch-get`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Load")]
pub struct WatchGetFlags {
    /// Number of watchers
    #[arg(long, default_value_t = 10_000)]
    pub watchers: usize,
    /// Watch streams of these watchers
    #[arg(long, default_value_t = 1)]
    pub streams: usize,
    /// Historical events per watcher
    #[arg(long, default_value_t = 8)]
    pub events: u64,
    #[command(flatten)]
    pub reporting: Reporting,
}

/// Flags of `watch-history`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Load")]
pub struct WatchHistoryFlags {
    /// Watch streams
    #[arg(long, default_value_t = 1)]
    pub streams: usize,
    /// Watchers on each stream, all of the same key
    #[arg(long, default_value_t = 1)]
    pub watchers_per_stream: usize,
    /// Events to write, then to read by each watcher
    #[arg(long, default_value_t = 100_000)]
    pub total: u64,
    /// Key size in bytes
    #[arg(long, default_value_t = 32)]
    pub key_size: usize,
    /// Value size in bytes
    #[arg(long, default_value_t = 32)]
    pub val_size: usize,
    #[command(flatten)]
    pub reporting: Reporting,
}

/// Flags of `lease-keepalive`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Load")]
pub struct LeaseKeepaliveFlags {
    #[command(flatten)]
    pub sending: Sending,
}

/// Flags of `stm`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Load")]
pub struct StmFlags {
    /// c: read committed, r: repeatable reads, s: serializable, ss: serializable snapshot
    #[arg(long, default_value = "r", value_parser = ["c", "r", "s", "ss"])]
    pub isolation: String,
    /// Number of distinct keys
    #[arg(long, default_value_t = 1)]
    pub keys: u64,
    /// Keys per transaction
    #[arg(long, default_value_t = 1)]
    pub keys_per_txn: usize,
    /// Percentage of a transaction's keys that are written, rounded down: the defaults write none
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub txn_wr_percent: u8,
    /// Lock around each transaction. stm: none; lock-client: a key, a lease and a watch; lock-rpc: the lock
    /// service
    #[arg(long, default_value = "stm", value_parser = ["stm", "lock-client", "lock-rpc"])]
    pub stm_locker: String,
    /// Value size in bytes
    #[arg(long, default_value_t = 8)]
    pub val_size: usize,
    #[command(flatten)]
    pub sending: Sending,
}

/// Flags of `txn-mixed`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Load")]
pub struct TxnMixedFlags {
    /// Ignored, like in etcd's tool
    #[arg(num_args = 0..=2, hide = true)]
    pub ignored: Vec<String>,
    #[command(flatten)]
    pub writing: Writing,
    #[command(flatten)]
    pub sending: Sending,
    /// l: linearizable, s: serializable
    #[arg(long, default_value = "l", value_parser = ["l", "s"])]
    pub consistency: String,
    /// End of the range (default: all keys)
    #[arg(long, default_value = "", hide_default_value = true)]
    pub end_key: String,
    /// Maximum keys per response (0: no limit)
    #[arg(long, default_value_t = 1000)]
    pub limit: i64,
    /// Ranges per put
    #[arg(long, default_value_t = 1.0)]
    pub rw_ratio: f64,
}
