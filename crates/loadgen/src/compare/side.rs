//! One system on one row: a new cluster that ends with the row, or an existing one.

use super::cluster::{self, Cluster, Program};
use super::plan::{Origin, Plan, Subject};
use crate::client::admin;
use crate::client::endpoint::Endpoint;
use crate::server::{self, Probe, ServerMetrics};
use bench_report::model;

/// A member of a side.
#[derive(Clone, Debug)]
pub struct SideMember {
    pub name: String,
    pub endpoint: Endpoint,
    probe: Probe,
}

/// See the module's head.
pub struct Side {
    members: Vec<SideMember>,
    cluster: Option<Cluster>,
    /// As the first member states it.
    pub version: String,
    /// Of the largest member before any load.
    pub rest_resident_bytes: Option<u64>,
    /// The members' metrics at that time; `None` if one of them has none.
    pub metrics_when_ready: Option<Vec<ServerMetrics>>,
}

/// Why a side could not be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("start a cluster of {program}")]
    Cluster { program: String, source: cluster::Error },
    #[error("ask the cluster {name}")]
    Existing { name: String, source: admin::Error },
}

/// The description of the side in the report.
pub fn describe(subject: &Subject) -> model::Side {
    let (version_text, source) = match &subject.origin {
        Origin::Program(path) => (cluster::version_text(path), path.display().to_string()),
        Origin::Endpoints(endpoints) => {
            (None, endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
        }
    };
    model::Side { name: subject.name.clone(), version_text, source, ..model::Side::default() }
}

impl Side {
    pub async fn start(plan: &Plan, subject: &Subject, members_len: usize) -> Result<Self, Error> {
        let mut side = match &subject.origin {
            Origin::Program(path) => {
                let program = Program { name: subject.name.clone(), path: path.clone() };
                let places = cluster::Places { data: &plan.data_dir, wal: plan.wal_dir.as_deref() };
                let cluster = Cluster::start(&program, places, members_len).await;
                let cluster =
                    cluster.map_err(|source| Error::Cluster { program: subject.name.clone(), source })?;
                Self::fresh(cluster)
            }
            Origin::Endpoints(endpoints) => {
                let members = admin::survey(endpoints).await;
                let members =
                    members.map_err(|source| Error::Existing { name: subject.name.clone(), source })?;
                Self::existing(&members)
            }
        };
        let rest = server::read(&side.probes()).await.ok();
        side.rest_resident_bytes =
            rest.map(|reading| reading.resident_bytes_max()).filter(|bytes| *bytes > 0);
        side.metrics_when_ready = side.server_metrics().await;
        Ok(side)
    }

    fn fresh(cluster: Cluster) -> Self {
        let members = cluster
            .endpoints()
            .into_iter()
            .zip(cluster.probes())
            .map(|(endpoint, probe)| SideMember { name: probe.name(), endpoint, probe });
        let (members, version) = (members.collect(), cluster.version.clone());
        Self { members, cluster: Some(cluster), version, rest_resident_bytes: None, metrics_when_ready: None }
    }

    fn existing(members: &[admin::Member]) -> Self {
        let version = members.first().map(|member| member.status.version.clone()).unwrap_or_default();
        let members = members.iter().map(|member| SideMember {
            name: member.endpoint.to_string(),
            endpoint: member.endpoint.clone(),
            probe: Probe::Metrics(member.endpoint.clone()),
        });
        Self {
            members: members.collect(),
            cluster: None,
            version,
            rest_resident_bytes: None,
            metrics_when_ready: None,
        }
    }

    /// The metrics of every member; `None` if one of them has none.
    pub async fn server_metrics(&self) -> Option<Vec<ServerMetrics>> {
        let mut all = Vec::new();
        for SideMember { endpoint, .. } in &self.members {
            all.push(server::server_metrics(endpoint).await.ok()?);
        }
        Some(all)
    }

    pub fn members(&self) -> &[SideMember] {
        &self.members
    }

    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.members.iter().map(|member| member.endpoint.clone()).collect()
    }

    pub fn probes(&self) -> Vec<Probe> {
        self.members.iter().map(|member| member.probe.clone()).collect()
    }

    /// Processes on this machine; empty for an existing cluster.
    pub fn pids(&self) -> Vec<u32> {
        let pid = |member: &SideMember| match member.probe {
            Probe::Process { pid, .. } => Some(pid),
            Probe::Metrics(_) => None,
        };
        self.members.iter().filter_map(pid).collect()
    }

    /// Whether its processes are children of this one.
    pub fn is_local(&self) -> bool {
        self.cluster.is_some()
    }

    /// How the first member was started.
    pub fn command(&self) -> Option<String> {
        self.cluster.as_ref().map(|cluster| cluster.command.clone())
    }

    /// The index of the leader, if one is known.
    pub async fn leader(&self) -> Option<usize> {
        let members = admin::survey(&self.endpoints()).await.ok()?;
        members.iter().position(admin::Member::leads)
    }
}
