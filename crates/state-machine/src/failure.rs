//! The two ways in which serving a request can go wrong.
//!
//! * A *refusal* is an answer: it has a name in etcd's table, and every member gives the same one.
//! * A *broken* store is none: a block failed its checksum, the disk failed. Whoever applies must stop the process,
//!   since going on would let this member drift from the others; a mere read may fail alone.

use mvcc::Error;

/// Why a request was not served.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The request is answered with this error.
    #[error("refused")]
    Refused(#[source] api::Error),
    /// The store cannot be read or written.
    #[error("store failed")]
    Broken(#[source] Error),
}

impl From<api::Error> for Failure {
    fn from(error: api::Error) -> Self {
        Failure::Refused(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Compacted { .. } => Failure::Refused(api::Error::Compacted),
            Error::FutureRevision { .. } => Failure::Refused(api::Error::FutureRev),
            broken => Failure::Broken(broken),
        }
    }
}

/// Why a command of the log could not be applied. The process must stop: the log can neither be skipped nor retried.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// The entry holds something that this version cannot apply.
    #[error("decode a command of entry {index}")]
    Decode {
        /// Index of the log entry.
        index: u64,
        /// What is wrong with the bytes.
        #[source]
        source: crate::command::DecodeError,
    },
    /// The store broke while a command was applied.
    #[error("apply a command of entry {index}")]
    Store {
        /// Index of the log entry.
        index: u64,
        /// What broke.
        #[source]
        source: Error,
    },
    /// A record of this crate in the store cannot be read.
    #[error("read item {item:?} of the store: {reason}")]
    Item {
        /// Name of the item.
        item: Vec<u8>,
        /// What is wrong with it.
        reason: &'static str,
    },
}
