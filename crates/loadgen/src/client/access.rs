//! Access to a cluster: TLS, and the token of a user.
//!
//! * All endpoints of a command share a single value.
//! * A token is requested once, before the run. etcd extends a simple token at each use. After it expires,
//!   calls fail with their code and are counted like any other failure.
//! * Neither key nor token is printed.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use certificates::{CertificatePair, FileError, PemFile, Verifier, system_roots, with_p521};
use client::Token;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::sign::SingleCertAndKey;
use tokio_rustls::rustls::{self, ClientConfig};

/// The request header in which etcd expects the token.
pub(crate) const TOKEN: &str = "token";

/// Accepted server certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Certificates issued by a root of the system.
    System,
    /// Certificates issued by a root in this file.
    Roots(PathBuf),
    /// Any: encrypted, without authentication of the server.
    Anyone,
}

/// The client's certificate chain and private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentity {
    pub certificate: PathBuf,
    pub private_key: PathBuf,
}

/// Transport of endpoints without a scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    Tls,
    /// TLS only if the scheme is https.
    TokenOnly,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("set up TLS")]
    Tls(#[source] rustls::Error),
}

/// TLS configuration and token of a command.
pub struct ClientAccess {
    connector: TlsConnector,
    token: OnceLock<Token>,
    offer: Offer,
}

impl ClientAccess {
    /// Reads the files. An error names the file. Certificates are verified like in the server.
    pub fn new(trust: &Trust, identity: Option<&ClientIdentity>, offer: Offer) -> Result<Self, Error> {
        let provider = Arc::new(with_p521(ring::default_provider()));
        let roots = match trust {
            Trust::System => Some(system_roots()?),
            Trust::Roots(path) => Some(PemFile::read(path)?.roots()?),
            Trust::Anyone => None,
        };
        let verifier = Verifier::new(roots, provider.signature_verification_algorithms);
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(Error::Tls)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some(ClientIdentity { certificate, private_key }) => {
                let pair = CertificatePair::read(certificate, private_key)?.certified(&provider)?;
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair)))
            }
        };
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), token: OnceLock::new(), offer })
    }

    pub(crate) fn connector(&self) -> &TlsConnector {
        &self.connector
    }

    pub(crate) fn offers_tls(&self) -> bool {
        self.offer == Offer::Tls
    }

    /// Sets the token of later calls. Has no effect after the first.
    pub fn set_token(&self, token: Token) {
        // A second token would be equivalent; existing links retain the first.
        let _ = self.token.set(token);
    }

    pub fn token(&self) -> Option<&Token> {
        self.token.get()
    }
}

impl fmt::Debug for ClientAccess {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Access")
            .field("has_token", &self.token.get().is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::rustls::server::{NoClientAuth, danger::ClientCertVerifier};
    use tokio_rustls::rustls::version::{TLS12, TLS13};
    use tokio_rustls::rustls::{ClientConnection, ServerConfig, ServerConnection};

    use super::*;

    #[test]
    fn unusable_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let empty = dir.path().join("empty.pem");
        std::fs::write(&empty, "no certificate\n").unwrap();
        let refused = |trust: &Trust| ClientAccess::new(trust, None, Offer::Tls).unwrap_err().to_string();
        assert_eq!(
            refused(&Trust::Roots(empty.clone())),
            format!(
                "{}: not a PEM file: a CERTIFICATE starts with -----BEGIN CERTIFICATE-----",
                empty.display()
            )
        );
        let missing = refused(&Trust::Roots("/nonexistent.pem".into()));
        assert!(missing.starts_with("open /nonexistent.pem: "), "{missing}");
        let identity = ClientIdentity { certificate: empty.clone(), private_key: empty };
        assert!(ClientAccess::new(&Trust::Anyone, Some(&identity), Offer::Tls).is_err());
    }

    /// etcd's results for a set of certificates; `crates/transport` replays all of them.
    const RECORDED: &str = include_str!("../../../transport/src/tls/setup/etcd.tsv");

    fn pem(label: &str, ders: &str) -> String {
        let block = |text: &str| format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n");
        ders.split(',').map(block).collect()
    }

    /// Runs a handshake in memory.
    fn shake(client: &Arc<ClientConfig>, server: Arc<ServerConfig>) -> Result<(), rustls::Error> {
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let mut client = ClientConnection::new(client.clone(), name).unwrap();
        let mut server = ServerConnection::new(server).unwrap();
        while client.wants_write() || server.wants_write() {
            let (mut of_client, mut of_server) = (Vec::new(), Vec::new());
            client.write_tls(&mut of_client).unwrap();
            server.write_tls(&mut of_server).unwrap();
            server.read_tls(&mut &of_client[..]).unwrap();
            server.process_new_packets()?;
            client.read_tls(&mut &of_server[..]).unwrap();
            client.process_new_packets()?;
        }
        Ok(())
    }

    #[test]
    fn certificates_are_judged_and_shown_as_by_etcds_client() {
        let dir = tempfile::tempdir().unwrap();
        let provider = Arc::new(with_p521(ring::default_provider()));
        for (role, name, trusts_any, wanted) in [
            ("server", "address", false, true),
            ("server", "key P-521", false, true),
            ("server", "self-signed CA:TRUE, trusted", false, true),
            ("server", "expired", false, false),
            // Version 1 certificates cannot contain an address.
            ("server", "version 1", false, false),
            ("server", "version 1", true, true),
            ("client", "version 1", true, true),
            ("client", "version 1 of a root of version 1", true, true),
            ("client", "self-signed version 1, trusted", true, true),
            ("client", "key P-521", true, true),
        ] {
            let mut lines = RECORDED.lines().map(|line| line.split('\t').collect::<Vec<_>>());
            let line = lines.find(|line| line[..2] == [role, name]).unwrap();
            let files = [("CERTIFICATE", line[3]), ("CERTIFICATE", line[4]), ("PRIVATE KEY", line[5])];
            let [roots, certificate, private_key] = files.map(|(label, ders)| {
                let path = dir.path().join(ders[ders.len() / 2..][..9].replace('/', "_"));
                std::fs::write(&path, pem(label, ders)).unwrap();
                path
            });
            let pair = CertificatePair::read(&certificate, &private_key).unwrap();
            let shown = Arc::new(SingleCertAndKey::from(pair.certified(&provider).unwrap()));
            let identity = ClientIdentity { certificate, private_key };
            let identity = (role == "client").then_some(&identity);
            let trust = if trusts_any { Trust::Anyone } else { Trust::Roots(roots.clone()) };
            let access = ClientAccess::new(&trust, identity, Offer::Tls).unwrap();
            for version in [&TLS12, &TLS13] {
                let server = ServerConfig::builder_with_provider(provider.clone());
                let server = server.with_protocol_versions(&[version]).unwrap();
                let judge: Arc<dyn ClientCertVerifier> = match identity {
                    None => Arc::new(NoClientAuth),
                    Some(_) => {
                        let roots = PemFile::read(&roots).unwrap().roots().unwrap();
                        Arc::new(Verifier::new(Some(roots), provider.signature_verification_algorithms))
                    }
                };
                let server = server.with_client_cert_verifier(judge).with_cert_resolver(shown.clone());
                let ended = shake(access.connector().config(), Arc::new(server));
                assert_eq!(ended.is_ok(), wanted, "{role}: {name}, {version:?}: {ended:?}");
            }
        }
    }

    #[test]
    fn a_token_is_never_printed() {
        let access = ClientAccess::new(&Trust::Anyone, None, Offer::Tls).unwrap();
        access.set_token("secret.1".parse().unwrap());
        assert_eq!(format!("{access:?}"), "Access { has_token: true, .. }");
    }
}
