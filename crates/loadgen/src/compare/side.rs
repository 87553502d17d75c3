//! A system on a row: a new cluster for the row, or an existing one.

use super::cluster::{self, Program, StartedCluster};
use super::plan::{ComparisonPlan, Subject, SubjectOrigin};
use crate::client::admin;
use crate::client::endpoint::Endpoint;
use crate::server::{self, Probe, ServerMetrics};
use bench_report::model;

#[derive(Clone, Debug)]
pub struct SideMember {
    pub name: String,
    pub endpoint: Endpoint,
    probe: Probe,
}

/// A system under measurement.
pub struct Side {
    /// Members that receive requests, then the remaining ones.
    members: Vec<SideMember>,
    loaded_len: usize,
    /// Number of members of the cluster, reachable or not; `None` if unknown.
    pub cluster_len: Option<usize>,
    cluster: Option<StartedCluster>,
    /// Version reported by the first member.
    pub version: String,
    /// Resident memory of the largest member before any load.
    pub rest_resident_bytes: Option<u64>,
    /// Metrics of the members at that time; `None` if one of them has none.
    pub metrics_when_ready: Option<Vec<ServerMetrics>>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("start a cluster of {program}")]
    Cluster { program: String, source: cluster::Error },
    #[error("ask the cluster {name}")]
    Existing { name: String, source: admin::Error },
}

pub fn describe(subject: &Subject) -> model::Side {
    let side = model::Side { name: subject.name.clone(), ..model::Side::default() };
    match &subject.origin {
        SubjectOrigin::Program(path) => model::Side {
            version_text: cluster::version_text(path),
            source: path.display().to_string(),
            program: cluster::file_text(path),
            ..side
        },
        SubjectOrigin::Endpoints(endpoints) => {
            let source = endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            model::Side { source, ..side }
        }
    }
}

impl Side {
    pub async fn start(plan: &ComparisonPlan, subject: &Subject, members_len: usize) -> Result<Self, Error> {
        let mut side = match &subject.origin {
            SubjectOrigin::Program(path) => {
                let program = Program { name: subject.name.clone(), path: path.clone() };
                let places = cluster::ClusterPlaces {
                    data: &plan.data_dir,
                    wal: plan.wal_dir.as_deref(),
                    loadgen: plan.loadgen.as_deref(),
                };
                let cluster = StartedCluster::start(&program, places, members_len).await;
                let cluster =
                    cluster.map_err(|source| Error::Cluster { program: subject.name.clone(), source })?;
                Self::fresh(cluster)
            }
            SubjectOrigin::Endpoints(endpoints) => {
                let cluster = admin::cluster(endpoints).await;
                let cluster =
                    cluster.map_err(|source| Error::Existing { name: subject.name.clone(), source })?;
                Self::existing(&cluster)
            }
        };
        let rest = server::read(&side.probes()).await.ok();
        side.rest_resident_bytes =
            rest.map(|reading| reading.resident_bytes_max()).filter(|bytes| *bytes > 0);
        side.metrics_when_ready = side.server_metrics().await;
        Ok(side)
    }

    fn fresh(cluster: StartedCluster) -> Self {
        let members = cluster
            .endpoints()
            .into_iter()
            .zip(cluster.probes())
            .map(|(endpoint, probe)| SideMember { name: probe.name(), endpoint, probe });
        let (members, version): (Vec<_>, _) = (members.collect(), cluster.version.clone());
        Self {
            loaded_len: members.len(),
            cluster_len: Some(members.len()),
            members,
            cluster: Some(cluster),
            version,
            rest_resident_bytes: None,
            metrics_when_ready: None,
        }
    }

    fn existing(cluster: &admin::ClusterView) -> Self {
        let version = cluster.named.first().map(|member| member.status.version.clone()).unwrap_or_default();
        let members = cluster.members().map(|member| SideMember {
            name: member.endpoint.to_string(),
            endpoint: member.endpoint.clone(),
            probe: Probe::Metrics(member.endpoint.clone()),
        });
        Self {
            members: members.collect(),
            loaded_len: cluster.named.len(),
            cluster_len: cluster.members_len,
            cluster: None,
            version,
            rest_resident_bytes: None,
            metrics_when_ready: None,
        }
    }

    /// Reads the metrics of every member; `None` if one of them has none.
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

    /// Returns the endpoints that receive requests.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.members.iter().take(self.loaded_len).map(|member| member.endpoint.clone()).collect()
    }

    /// Returns the endpoints of all reachable members.
    pub fn all_endpoints(&self) -> Vec<Endpoint> {
        self.members.iter().map(|member| member.endpoint.clone()).collect()
    }

    pub fn probes(&self) -> Vec<Probe> {
        self.members.iter().map(|member| member.probe.clone()).collect()
    }

    /// Returns the processes on this machine; empty for an existing cluster.
    pub fn pids(&self) -> Vec<u32> {
        let pid = |member: &SideMember| match member.probe {
            Probe::Process { pid, .. } => Some(pid),
            Probe::Metrics(_) => None,
        };
        self.members.iter().filter_map(pid).collect()
    }

    /// Reports whether the metrics cover the whole cluster.
    pub fn is_complete(&self) -> bool {
        self.cluster_len == Some(self.members.len())
    }

    /// Reports whether its processes are children of this one.
    pub fn is_local(&self) -> bool {
        self.cluster.is_some()
    }

    /// Returns the command line of the first member.
    pub fn command(&self) -> Option<String> {
        self.cluster.as_ref().map(|cluster| cluster.command.clone())
    }

    /// Returns the index of the leader, if known.
    pub async fn leader(&self) -> Option<usize> {
        let members = admin::survey(&self.all_endpoints()).await.ok()?;
        members.iter().position(admin::MemberInfo::leads)
    }
}
