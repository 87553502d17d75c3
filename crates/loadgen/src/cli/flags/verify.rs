//! Flags of `verify`.

use clap::Args;

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
    /// First bytes of all keys; a random part follows
    #[arg(long, default_value = "verify/")]
    pub prefix: String,
}
