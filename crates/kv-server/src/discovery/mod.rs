//! Discovery: finds the members of a new cluster if the flags do not list them.
//!
//! ```text
//!   --discovery-srv        DNS: _etcd-server-ssl._tcp.DOMAIN and _etcd-server._tcp.DOMAIN ──┐
//!   --discovery-endpoints  another cluster: register, wait until all have registered ──┴─▶ initial cluster
//! ```
//!
//! * Runs only at the first start, before the member has an identity.
//! * Produces a text in the format of `--initial-cluster`, which is validated like one.
//! * Is idempotent: a member that was killed after registering finds its own registration.

mod cluster;

mod dns; // SRV records
mod srv;

use tokio::runtime::{Handle, Runtime};

use config::{Discovery, Settings};
use data_dir::Directory;
use data_dir::bootstrap::{self, BootstrapError};
use transport::tls::{Dialer, TlsError};

pub(crate) use cluster::JoinError;
pub(crate) use srv::SrvError;

#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    // etcd's text already includes the cause. It is not a `source`, which would be printed again.
    #[error("error setting up initial cluster: {0}")]
    Srv(SrvError),
    #[error("failed to join discovery cluster ({0})")]
    Join(JoinError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Own(#[from] BootstrapError),
}

/// Runs discovery if it is configured and needed, and returns the settings with the resulting initial
/// cluster. Requests run on `runtime`, TLS handshakes on `handshakes`.
pub fn complete(
    mut settings: Settings,
    directory: &Directory,
    runtime: &Runtime,
    handshakes: &Handle,
) -> Result<Settings, DiscoveryError> {
    let Some(discovery) = settings.discovery.clone().filter(|_| !directory.identity_path().exists()) else {
        return Ok(settings);
    };
    settings.initial.cluster = match discovery {
        Discovery::Srv(srv) => {
            let (name, urls) = (&settings.name, &settings.advertise_peer_urls);
            srv::members(&srv, name, urls, &dns::lookup).map_err(DiscoveryError::Srv)?
        }
        Discovery::Cluster(cluster) => {
            // The initial cluster contains only this member until discovery finishes.
            settings.initial.token.clone_from(&cluster.token);
            let own = bootstrap::first_identity(&settings)?;
            let dialer = Dialer::to_servers(&cluster.tls, handshakes)?;
            tracing::info!(endpoints = ?cluster.endpoints, "Bootstrapping cluster using v3 discovery.");
            let config = settings.initial.cluster.clone();
            let joined = runtime.block_on(cluster::join(&cluster, &dialer, own.member_id, &config));
            joined.map_err(DiscoveryError::Join)?
        }
    };
    tracing::info!(
        initial_cluster = settings.initial.cluster,
        "discovered the initial members of the cluster"
    );
    settings.initial.cluster_given = true;
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_its_cause_once() {
        let error = DiscoveryError::Srv(SrvError::OwnMissing("a".to_owned()));
        let said = "error setting up initial cluster: cannot find local etcd member \"a\" in SRV records";
        assert_eq!(base::causes(&error), said);
    }
}
