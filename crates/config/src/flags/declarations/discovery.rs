//! Discovery flags: how a first start finds the members.

use std::time::Duration;

use clap::ArgAction::Set;
use clap::Args;

use crate::flags::values::{duration, switch};

/// What was said about discovery, with the defaults of the rest.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub struct DiscoveryFlags {
    /// Endpoints of a cluster in which the members of a new cluster find each other.
    #[arg(long)]
    pub discovery_endpoints: Option<String>,
    /// What the members of the new cluster have in common; its size is stored under it.
    #[arg(long)]
    pub discovery_token: Option<String>,
    /// Time to connect to such an endpoint.
    #[arg(long, default_value = "2s", value_parser = duration)]
    pub discovery_dial_timeout: Duration,
    /// Time for one request to it.
    #[arg(long, default_value = "5s", value_parser = duration)]
    pub discovery_request_timeout: Duration,
    /// Time between two pings of it.
    #[arg(long, default_value = "2s", value_parser = duration)]
    pub discovery_keepalive_time: Duration,
    /// Time in which it has to answer a ping.
    #[arg(long, default_value = "6s", value_parser = duration)]
    pub discovery_keepalive_timeout: Duration,
    /// An endpoint without a scheme is outside TLS.
    #[arg(long, value_parser = switch, default_value = "true", action = Set)]
    pub discovery_insecure_transport: bool,
    /// Take any certificate of an endpoint.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub discovery_insecure_skip_tls_verify: bool,
    /// File of the certificate that endpoints are shown.
    #[arg(long)]
    pub discovery_cert: Option<String>,
    /// File of its private key.
    #[arg(long)]
    pub discovery_key: Option<String>,
    /// File of the authorities of endpoints.
    #[arg(long)]
    pub discovery_cacert: Option<String>,
    /// User at the endpoints.
    #[arg(long)]
    pub discovery_user: Option<String>,
    /// The user's password.
    #[arg(long)]
    pub discovery_password: Option<String>,
    /// What to do without an answer: exit.
    #[arg(long, default_value = "exit", value_parser = fallback)]
    pub discovery_fallback: DiscoveryFallback,
    /// Domain whose SRV records name the members of a new cluster.
    #[arg(long)]
    pub discovery_srv: Option<String>,
    /// Suffix of the service in those records: _etcd-server-SUFFIX [default: none].
    #[arg(long)]
    pub discovery_srv_name: Option<String>,
}

/// Action after a failed discovery. `Proxy` is rejected, as in etcd 3.6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscoveryFallback {
    Exit,
    Proxy,
}

fn fallback(text: &str) -> Result<DiscoveryFallback, &'static str> {
    match text {
        "exit" => Ok(DiscoveryFallback::Exit),
        "proxy" => Ok(DiscoveryFallback::Proxy),
        _ => Err("invalid value; write exit"),
    }
}

/// Replacement for a password.
const HIDDEN: &str = "***";

/// Returns a flag's value for display and logging, with any password masked. `name` has no dashes.
pub fn shown(name: &str, value: &str) -> String {
    match (name, value.split_once(':')) {
        ("discovery-password", _) => HIDDEN.to_owned(),
        // `USER:PASSWORD` is the form that etcd's help documents.
        ("discovery-user", Some((user, _))) => format!("{user}:{HIDDEN}"),
        _ => value.to_owned(),
    }
}
