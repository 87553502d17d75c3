//! Files with certificates, keys and certificate revocation lists.
//!
//! File contents are compared byte by byte. A file that was replaced, or is reached through a
//! different symbolic link, counts as changed; a changed timestamp alone does not.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::{CertifiedKey, SigningKey};
use x509_parser::prelude::{CertificateRevocationList, FromDer};

use super::certificate::Certificate;
use super::chain::Roots;

/// Common paths of the system's root certificates.
const SYSTEM_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// Maximum file size. A system bundle has some 300 KiB, a large revocation list some megabytes.
/// Files are reloaded every few seconds, so larger ones are rejected.
const FILE_BYTES_MAX: u64 = 64 << 20;

#[derive(Clone, PartialEq, Eq)]
pub struct PemFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct CertificatePair {
    pub certificate: PemFile,
    key: PemFile,
}

impl CertificatePair {
    pub fn read(certificate: &Path, key: &Path) -> Result<CertificatePair, FileError> {
        Ok(CertificatePair { certificate: PemFile::read(certificate)?, key: PemFile::read(key)? })
    }

    /// Returns the chain and its key, which must match.
    pub fn certified(&self, provider: &CryptoProvider) -> Result<CertifiedKey, FileError> {
        let chain = self.certificate.certificates()?;
        let key = self.key.private_key(provider)?;
        let own = Certificate::parse(&chain[0])
            .map_err(|refusal| self.certificate.unusable(refusal.to_string()))?;
        if key.public_key().is_some_and(|public| *public != *own.key_info()) {
            let certificate = self.certificate.path.display();
            return Err(self.key.unusable(format!(
                "this private key does not belong to the certificate in {certificate} (tls: private key does \
                 not match public key): give the two files that were made together"
            )));
        }
        Ok(CertifiedKey::new(chain, key))
    }
}

impl PemFile {
    /// Reads a regular file. Other types are rejected: a pipe could block, and a device may be
    /// endless.
    pub fn read(path: &Path) -> Result<PemFile, FileError> {
        let failed = |error| FileError::Open { path: path.to_owned(), error };
        let unusable = |reason: String| FileError::Unusable { path: path.to_owned(), reason };
        let at_once = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(at_once).open(path).map_err(failed)?;
        let kind = file.metadata().map_err(failed)?;
        if !kind.is_file() {
            let what = if kind.is_dir() { "a directory" } else { "not a regular file" };
            return Err(unusable(format!("it is {what}; set the path of a PEM file")));
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(unusable(format!("larger than {} MiB", FILE_BYTES_MAX >> 20)));
        }
        Ok(PemFile { path: path.to_owned(), bytes })
    }

    fn unusable(&self, reason: String) -> FileError {
        FileError::Unusable { path: self.path.clone(), reason }
    }

    /// Returns the path and the earliest expiry of its certificates, in seconds since the Unix
    /// epoch.
    pub fn end(&self) -> Option<(&Path, i64)> {
        let certificates = self.certificates().ok()?;
        let ends = certificates.iter().filter_map(|der| Some(Certificate::parse(der).ok()?.end()));
        Some((&self.path, ends.min()?))
    }

    /// Returns at least one certificate.
    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, FileError> {
        self.labelled("CERTIFICATE", &self.bytes)
    }

    fn labelled(&self, wanted: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let found = found.map_err(|error| self.damaged(&error))?;
        if found.is_empty() { Err(self.unusable(self.lacks(wanted, "x509"))) } else { Ok(found) }
    }

    fn damaged(&self, error: &pem::Error) -> FileError {
        let reason = match error {
            pem::Error::MissingSectionEnd { end_marker } => {
                format!("it ends before -----END {}-----", String::from_utf8_lossy(end_marker))
            }
            pem::Error::IllegalSectionStart { line } => {
                format!("this line begins nothing: {}", String::from_utf8_lossy(line))
            }
            error => error.to_string(),
        };
        self.unusable(format!("its PEM is damaged: {reason}"))
    }

    fn private_key(&self, provider: &CryptoProvider) -> Result<Arc<dyn SigningKey>, FileError> {
        let text = String::from_utf8_lossy(&self.bytes);
        let path = self.path.display();
        if text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED") {
            return Err(self.unusable(format!(
                "the private key is encrypted, and no flag gives its password: decrypt it with `openssl pkey \
                 -in {path} -out NEW`"
            )));
        }
        let key = PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|error| match error {
            pem::Error::NoItemsFound => self.unusable(self.lacks("PRIVATE KEY", "pkey")),
            error => self.damaged(&error),
        })?;
        // As in Go, the label does not determine the key format.
        let der = key.secret_der().to_vec();
        let forms = [
            PrivateKeyDer::Pkcs8(der.clone().into()),
            PrivateKeyDer::Sec1(der.clone().into()),
            PrivateKeyDer::Pkcs1(der.into()),
        ];
        let read = forms.into_iter().find_map(|key| provider.key_provider.load_private_key(key).ok());
        read.ok_or_else(|| {
            let usable = "RSA of 2048 to 8192 bits, P-256, P-384, P-521 and Ed25519";
            self.unusable(format!(
                "this private key is damaged or of a kind that cannot be used: usable are {usable}"
            ))
        })
    }

    /// Explains why a file without the wanted block is unsuitable, and how to fix it.
    fn lacks(&self, wanted: &str, program: &str) -> String {
        let (text, path) = (String::from_utf8_lossy(&self.bytes), self.path.display());
        let label = |line: &str| Some(line.strip_prefix("-----BEGIN ")?.split_once("-----")?.0.to_owned());
        let labels: Vec<String> = text.lines().filter_map(label).collect();
        let is_key = |label: &String| label.ends_with("PRIVATE KEY");
        if self.bytes.is_empty() {
            format!("the file is empty; it must contain a {wanted} in PEM")
        } else if self.bytes.starts_with(&[0x30]) {
            format!("it is DER, not PEM: convert it with `openssl {program} -inform DER -in {path} -out NEW`")
        } else if wanted == "CERTIFICATE" && labels.iter().any(is_key) {
            "there is a private key in it and no certificate: are the files of certificate and key swapped?"
                .to_owned()
        } else if wanted == "PRIVATE KEY" && labels.iter().any(|label| label == "CERTIFICATE") {
            "there is a certificate in it and no private key: are the files of certificate and key swapped?"
                .to_owned()
        } else if labels.is_empty() {
            format!("not a PEM file: a {wanted} starts with -----BEGIN {wanted}-----")
        } else {
            format!(
                "expected {wanted}, found {}: convert it with `openssl {program} -in {path} -out NEW`",
                labels.join(", ")
            )
        }
    }

    /// Returns the trusted certificates. Every certificate must be usable, because operators rely
    /// on the authorities they name. OpenSSL's other certificate labels are accepted, as in etcd.
    pub fn roots(&self) -> Result<Roots, FileError> {
        let mut text = String::from_utf8_lossy(&self.bytes).into_owned();
        for label in ["X509 CERTIFICATE", "TRUSTED CERTIFICATE"] {
            for edge in ["BEGIN", "END"] {
                text = text
                    .replace(&format!("-----{edge} {label}-----"), &format!("-----{edge} CERTIFICATE-----"));
            }
        }
        let mut roots = Roots::default();
        for certificate in self.labelled("CERTIFICATE", text.as_bytes())? {
            roots.add(certificate).map_err(|refusal| self.unusable(refusal.to_string()))?;
        }
        Ok(roots)
    }

    /// Returns the revoked serial numbers of all lists in the file, which is PEM, or a single list
    /// in DER. As in etcd, neither the issuer nor the validity of a list is checked.
    pub fn revoked(&self) -> Result<HashSet<Vec<u8>>, FileError> {
        let pem: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&self.bytes).collect();
        let lists = match pem {
            Ok(lists) if !lists.is_empty() => lists,
            Ok(_) | Err(_) => vec![CertificateRevocationListDer::from(self.bytes.clone())],
        };
        let mut serials = HashSet::new();
        for list in &lists {
            let (_, list) = CertificateRevocationList::from_der(list)
                .map_err(|_| self.unusable("expected a certificate revocation list".to_owned()))?;
            serials.extend(list.iter_revoked_certificates().map(|revoked| revoked.serial().to_bytes_be()));
        }
        Ok(serials)
    }
}

pub fn system_roots() -> Result<Roots, FileError> {
    let path = SYSTEM_ROOTS.iter().map(Path::new).find(|path| path.exists());
    let mut roots = Roots::default();
    for certificate in PemFile::read(path.ok_or(FileError::NoSystemRoots)?)?.certificates()? {
        // A system bundle may contain certificates that cannot be parsed.
        let _unreadable = roots.add(certificate);
    }
    if roots.is_empty() { Err(FileError::NoSystemRoots) } else { Ok(roots) }
}

/// Reason for rejecting a file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("open {}: {error}{}", path.display(), hint(error))]
    Open { path: PathBuf, error: io::Error },
    #[error("{}: {reason}", path.display())]
    Unusable { path: PathBuf, reason: String },
    #[error("no CA file is set, and the system has none in the usual paths")]
    NoSystemRoots,
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => " (check the path)",
        io::ErrorKind::PermissionDenied => {
            " (this user may not: change the owner or mode of the file or its directories)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for path in [pipe.as_path(), Path::new("/dev/zero"), directory.path()] {
            let refused = PemFile::read(path).err().unwrap().to_string();
            assert!(refused.contains("set the path of a PEM file"), "{refused}");
        }
        let (target, link) = (directory.path().join("a"), directory.path().join("b"));
        std::fs::write(&target, "text").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert_eq!(PemFile::read(&link).ok().unwrap().bytes, b"text");
    }
}
