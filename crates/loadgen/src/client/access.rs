//! Access to a cluster: TLS, and the token of a user.
//!
//! * All endpoints of a command share one value.
//! * A token is requested once, before the run. etcd renews a simple token at each use. After it expires,
//!   calls fail with their code and are counted like any other failure.
//! * Neither key nor token is printed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_rustls::{TlsConnector, rustls};

/// The request header in which etcd expects the token.
pub(crate) const TOKEN: &str = "token";

/// The usual files of the system's root certificates.
const SYSTEM_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Which server certificates are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Those that lead to a root of the system.
    System,
    /// Those that lead to a root in this file.
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

/// How endpoints without a scheme are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    Tls,
    /// By TLS only where the address has the scheme https.
    TokenOnly,
}

/// Why access could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read {path}: {reason}")]
    File { path: PathBuf, reason: String },
    #[error("no root certificates in the usual places; name a file with --cacert")]
    NoSystemRoots,
    #[error("set up TLS")]
    Tls(#[source] rustls::Error),
}

/// See the module's head.
pub struct ClientAccess {
    connector: TlsConnector,
    token: OnceLock<String>,
    offer: Offer,
}

impl ClientAccess {
    /// Reads the files. An error names the file.
    pub fn new(trust: &Trust, identity: Option<&ClientIdentity>, offer: Offer) -> Result<Self, Error> {
        let provider = Arc::new(ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
        let builder = builder.map_err(Error::Tls)?;
        let builder = match trust {
            Trust::Anyone => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate { provider })),
            Trust::System | Trust::Roots(_) => {
                let roots = Arc::new(roots(trust)?);
                let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
                let verifier =
                    verifier.map_err(|error| Error::Tls(rustls::Error::General(error.to_string())))?;
                builder.with_webpki_verifier(verifier)
            }
        };
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some(ClientIdentity { certificate, private_key }) => {
                let chain = certificates(certificate)?;
                let key = PrivateKeyDer::from_pem_file(private_key)
                    .map_err(|error| Error::File { path: private_key.clone(), reason: error.to_string() })?;
                builder.with_client_auth_cert(chain, key).map_err(Error::Tls)?
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

    /// Sets the token of later calls. The first token stays.
    pub fn set_token(&self, token: String) {
        // A second token would be equivalent; existing links keep the first.
        let _ = self.token.set(token);
    }

    pub fn token(&self) -> Option<&str> {
        self.token.get().map(String::as_str)
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

fn roots(trust: &Trust) -> Result<RootCertStore, Error> {
    let path = match trust {
        Trust::Roots(path) => path.clone(),
        Trust::System | Trust::Anyone => {
            let found = SYSTEM_ROOTS.iter().map(PathBuf::from).find(|path| path.exists());
            found.ok_or(Error::NoSystemRoots)?
        }
    };
    let mut store = RootCertStore::empty();
    // A system's bundle may contain certificates that rustls cannot parse.
    let (added, _) = store.add_parsable_certificates(certificates(&path)?);
    if added == 0 {
        return Err(Error::File { path, reason: "no certificate in it can be used as a root".into() });
    }
    Ok(store)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let fail = |reason: String| Error::File { path: path.into(), reason };
    let found = CertificateDer::pem_file_iter(path).map_err(|error| fail(error.to_string()))?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(|error| fail(error.to_string()))?;
    if found.is_empty() { Err(fail("there is no certificate in it".into())) } else { Ok(found) }
}

/// Accepts every certificate, also one that rustls cannot read. A signature by it would prove nothing.
#[derive(Debug)]
struct AcceptAnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let empty = dir.path().join("empty.pem");
        std::fs::write(&empty, "no certificate\n").unwrap();
        let refused = |trust: &Trust| ClientAccess::new(trust, None, Offer::Tls).unwrap_err().to_string();
        assert_eq!(
            refused(&Trust::Roots(empty.clone())),
            format!("read {}: there is no certificate in it", empty.display())
        );
        let missing = refused(&Trust::Roots("/nonexistent.pem".into()));
        assert!(missing.starts_with("read /nonexistent.pem: "), "{missing}");
        let identity = ClientIdentity { certificate: empty.clone(), private_key: empty };
        assert!(ClientAccess::new(&Trust::Anyone, Some(&identity), Offer::Tls).is_err());
    }

    #[test]
    fn a_token_is_never_printed() {
        let access = ClientAccess::new(&Trust::Anyone, None, Offer::Tls).unwrap();
        access.set_token("secret.1".into());
        assert_eq!(format!("{access:?}"), "Access { has_token: true, .. }");
    }
}
