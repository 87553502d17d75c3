//! What every call brings besides its message: fields of its headers, and who asks. They may refuse the call
//! before its message is looked at.

use std::net::SocketAddr;
use std::sync::Arc;

use api::{Error, Method};
use http::{HeaderMap, HeaderValue};
use state_machine::Session;
use tonic::{Request, Status};

use crate::audit::{AuditedCall, Who};
use crate::member::Member;
use admission::ClientId;
use auth::{Caller, Credential, Origin};
use grpc_server::http2::{PartRoom, Room};
use grpc_server::methods::{self, Access, IntactRule};

/// The fields that each call looks for, found in one pass. Of a field that comes more than once, the first
/// value.
#[derive(Default)]
pub struct KnownFields<'h> {
    /// `grpc-encoding`: how the message is compressed.
    pub encoding: Option<&'h HeaderValue>,
    /// `grpc-timeout`.
    pub timeout: Option<&'h HeaderValue>,
    /// `client-api-version`: free text, but text.
    pub client_version: Option<&'h HeaderValue>,
    /// `hasleader: true`: better no answer than one from a member without a leader.
    pub has_leader: Option<&'h HeaderValue>,
    /// `token`: whose call it is.
    pub token: Option<&'h HeaderValue>,
    /// `authorization`: the same, as HTTP says it.
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

    /// How the messages are compressed, if they are.
    pub fn compression(&self) -> Option<&'h str> {
        let encoding = self.encoding.filter(|encoding| *encoding != "identity")?;
        Some(encoding.to_str().unwrap_or_default())
    }
}

/// Who makes a call: the connection that it came on, its address, and the token in its headers or its
/// certificate.
#[derive(Clone, Debug)]
pub struct Asker {
    pub client: ClientId,
    pub address: Option<SocketAddr>,
    pub credential: Credential,
    /// Bytes of one answer that its way to the client takes. A delete is refused before it is made.
    pub answer_bytes_max: usize,
    /// What the certificate of the connection names, for the audit log. None without one.
    certificate: Option<Arc<Session>>,
    /// Of its connection, if it is answered outside of the connection's task.
    room: Option<PartRoom>,
}

impl Asker {
    /// Of a call with these headers.
    pub fn new(member: &Member, origin: &Origin, headers: &HeaderMap, known: &KnownFields<'_>) -> Asker {
        let credential = member.auth.credential(origin, headers, known.token, known.authorization);
        let certificate = member.audit.as_ref().and_then(|_| origin.certificate.clone());
        let client = member.auth.client(origin.client, &credential);
        Asker { client, address: origin.address, credential, certificate, ..Asker::default() }
    }

    pub fn with_answers_of(self, answer_bytes_max: usize) -> Asker {
        Asker { answer_bytes_max, ..self }
    }

    /// Of a call that tonic hands over. The dispatcher has found it, and the connection has room.
    pub fn of<T>(request: &Request<T>) -> Asker {
        let asker: Asker = request.extensions().get().cloned().unwrap_or_default();
        Asker { room: request.extensions().get().cloned(), ..asker }
    }

    /// The call for the audit log, if there is one.
    pub fn audited(&self, member: &Member, method: Method) -> Option<AuditedCall> {
        let log = member.audit.as_ref()?;
        let Asker { address, credential, certificate, .. } = self;
        let who = Who { credential: credential.clone(), address: *address, certificate: certificate.clone() };
        Some(log.begin(who, method))
    }

    /// The user that has shown who it is, as who shares.
    pub fn user(&self) -> Option<u64> {
        matches!(self.credential, Credential::Session(_) | Credential::Signed(_))
            .then_some(self.client.caller)
    }

    /// To be waited for just before an answer is read, as [`Room::wait`] says.
    pub fn room(&self) -> Option<Room<'_>> {
        self.room.as_ref().map(PartRoom::for_whole)
    }

    /// The caller at this moment.
    pub async fn caller(&self, member: &Member) -> Result<Caller, Status> {
        member.caller(&self.credential).await
    }
}

impl Default for Asker {
    fn default() -> Self {
        Asker {
            client: ClientId::default(),
            address: None,
            credential: Credential::None,
            answer_bytes_max: usize::MAX,
            certificate: None,
            room: None,
        }
    }
}

/// Checks the metadata of a call of tonic's, and takes it apart.
pub fn admit<T>(member: &Member, request: Request<T>) -> Result<(Asker, T), Status> {
    check(member, request.metadata().as_ref()).map_err(grpc_errors::refused)?;
    Ok((Asker::of(&request), request.into_inner()))
}

/// Refuses a call whose metadata this member cannot satisfy, and any call to a learner.
pub fn check(member: &Member, metadata: &HeaderMap) -> Result<(), Error> {
    check_known(member, &KnownFields::of(metadata))
}

/// As `check`, of fields that were found already.
pub fn check_known(member: &Member, known: &KnownFields<'_>) -> Result<(), Error> {
    check_any(member, known)?;
    check_voter(member)
}

/// Refuses a learner: it answers Status, Snapshot and serializable ranges only.
pub fn check_voter(member: &Member) -> Result<(), Error> {
    if member.roster.is_learner() { Err(Error::NotSupportedForLearner) } else { Ok(()) }
}

/// As `check_known`, for calls that learners answer as well.
pub fn check_any(member: &Member, known: &KnownFields<'_>) -> Result<(), Error> {
    check_against(known, || member.status().leader.is_some())
}

/// Refuses a call that its caller may not make, for any message. Deny by default: each method has a rule in
/// [`grpc_server::methods`].
pub async fn authorize(member: &Member, asker: &Asker, access: Access) -> Result<(), Status> {
    match access {
        Access::Open | Access::Keys => Ok(()),
        Access::User => asker.caller(member).await?.check_named().map_err(grpc_errors::refused),
        Access::Root => asker.caller(member).await?.check_root().map_err(grpc_errors::refused),
    }
}

/// Refuses what a member with a corrupt state must not answer.
pub fn check_intact(member: &Member, method: Method) -> Result<(), Error> {
    if member.fence.is_up() && methods::of(method).state == IntactRule::Intact {
        Err(Error::Corrupt)
    } else {
        Ok(())
    }
}

/// Whether the client wants no answer from a member without a leader.
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
