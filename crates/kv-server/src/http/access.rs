//! Access control of plain HTTP: browser origins (`--cors`) and Host headers (`--host-whitelist`).
//!
//! A page in a browser can send requests to any address. The Host header of such a request names the page's
//! server, so an allowlist of hosts stops a page that rebinds its name to this address (CVE-2018-5702).
//! With TLS the certificate has been compared with the name, so hosts are not checked there. Neither
//! applies to gRPC, which browsers cannot send.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, HOST, ORIGIN,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::gateway::is_upgrade;
use super::handler::plain;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllowedValues {
    Any,
    Only(Arc<BTreeSet<String>>),
}

impl AllowedValues {
    /// Parses a comma-separated list. `*` in it, or an empty list, allows any value.
    pub fn parse(list: &str) -> AllowedValues {
        let values: BTreeSet<String> =
            list.split(',').map(|value| value.trim().to_owned()).filter(|value| !value.is_empty()).collect();
        if values.is_empty() || values.contains("*") {
            AllowedValues::Any
        } else {
            AllowedValues::Only(Arc::new(values))
        }
    }

    fn has(&self, value: &str) -> bool {
        match self {
            AllowedValues::Any => true,
            AllowedValues::Only(values) => values.contains(value),
        }
    }
}

/// Handles CORS: responds to preflight requests and adds the headers to responses for allowed origins.
pub(super) async fn across_origins(
    State(origins): State<AllowedValues>,
    request: Request,
    next: Next,
) -> Response {
    let origin = match &origins {
        AllowedValues::Any => Some(HeaderValue::from_static("*")),
        AllowedValues::Only(_) => {
            let origin = request.headers().get(ORIGIN);
            origin.filter(|origin| origin.to_str().is_ok_and(|origin| origins.has(origin))).cloned()
        }
    };
    let mut response = match *request.method() {
        Method::OPTIONS => Response::new(Body::empty()),
        // Browsers send no preflight request for a websocket, so it has to be rejected here.
        _ if origin.is_none() && request.headers().contains_key(ORIGIN) && is_upgrade(request.headers()) => {
            plain(StatusCode::FORBIDDEN, "Forbidden")
        }
        _ => next.run(request).await,
    };
    let Some(origin) = origin else { return response };
    let methods = HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE");
    let allowed = HeaderValue::from_static("accept, content-type, authorization");
    let headers: [(HeaderName, HeaderValue); 3] = [
        (ACCESS_CONTROL_ALLOW_METHODS, methods),
        (ACCESS_CONTROL_ALLOW_ORIGIN, origin),
        (ACCESS_CONTROL_ALLOW_HEADERS, allowed),
    ];
    response.headers_mut().extend(headers);
    response
}

/// Rejects requests to hosts that are not listed.
pub(super) async fn known_host(State(hosts): State<AllowedValues>, request: Request, next: Next) -> Response {
    let host = host(request.headers());
    if hosts.has(host) {
        return next.run(request).await;
    }
    unknown_host(host)
}

/// Like [`known_host`], but also accepts addresses and `localhost`, for probes.
pub(super) async fn known_host_or_address(
    State(hosts): State<AllowedValues>,
    request: Request,
    next: Next,
) -> Response {
    let host = host(request.headers());
    if hosts.has(host) || host == "localhost" || host.parse::<IpAddr>().is_ok() {
        return next.run(request).await;
    }
    unknown_host(host)
}

fn unknown_host(host: &str) -> Response {
    plain(
        StatusCode::MISDIRECTED_REQUEST,
        &format!(
            "\nThe Host header of this request names a server that is not expected here.\n\n\
             Either enable TLS, inside which any host is accepted, or add the name to the list, for example:\n\
             \x20 --host-whitelist \"{}\"\n\n\
             The list stops pages of other servers that reach this one by DNS rebinding (CVE-2018-5702).\n",
            host.escape_default()
        ),
    )
}

fn host(headers: &HeaderMap) -> &str {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => {
            match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
                Some(address) => address,
                None if name.contains(':') => host, // An address without brackets, and no port.
                None => name,
            }
        }
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_allows_its_values_and_a_star_allows_any() {
        for (list, value, wanted) in [
            ("*", "a", true),
            ("", "a", true),
            ("a,b", "b", true),
            ("a, b", "b", true),
            ("a,b", "c", false),
            ("a,*", "c", true),
            ("a", "", false),
        ] {
            assert_eq!(AllowedValues::parse(list).has(value), wanted, "{list:?}, {value:?}");
        }
    }

    #[test]
    fn a_host_is_read_without_its_port() {
        for (header, wanted) in [
            ("example.org", "example.org"),
            ("example.org:2379", "example.org"),
            ("[::1]:2379", "::1"),
            ("::1", "::1"),
            ("127.0.0.1:2379", "127.0.0.1"),
            ("", ""),
        ] {
            let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static(header))]);
            assert_eq!(host(&headers), wanted, "{header}");
        }
        assert_eq!(host(&HeaderMap::new()), "");
    }
}
