//! Flags of `kubernetes`.

use super::sending::Sending;
use clap::Args;

/// Flags of `kubernetes`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Load")]
pub struct KubernetesFlags {
    /// Nodes of the cluster
    #[arg(long, default_value_t = 100)]
    pub nodes: u64,
    /// Pods of the cluster (default: 30 per node)
    #[arg(long)]
    pub pods: Option<u64>,
    /// Pods replaced per second (default: 0.005 per node)
    #[arg(long)]
    pub churn: Option<f64>,
    /// API servers; each watches every resource
    #[arg(long, default_value_t = 3)]
    pub api_servers: usize,
    /// Prefix of all keys; a random part follows
    #[arg(long, default_value = "kubernetes/")]
    pub prefix: String,
    #[command(flatten)]
    pub sending: Sending,
}
