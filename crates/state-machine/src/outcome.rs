//! Results of commands.

use api::etcdserverpb::{
    AlarmResponse, AuthenticateResponse, CompactionResponse, DeleteRangeResponse, LeaseGrantResponse,
    LeaseRevokeResponse, Member, PutResponse, ResponseHeader, TxnResponse,
};

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
