//! Flags of the commands that measure watchers, leases and transactions.

use super::go;
use super::sending::{Reporting, Sending, Writing};
use clap::Args;
use std::time::Duration;

/// Flags of `watch`.
#[derive(Args, Debug)]
#[command(next_help_heading = "What is sent")]
pub struct WatchFlags {
    /// Watch streams
    #[arg(long, default_value_t = 10)]
    pub streams: usize,
    /// Watchers on each stream
    #[arg(long, default_value_t = 100)]
    pub watch_per_stream: usize,
    /// Keys that are watched and written, in turn
    #[arg(long, default_value_t = 1)]
    pub watched_key_total: usize,
    /// Puts in all
    #[arg(long, default_value_t = 1000)]
    pub put_total: u64,
    /// Put at --put-rate for so long instead of --put-total
    #[arg(long, default_value = "0s", value_parser = go::duration, conflicts_with = "put_total")]
    pub duration: Duration,
    /// Puts per second at most (0: no limit)
    #[arg(long, default_value_t = 0)]
    pub put_rate: u64,
    /// Send at --put-rate even if the server is slower; latency counts from the intended moment
    #[arg(long)]
    pub open_loop: bool,
    /// Bytes of each key
    #[arg(long, default_value_t = 32)]
    pub key_size: usize,
    /// Numbers that keys are made of; keys of the same number are one key
    #[arg(long, default_value_t = 1)]
    pub key_space_size: u64,
    /// Numbers in order instead of at random
    #[arg(long)]
    pub sequential_keys: bool,
    #[command(flatten)]
    pub reporting: Reporting,
}

/// Flags of `watch-latency`.
#[derive(Args, Debug)]
#[command(next_help_heading = "What is sent")]
pub struct WatchLatencyFlags {
    /// Watch streams
    #[arg(long, default_value_t = 10)]
    pub streams: usize,
    /// Watchers on each stream, all of one key
    #[arg(long, default_value_t = 10)]
    pub watchers_per_stream: usize,
    /// Puts in all
    #[arg(long, default_value_t = 1000)]
    pub put_total: u64,
    /// Put at --put-rate for so long instead of --put-total
    #[arg(long, default_value = "0s", value_parser = go::duration, conflicts_with = "put_total")]
    pub duration: Duration,
    /// Puts per second at most (0: no limit)
    #[arg(long, default_value_t = 100)]
    pub put_rate: u64,
    /// Send at --put-rate even if the server is slower; latency counts from the intended moment
    #[arg(long)]
    pub open_loop: bool,
    /// Bytes of the key
    #[arg(long, default_value_t = 32)]
    pub key_size: usize,
    /// Bytes of each value
    #[arg(long, default_value_t = 32)]
    pub val_size: usize,
    /// Ask for the value before each event as well
    #[arg(long)]
    pub prevkv: bool,
    #[command(flatten)]
    pub reporting: Reporting,
}

/// Flags of `watch-get`.
#[derive(Args, Debug)]
#[command(next_help_heading = "What is sent")]
pub struct WatchGetFlags {
    /// Watchers in all
    #[arg(long, default_value_t = 10_000)]
    pub watchers: usize,
    /// Watch streams that carry them
    #[arg(long, default_value_t = 1)]
    pub streams: usize,
    /// Events that each watcher reads from history
    #[arg(long, default_value_t = 8)]
    pub events: u64,
    #[command(flatten)]
    pub reporting: Reporting,
}

/// Flags of `lease-keepalive`.
#[derive(Args, Debug)]
#[command(next_help_heading = "What is sent")]
pub struct LeaseKeepaliveFlags {
    #[command(flatten)]
    pub sending: Sending,
}

/// Flags of `stm`.
#[derive(Args, Debug)]
#[command(next_help_heading = "What is sent")]
pub struct StmFlags {
    /// c: read committed, r: repeatable reads, s: serializable, ss: serializable snapshot
    #[arg(long, default_value = "r", value_parser = ["c", "r", "s", "ss"])]
    pub isolation: String,
    /// Keys that transactions choose from
    #[arg(long, default_value_t = 1)]
    pub keys: u64,
    /// Keys of each transaction
    #[arg(long, default_value_t = 1)]
    pub keys_per_txn: usize,
    /// Of the keys of a transaction, so many in a hundred are written, rounded down: the defaults write
    /// nothing
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub txn_wr_percent: u8,
    /// A lock around each transaction. stm: none; lock-client: made of a key, a lease and a watch; lock-rpc:
    /// the lock service
    #[arg(long, default_value = "stm", value_parser = ["stm", "lock-client", "lock-rpc"])]
    pub stm_locker: String,
    /// Bytes of each value
    #[arg(long, default_value_t = 8)]
    pub val_size: usize,
    #[command(flatten)]
    pub sending: Sending,
}

/// Flags of `txn-mixed`.
#[derive(Args, Debug)]
#[command(next_help_heading = "What is sent")]
pub struct TxnMixedFlags {
    /// Taken and ignored, as etcd's tool does
    #[arg(num_args = 0..=2, hide = true)]
    pub ignored: Vec<String>,
    #[command(flatten)]
    pub writing: Writing,
    #[command(flatten)]
    pub sending: Sending,
    /// l: linearizable, s: serializable
    #[arg(long, default_value = "l", value_parser = ["l", "s"])]
    pub consistency: String,
    /// Ranges end before this key instead of after all keys
    #[arg(long, default_value = "", hide_default_value = true)]
    pub end_key: String,
    /// Keys in the answer of a range at most (0: no limit)
    #[arg(long, default_value_t = 1000)]
    pub limit: i64,
    /// Ranges for each put
    #[arg(long, default_value_t = 1.0)]
    pub rw_ratio: f64,
}
