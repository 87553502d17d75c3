//! Request validation of Go's net/http that applies before handlers run, and its parsing of paths.
//!
//! The HTTP/1 parser is more lenient. A request that etcd, or a proxy in between, would interpret
//! differently gets the same response as from etcd.

use axum::body::Body;
use axum::response::Response;
use http::header::{CONNECTION, CONTENT_TYPE, EXPECT, HOST, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Request, StatusCode, Version};

/// Returns the error response for a request that must not reach a handler.
pub fn refusal<B>(request: &Request<B>) -> Option<Response> {
    const BAD: StatusCode = StatusCode::BAD_REQUEST;
    let is_1_1 = request.version() >= Version::HTTP_11;
    let headers = request.headers();
    let hosts: Vec<&HeaderValue> = headers.get_all(HOST).iter().collect();
    let encodings: Vec<&HeaderValue> = headers.get_all(TRANSFER_ENCODING).iter().collect();
    let is_plain = match encodings.as_slice() {
        [] => true,
        [only] => only.as_bytes().eq_ignore_ascii_case(b"chunked"),
        _ => false,
    };
    let uri = request.uri();
    let is_host_alone = uri.scheme().is_none() && uri.authority().is_some();
    let (status, text) = match hosts.as_slice() {
        _ if is_host_alone && request.method() != Method::CONNECT => (BAD, "400 Bad Request"),
        [_, _, ..] => (BAD, "400 Bad Request"),
        _ if is_1_1 && !is_plain => (StatusCode::NOT_IMPLEMENTED, "Unsupported transfer encoding"),
        [] if is_1_1 && request.method() != Method::CONNECT => {
            (BAD, "400 Bad Request: missing required Host header")
        }
        [host] if !host.as_bytes().iter().all(|byte| is_of_host(*byte)) => {
            (BAD, "400 Bad Request: malformed Host header")
        }
        _ if !headers.get(EXPECT).is_none_or(is_continue) => (StatusCode::EXPECTATION_FAILED, ""),
        _ => return None,
    };
    let mut refusal = Response::new(Body::from(text));
    *refusal.status_mut() = status;
    let headers = refusal.headers_mut();
    if !text.is_empty() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    }
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Some(refusal)
}

/// Reports whether an `Expect` header is empty or contains `100-continue`, the only value that Go supports.
fn is_continue(expected: &HeaderValue) -> bool {
    let mut words = expected.as_bytes().split(|byte| b" ,\t".contains(byte));
    expected.is_empty() || words.any(|word| word.eq_ignore_ascii_case(b"100-continue"))
}

fn is_of_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(&byte)
}

/// Replaces every `#` in the path of a request line with a regular character: a request has no fragment, so
/// Go treats it as a part of the path or query. `read` holds the bytes of a read; a request line that is
/// incomplete or does not come first is left unchanged.
pub fn keep_fragments(read: &mut [u8]) {
    let Some(end) = read.iter().position(|byte| *byte == b'\n') else { return };
    let line = &mut read[..end];
    if !line.contains(&b'#') {
        return;
    }
    let line_of = |text: &[u8]| {
        let [method, path, version] = text.splitn(3, |byte| *byte == b' ').collect::<Vec<_>>()[..] else {
            return false;
        };
        method.iter().all(u8::is_ascii_uppercase) && path.starts_with(b"/") && version.starts_with(b"HTTP/1.")
    };
    if line_of(line) {
        line.iter_mut().filter(|byte| **byte == b'#').for_each(|byte| *byte = b'^');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fragment_is_a_part_of_the_path() {
        for (read, wanted) in [
            ("GET /version#x HTTP/1.1\r\nA: #\r\n", "GET /version^x HTTP/1.1\r\nA: #\r\n"),
            ("GET /health?a#b#c HTTP/1.0\r\n", "GET /health?a^b^c HTTP/1.0\r\n"),
            ("GET /version#x HT", "GET /version#x HT"),
            ("{\"key\":\"#\"}\n", "{\"key\":\"#\"}\n"),
            ("a #b HTTP/1.1\n", "a #b HTTP/1.1\n"),
            ("#\n", "#\n"),
            ("", ""),
        ] {
            let mut bytes = read.as_bytes().to_vec();
            keep_fragments(&mut bytes);
            assert_eq!(bytes, wanted.as_bytes());
        }
    }
}
