//! Look-ups in the headers of a request.

use http::{HeaderMap, HeaderValue};

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

#[cfg(test)]
mod tests {
    use super::*;

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
