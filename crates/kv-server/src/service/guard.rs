//! What a client's metadata may ask of every call, before the call itself is looked at.

use api::Error;
use http::HeaderMap;

use crate::member::Member;

/// `hasleader: true`: better no answer than one from a member without a leader.
const REQUIRE_LEADER: &str = "hasleader";
/// The client's version: free text, but text.
const CLIENT_VERSION: &str = "client-api-version";

/// Refuses a call whose metadata this member cannot satisfy.
pub fn check(member: &Member, metadata: &HeaderMap) -> Result<(), Error> {
    check_against(metadata, || member.status().leader.is_some())
}

fn check_against(metadata: &HeaderMap, has_leader: impl FnOnce() -> bool) -> Result<(), Error> {
    let version = metadata.get(CLIENT_VERSION);
    if version.is_some_and(|version| std::str::from_utf8(version.as_bytes()).is_err()) {
        return Err(Error::InvalidClientAPIVersion);
    }
    let wants_leader = metadata.get(REQUIRE_LEADER).is_some_and(|value| value == "true");
    if wants_leader && !has_leader() { Err(Error::NoLeader) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

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
            let mut metadata = HeaderMap::new();
            if let Some(version) = version {
                metadata.insert(CLIENT_VERSION, HeaderValue::from_bytes(version).unwrap());
            }
            if let Some(asked) = has_leader_asked {
                metadata.insert(REQUIRE_LEADER, HeaderValue::from_static(asked));
            }
            assert_eq!(check_against(&metadata, || has_leader), wanted, "{metadata:?}");
        }
    }
}
