//! `kubernetes`: creates the objects of a cluster, then plans its load on the store.

use crate::cli::flags::Global;
use crate::cli::flags::kubernetes::KubernetesFlags;
use crate::cli::plans;
use crate::run::LoadPlan;
use crate::run::schedule::RunPace;
use crate::workload::Workload;
use crate::workload::kubernetes::{Kubernetes, PODS_PER_NODE};

/// Names have six digits.
const NODES_MAX: u64 = 1_000_000;
/// Eight bytes are recorded per pod: 256 MB.
const PODS_MAX: u64 = 32_000_000;

/// Returns the cluster of the flags, with objects to be created first, and the plan of the measurement.
pub fn plan(global: &Global, flags: &KubernetesFlags) -> Result<(Kubernetes, LoadPlan), String> {
    let KubernetesFlags { nodes, api_servers, prefix, sending, .. } = flags;
    if *nodes == 0 || *nodes > NODES_MAX {
        return Err(format!("--nodes={nodes}: expected 1 to {NODES_MAX}"));
    }
    let pods = flags.pods.unwrap_or(nodes * PODS_PER_NODE);
    if pods == 0 || pods > PODS_MAX {
        return Err(format!("--pods={pods}: expected 1 to {PODS_MAX}"));
    }
    if sending.steps.are_wanted() {
        return Err("--rates and --find-max-rate are not offered for kubernetes: give one --rate".into());
    }
    let prefix = format!("{prefix}{:016x}/", rand::random::<u64>());
    let mut cluster = Kubernetes::new(*nodes, pods, *api_servers, prefix.into(), rand::random());
    cluster.churn = flags.churn.unwrap_or(cluster.churn);
    if !(cluster.churn >= 0.0 && cluster.churn.is_finite()) {
        return Err(format!("--churn={}: expected 0 or more", cluster.churn));
    }
    let workload = Workload::Kubernetes(cluster.clone());
    let plan = plans::plan(global, global.endpoints.clone(), workload, sending)?;
    Ok((cluster, plan))
}

/// Returns the plan that creates all objects.
pub fn load_phase(plan: &LoadPlan, cluster: &Kubernetes) -> LoadPlan {
    let workload = Workload::Kubernetes(cluster.load_phase());
    LoadPlan {
        workload,
        total: cluster.objects(),
        seconds_max: None,
        pace: RunPace::Unlimited,
        ..plan.clone()
    }
}
