//! Test certificates, created in memory and written to a member's files.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
};

const HOUR: Duration = Duration::from_secs(3600);

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

pub struct Issued {
    pub certificate: String,
    pub key: String,
    serial: SerialNumber,
}

#[derive(Clone, Copy)]
pub struct Wish {
    pub common_name: &'static str,
    pub names: &'static [&'static str],
    pub is_expired: bool,
}

/// Names in the certificates of members and clients.
pub const GOOD: Wish = Wish { common_name: "good", names: &["127.0.0.1", "localhost"], is_expired: false };

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    pub fn issue(&self, wish: Wish) -> Issued {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let serial = SerialNumber::from(SERIAL.fetch_add(1, Ordering::Relaxed));
        let names: Vec<String> = wish.names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, wish.common_name);
        params.serial_number = Some(serial.clone());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let now = SystemTime::now();
        let end = if wish.is_expired { now - HOUR } else { now + HOUR };
        (params.not_before, params.not_after) = ((now - 2 * HOUR).into(), end.into());
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Issued { certificate: certificate.pem(), key: key.serialize_pem(), serial }
    }

    pub fn revoke(&self, revoked: &[&Issued]) -> String {
        let now = SystemTime::now();
        let entry = |issued: &&Issued| RevokedCertParams {
            serial_number: issued.serial.clone(),
            revocation_time: now.into(),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: now.into(),
            next_update: (now + HOUR).into(),
            crl_number: SerialNumber::from(1u64),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}

/// A directory of files by name.
pub struct Files(tempfile::TempDir);

impl Files {
    pub fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        replace(&path, text);
        path.display().to_string()
    }

    /// Writes `NAME.pem` and `NAME.key`.
    pub fn write_pair(&self, name: &str, issued: &Issued) {
        self.write(&format!("{name}.pem"), &issued.certificate);
        self.write(&format!("{name}.key"), &issued.key);
    }
}

/// Replaces a file atomically, like certificate managers do.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, path).unwrap();
}
