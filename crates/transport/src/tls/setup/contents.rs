//! The files that TLS of a port is made of, as bytes and as certificates.
//!
//! Two readings are compared byte by byte: a file that was replaced, renamed over or reached by another
//! symbolic link counts as changed, and one that was only touched does not.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use super::error::TlsError;
use config::{KeyPair, PortTls};

/// The usual files of the system's authorities.
const SYSTEM_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// A bundle of the system has some 300 KiB, a large revocation list some megabytes. A larger file is refused:
/// it is read again every few seconds.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// One file as it was read.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes {
    path: PathBuf,
    bytes: Vec<u8>,
}

/// A certificate and its key.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    certificate: Bytes,
    key: Bytes,
}

/// All files of one port.
#[derive(Clone, PartialEq, Eq)]
pub struct Contents {
    pub shown: Option<Pair>,
    pub own: Option<Pair>,
    /// None if none was named.
    pub authorities: Option<Bytes>,
    pub revoked: Option<Bytes>,
}

impl Contents {
    pub fn read(port: &PortTls) -> Result<Contents, TlsError> {
        let pair = |pair: &Option<KeyPair>| pair.as_ref().map(Pair::read).transpose();
        let file = |path: &Option<PathBuf>| path.as_deref().map(Bytes::read).transpose();
        Ok(Contents {
            shown: pair(&port.shown)?,
            own: pair(&port.own)?,
            authorities: file(&port.trusted_ca_file)?,
            revoked: file(&port.crl_file)?,
        })
    }
}

impl Contents {
    /// Files of certificates, each with when the first of them ends, in seconds since 1970.
    pub fn ends(&self) -> Vec<(&Path, i64)> {
        let pairs = self.shown.iter().chain(&self.own).map(|pair| &pair.certificate);
        let end = |file: &Bytes| {
            let certificates = file.certificates().ok()?;
            let end = |der: &CertificateDer<'_>| {
                let (_, certificate) = X509Certificate::from_der(der).ok()?;
                Some(certificate.validity().not_after.timestamp())
            };
            certificates.iter().filter_map(end).min()
        };
        pairs.chain(&self.authorities).filter_map(|file| Some((file.path.as_path(), end(file)?))).collect()
    }
}

impl Pair {
    fn read(pair: &KeyPair) -> Result<Pair, TlsError> {
        Ok(Pair { certificate: Bytes::read(&pair.certificate)?, key: Bytes::read(&pair.key)? })
    }

    pub fn chain(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        self.certificate.certificates()
    }

    pub fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let Bytes { bytes, .. } = &self.key;
        PrivateKeyDer::from_pem_slice(bytes).map_err(|error| self.key.unusable(error.to_string()))
    }

    /// What is wrong with the two together.
    pub fn unusable(&self, reason: String) -> TlsError {
        self.certificate.unusable(reason)
    }
}

impl Bytes {
    /// A regular file alone: a pipe would be waited for, and a device may have no end.
    fn read(path: &Path) -> Result<Bytes, TlsError> {
        let failed = |source| TlsError::Open { path: path.to_owned(), source };
        let unusable = |reason: String| TlsError::Unusable { path: path.to_owned(), reason };
        let at_once = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(at_once).open(path).map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(unusable("it is no regular file".to_owned()));
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(unusable(format!("larger than {} MiB", FILE_BYTES_MAX >> 20)));
        }
        Ok(Bytes { path: path.to_owned(), bytes })
    }

    fn unusable(&self, reason: String) -> TlsError {
        TlsError::Unusable { path: self.path.clone(), reason }
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        let found = found.map_err(|error| self.unusable(error.to_string()))?;
        if found.is_empty() {
            Err(self.unusable("there is no certificate in it".to_owned()))
        } else {
            Ok(found)
        }
    }

    /// Every certificate must be usable: an operator who names an authority relies on it.
    pub fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|error| self.unusable(error.to_string()))?;
        }
        Ok(roots)
    }

    /// Serial numbers in all lists of the file, which is PEM, or one list in DER, as etcd takes them. Whose
    /// list it is, and whether it is still valid, is not looked at, as in etcd.
    pub fn revoked(&self) -> Result<HashSet<Vec<u8>>, TlsError> {
        let pem: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&self.bytes).collect();
        let lists = match pem {
            Ok(lists) if !lists.is_empty() => lists,
            Ok(_) | Err(_) => vec![CertificateRevocationListDer::from(self.bytes.clone())],
        };
        let mut serials = HashSet::new();
        for list in &lists {
            let (_, list) = CertificateRevocationList::from_der(list)
                .map_err(|_| self.unusable("there is no list of revoked certificates in it".to_owned()))?;
            serials.extend(list.iter_revoked_certificates().map(|revoked| revoked.serial().to_bytes_be()));
        }
        Ok(serials)
    }
}

/// The authorities that the system trusts.
pub fn system_roots() -> Result<RootCertStore, TlsError> {
    let path = SYSTEM_ROOTS.iter().map(Path::new).find(|path| path.exists());
    let mut roots = RootCertStore::empty();
    // A bundle of the system may hold certificates that rustls cannot read.
    let (added, _) =
        roots.add_parsable_certificates(Bytes::read(path.ok_or(TlsError::NoSystemRoots)?)?.certificates()?);
    if added == 0 { Err(TlsError::NoSystemRoots) } else { Ok(roots) }
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
            let refused = Bytes::read(path).err().unwrap().to_string();
            assert!(refused.contains("it is no regular file"), "{refused}");
        }
        let (target, link) = (directory.path().join("a"), directory.path().join("b"));
        std::fs::write(&target, "text").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert_eq!(Bytes::read(&link).ok().unwrap().bytes, b"text");
    }
}
