//! The TLS files of a port.

use std::io;
use std::path::{Path, PathBuf};

use tokio_rustls::rustls;

use certificates::{CertificatePair, FileError, PemFile};
use config::{KeyPair, PortTls};

#[derive(Clone, PartialEq, Eq)]
pub struct Contents {
    pub shown: Option<CertificatePair>,
    pub own: Option<CertificatePair>,
    /// None if not configured.
    pub authorities: Option<PemFile>,
    pub revoked: Option<PemFile>,
}

impl Contents {
    pub fn read(port: &PortTls) -> Result<Contents, TlsError> {
        let read = |pair: &KeyPair| CertificatePair::read(&pair.certificate, &pair.key);
        let pair = |pair: &Option<KeyPair>| pair.as_ref().map(read).transpose();
        let file = |path: &Option<PathBuf>| path.as_deref().map(PemFile::read).transpose();
        Ok(Contents {
            shown: pair(&port.shown)?,
            own: pair(&port.own)?,
            authorities: file(&port.trusted_ca_file)?,
            revoked: file(&port.crl_file)?,
        })
    }
}

impl Contents {
    /// Returns the certificate files with the time at which their first certificate expires, in seconds
    /// since 1970.
    pub fn ends(&self) -> Vec<(&Path, i64)> {
        self.pairs().chain(&self.authorities).filter_map(PemFile::end).collect()
    }

    /// Like `ends`, without authorities.
    pub fn ends_of_pairs(&self) -> Vec<(&Path, i64)> {
        self.pairs().filter_map(PemFile::end).collect()
    }

    fn pairs(&self) -> impl Iterator<Item = &PemFile> {
        self.shown.iter().chain(&self.own).map(|pair| &pair.certificate)
    }
}

/// Error of the TLS setup.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("set up TLS")]
    Rustls(#[from] rustls::Error),
    #[error("make a self-signed certificate")]
    SelfSigned(#[from] rcgen::Error),
}
