//! What answers over plain HTTP: is it alive, is it ready, which version, how much of what.
//!
//! Paths, bodies, codes and headers are etcd's, since load balancers and probes compare them to the letter.

mod checks; // the questions behind /livez and /readyz
mod health; // the older question

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::any;
use http::header::{ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN};
use http::header::{ALLOW, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Method, StatusCode};

use crate::member::Member;
use crate::metrics::Exposition;
use crate::version;
use checks::Checks;

/// What the handlers share.
#[derive(Clone)]
pub struct Http {
    pub member: Arc<Member>,
    pub exposition: Arc<Exposition>,
}

/// Everything on the client port that is not gRPC.
pub fn router(http: Http) -> Router {
    let get_only = Router::new()
        .route("/health", any(health::answer))
        .route("/livez", any(livez))
        .route("/livez/{check}", any(livez_one))
        .route("/readyz", any(readyz))
        .route("/readyz/{check}", any(readyz_one))
        .route("/version", any(version_answer))
        .layer(middleware::from_fn(only_get));
    Router::new()
        .merge(get_only)
        .route("/metrics", any(metrics))
        .fallback(|| async { not_found() })
        .layer(middleware::from_fn(across_origins))
        .with_state(http)
}

async fn livez(State(http): State<Http>, request: Request) -> Response {
    Checks::LIVE.answer(&http, None, request.uri().query()).await
}

async fn livez_one(State(http): State<Http>, Path(name): Path<String>, request: Request) -> Response {
    Checks::LIVE.answer(&http, Some(&name), request.uri().query()).await
}

async fn readyz(State(http): State<Http>, request: Request) -> Response {
    Checks::READY.answer(&http, None, request.uri().query()).await
}

async fn readyz_one(State(http): State<Http>, Path(name): Path<String>, request: Request) -> Response {
    Checks::READY.answer(&http, Some(&name), request.uri().query()).await
}

async fn version_answer() -> Response {
    let (server, cluster) = (version::ETCD, version::CLUSTER);
    let body = format!(r#"{{"etcdserver":"{server}","etcdcluster":"{cluster}","storage":"{cluster}"}}"#);
    response(StatusCode::OK, "application/json", body)
}

async fn metrics(State(http): State<Http>) -> Response {
    response(
        StatusCode::OK,
        "text/plain; version=0.0.4; charset=utf-8; escaping=underscores",
        http.exposition.text(),
    )
}

/// Everything but GET is refused, HEAD included: so does etcd.
async fn only_get(request: Request, next: Next) -> Response {
    if request.method() == Method::GET {
        return next.run(request).await;
    }
    let mut refusal = refuse(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
    refusal
}

/// Lets scripts of any origin in, and answers the question whether they may come.
async fn across_origins(request: Request, next: Next) -> Response {
    let mut response = match *request.method() {
        Method::OPTIONS => Response::new(Body::empty()),
        _ => next.run(request).await,
    };
    let headers = response.headers_mut();
    let methods = HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE");
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    let allowed = HeaderValue::from_static("accept, content-type, authorization");
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    response
}

fn not_found() -> Response {
    refuse(StatusCode::NOT_FOUND, "404 page not found")
}

/// A refusal as Go's library writes it: one line of plain text, not to be guessed at.
fn refuse(status: StatusCode, text: &str) -> Response {
    let mut refusal = response(status, "text/plain; charset=utf-8", format!("{text}\n"));
    refusal.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    refusal
}

fn response(status: StatusCode, content_type: &'static str, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Values of a parameter that may come more than once.
fn query_values<'a>(query: Option<&'a str>, name: &'a str) -> impl Iterator<Item = &'a str> {
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
