//! Why TLS cannot be set up.

use std::io;
use std::path::PathBuf;

use tokio_rustls::rustls;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("open {}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{}: {reason}", path.display())]
    Unusable { path: PathBuf, reason: String },
    #[error("no file of trusted authorities was given, and the system has none in the usual places")]
    NoSystemRoots,
    #[error("set up TLS")]
    Rustls(#[from] rustls::Error),
    #[error("set up the verification of certificates: {0}")]
    Verifier(String),
    #[error("make a self-signed certificate")]
    SelfSigned(#[from] rcgen::Error),
}
