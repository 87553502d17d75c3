//! What the handlers share: their state, parameters of a query, and responses.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};

use super::gateway::Gateway;
use crate::member::Member;
use crate::status::StatusSource;
use telemetry::metrics::Exposition;

/// What the handlers share.
#[derive(Clone)]
pub struct Http {
    pub member: Arc<Member>,
    pub exposition: Arc<Exposition>,
    pub status: StatusSource,
    /// On client ports, with `--enable-grpc-gateway`.
    pub gateway: Option<Gateway>,
    /// Whether `/debug/pprof/` is served.
    pub enable_pprof: bool,
}

pub(super) fn not_found() -> Response {
    refuse(StatusCode::NOT_FOUND, "404 page not found")
}

/// A refusal as Go's library writes it: one line of plain text, not to be guessed at.
pub(super) fn refuse(status: StatusCode, text: &str) -> Response {
    let mut refusal = response(status, "text/plain; charset=utf-8", format!("{text}\n"));
    refusal.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    refusal
}

pub(super) fn response(status: StatusCode, content_type: &'static str, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Values of a parameter that may come more than once.
pub(super) fn query_values<'a>(query: Option<&'a str>, name: &'a str) -> impl Iterator<Item = &'a str> {
    query.unwrap_or_default().split('&').filter_map(move |pair| match pair.split_once('=') {
        Some((key, value)) if key == name => Some(value),
        None if pair == name => Some(""),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_may_come_more_than_once_or_without_a_value() {
        let values = |query| query_values(query, "x").collect::<Vec<_>>();
        assert_eq!(values(Some("x=1&y=2&x=3")), ["1", "3"]);
        assert_eq!(values(Some("x")), [""]);
        assert_eq!(values(Some("xx=1")), [""; 0]);
        assert_eq!(values(None), [""; 0]);
    }
}
