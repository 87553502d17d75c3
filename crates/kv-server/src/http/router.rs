//! Paths and their handlers.

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::any;
use http::header::ALLOW;
use http::{HeaderValue, Method, StatusCode};

use super::access::{Allowed, across_origins, known_host, known_host_or_address};
use super::checks::Checks;
use super::debug;
use super::gateway::Gateway;
use super::handler::{Http, not_found, refuse, response};
use super::health;
use super::ui;
use process::version;

/// Everything on the client port that is not gRPC.
pub fn router(http: Http, origins: &Allowed) -> Router {
    let version = Router::new().route("/version", any(version_answer)).layer(middleware::from_fn(only_get));
    observation()
        .merge(version)
        .merge(debug::routes(http.enable_pprof))
        .fallback(fallback)
        .layer(middleware::from_fn_with_state(origins.clone(), across_origins))
        .with_state(http)
}

/// Everything on the ports of `--listen-metrics-urls`. They answer no scripts of other origins, as in etcd.
pub fn metrics_router(http: Http) -> Router {
    let ui = Router::new()
        .route("/ui", any(ui::to_page))
        .route("/ui/", any(ui::page))
        .route("/ui/status.json", any(ui::figures))
        .layer(middleware::from_fn(only_get));
    observation().merge(ui).fallback(|| async { not_found() }).with_state(http)
}

/// Health and metrics.
fn observation() -> Router<Http> {
    Router::new()
        .route("/health", any(health::answer))
        .route("/livez", any(livez))
        .route("/livez/{check}", any(livez_one))
        .route("/readyz", any(readyz))
        .route("/readyz/{check}", any(readyz_one))
        .layer(middleware::from_fn(only_get))
        .route("/metrics", any(metrics))
}

/// `router`, for requests to `hosts` only.
pub fn for_hosts(router: Router, hosts: &Allowed) -> Router {
    match hosts {
        Allowed::Any => router,
        Allowed::Only(_) => router.layer(middleware::from_fn_with_state(hosts.clone(), known_host)),
    }
}

/// `router`, for requests to `hosts`, to addresses and to `localhost` only. A probe names the address that it
/// dials, and no name of a page can be made an address.
pub fn for_probes_of(router: Router, hosts: &Allowed) -> Router {
    match hosts {
        Allowed::Any => router,
        Allowed::Only(_) => {
            router.layer(middleware::from_fn_with_state(hosts.clone(), known_host_or_address))
        }
    }
}

/// Everything without a route.
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
