//! Paths and their handlers.

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::any;
use http::header::ALLOW;
use http::header::{ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN};
use http::{HeaderValue, Method, StatusCode};

use super::checks::Checks;
use super::gateway::Gateway;
use super::handler::{Http, not_found, refuse, response};
use super::health;
use crate::process::version;

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
        .fallback(fallback)
        .layer(middleware::from_fn(across_origins))
        .with_state(http)
}

/// Everything without a route of its own.
async fn fallback(State(http): State<Http>, request: Request) -> Response {
    match http.gateway {
        Some(gateway) if Gateway::has(request.uri().path()) => gateway.answer(request).await,
        _ => not_found(),
    }
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
