//! Commands with the types of their responses.

use std::marker::PhantomData;

use api::command::auth_change::Kind as Change;
use api::command::{AuthChange, IssueToken, PublishMember, SetDowngrade};
use api::etcdserverpb::{
    AlarmRequest, AlarmResponse, AuthenticateResponse, CompactionRequest, CompactionResponse,
    DeleteRangeRequest, DeleteRangeResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest,
    LeaseRevokeResponse, Member, PutRequest, PutResponse, ResponseHeader, TxnRequest, TxnResponse,
};
use bytes::Bytes;
use state_machine::Response;
use state_machine::command::{Kind, LeaseExpire, LeaseRenew, MemberChange};

/// A command with a typed response.
pub trait Command {
    type Response;

    fn into_kind(self) -> Kind;

    /// Returns the response if it matches the command.
    fn response(response: Response) -> Option<Self::Response>;
}

/// An encoded command, ready to be proposed.
pub struct EncodedCommand<C> {
    pub bytes: Bytes,
    command: PhantomData<fn() -> C>,
}

impl<C: Command> EncodedCommand<C> {
    pub fn new(bytes: Bytes) -> EncodedCommand<C> {
        EncodedCommand { bytes, command: PhantomData }
    }
}

/// Returns the response of an applied command.
pub fn response_of<C: Command>(response: Response) -> C::Response {
    C::response(response).expect("the state machine responds to a command with the response of its kind")
}

/// Implements [`Command`] for request types: the kind, and the response with its pattern and value.
macro_rules! commands {
    ($($request:ty: $kind:ident -> $response:ty, $pattern:pat => $value:expr;)*) => {$(
        impl Command for $request {
            type Response = $response;

            fn into_kind(self) -> Kind {
                Kind::$kind(self)
            }

            fn response(response: Response) -> Option<$response> {
                if let $pattern = response { Some($value) } else { None }
            }
        }
    )*};
}

commands! {
    PutRequest: Put -> PutResponse, Response::Put(put) => put;
    DeleteRangeRequest: DeleteRange -> DeleteRangeResponse, Response::DeleteRange(deleted) => deleted;
    TxnRequest: Txn -> TxnResponse, Response::Txn(txn) => txn;
    CompactionRequest: Compact -> CompactionResponse, Response::Compact(compacted) => compacted;
    AlarmRequest: Alarm -> AlarmResponse, Response::Alarm(alarm) => alarm;
    PublishMember: PublishMember -> (), Response::PublishMember => ();
    LeaseGrantRequest: LeaseGrant -> LeaseGrantResponse, Response::LeaseGrant(granted) => granted;
    LeaseRevokeRequest: LeaseRevoke -> LeaseRevokeResponse, Response::LeaseRevoke(revoked) => revoked;
    LeaseExpire: LeaseExpire -> usize, Response::LeaseExpire(count) => count;
    LeaseRenew: LeaseRenew -> (), Response::LeaseRenew => ();
    SetDowngrade: SetDowngrade -> (), Response::SetDowngrade => ();
    MemberChange: MemberChange -> Vec<Member>, Response::Members(members) => members;
}

/// Changes users and roles. [`IssueToken`] has another response.
impl Command for Change {
    type Response = Option<ResponseHeader>;

    fn into_kind(self) -> Kind {
        Kind::Auth(AuthChange { kind: Some(self) })
    }

    fn response(response: Response) -> Option<Option<ResponseHeader>> {
        if let Response::Auth(header) = response { Some(header) } else { None }
    }
}

impl Command for IssueToken {
    type Response = AuthenticateResponse;

    fn into_kind(self) -> Kind {
        Change::IssueToken(self).into_kind()
    }

    fn response(response: Response) -> Option<AuthenticateResponse> {
        if let Response::Authenticate(issued) = response { Some(issued) } else { None }
    }
}
