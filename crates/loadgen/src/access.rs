//! What it takes to be let in: TLS, and the token of a user.
//!
//! * One value per command, shared by all its endpoints: whoever may talk to one member may talk to all of them.
//! * A token is had once, before the run. etcd keeps a simple token alive as long as it is used; should it expire, calls fail with
//!   their code and are counted like any other failure.
//! * Neither key nor token is ever printed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_rustls::{TlsConnector, rustls};

/// The header of a call in which etcd looks for it.
pub(crate) const TOKEN: &str = "token";

/// Where systems keep the roots that they trust.
const SYSTEM_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// How far a server's certificate is believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// What the system trusts.
    System,
    /// What this file holds.
    Roots(PathBuf),
    /// Any certificate: encrypted, but to whom nobody knows.
    Anyone,
}

/// Who the client says it is: certificate chain and private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub certificate: PathBuf,
    pub private_key: PathBuf,
}

/// What endpoints without a scheme are to make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    Tls,
    /// TLS only where an address asks for it.
    TokenOnly,
}

/// Why there is no way in.
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
pub struct Access {
    connector: TlsConnector,
    token: OnceLock<String>,
    offer: Offer,
}

impl Access {
    /// What the files say, or which of them is no use.
    pub fn new(trust: &Trust, identity: Option<&Identity>, offer: Offer) -> Result<Self, Error> {
        let provider = Arc::new(ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
        let builder = builder.map_err(Error::Tls)?;
        let builder = match trust {
            Trust::Anyone => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(Believing { provider }))
            }
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
            Some(Identity { certificate, private_key }) => {
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

    /// What calls carry from now on. The first token stays.
    pub fn set_token(&self, token: String) {
        // A second one would be as good; links that were made keep the first.
        let _ = self.token.set(token);
    }

    pub fn token(&self) -> Option<&str> {
        self.token.get().map(String::as_str)
    }
}

impl fmt::Debug for Access {
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
    // A system's bundle may hold certificates of a make that this library does not read.
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

/// Believes every certificate; the handshake itself must still be right.
#[derive(Debug)]
struct Believing {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Believing {
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
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_use_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let empty = dir.path().join("empty.pem");
        std::fs::write(&empty, "no certificate\n").unwrap();
        let refused = |trust: &Trust| Access::new(trust, None, Offer::Tls).unwrap_err().to_string();
        assert_eq!(
            refused(&Trust::Roots(empty.clone())),
            format!("read {}: there is no certificate in it", empty.display())
        );
        let missing = refused(&Trust::Roots("/nonexistent.pem".into()));
        assert!(missing.starts_with("read /nonexistent.pem: "), "{missing}");
        let identity = Identity { certificate: empty.clone(), private_key: empty };
        assert!(Access::new(&Trust::Anyone, Some(&identity), Offer::Tls).is_err());
    }

    #[test]
    fn a_token_is_never_printed() {
        let access = Access::new(&Trust::Anyone, None, Offer::Tls).unwrap();
        access.set_token("secret.1".into());
        assert_eq!(format!("{access:?}"), "Access { has_token: true, .. }");
    }
}
