//! One system on one row: a fresh cluster that ends with the row, or one that was there before.

use super::cluster::{self, Cluster, Program};
use super::{Origin, Plan, Subject};
use crate::admin;
use crate::endpoint::Endpoint;
use crate::report::model;
use crate::server::{self, Insides, Probe};

/// A member of a side.
#[derive(Clone, Debug)]
pub struct Who {
    pub name: String,
    pub endpoint: Endpoint,
    probe: Probe,
}

/// See the module's head.
pub struct Side {
    members: Vec<Who>,
    cluster: Option<Cluster>,
    /// As the first member states it.
    pub version: String,
    /// Of the largest member before any load.
    pub rest_resident_bytes: Option<u64>,
    /// What the members had counted by then; `None` if one of them does not tell.
    pub insides_when_ready: Option<Vec<Insides>>,
}

/// Why a side is not there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("start a cluster of {program}")]
    Cluster { program: String, source: cluster::Error },
    #[error("ask the cluster {name}")]
    Existing { name: String, source: admin::Error },
}

/// The side as a report introduces it.
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
        side.insides_when_ready = side.insides().await;
        Ok(side)
    }

    fn fresh(cluster: Cluster) -> Self {
        let members = cluster.endpoints().into_iter().zip(cluster.probes()).map(|(endpoint, probe)| Who {
            name: probe.name(),
            endpoint,
            probe,
        });
        let (members, version) = (members.collect(), cluster.version.clone());
        Self { members, cluster: Some(cluster), version, rest_resident_bytes: None, insides_when_ready: None }
    }

    fn existing(members: &[admin::Member]) -> Self {
        let version = members.first().map(|member| member.status.version.clone()).unwrap_or_default();
        let members = members.iter().map(|member| Who {
            name: member.endpoint.to_string(),
            endpoint: member.endpoint.clone(),
            probe: Probe::Metrics(member.endpoint.clone()),
        });
        Self {
            members: members.collect(),
            cluster: None,
            version,
            rest_resident_bytes: None,
            insides_when_ready: None,
        }
    }

    /// What every member tells about itself; `None` if one of them does not tell.
    pub async fn insides(&self) -> Option<Vec<Insides>> {
        let mut all = Vec::new();
        for Who { endpoint, .. } in &self.members {
            all.push(server::insides(endpoint).await.ok()?);
        }
        Some(all)
    }

    pub fn members(&self) -> &[Who] {
        &self.members
    }

    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.members.iter().map(|member| member.endpoint.clone()).collect()
    }

    pub fn probes(&self) -> Vec<Probe> {
        self.members.iter().map(|member| member.probe.clone()).collect()
    }

    /// Processes on this machine; empty for a cluster that was there before.
    pub fn pids(&self) -> Vec<u32> {
        let pid = |member: &Who| match member.probe {
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

    /// Which member leads now; `None` if nobody says so.
    pub async fn leader(&self) -> Option<usize> {
        let members = admin::survey(&self.endpoints()).await.ok()?;
        members.iter().position(admin::Member::leads)
    }
}
