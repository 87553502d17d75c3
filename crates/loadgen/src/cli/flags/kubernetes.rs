//! Flags of `kubernetes`.

use super::sending::Sending;
use clap::Args;

/// Flags of `kubernetes`.
#[derive(Args, Debug)]
#[command(next_help_heading = "What is sent")]
pub struct KubernetesFlags {
    /// Nodes of the cluster, each with a lease
    #[arg(long, default_value_t = 100)]
    pub nodes: u64,
    /// Pods of the cluster (default: 30 for each node)
    #[arg(long)]
    pub pods: Option<u64>,
    /// Pods that are replaced per second (default: 0.005 for each node, 500 for 100,000)
    #[arg(long)]
    pub churn: Option<f64>,
    /// API servers, each of which watches every resource
    #[arg(long, default_value_t = 3)]
    pub api_servers: usize,
    /// First bytes of all keys; a random part follows
    #[arg(long, default_value = "kubernetes/")]
    pub prefix: String,
    #[command(flatten)]
    pub sending: Sending,
}
