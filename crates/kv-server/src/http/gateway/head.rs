//! The head of a call: what the headers of an HTTP request become as metadata.
//!
//! `Authorization` is passed on, and `Grpc-Metadata-X` as `x`. `Grpc-Timeout` is the deadline. Nothing else
//! is known to a service.

use http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HeaderName, TE, UPGRADE};
use http::{HeaderMap, HeaderValue, Request};

use crate::rpc::deadline;

const METADATA_PREFIX: &str = "grpc-metadata-";
const TIMEOUT: &str = "grpc-timeout";

/// Whether a request asks for a websocket.
pub(crate) fn is_upgrade(headers: &HeaderMap) -> bool {
    has_word(headers, &CONNECTION, "upgrade") && has_word(headers, &UPGRADE, "websocket")
}

fn has_word(headers: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case(wanted))
}

/// The head of a call to `path`, or why there is none.
pub(super) fn head(path: &str, headers: &HeaderMap) -> Result<Request<()>, String> {
    let mut request = Request::new(());
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = format!("http://gateway{path}").parse().map_err(|_| "malformed path".to_owned())?;
    *request.version_mut() = http::Version::HTTP_2;
    let metadata = request.headers_mut();
    metadata.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    metadata.insert(TE, HeaderValue::from_static("trailers"));
    for (name, value) in headers {
        match name.as_str().strip_prefix(METADATA_PREFIX) {
            Some(key) if is_free(key) => {
                if let Ok(key) = HeaderName::from_bytes(key.as_bytes()) {
                    metadata.append(key, value.clone());
                }
            }
            None if name == AUTHORIZATION => {
                metadata.append(AUTHORIZATION, value.clone());
            }
            _ => {}
        }
    }
    if let Some(timeout) = headers.get(TIMEOUT) {
        let text = timeout.to_str().unwrap_or_default();
        match nanoseconds(text) {
            None => return Err(format!("invalid grpc-timeout: {text}")),
            Some(0) => {} // No deadline, for grpc-gateway.
            Some(_) => drop(metadata.insert(TIMEOUT, timeout.clone())),
        }
    }
    Ok(request)
}

/// Whether a client may set this field of metadata: those of HTTP/2 and gRPC are ours.
fn is_free(key: &str) -> bool {
    !key.starts_with("grpc-")
        && !matches!(
            key,
            "content-type"
                | "te"
                | "host"
                | "connection"
                | "content-length"
                | "transfer-encoding"
                | "upgrade"
                | "keep-alive"
                | "proxy-connection"
        )
}

/// Digits and a unit of gRPC's; what is too much stands as the largest number.
fn nanoseconds(text: &str) -> Option<u64> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit = deadline::unit_nanoseconds(unit)?;
    (!digits.starts_with('+')).then_some(())?;
    Some(digits.parse::<u64>().ok()?.saturating_mul(unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_metadata_are_passed_on_and_nothing_else() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer a.1"),
            ("grpc-metadata-token", "b.2"),
            ("grpc-metadata-hasleader", "true"),
            ("grpc-metadata-grpc-timeout", "1S"),
            ("grpc-metadata-content-type", "text/plain"),
            ("token", "c.3"),
            ("accept", "*/*"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let request = head("/etcdserverpb.KV/Range", &headers).unwrap();
        let mut metadata: Vec<(&str, &[u8])> =
            request.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        metadata.sort();
        assert_eq!(
            metadata,
            [
                ("authorization", &b"Bearer a.1"[..]),
                ("content-type", b"application/grpc"),
                ("hasleader", b"true"),
                ("te", b"trailers"),
                ("token", b"b.2"),
            ]
        );
    }

    #[test]
    fn a_timeout_is_passed_on_dropped_or_refused() {
        for (text, wanted) in [
            ("1S", Ok(true)),
            ("0n", Ok(false)),
            ("x", Err("invalid grpc-timeout: x")),
            ("", Err("invalid grpc-timeout: ")),
            ("+1S", Err("invalid grpc-timeout: +1S")),
            ("1", Err("invalid grpc-timeout: 1")),
        ] {
            let headers = HeaderMap::from_iter([(
                HeaderName::from_static(TIMEOUT),
                HeaderValue::from_str(text).unwrap(),
            )]);
            let made = head("/a/b", &headers).map(|request| request.headers().contains_key(TIMEOUT));
            assert_eq!(made, wanted.map_err(str::to_owned), "{text}");
        }
    }
}
