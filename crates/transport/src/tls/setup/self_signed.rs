//! Certificates of `--auto-tls` and `--peer-auto-tls`: created once, stored in the data directory, and
//! replaced after they have expired.

use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use config::{PortTls, Url, Urls};
use process::files;

use super::contents::TlsError;

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Returns the settings with a self-signed pair. `directory` is the port's directory below the data
/// directory.
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

/// Reports whether certificate and key are complete, currently valid, and match: an interrupted start may
/// have replaced only the key.
fn is_usable(pair: &config::KeyPair) -> bool {
    let read = |path| files::read(path).ok();
    let certificate = read(&pair.certificate).and_then(|pem| CertificateDer::from_pem_slice(&pem).ok());
    let key = read(&pair.key).and_then(|pem| KeyPair::from_pem(std::str::from_utf8(&pem).ok()?).ok());
    let (Some(certificate), Some(key)) = (certificate, key) else { return false };
    X509Certificate::from_der(&certificate).is_ok_and(|(_, certificate)| {
        let public = &certificate.public_key().subject_public_key.data;
        certificate.validity().is_valid() && public.as_ref() == key.public_key_raw()
    })
}

fn make(pair: &config::KeyPair, directory: &Path, urls: &Urls, years: u64) -> Result<(), TlsError> {
    // Unix sockets are dialled with the name of this machine.
    let name = |url: &Url| if url.scheme().is_unix() { "localhost" } else { url.host() }.to_owned();
    let mut hosts: Vec<String> = urls.iter().map(name).collect();
    hosts.retain(|host| !host.is_empty());
    hosts.dedup();
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "kv-server");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let now = SystemTime::now();
    // Years beyond 9999 are not representable in a certificate.
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

/// Writes the file atomically, readable by the process's user only.
fn write(directory: &Path, path: &Path, text: &str) -> Result<(), TlsError> {
    let failed = |source| TlsError::Write { path: path.to_owned(), source };
    std::fs::create_dir_all(directory).map_err(failed)?;
    files::replace(path, text.as_bytes()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_made_once_and_again_when_a_part_of_it_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let urls = Urls::parse("https://127.0.0.1:1").unwrap();
        let port = PortTls { is_self_signed: true, ..PortTls::default() };
        let made = |directory: &Path| {
            let pair = with_self_signed(&port, directory, &urls, 1).unwrap().shown.unwrap();
            [pair.certificate, pair.key].map(|path| (std::fs::read_to_string(&path).unwrap(), path))
        };
        let other = made(&dir.path().join("other"));
        let mut known = made(dir.path());
        assert_eq!(made(dir.path()), known, "made once");
        for part in 0..2 {
            let (text, path) = &known[part];
            for damaged in ["", &text[..text.len() / 2], &other[part].0] {
                std::fs::write(path, damaged).unwrap();
                let again = made(dir.path());
                assert_ne!(again, known, "{path:?} {damaged}");
                assert_eq!(made(dir.path()), again);
            }
            known = made(dir.path());
        }
        std::fs::remove_file(&known[1].1).unwrap();
        assert_ne!(made(dir.path()), known);
        assert!(!dir.path().join("key.tmp").exists());
    }
}
