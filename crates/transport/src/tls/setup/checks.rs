//! Checks of a certificate beyond its chain: names, the address that it is used from, revocation.
//!
//! Every connection is checked, including resumed sessions, in which the handshake does not verify a chain.
//! Names and serials are also checked within the handshake, which then fails with an alert.

use std::collections::HashSet;
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::extensions::GeneralName;

use super::lookups::Lookups;
use certificates::{Certificate, CertificateRefusal, ChainCheck, is_valid_for};
use config::PortTls;

/// Number of names of a rejected certificate that are logged.
const SHOWN_NAMES_MAX: usize = 32;

#[derive(Debug, Default)]
pub struct CertificateChecks {
    common_names: Vec<String>,
    hostnames: Vec<String>,
    /// Serial numbers.
    revoked: HashSet<Vec<u8>>,
    compares_address: bool,
    accepts_any_server: bool,
}

/// Reason for rejecting a certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckRefusal {
    #[error("{0}")]
    Certificate(#[from] CertificateRefusal),
    #[error("client certificate authentication failed: the common name {0:?} is not allowed")]
    CommonName(String),
    #[error("client certificate authentication failed: not valid for any allowed hostname")]
    Hostname,
    #[error("transport: certificate serial {0} revoked")]
    Revoked(String),
    #[error(
        "the certificate is not valid for the remote address ({0}): see \
         --feature-gates=SetMemberLocalAddr, --peer-skip-client-san-verification"
    )]
    Address(String),
}

impl CertificateChecks {
    pub fn new(port: &PortTls, revoked: HashSet<Vec<u8>>) -> CertificateChecks {
        CertificateChecks {
            common_names: port.allowed_common_names.clone(),
            hostnames: port.allowed_hostnames.clone(),
            revoked,
            compares_address: port.compares_address,
            accepts_any_server: port.is_self_signed,
        }
    }

    /// Checks the certificates of a connection from `remote`. The chain may be empty if none is required.
    pub async fn check(
        &self,
        chain: &[CertificateDer<'_>],
        remote: IpAddr,
        lookups: &Lookups,
    ) -> Result<(), CheckRefusal> {
        self.check_chain(chain)?;
        let Some(first) = chain.first().filter(|_| self.compares_address) else { return Ok(()) };
        let certificate = Certificate::parse(first)?;
        Names::of(&certificate).check(&certificate, remote, lookups).await
    }

    /// Checks the certificates of a server. rustls verifies that they match its host.
    pub fn check_server(&self, chain: &[CertificateDer<'_>]) -> Result<(), CheckRefusal> {
        if self.accepts_any_server { Ok(()) } else { self.check_chain(chain) }
    }

    fn check_chain(&self, chain: &[CertificateDer<'_>]) -> Result<(), CheckRefusal> {
        let chain: Vec<_> = chain.iter().map(|der| Certificate::parse(der)).collect::<Result<_, _>>()?;
        let Some(first) = chain.first() else { return Ok(()) };
        for certificate in &chain {
            let serial = certificate.serial();
            if self.revoked.contains(&serial) {
                let text = serial.iter().map(|byte| format!("{byte:02x}")).collect();
                return Err(CheckRefusal::Revoked(text));
            }
        }
        let now = UnixTime::now().as_secs().cast_signed();
        first.check_at(now)?;
        self.check_common_name(first.common_name())?;
        self.check_hostnames(first)
    }

    fn check_common_name(&self, name: &str) -> Result<(), CheckRefusal> {
        if self.common_names.is_empty() || self.common_names.iter().any(|allowed| allowed == name) {
            return Ok(());
        }
        Err(CheckRefusal::CommonName(name.to_owned()))
    }

    fn check_hostnames(&self, certificate: &Certificate<'_>) -> Result<(), CheckRefusal> {
        let is_valid = |name: &String| is_valid_for(certificate, name);
        if self.hostnames.is_empty() || self.hostnames.iter().any(is_valid) {
            return Ok(());
        }
        Err(CheckRefusal::Hostname)
    }
}

impl ChainCheck for CertificateChecks {
    fn check(&self, chain: &[CertificateDer<'_>]) -> Result<(), Arc<dyn Error + Send + Sync>> {
        self.check_chain(chain).map_err(|refusal| Arc::new(refusal) as _)
    }
}

/// Returns the common name of a certificate; empty if it has none.
pub fn common_name(der: &CertificateDer<'_>) -> Option<String> {
    Certificate::parse(der).ok().map(|certificate| certificate.common_name().to_owned())
}

/// Formats an address of a certificate; as raw bytes if it has an unusual length.
fn shown(bytes: &[u8]) -> String {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let address = v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
    address.map_or_else(|_| format!("{bytes:?}"), |address| address.to_string())
}

/// Alternative names of a certificate that etcd compares with an address.
struct Names {
    addresses: Vec<String>,
    dns: Vec<String>,
}

impl Names {
    fn of(certificate: &Certificate<'_>) -> Names {
        let mut names = Names { addresses: Vec::new(), dns: Vec::new() };
        for name in certificate.names().unwrap_or_default() {
            match name {
                GeneralName::IPAddress(bytes) => names.addresses.push(shown(bytes)),
                GeneralName::DNSName(name) => names.dns.push((*name).to_owned()),
                _ => {}
            }
        }
        names
    }

    /// Accepts a certificate without such names. Otherwise one of the addresses must be `remote`, or one of
    /// the DNS names must resolve to it, by forward or reverse lookup.
    async fn check(
        &self,
        certificate: &Certificate<'_>,
        remote: IpAddr,
        lookups: &Lookups,
    ) -> Result<(), CheckRefusal> {
        let is_free = self.addresses.is_empty() && self.dns.is_empty();
        let by_address = !self.addresses.is_empty() && is_valid_for(certificate, &remote.to_string());
        if is_free || by_address || lookups.lead_to(&self.dns, remote).await {
            return Ok(());
        }
        // etcd's wording, which is Go's error if the certificate has only addresses.
        let some = |names: &[String]| names.iter().take(SHOWN_NAMES_MAX).cloned().collect::<Vec<_>>();
        let reason = if self.dns.is_empty() {
            format!("x509: certificate is valid for {}, not {remote}", some(&self.addresses).join(", "))
        } else {
            format!("tls: {:?} does not match any of DNSNames {:?}", remote.to_string(), some(&self.dns))
        };
        Err(CheckRefusal::Address(reason))
    }
}
