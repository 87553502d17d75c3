//! What is wrong with a file.

use std::io;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not a bbolt file: neither of its meta pages is valid")]
    NoMeta,
    #[error("page {page}: {what}")]
    Page { page: u64, what: &'static str },
    #[error("page {page}: the file ends at byte {bytes}, and has {pages} pages according to its meta page")]
    Truncated { page: u64, bytes: u64, pages: u64 },
    #[error("read page {page}")]
    Io { page: u64, source: io::Error },
}

impl Error {
    pub(crate) fn page(page: u64, what: &'static str) -> Self {
        Error::Page { page, what }
    }
}
