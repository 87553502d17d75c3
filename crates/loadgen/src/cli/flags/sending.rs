//! Flags that single runs have in common.

use super::go;
use super::limits::Limit;
use super::outputs::Outputs;
use super::steps::StepFlags;
use crate::run::stages::Stages;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// How many requests are sent, and at what rate: the same for all single runs.
#[derive(Args, Debug)]
#[command(next_help_heading = "What is sent")]
pub struct Sending {
    /// Requests in all
    #[arg(long, default_value_t = 10_000)]
    pub total: u64,
    /// Send for so long instead of a number of requests
    #[arg(long, default_value = "0s", value_parser = go::duration, conflicts_with = "total")]
    pub duration: Duration,
    /// Requests per second at most (0: no limit)
    #[arg(long, default_value_t = 0)]
    pub rate: u64,
    /// Send at --rate even if the server is slower; latency counts from the intended moment
    #[arg(long)]
    pub open_loop: bool,
    /// Instead of one rate: for each stage its seconds and the rate at its end, open loop; the rate of a
    /// stage goes from that of the stage before, or 0, in a straight line
    #[arg(long, value_name = "SECONDSs:RATE,…", value_parser = stages,
          conflicts_with_all = ["total", "duration", "rate", "rates", "find_max_rate"])]
    pub stages: Option<Stages>,
    /// Write the latencies as a log of HdrHistogram, in nanoseconds, with a line for each kind of operation
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rates", "find_max_rate"])]
    pub hdr: Option<PathBuf>,
    /// Say what would be sent, and send nothing; the members are asked who they are
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub steps: StepFlags,
}

/// What single runs of watchers have of it.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "What is made of it")]
pub struct Reporting {
    /// Exit with a failure when a limit is missed, as p99=10ms,errors=0; events count, if there are any
    #[arg(long, value_delimiter = ',', value_name = "pN=TIME,errors=N")]
    pub slo: Vec<Limit>,
    /// Write the latencies as a log of HdrHistogram, in nanoseconds, with a line for each kind of operation
    #[arg(long, value_name = "FILE")]
    pub hdr: Option<PathBuf>,
    /// Say what would be sent, and send nothing; the members are asked who they are
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub outputs: Outputs,
}

/// Flags of `agent`.
#[derive(Args, Debug)]
pub struct AgentFlags {
    /// Where controllers connect; each program that can connect can send load from here
    #[arg(long, default_value = "127.0.0.1:7379", value_name = "HOST:PORT")]
    pub listen: String,
}

/// A comma separates stages, not values of the flag.
fn stages(text: &str) -> Result<Stages, String> {
    text.parse()
}

/// What is written: the same for `put` and `txn-put`.
#[derive(Args, Debug)]
#[command(next_help_heading = "What is sent")]
pub struct Writing {
    /// Bytes of each key
    #[arg(long, default_value_t = 8)]
    pub key_size: usize,
    /// Bytes of each value
    #[arg(long, default_value_t = 8)]
    pub val_size: usize,
    /// A random value for each key instead of one for all: nothing repeats that a server could compress
    #[arg(long)]
    pub random_values: bool,
    /// Numbers that keys are made of; the default of etcd's tool writes one single key
    #[arg(long, default_value_t = 1)]
    pub key_space_size: u64,
}
