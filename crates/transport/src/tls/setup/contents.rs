//! The files that TLS of a port is made of.

use std::io;
use std::path::{Path, PathBuf};

use tokio_rustls::rustls;

use certificates::{CertificatePair, FileError, PemFile};
use config::{KeyPair, PortTls};

/// All files of one port.
#[derive(Clone, PartialEq, Eq)]
pub struct Contents {
    pub shown: Option<CertificatePair>,
    pub own: Option<CertificatePair>,
    /// None if none was named.
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
    /// Files of certificates, each with when the first of them ends, in seconds since 1970.
    pub fn ends(&self) -> Vec<(&Path, i64)> {
        self.pairs().chain(&self.authorities).filter_map(PemFile::end).collect()
    }

    /// The same without authorities.
    pub fn ends_of_pairs(&self) -> Vec<(&Path, i64)> {
        self.pairs().filter_map(PemFile::end).collect()
    }

    fn pairs(&self) -> impl Iterator<Item = &PemFile> {
        self.shown.iter().chain(&self.own).map(|pair| &pair.certificate)
    }
}

/// Why TLS cannot be set up.
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
