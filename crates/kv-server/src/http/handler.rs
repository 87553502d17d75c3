//! What the handlers share: their state, parameters of a query, and responses.

use std::borrow::Cow;
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
    plain(StatusCode::NOT_FOUND, "404 page not found")
}

/// Plain text that is not to be guessed at, as Go's library writes its refusals.
pub(super) fn plain(status: StatusCode, text: &str) -> Response {
    let mut answer = response(status, "text/plain; charset=utf-8", format!("{text}\n"));
    answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

pub(super) fn response(status: StatusCode, content_type: &'static str, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Values of a parameter that may come more than once, without their escapes.
pub(super) fn query_values<'a>(query: Option<&'a str>, name: &'a str) -> impl Iterator<Item = Cow<'a, str>> {
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    pairs.filter_map(move |(key, value)| (key == name).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_may_come_more_than_once_or_without_a_value() {
        let values = |query| query_values(query, "x").collect::<Vec<_>>();
        assert_eq!(values(Some("x=1&y=2&x=3")), ["1", "3"]);
        assert_eq!(values(Some("x")), [""]);
        assert_eq!(values(Some("%78=a%5Fb+c")), ["a_b c"]);
        assert_eq!(values(Some("xx=1")), [""; 0]);
        assert_eq!(values(None), [""; 0]);
    }
}
