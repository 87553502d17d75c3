//! Client flags, with the names and meaning of etcdctl's.

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;

use super::client::OperatorClient;
use config::{KeyPair, PortTls};
use transport::tls::TlsError;

/// Files of the connections inside TLS.
#[derive(Debug, Args)]
pub struct ClientTlsFlags {
    /// Authorities of the servers' certificates [default: the system's].
    #[arg(long, env = "ETCDCTL_CACERT")]
    cacert: Option<PathBuf>,
    /// Certificate shown to the servers.
    #[arg(long, env = "ETCDCTL_CERT", requires = "key")]
    cert: Option<PathBuf>,
    /// Key of that certificate.
    #[arg(long, env = "ETCDCTL_KEY", requires = "cert")]
    key: Option<PathBuf>,
    /// Accept any certificate of the servers. For tests.
    #[arg(long, env = "ETCDCTL_INSECURE_SKIP_TLS_VERIFY", value_parser = BoolishValueParser::new())]
    insecure_skip_tls_verify: bool,
}

/// Endpoints of a cluster, and how they are reached.
#[derive(Debug, Args)]
pub struct ClientFlags {
    /// Client URLs of the cluster.
    #[arg(long, env = "ETCDCTL_ENDPOINTS", value_delimiter = ',', default_value = "127.0.0.1:2379")]
    endpoints: Vec<String>,
    #[command(flatten)]
    tls: ClientTlsFlags,
    /// NAME:PASSWORD of a user with the role root, if the cluster has users. Other users of the machine see
    /// the flags of a process but not its environment.
    #[arg(long, env = "ETCDCTL_USER", hide_env_values = true)]
    user: Option<String>,
    /// The password, if --user has the name only; ignored without --user.
    #[arg(long, env = "ETCDCTL_PASSWORD", hide_env_values = true)]
    password: Option<String>,
}

/// Invalid client flags.
#[derive(Debug, thiserror::Error)]
pub enum ClientFlagsError {
    #[error("--user is not NAME:PASSWORD, and --password is not set")]
    User,
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl ClientTlsFlags {
    /// Adds missing schemes. Like etcdctl, uses TLS if there are files for it.
    pub fn with_schemes(&self, endpoints: &[String]) -> Vec<String> {
        let is_secure = self.cacert.is_some() || self.cert.is_some() || self.insecure_skip_tls_verify;
        let scheme = if is_secure { "https" } else { "http" };
        let with_scheme = |endpoint: &String| match endpoint.contains("://") {
            true => endpoint.clone(),
            false => format!("{scheme}://{endpoint}"),
        };
        endpoints.iter().map(with_scheme).collect()
    }

    pub fn port(&self) -> PortTls {
        let own = self.cert.clone().zip(self.key.clone());
        PortTls {
            own: own.map(|(certificate, key)| KeyPair { certificate, key }),
            trusted_ca_file: self.cacert.clone(),
            // Disables certificate verification.
            is_self_signed: self.insecure_skip_tls_verify,
            ..PortTls::default()
        }
    }
}

impl ClientFlags {
    /// Creates a client of the cluster. Must be called on a runtime.
    pub fn client(&self) -> Result<OperatorClient, ClientFlagsError> {
        self.client_at(&self.endpoints)
    }

    /// Creates a client of the cluster at other endpoints. Must be called on a runtime.
    pub fn client_at(&self, endpoints: &[String]) -> Result<OperatorClient, ClientFlagsError> {
        Ok(OperatorClient::new(self.tls.with_schemes(endpoints), &self.tls.port(), self.user()?)?)
    }

    fn user(&self) -> Result<Option<(String, String)>, ClientFlagsError> {
        let Some(user) = &self.user else { return Ok(None) };
        if let Some(password) = &self.password {
            return Ok(Some((user.clone(), password.clone())));
        }
        let (name, password) = user.split_once(':').ok_or(ClientFlagsError::User)?;
        Ok(Some((name.to_owned(), password.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct FlagLine {
        #[command(flatten)]
        flags: ClientFlags,
    }

    fn flags(line: &str) -> ClientFlags {
        FlagLine::try_parse_from(std::iter::once("test").chain(line.split_whitespace())).unwrap().flags
    }

    #[test]
    fn endpoints_and_users_are_read_as_etcdctl_reads_them() {
        let endpoints = ["a:1".to_owned(), "http://b:2".to_owned()];
        for (line, first) in [
            ("", "http://a:1"),
            ("--cacert ca", "https://a:1"),
            ("--cert c --key k", "https://a:1"),
            ("--insecure-skip-tls-verify", "https://a:1"),
        ] {
            assert_eq!(flags(line).tls.with_schemes(&endpoints), [first, "http://b:2"], "{line}");
        }
        for (line, wanted) in [
            ("", Ok(None)),
            ("--user root:a:b", Ok(Some(("root", "a:b")))),
            ("--user root --password secret", Ok(Some(("root", "secret")))),
            ("--user root", Err(())),
            ("--password secret", Ok(None)),
        ] {
            let found = flags(line).user().map_err(drop);
            let wanted = wanted.map(|user| user.map(|(name, word)| (name.to_owned(), word.to_owned())));
            assert_eq!(found, wanted, "{line}");
        }
    }
}
