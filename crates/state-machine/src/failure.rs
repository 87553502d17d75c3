//! Results of commands, and the two kinds of failure of a request.
//!
//! * A *refusal* is an error of etcd's table. It is the same on every member.
//! * A *broken* store is not: a block failed its checksum, or the disk failed. In apply the process must
//!   stop, because this member would diverge from the others. A read alone may fail.

use api::etcdserverpb::{
    AlarmResponse, AuthenticateResponse, CompactionResponse, DeleteRangeResponse, LeaseGrantResponse,
    LeaseRevokeResponse, Member, PutResponse, ResponseHeader, TxnResponse,
};
use mvcc::{Error, LogIndex};

/// Why a request was not served.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The request is answered with this error.
    #[error("refused")]
    Refused(#[source] api::Error),
    /// The store cannot be read or written.
    #[error("store failed")]
    Broken(#[source] Error),
    /// The meter of a read ended it. Apply reads without one.
    #[error("interrupted")]
    Interrupted,
    /// The blocks of a large range were released. Apply reads none.
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

/// Why a command of the log could not be applied. The process must stop: the log can neither be skipped nor
/// retried. The bytes of a command never cause this; they are refused.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The store broke while a command was applied.
    #[error("apply a command of entry {index}")]
    Store {
        /// Index of the log entry.
        index: LogIndex,
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
    /// The cluster uses commands that this version does not know.
    #[error("{0}")]
    Level(#[from] TooOld),
}

/// A version is too old for its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this version is too old for the cluster: it knows the commands of level {known}, the cluster uses those \
     of level {used}; a downgrade is not possible, start the version of the other members"
)]
pub struct TooOld {
    /// The level that it knows.
    pub(crate) known: u32,
    /// The level that the cluster has reached.
    pub(crate) used: u32,
}

/// Whether a client of this member waits for the outcome of a command.
pub use base::Answer;

/// The response to a command that was not refused.
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
    /// How many of the leases were revoked.
    LeaseExpire(usize),
    LeaseRenew,
    SetDowngrade,
    RaiseLevel,
    /// A change of users or roles.
    Auth(Option<ResponseHeader>),
    Authenticate(AuthenticateResponse),
    /// All members after a change of them, by id.
    Members(Vec<Member>),
}

/// The result of a command, equal on every member.
pub type Outcome = Result<Response, api::Error>;

/// A response header with the revision. The server adds the ids and the term.
pub(crate) fn header(revision: i64) -> Option<ResponseHeader> {
    assert!(revision >= 1, "the empty store is at revision 1");
    Some(ResponseHeader { revision, ..ResponseHeader::default() })
}
