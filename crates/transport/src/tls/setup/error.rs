//! Why TLS cannot be set up.

use std::io;
use std::path::PathBuf;

use tokio_rustls::rustls;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("open {}: {error}{}", path.display(), hint(error))]
    Open { path: PathBuf, error: io::Error },
    #[error("write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{}: {reason}", path.display())]
    Unusable { path: PathBuf, reason: String },
    #[error("no file of trusted authorities was given, and the system has none in the usual places")]
    NoSystemRoots,
    #[error("set up TLS")]
    Rustls(#[from] rustls::Error),
    #[error("make a self-signed certificate")]
    SelfSigned(#[from] rcgen::Error),
}

/// What to do about a file that cannot be read.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => " (check the path)",
        io::ErrorKind::PermissionDenied => {
            " (kv-server's user may not: change the owner or mode of the file or its directories)"
        }
        _ => "",
    }
}
