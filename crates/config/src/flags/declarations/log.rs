//! Flags of the log, other than its level and format, and of profiles.

use std::time::Duration;

use clap::Args;

use crate::flags::values::{duration, switch};

/// What was said about the log and profiles; `None` where nothing was.
#[derive(Clone, Debug, Default, Args)]
pub struct LogFlags {
    /// zap [default: zap].
    #[arg(long)]
    pub logger: Option<String>,
    /// Where log lines go: default, stderr, stdout, systemd/journal or files [default: default].
    #[arg(long)]
    pub log_outputs: Option<String>,
    /// Move the log file away when it is full, and begin a new one [default: false].
    #[arg(long, value_parser = switch, num_args = 0..=1)]
    #[arg(default_missing_value = "true", require_equals = true)]
    pub enable_log_rotation: Option<bool>,
    /// When: {"maxsize": MB, "maxage": days, "maxbackups": N, "localtime": bool, "compress": bool} [default:
    /// 100 MB].
    #[arg(long)]
    pub log_rotation_config_json: Option<String>,
    /// Time after which the apply of a log entry is logged as slow [default: 100ms].
    #[arg(long, value_parser = duration)]
    pub warning_apply_duration: Option<Duration>,
    /// Serve CPU and heap profiles under /debug/pprof/ on client URLs [default: false].
    #[arg(long, value_parser = switch, num_args = 0..=1)]
    #[arg(default_missing_value = "true", require_equals = true)]
    pub enable_pprof: Option<bool>,
    /// basic, or extensive: with histograms of how long the calls of each method took [default: basic].
    #[arg(long)]
    pub metrics: Option<String>,
}
