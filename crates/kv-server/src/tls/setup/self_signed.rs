//! Certificates of `--auto-tls` and `--peer-auto-tls`: made once, kept in the data directory, made again once they
//! have expired.

use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::error::TlsError;
use crate::config::{self, PortTls, Urls};

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The same TLS with a pair of files. `directory` is that of the port below the data directory.
pub fn with_self_signed(
    port: &PortTls,
    directory: &Path,
    urls: &Urls,
    years: u64,
) -> Result<PortTls, TlsError> {
    if !port.is_self_signed {
        return Ok(port.clone());
    }
    let pair = config::KeyPair { certificate: directory.join("cert.pem"), key: directory.join("key.pem") };
    if !is_usable(&pair) {
        make(&pair, directory, urls, years)?;
    }
    Ok(PortTls { shown: Some(pair), ..port.clone() })
}

fn is_usable(pair: &config::KeyPair) -> bool {
    let certificate = CertificateDer::from_pem_file(&pair.certificate).ok();
    certificate.is_some_and(|der| {
        let parsed = X509Certificate::from_der(&der);
        parsed.is_ok_and(|(_, certificate)| certificate.validity().is_valid())
    }) && pair.key.exists()
}

fn make(pair: &config::KeyPair, directory: &Path, urls: &Urls, years: u64) -> Result<(), TlsError> {
    let mut hosts: Vec<String> = urls.iter().map(|url| url.host().to_owned()).collect();
    hosts.retain(|host| !host.is_empty());
    hosts.dedup();
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "kv-server");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let now = SystemTime::now();
    // Ten thousand years and more are no date of a certificate.
    let lifetime = YEAR * u32::try_from(years.min(100)).unwrap_or(100);
    params.not_before = now.into();
    params.not_after = (now + lifetime).into();
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    write(directory, &pair.key, &key.serialize_pem())?;
    write(directory, &pair.certificate, &certificate.pem())?;
    tracing::info!(certificate = %pair.certificate.display(), "created cert file; created key file");
    Ok(())
}

/// Readable by the user of the process only: so its umask says.
fn write(directory: &Path, path: &Path, text: &str) -> Result<(), TlsError> {
    let failed = |source| TlsError::Write { path: path.to_owned(), source };
    std::fs::create_dir_all(directory).map_err(failed)?;
    std::fs::write(path, text).map_err(failed)
}
