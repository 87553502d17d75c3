//! Where a load is sent: which members there are, and which of them get requests.

use crate::cli::flags::Global;
use crate::client::admin;
use crate::run::{EndpointTarget, LoadPlan};

/// Surveys the cluster, and selects the endpoints of a plan.
pub async fn aimed(global: &Global, mut plan: LoadPlan) -> Result<(LoadPlan, admin::ClusterView), String> {
    let cluster = admin::cluster(&plan.endpoints).await.map_err(|error| error.to_string())?;
    if global.target_leader {
        let leader = cluster.leader().map_err(|error| error.to_string())?;
        if plan.can_follow_leader() {
            plan.endpoints = cluster.endpoints();
            plan.target = EndpointTarget::Leader;
        } else {
            plan.endpoints = vec![leader.clone()];
        }
    }
    Ok((plan, cluster))
}
