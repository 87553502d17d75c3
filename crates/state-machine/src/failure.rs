//! Results of commands, and the two kinds of failure of a request.
//!
//! * A *rejected* request fails with an error of etcd's table, the same on every member.
//! * A *broken* store differs between members: a block failed its checksum, or the disk failed. In
//!   apply the process must stop, because this member would diverge. A failed read affects only its
//!   client.

use api::etcdserverpb::{
    AlarmResponse, AuthenticateResponse, CompactionResponse, DeleteRangeResponse, LeaseGrantResponse,
    LeaseRevokeResponse, Member, PutResponse, ResponseHeader, TxnResponse,
};
use mvcc::{Error, LogIndex};

/// Reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The client receives this error.
    #[error("refused")]
    Refused(#[source] api::Error),
    /// The store cannot be read or written.
    #[error("store failed")]
    Broken(#[source] Error),
    /// The read was interrupted by its meter. Apply reads without one.
    #[error("interrupted")]
    Interrupted,
    /// The blocks of a large range were released. Does not occur in apply.
    #[error("released")]
    Released,
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
            Error::Interrupted => Failure::Interrupted,
            Error::Released => Failure::Released,
            broken => Failure::Broken(broken),
        }
    }
}

/// Reason why a log entry could not be applied. The process must stop: the entry can neither be
/// skipped nor retried. Malformed commands never cause this; they are rejected.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The store failed while a command was applied.
    #[error("apply a command of entry {index}")]
    Store {
        /// Index of the log entry.
        index: LogIndex,
        /// Cause of the failure.
        #[source]
        source: Error,
    },
    /// A record of this crate in the store cannot be read.
    #[error("read item {item:?} of the store: {reason}")]
    Item {
        /// Name of the item.
        item: Vec<u8>,
        /// Description of the problem.
        reason: &'static str,
    },
    /// The cluster uses commands that this version does not support.
    #[error("{0}")]
    Level(#[from] TooOld),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this version is too old for the cluster: it knows the commands of level {known}, the cluster uses those \
     of level {used}; a downgrade is not possible, start the version of the other members"
)]
pub struct TooOld {
    pub(crate) known: u32,
    pub(crate) used: u32,
}

/// Whether a client of this member waits for the outcome of a command.
pub use base::Answer;

/// The response to an accepted command.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    Put(PutResponse),
    DeleteRange(DeleteRangeResponse),
    Txn(TxnResponse),
    Compact(CompactionResponse),
    Alarm(AlarmResponse),
    PublishMember,
    LeaseGrant(LeaseGrantResponse),
    LeaseRevoke(LeaseRevokeResponse),
    /// Number of revoked leases.
    LeaseExpire(usize),
    LeaseRenew,
    SetDowngrade,
    RaiseLevel,
    Auth(Option<ResponseHeader>),
    Authenticate(AuthenticateResponse),
    /// All members after a membership change, by id.
    Members(Vec<Member>),
}

/// The result of a command, equal on every member.
pub type Outcome = Result<Response, api::Error>;

/// Creates a response header with the revision. The server adds the ids and the term.
pub(crate) fn header(revision: i64) -> Option<ResponseHeader> {
    assert!(revision >= 1, "the empty store is at revision 1");
    Some(ResponseHeader { revision, ..ResponseHeader::default() })
}
