//! Builds rustls configurations from files.

use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::server::{NoClientAuth, danger::ClientCertVerifier};
use tokio_rustls::rustls::sign::SingleCertAndKey;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion};

use super::checks::CertificateChecks;
use super::contents::{Contents, TlsError};
use certificates::{FileError, Roots, Verifier, system_roots, with_p521};
use config::PortTls;

/// Configuration of a port, built from a consistent read of the files.
pub struct LoadedFiles {
    /// None without a certificate to present.
    pub server: Option<Arc<ServerConfig>>,
    pub client: Option<Arc<ClientConfig>>,
    pub checks: Arc<CertificateChecks>,
    /// Earliest expiry of the presented certificates, in seconds since 1970.
    pub certificate_end: Option<i64>,
}

/// Selects the configurations that a port needs and its application protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// Accepts connections.
    Clients,
    /// Accepts connections, and connects to other members.
    Peers,
}

impl PortKind {
    /// Returns the name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            PortKind::Clients => "client",
            PortKind::Peers => "peer",
        }
    }

    fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            PortKind::Clients => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            PortKind::Peers => vec![b"h2".to_vec()],
        }
    }
}

impl LoadedFiles {
    pub fn build(port: &PortTls, used: PortKind, contents: &Contents) -> Result<LoadedFiles, TlsError> {
        let provider = Arc::new(provider(port));
        let revoked = contents.revoked.as_ref().map(|list| list.revoked()).transpose()?.unwrap_or_default();
        // The separate client pair is checked even if it is not used.
        let checks = Arc::new(CertificateChecks::new(port, revoked));
        let client = client(port, used, contents, &provider, &checks)?;
        Ok(LoadedFiles {
            server: server(port, used, contents, &provider, &checks)?,
            client: if used == PortKind::Peers { client } else { None },
            checks,
            certificate_end: contents.ends_of_pairs().into_iter().map(|(_, end)| end).min(),
        })
    }
}

fn provider(port: &PortTls) -> CryptoProvider {
    let mut provider = with_p521(ring::default_provider());
    let wanted = &port.protocol.suites;
    if !wanted.is_empty() {
        // TLS 1.3 suites are not configurable, like in Go.
        provider.cipher_suites.retain(|suite| suite.tls13().is_some() || wanted.contains(suite));
    }
    provider
}

fn versions(port: &PortTls) -> Vec<&'static SupportedProtocolVersion> {
    let given = [(port.protocol.tls13, &TLS13), (port.protocol.tls12, &TLS12)];
    given.into_iter().filter(|(is_on, _)| *is_on).map(|(_, version)| version).collect()
}

fn roots(contents: &Contents) -> Result<Roots, FileError> {
    contents.authorities.as_ref().map_or_else(system_roots, |file| file.roots())
}

fn server(
    port: &PortTls,
    used: PortKind,
    contents: &Contents,
    provider: &Arc<CryptoProvider>,
    checks: &Arc<CertificateChecks>,
) -> Result<Option<Arc<ServerConfig>>, TlsError> {
    let Some(shown) = &contents.shown else { return Ok(None) };
    let verifier: Arc<dyn ClientCertVerifier> = if port.requires_certificate {
        let of_chains = Verifier::new(Some(roots(contents)?), provider.signature_verification_algorithms);
        Arc::new(of_chains.with_check(Arc::clone(checks) as _))
    } else {
        Arc::new(NoClientAuth)
    };
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&versions(port))?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(shown.certified(provider)?)));
    config.alpn_protocols = used.alpn();
    // A returning client resumes its session, which saves the asymmetric operation for its certificate. Each
    // configuration has a new ticket key: sessions admitted by an older one are verified again.
    config.ticketer = ring::Ticketer::new()?;
    Ok(Some(Arc::new(config)))
}

fn client(
    port: &PortTls,
    used: PortKind,
    contents: &Contents,
    provider: &Arc<CryptoProvider>,
    checks: &Arc<CertificateChecks>,
) -> Result<Option<Arc<ClientConfig>>, TlsError> {
    if used == PortKind::Clients && contents.own.is_none() {
        return Ok(None);
    }
    let accepts_any = port.is_self_signed || used == PortKind::Clients;
    let roots = if accepts_any { None } else { Some(roots(contents)?) };
    let verifier = Verifier::new(roots, provider.signature_verification_algorithms);
    let verifier = if accepts_any { verifier } else { verifier.with_check(Arc::clone(checks) as _) };
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&versions(port))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match contents.own.as_ref().or(contents.shown.as_ref()) {
        Some(pair) => {
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair.certified(provider)?)))
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = used.alpn();
    Ok(Some(Arc::new(config)))
}
