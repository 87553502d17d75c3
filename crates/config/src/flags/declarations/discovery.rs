//! Flags of discovery: where a first start finds the members.

use std::time::Duration;

use clap::Args;

use crate::flags::values::{duration, switch};

/// What was said about discovery; `None` where nothing was.
#[derive(Clone, Debug, Default, Args)]
pub struct DiscoveryFlags {
    /// Endpoints of a cluster in which the members of a new cluster find each other.
    #[arg(long)]
    pub discovery_endpoints: Option<String>,
    /// What the members of the new cluster have in common; its size is stored under it.
    #[arg(long)]
    pub discovery_token: Option<String>,
    /// Time to connect to such an endpoint [default: 2s].
    #[arg(long, value_parser = duration)]
    pub discovery_dial_timeout: Option<Duration>,
    /// Time for one request to it [default: 5s].
    #[arg(long, value_parser = duration)]
    pub discovery_request_timeout: Option<Duration>,
    /// Time between two pings of it [default: 2s].
    #[arg(long, value_parser = duration)]
    pub discovery_keepalive_time: Option<Duration>,
    /// Time in which it has to answer a ping [default: 6s].
    #[arg(long, value_parser = duration)]
    pub discovery_keepalive_timeout: Option<Duration>,
    /// An endpoint without a scheme is outside TLS [default: true].
    #[arg(long, value_parser = switch, num_args = 0..=1)]
    #[arg(default_missing_value = "true", require_equals = true)]
    pub discovery_insecure_transport: Option<bool>,
    /// Take any certificate of an endpoint [default: false].
    #[arg(long, value_parser = switch, num_args = 0..=1)]
    #[arg(default_missing_value = "true", require_equals = true)]
    pub discovery_insecure_skip_tls_verify: Option<bool>,
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
    /// What to do without an answer: exit [default: exit].
    #[arg(long, value_parser = fallback)]
    pub discovery_fallback: Option<DiscoveryFallback>,
    /// Domain whose SRV records name the members of a new cluster.
    #[arg(long)]
    pub discovery_srv: Option<String>,
    /// Suffix of the service in those records: _etcd-server-SUFFIX [default: none].
    #[arg(long)]
    pub discovery_srv_name: Option<String>,
}

/// What etcd once did without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscoveryFallback {
    Exit,
    Proxy,
}

fn fallback(text: &str) -> Result<DiscoveryFallback, &'static str> {
    match text {
        "exit" => Ok(DiscoveryFallback::Exit),
        "proxy" => Ok(DiscoveryFallback::Proxy),
        _ => Err("invalid value"),
    }
}

/// In place of a password.
const HIDDEN: &str = "***";

/// The value of a flag as it may be shown and logged: without the password that is in it. `name` is without
/// dashes.
pub fn shown(name: &str, value: &str) -> String {
    match (name, value.split_once(':')) {
        ("discovery-password", _) => HIDDEN.to_owned(),
        // etcd's help names this form.
        ("discovery-user", Some((user, _))) => format!("{user}:{HIDDEN}"),
        _ => value.to_owned(),
    }
}
