//! Flags of the log, other than its level and format, and of profiles.

use std::time::Duration;

use clap::ArgAction::Set;
use clap::Args;

use crate::flags::values::{duration, switch};

/// What was said about the log and profiles, with the defaults of the rest.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Log")]
pub struct LogFlags {
    /// zap.
    #[arg(long, default_value = "zap")]
    pub logger: String,
    /// Where log lines go: default, stderr, stdout, systemd/journal or files.
    #[arg(long, default_value = "default")]
    pub log_outputs: String,
    /// Move the log file away when it is full, and begin a new one.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub enable_log_rotation: bool,
    /// When: {"maxsize": MB, "maxage": days, "maxbackups": N, "localtime": bool, "compress": bool} [default:
    /// 100 MB].
    #[arg(long)]
    pub log_rotation_config_json: Option<String>,
    /// Time after which the apply of a log entry is logged as slow.
    #[arg(long, default_value = "100ms", value_parser = duration)]
    pub warning_apply_duration: Duration,
    /// Serve CPU and heap profiles under /debug/pprof/ on client URLs.
    #[arg(long, help_heading = "Metrics and traces")]
    #[arg(value_parser = switch, default_value = "false", action = Set)]
    pub enable_pprof: bool,
    /// basic, or extensive: with histograms of how long the calls of each method took.
    #[arg(long, default_value = "basic", help_heading = "Metrics and traces")]
    pub metrics: String,
}
