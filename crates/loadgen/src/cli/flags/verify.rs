//! Flags of `verify`.

use super::go;
use crate::proxy::lie::Lie;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Flags of `verify`.
#[derive(Args, Debug)]
#[command(next_help_heading = "What is sent")]
pub struct VerifyFlags {
    /// How long the cluster is used and checked; parts of a minute are allowed
    #[arg(long, default_value_t = 1.0)]
    pub minutes: f64,
    /// Operations per second of all clients, at most
    #[arg(long, default_value_t = 500)]
    pub rate: u64,
    /// Keys that clients compete for
    #[arg(long, default_value_t = 20)]
    pub keys: u32,
    /// Leases that are kept, revoked or left to expire at the same time
    #[arg(long, default_value_t = 6)]
    pub leases: usize,
    /// Compare the members' hashes of their key spaces so often (0: never); each reads all of them
    #[arg(long, default_value = "10s", value_parser = go::duration)]
    pub hash_interval: Duration,
    /// Compact the history of the cluster so often (0: never), as far as all watchers have received it
    #[arg(long, default_value = "0s", value_parser = go::duration)]
    pub compact_interval: Duration,
    /// First bytes of all keys; a random part follows
    #[arg(long, default_value = "verify/")]
    pub prefix: String,
    /// Reach the first member through a proxy that does this wrong, to see that it is found; the names are
    /// those of the proxy command
    #[arg(long = "lie", value_delimiter = ',', value_name = "LIE,…")]
    pub lies: Vec<Lie>,
    /// The proxy lies at every nth opportunity
    #[arg(long, default_value_t = LIE_INTERVAL, value_name = "N")]
    pub lie_every: u64,
    /// Write the result as one HTML file: rates, latencies, leaders, and windows without a write
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Rare enough for a client to make progress, frequent enough for a minute.
pub const LIE_INTERVAL: u64 = 5;

/// Flags of `proxy`.
#[derive(Args, Debug)]
#[command(next_help_heading = "What it does")]
pub struct ProxyFlags {
    /// Where clients connect, one address per endpoint, in the order of --endpoints
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT,…", default_value = "127.0.0.1:12379")]
    pub listen: Vec<String>,
    /// What it does wrong
    #[arg(long = "lie", value_delimiter = ',', value_name = "LIE,…", required = true)]
    pub lies: Vec<Lie>,
    /// It lies at every nth opportunity
    #[arg(long = "every", default_value_t = LIE_INTERVAL, value_name = "N")]
    pub every: u64,
}
