//! Flags that single runs have in common.

use super::go;
use super::limits::Limit;
use super::outputs::Outputs;
use super::steps::StepFlags;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Number of requests and rate of a single run.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Load")]
pub struct Sending {
    /// Number of requests
    #[arg(long, default_value_t = 10_000)]
    pub total: u64,
    /// Duration, instead of a number of requests
    #[arg(long, default_value = "0s", value_parser = go::duration, conflicts_with = "total")]
    pub duration: Duration,
    /// Maximum requests per second (0: no limit)
    #[arg(long, default_value_t = 0.0)]
    pub rate: f64,
    /// Open loop: send at --rate even if the server is slower; latency counts from the intended send time
    #[arg(long)]
    pub open_loop: bool,
    /// Write an HdrHistogram log of the latencies in nanoseconds, one line per kind of operation
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rates", "find_max_rate"])]
    pub hdr: Option<PathBuf>,
    /// Print the load without sending it
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub steps: StepFlags,
}

/// Output of a single run of watchers.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Output")]
pub struct Reporting {
    /// Fail if a limit is missed, for example p99=10ms,errors=0; applies to events, if there are any
    #[arg(long, value_delimiter = ',', value_name = "pN=TIME,errors=N")]
    pub slo: Vec<Limit>,
    /// Write an HdrHistogram log of the latencies in nanoseconds, one line per kind of operation
    #[arg(long, value_name = "FILE")]
    pub hdr: Option<PathBuf>,
    /// Print the load without sending it
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub outputs: Outputs,
}

/// Keys and values of writing commands.
#[derive(Args, Debug)]
#[command(next_help_heading = "Load")]
pub struct Writing {
    /// Key size in bytes
    #[arg(long, default_value_t = 8)]
    pub key_size: usize,
    /// Value size in bytes
    #[arg(long, default_value_t = 8)]
    pub val_size: usize,
    /// Use a random value per key instead of one for all, so that values do not compress
    #[arg(long)]
    pub random_values: bool,
    /// Number of distinct keys; like in etcd's tool, the default is a single key
    #[arg(long, default_value_t = 1)]
    pub key_space_size: u64,
}
