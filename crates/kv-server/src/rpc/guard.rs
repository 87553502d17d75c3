//! Header fields and caller identity of a call. Both may reject the call before its message is decoded.

use std::net::SocketAddr;
use std::sync::Arc;

use api::{Error, Method};
use http::{HeaderMap, HeaderValue};
use state_machine::Session;
use tonic::{Request, Status};

use super::methods::{self, Access, IntactRule, LearnerRule};
use crate::audit::{AuditedCall, Who};
use crate::member::Member;
use admission::ClientId;
use auth::{Caller, Credential, Origin};
use grpc_server::http2::{PartRoom, Room};

/// Header fields used by every call, found in one pass. The first value wins if a field is repeated.
#[derive(Default)]
pub struct KnownFields<'h> {
    /// `grpc-encoding`: compression of the message.
    pub encoding: Option<&'h HeaderValue>,
    /// `grpc-timeout`.
    pub timeout: Option<&'h HeaderValue>,
    /// `client-api-version`: any text, but it must be text.
    pub client_version: Option<&'h HeaderValue>,
    /// `hasleader: true`: the call should fail on a member without a leader.
    pub has_leader: Option<&'h HeaderValue>,
    /// `token`: the token of the caller.
    pub token: Option<&'h HeaderValue>,
    /// `authorization`: the same, in the HTTP form.
    pub authorization: Option<&'h HeaderValue>,
}

impl<'h> KnownFields<'h> {
    pub fn of(headers: &'h HeaderMap) -> KnownFields<'h> {
        let mut known = KnownFields::default();
        for (name, value) in headers {
            let field = match name.as_str() {
                "grpc-encoding" => &mut known.encoding,
                "grpc-timeout" => &mut known.timeout,
                "client-api-version" => &mut known.client_version,
                "hasleader" => &mut known.has_leader,
                "token" => &mut known.token,
                "authorization" => &mut known.authorization,
                _ => continue,
            };
            field.get_or_insert(value);
        }
        known
    }

    /// Returns the compression of the messages, if any.
    pub fn compression(&self) -> Option<&'h str> {
        let encoding = self.encoding.filter(|encoding| *encoding != "identity")?;
        Some(encoding.to_str().unwrap_or_default())
    }
}

/// The sender of a call: its connection, its address, and the token in its headers or its certificate.
#[derive(Clone, Debug)]
pub struct Requester {
    pub client: ClientId,
    pub address: Option<SocketAddr>,
    pub credential: Credential,
    /// Largest response that its transport can deliver. A delete with a larger one is rejected before it is
    /// executed.
    pub answer_bytes_max: usize,
    /// Identity in the connection's certificate, for the audit log. None without a certificate.
    certificate: Option<Arc<Session>>,
}

impl Requester {
    /// Returns the sender of a call with these headers.
    pub fn new(member: &Member, origin: &Origin, headers: &HeaderMap, known: &KnownFields<'_>) -> Requester {
        let credential = member.auth.credential(origin, headers, known.token, known.authorization);
        let certificate = member.audit.as_ref().and_then(|_| origin.certificate.clone());
        let client = member.auth.client(origin.client, &credential);
        Requester { client, address: origin.address, credential, certificate, ..Requester::default() }
    }

    pub fn with_answers_of(self, answer_bytes_max: usize) -> Requester {
        Requester { answer_bytes_max, ..self }
    }

    /// Returns the call for the audit log, if that is enabled.
    pub fn audited(&self, member: &Member, method: Method) -> Option<AuditedCall> {
        let log = member.audit.as_ref()?;
        let Requester { address, credential, certificate, .. } = self;
        let who = Who { credential: credential.clone(), address: *address, certificate: certificate.clone() };
        Some(log.begin(who, method))
    }

    /// Returns the authenticated user, as a key for quotas.
    pub fn user(&self) -> Option<u64> {
        matches!(self.credential, Credential::Session(_) | Credential::Signed(_))
            .then_some(self.client.caller)
    }

    /// Returns the caller with its current permissions.
    pub async fn caller(&self, member: &Member) -> Result<Caller, Status> {
        member.caller(&self.credential).await
    }
}

impl Default for Requester {
    fn default() -> Self {
        Requester {
            client: ClientId::default(),
            address: None,
            credential: Credential::None,
            answer_bytes_max: usize::MAX,
            certificate: None,
        }
    }
}

/// What the implementation of a method needs to serve one call. Cheap to clone.
#[derive(Clone)]
pub struct ServedCall {
    pub member: Arc<Member>,
    pub requester: Requester,
    /// Response memory of the connection, to wait for before reading a response; see [`Room::wait`].
    pub room: PartRoom,
}

impl ServedCall {
    /// Returns the sender and the message of the call.
    pub fn parts<T>(&self, request: Request<T>) -> (&Requester, T) {
        (&self.requester, request.into_inner())
    }

    pub fn room(&self) -> Room<'_> {
        self.room.for_whole()
    }
}

/// Rejects a call with metadata that this member cannot satisfy, a call that its learners do not serve, and
/// one that a corrupt member must not serve.
pub fn check(member: &Member, method: Method, known: &KnownFields<'_>) -> Result<(), Error> {
    check_against(known, || member.status().leader.is_some())?;
    match methods::of(method).learner {
        LearnerRule::Voter => check_voter(member)?,
        LearnerRule::Any => {}
    }
    check_intact(member, method)
}

/// Rejects calls to a learner.
pub fn check_voter(member: &Member) -> Result<(), Error> {
    if member.roster.is_learner() { Err(Error::NotSupportedForLearner) } else { Ok(()) }
}

/// Rejects a call that its caller is not permitted to make, independent of the message. Deny by default:
/// each method has a rule in [`methods`].
pub async fn authorize(member: &Member, requester: &Requester, access: Access) -> Result<(), Status> {
    match access {
        Access::Open | Access::Keys => Ok(()),
        Access::User => requester.caller(member).await?.check_named().map_err(grpc_errors::refused),
        Access::Root => requester.caller(member).await?.check_root().map_err(grpc_errors::refused),
    }
}

/// Rejects calls that a member with a corrupt state must not serve.
fn check_intact(member: &Member, method: Method) -> Result<(), Error> {
    if member.fence.is_up() && methods::of(method).state == IntactRule::Intact {
        Err(Error::Corrupt)
    } else {
        Ok(())
    }
}

/// Reports whether the client requires a member with a leader.
pub fn needs_leader(known: &KnownFields<'_>) -> bool {
    known.has_leader.is_some_and(|value| value == "true")
}

fn check_against(known: &KnownFields<'_>, has_leader: impl FnOnce() -> bool) -> Result<(), Error> {
    if known.client_version.is_some_and(|version| std::str::from_utf8(version.as_bytes()).is_err()) {
        return Err(Error::InvalidClientAPIVersion);
    }
    if needs_leader(known) && !has_leader() { Err(Error::NoLeader) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_checked_version_first() {
        let bad_text = &b"\xff"[..];
        for (version, has_leader_asked, has_leader, wanted) in [
            (None, None, false, Ok(())),
            (Some(&b"3.7"[..]), Some("true"), true, Ok(())),
            (Some(&b"3.7"[..]), Some("true"), false, Err(Error::NoLeader)),
            (None, Some("false"), false, Ok(())),
            (None, Some("True"), false, Ok(())),
            (Some(bad_text), Some("true"), false, Err(Error::InvalidClientAPIVersion)),
            (Some(bad_text), None, true, Err(Error::InvalidClientAPIVersion)),
        ] {
            let version = version.map(|version| HeaderValue::from_bytes(version).unwrap());
            let asked = has_leader_asked.map(HeaderValue::from_static);
            let known = KnownFields {
                client_version: version.as_ref(),
                has_leader: asked.as_ref(),
                ..KnownFields::default()
            };
            assert_eq!(check_against(&known, || has_leader), wanted, "{version:?}, {asked:?}");
        }
    }

    #[test]
    fn the_first_value_of_each_field_is_found() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("te", "trailers"),
            ("grpc-timeout", "1S"),
            ("hasleader", "true"),
            ("grpc-timeout", "2S"),
            ("user-agent", "grpc-go"),
            ("grpc-encoding", "gzip"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let KnownFields { encoding, timeout, client_version, has_leader, .. } = KnownFields::of(&headers);
        let found = [encoding, timeout, client_version, has_leader].map(|value| value?.to_str().ok());
        assert_eq!(found, [Some("gzip"), Some("1S"), None, Some("true")]);
    }
}
