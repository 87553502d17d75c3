//! Header fields and caller identity of a call. Both may reject the call before its message is decoded.

use std::sync::Arc;

use api::{Error, Method};
use http::{HeaderMap, HeaderValue};
use tonic::{Request, Status};

use crate::member::Member;
use crate::methods::{self, Access, IntactRule, LearnerRule};
use auth::Requester;
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

    pub fn metadata(&self) -> CallMetadata {
        let is_text = |value: &HeaderValue| std::str::from_utf8(value.as_bytes()).is_ok();
        CallMetadata {
            has_valid_version: self.client_version.is_none_or(is_text),
            needs_leader: self.has_leader.is_some_and(|value| value == "true"),
        }
    }
}

/// Metadata that may reject a call.
#[derive(Clone, Copy, Debug)]
pub struct CallMetadata {
    /// False if the client's version is not text.
    pub has_valid_version: bool,
    /// True if the client requires a member with a leader.
    pub needs_leader: bool,
}

impl CallMetadata {
    fn check(self, has_leader: impl FnOnce() -> bool) -> Result<(), Error> {
        match self {
            CallMetadata { has_valid_version: false, .. } => Err(Error::InvalidClientAPIVersion),
            CallMetadata { needs_leader: true, .. } if !has_leader() => Err(Error::NoLeader),
            _ => Ok(()),
        }
    }
}

/// The call that the implementation of a method serves. Cheap to clone.
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

/// Checks whether this member can serve a call now: its metadata, the rule for learners, and the fence.
pub fn check(member: &Member, method: Method, metadata: CallMetadata) -> Result<(), Error> {
    metadata.check(|| member.status().leader.is_some())?;
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
        Access::User => member.caller(requester).await?.check_named().map_err(grpc_errors::refused),
        Access::Root => member.caller(requester).await?.check_root().map_err(grpc_errors::refused),
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
            assert_eq!(known.metadata().check(|| has_leader), wanted, "{version:?}, {asked:?}");
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
