//! Certificate verification callbacks of rustls, for servers and clients.

use std::error::Error as StdError;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, PeerMisbehaved,
    SignatureScheme,
};
use x509_parser::asn1_rs::{FromDer, Sequence};

use super::certificate::{Certificate, CertificateRefusal};
use super::chain::{CertificatePurpose, Roots};
use super::names::is_valid_for;

/// Additional check of a peer's certificates. An error aborts the handshake with an alert; after
/// the handshake, the peer would only see its connection close.
pub trait ChainCheck: Debug + Send + Sync {
    fn check(&self, chain: &[CertificateDer<'_>]) -> Result<(), Arc<dyn StdError + Send + Sync>>;
}

/// Verifies the clients of a port, or the servers that a member dials.
#[derive(Debug)]
pub struct Verifier {
    /// None: accept any certificate, as long as the peer owns its key.
    roots: Option<Roots>,
    /// Names of the roots, sent to clients as a hint for choosing a certificate.
    hints: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
    also: Option<Arc<dyn ChainCheck>>,
}

impl Verifier {
    pub fn new(roots: Option<Roots>, algorithms: WebPkiSupportedAlgorithms) -> Verifier {
        let hint = |subject: &[u8]| {
            let (_, inside) = Sequence::from_der(subject).ok()?;
            Some(DistinguishedName::in_sequence(&inside.content))
        };
        let hints = roots.iter().flat_map(Roots::subjects).filter_map(hint).collect();
        Verifier { roots, hints, algorithms, also: None }
    }

    pub fn with_check(self, also: Arc<dyn ChainCheck>) -> Verifier {
        Verifier { also: Some(also), ..self }
    }

    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: Option<&ServerName<'_>>,
        purpose: CertificatePurpose,
        now: UnixTime,
    ) -> Result<(), Error> {
        let chain: Vec<_> = std::iter::once(leaf).chain(others).cloned().collect();
        let leaf = Certificate::parse(leaf).map_err(to_rustls)?;
        let others = others.iter().map(|der| Certificate::parse(der)).collect::<Result<Vec<_>, _>>();
        let others = others.map_err(to_rustls)?;
        let Some(roots) = &self.roots else { return Ok(()) };
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        roots.check(&leaf, &others, purpose, now, self.algorithms.all).map_err(to_rustls)?;
        if let Some(also) = &self.also {
            also.check(&chain).map_err(|refusal| CertificateError::Other(OtherError(refusal)))?;
        }
        match name {
            Some(name) if !is_valid_for(&leaf, &name.to_str()) => {
                let presented = leaf.names().unwrap_or_default().iter().map(ToString::to_string).collect();
                let expected = name.to_owned();
                Err(CertificateError::NotValidForNameContext { expected, presented }.into())
            }
            _ => Ok(()),
        }
    }

    fn check_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let certificate = Certificate::parse(certificate).map_err(to_rustls)?;
        let of_scheme = self.algorithms.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
        let (_, possible) = of_scheme.ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
        if possible.iter().any(|known| certificate.has_signed(*known, message, signed.signature())) {
            Ok(HandshakeSignatureValid::assertion())
        } else {
            Err(CertificateError::BadSignature.into())
        }
    }

    fn check_signature_of_tls13(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let certificate = Certificate::parse(certificate).map_err(to_rustls)?;
        let key = SubjectPublicKeyInfoDer::from(certificate.key_info());
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }
}

fn at(seconds: i64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds.try_into().unwrap_or(0)))
}

/// Converts an error so that the alert is the same as Go's, where rustls supports it.
fn to_rustls(refusal: CertificateRefusal) -> Error {
    match refusal {
        CertificateRefusal::UnknownIssuer { .. } => CertificateError::UnknownIssuer.into(),
        CertificateRefusal::Expired { now, end, .. } => {
            CertificateError::ExpiredContext { time: at(now), not_after: at(end) }.into()
        }
        CertificateRefusal::NotYetValid { now, start, .. } => {
            CertificateError::NotValidYetContext { time: at(now), not_before: at(start) }.into()
        }
        other => CertificateError::Other(OtherError(Arc::new(other))).into(),
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(leaf, others, None, CertificatePurpose::Client, now)
            .map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature_of_tls13(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(leaf, others, Some(name), CertificatePurpose::Server, now)
            .map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature_of_tls13(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
