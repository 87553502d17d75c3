//! Cluster discovery at the first start, an alternative to `--initial-cluster`.

use std::path::PathBuf;
use std::time::Duration;

use super::flags::{DiscoveryFallback, Flags};
use super::tls::{KeyPair, PortTls};

/// Source of the initial cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Discovery {
    /// Another cluster in which the members register.
    Cluster(Box<DiscoveryCluster>),
    Srv(DiscoverySrv),
}

/// Endpoints and credentials of a discovery cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct DiscoveryCluster {
    pub endpoints: Vec<String>,
    pub token: String,
    pub dial_timeout: Duration,
    pub request_timeout: Duration,
    pub keepalive_time: Duration,
    pub keepalive_timeout: Duration,
    pub tls: PortTls,
    /// True if endpoints without a scheme use TLS.
    pub is_secure: bool,
    /// User name and password.
    pub user: Option<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoverySrv {
    pub domain: String,
    /// Suffix of the service name; may be empty.
    pub suffix: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoverySettingsError {
    #[error("v2 proxy is deprecated, and --discovery-fallback can't be configured as \"proxy\"")]
    Proxy,
    #[error("both --discovery-token and --discovery-endpoints must be set")]
    Half,
    #[error(
        "multiple discovery or bootstrap flags are set. Choose one of \"initial-cluster\", \
         \"discovery-endpoints\" or \"discovery-srv\""
    )]
    Many,
}

impl Discovery {
    /// Returns None if no discovery flag is set.
    pub fn from_flags(flags: &Flags) -> Result<Option<Discovery>, DiscoverySettingsError> {
        let given = &flags.discovery;
        if given.discovery_fallback == DiscoveryFallback::Proxy {
            return Err(DiscoverySettingsError::Proxy);
        }
        let token = some(&given.discovery_token);
        let endpoints: Vec<String> = list(&given.discovery_endpoints);
        let domain = some(&given.discovery_srv);
        let named = some(&flags.initial_cluster).is_some();
        if [named, !endpoints.is_empty(), domain.is_some()].iter().filter(|given| **given).count() > 1 {
            return Err(DiscoverySettingsError::Many);
        }
        if let Some(domain) = domain {
            let suffix = some(&given.discovery_srv_name).unwrap_or_default();
            return Ok(Some(Discovery::Srv(DiscoverySrv { domain, suffix })));
        }
        let token = match (token, endpoints.is_empty()) {
            (None, true) => return Ok(None),
            (Some(token), false) => token,
            (Some(_), true) | (None, false) => return Err(DiscoverySettingsError::Half),
        };
        let tls = tls(flags);
        let is_secure =
            tls.own.is_some() || tls.trusted_ca_file.is_some() || !given.discovery_insecure_transport;
        let user = some(&given.discovery_user)
            .map(|name| (name, given.discovery_password.clone().unwrap_or_default()));
        Ok(Some(Discovery::Cluster(Box::new(DiscoveryCluster {
            endpoints,
            token,
            dial_timeout: given.discovery_dial_timeout,
            request_timeout: given.discovery_request_timeout,
            keepalive_time: given.discovery_keepalive_time,
            keepalive_timeout: given.discovery_keepalive_timeout,
            tls,
            is_secure,
            user,
        }))))
    }
}

fn tls(flags: &Flags) -> PortTls {
    let given = &flags.discovery;
    PortTls {
        own: KeyPair::from_flags(&given.discovery_cert, &given.discovery_key),
        trusted_ca_file: some(&given.discovery_cacert).map(PathBuf::from),
        // Disables certificate verification.
        is_self_signed: given.discovery_insecure_skip_tls_verify,
        ..PortTls::default()
    }
}

fn some(text: &Option<String>) -> Option<String> {
    text.clone().filter(|text| !text.is_empty())
}

fn list(text: &Option<String>) -> Vec<String> {
    let text = text.as_deref().unwrap_or_default();
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::{ParsedFlags, parse};

    fn read(line: &str) -> Result<Option<Discovery>, String> {
        match parse(line.split_whitespace().map(Into::into), []) {
            Ok(ParsedFlags::Flags(flags, _)) => {
                Discovery::from_flags(&flags).map_err(|error| error.to_string())
            }
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused_in_etcds_words() {
        let many = "multiple discovery or bootstrap flags are set. Choose one of \"initial-cluster\", \
                    \"discovery-endpoints\" or \"discovery-srv\"";
        let half = "both --discovery-token and --discovery-endpoints must be set";
        for (line, wanted) in [
            ("--discovery-srv x --initial-cluster a=http://h:1", many),
            ("--discovery-srv x --discovery-endpoints h:1 --discovery-token t", many),
            ("--discovery-endpoints h:1 --discovery-token t --initial-cluster a=http://h:1", many),
            ("--discovery-token t", half),
            ("--discovery-endpoints h:1", half),
            (
                "--discovery-fallback proxy",
                "v2 proxy is deprecated, and --discovery-fallback can't be configured as \"proxy\"",
            ),
        ] {
            assert_eq!(read(line).expect_err(line), wanted, "{line}");
        }
    }

    #[test]
    fn a_cluster_or_a_domain_is_asked_if_one_is_named() {
        assert_eq!(read("--discovery-fallback exit --discovery-srv= --discovery-user u"), Ok(None));
        let srv = DiscoverySrv { domain: "d.example".to_owned(), suffix: "s".to_owned() };
        let line = "--discovery-srv d.example --discovery-srv-name s";
        assert_eq!(read(line), Ok(Some(Discovery::Srv(srv))));
        let line = "--discovery-endpoints http://h:1,h:2 --discovery-token t --discovery-user u \
                    --discovery-password p --discovery-dial-timeout 1s --discovery-cacert ca.pem";
        let Ok(Some(Discovery::Cluster(cluster))) = read(line) else { panic!("{line}") };
        assert_eq!(cluster.endpoints, ["http://h:1", "h:2"]);
        assert_eq!((cluster.token.as_str(), cluster.is_secure), ("t", true));
        assert_eq!(cluster.user, Some(("u".to_owned(), "p".to_owned())));
        assert_eq!(
            (cluster.dial_timeout, cluster.request_timeout),
            (Duration::from_secs(1), Duration::from_secs(5))
        );
    }
}
