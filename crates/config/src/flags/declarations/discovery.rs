//! Discovery flags: how a first start finds the members.

use std::time::Duration;

use clap::ArgAction::Set;
use clap::Args;

use crate::flags::values::{duration, switch};

/// Discovery flags.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub struct DiscoveryFlags {
    /// Endpoints of the discovery cluster.
    #[arg(long)]
    pub discovery_endpoints: Option<String>,
    /// Discovery token shared by the members of the new cluster.
    #[arg(long)]
    pub discovery_token: Option<String>,
    /// Discovery connection timeout.
    #[arg(long, default_value = "2s", value_parser = duration)]
    pub discovery_dial_timeout: Duration,
    /// Discovery request timeout.
    #[arg(long, default_value = "5s", value_parser = duration)]
    pub discovery_request_timeout: Duration,
    /// Discovery keepalive interval.
    #[arg(long, default_value = "2s", value_parser = duration)]
    pub discovery_keepalive_time: Duration,
    /// Discovery keepalive timeout.
    #[arg(long, default_value = "6s", value_parser = duration)]
    pub discovery_keepalive_timeout: Duration,
    /// Use plain text for discovery endpoints without a scheme.
    #[arg(long, value_parser = switch, default_value = "true", action = Set)]
    pub discovery_insecure_transport: bool,
    /// Skip verification of discovery server certificates.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub discovery_insecure_skip_tls_verify: bool,
    /// Client certificate file for discovery.
    #[arg(long)]
    pub discovery_cert: Option<String>,
    /// Private key file of --discovery-cert.
    #[arg(long)]
    pub discovery_key: Option<String>,
    /// CA bundle used to verify discovery servers.
    #[arg(long)]
    pub discovery_cacert: Option<String>,
    /// Discovery user.
    #[arg(long)]
    pub discovery_user: Option<String>,
    /// Password of the discovery user.
    #[arg(long)]
    pub discovery_password: Option<String>,
    /// Action if discovery fails: exit.
    #[arg(long, default_value = "exit", value_parser = fallback)]
    pub discovery_fallback: DiscoveryFallback,
    /// DNS domain whose SRV records list the initial members.
    #[arg(long)]
    pub discovery_srv: Option<String>,
    /// Suffix of the SRV service name, _etcd-server-SUFFIX [default: none].
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
        _ => Err("invalid value; use exit"),
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
