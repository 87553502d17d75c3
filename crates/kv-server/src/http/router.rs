//! Paths and their handlers.

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::any;
use http::header::{ALLOW, LOCATION};
use http::{HeaderValue, Method, StatusCode, Uri};

use super::access::{AllowedValues, across_origins, known_host, known_host_or_address};
use super::checks::Checks;
use super::debug;
use super::gateway::Gateway;
use super::handler::{Http, not_found, plain, response};
use super::health;
use super::ui;
use api::version;

/// Returns the routes of the client port for requests other than gRPC.
pub fn router(http: Http, origins: &AllowedValues) -> Router {
    let version = Router::new().route("/version", any(version_answer)).layer(middleware::from_fn(only_get));
    let debug = debug::routes(http.enable_pprof);
    let router = observation().merge(version).merge(debug).fallback(fallback).with_state(http);
    by_clean_paths(router).layer(middleware::from_fn_with_state(origins.clone(), across_origins))
}

/// Returns the routes of the ports of `--listen-metrics-urls`. They do not support CORS, as in etcd.
pub fn metrics_router(http: Http) -> Router {
    let ui = Router::new()
        .route("/", any(ui::to_page))
        .route("/ui", any(ui::to_page))
        .route("/ui/", any(ui::page))
        .route("/ui/status.json", any(ui::figures))
        .route("/ui/cluster.json", any(ui::others))
        .route("/ui/history.json", any(ui::history))
        .route("/ui/troubleshoot.md", any(ui::troubleshoot))
        .layer(middleware::from_fn(only_get));
    let router = observation().merge(ui).fallback(|| async { not_found() });
    by_clean_paths(router.with_state(http))
}

/// Wraps `router` to clean paths like Go's multiplexer. Runs before all routes, because it changes paths.
fn by_clean_paths(router: Router) -> Router {
    Router::new().fallback_service(router).layer(middleware::from_fn(clean_path))
}

/// Health and metrics.
fn observation() -> Router<Http> {
    Router::new()
        .route("/health", any(health::answer))
        .merge(Checks::LIVE.routes())
        .merge(Checks::READY.routes())
        .layer(middleware::from_fn(only_get))
        .route("/metrics", any(metrics))
}

/// Restricts `router` to requests to `hosts`.
pub fn for_hosts(router: Router, hosts: &AllowedValues) -> Router {
    match hosts {
        AllowedValues::Any => router,
        AllowedValues::Only(_) => router.layer(middleware::from_fn_with_state(hosts.clone(), known_host)),
    }
}

/// Restricts `router` to requests to `hosts`, to addresses and to `localhost`. A probe names the address
/// that it dials, and the name of a page cannot be an address.
pub fn for_probes_of(router: Router, hosts: &AllowedValues) -> Router {
    match hosts {
        AllowedValues::Any => router,
        AllowedValues::Only(_) if base::mutant("pages-for-any-host") => router,
        AllowedValues::Only(_) => {
            router.layer(middleware::from_fn_with_state(hosts.clone(), known_host_or_address))
        }
    }
}

/// Handles requests without a route.
async fn fallback(State(http): State<Http>, request: Request) -> Response {
    match http.gateway {
        Some(gateway) if Gateway::has(request.uri().path()) => gateway.answer(request).await,
        Some(_) if request.uri().path() == "/v3" => redirect(&request, "/v3/"),
        _ if matches!(request.uri().path(), "/ui" | "/ui/") => {
            plain(StatusCode::NOT_FOUND, ui::NOT_ON_CLIENT_PORT)
        }
        _ => not_found(),
    }
}

async fn version_answer() -> Response {
    let (server, cluster) = (version::ETCD, version::CLUSTER);
    let body = format!(r#"{{"etcdserver":"{server}","etcdcluster":"{cluster}","storage":"{cluster}"}}"#);
    response(StatusCode::OK, "application/json", body)
}

async fn metrics(State(http): State<Http>) -> Response {
    let Some(text) = http.metrics.text().await else {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "the member is stopping");
    };
    response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", text)
}

/// Redirects a request with empty or dotted path segments to the clean path, like Go.
async fn clean_path(mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let clean = cleaned(path);
    if clean == path || request.method() == Method::CONNECT {
        if path.contains('%') {
            let Some(path) = unescaped(path) else {
                return plain(StatusCode::BAD_REQUEST, "400 Bad Request");
            };
            if let Ok(uri) = with_query(&path, request.uri()).parse() {
                *request.uri_mut() = uri;
            }
        }
        return next.run(request).await;
    }
    redirect(&request, &clean)
}

/// Redirects a request to another path, like Go.
fn redirect(request: &Request, path: &str) -> Response {
    let place = with_query(path, request.uri());
    let Ok(location) = HeaderValue::try_from(&place) else { return not_found() };
    let mut redirect = Response::new(Body::empty());
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        let link = place.replace('&', "&amp;").replace('\'', "&#39;");
        let body = format!("<a href=\"{link}\">Temporary Redirect</a>.\n\n");
        redirect = response(StatusCode::OK, "text/html; charset=utf-8", body);
    }
    *redirect.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    redirect.headers_mut().insert(LOCATION, location);
    redirect
}

/// Returns a path with the query of a URI.
fn with_query(path: &str, of: &Uri) -> String {
    of.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"))
}

fn cleaned(path: &str) -> String {
    let mut kept = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let end = if path.ends_with('/') && !kept.is_empty() { "/" } else { "" };
    format!("/{}{end}", kept.join("/"))
}

/// Decodes the escapes of a path. Escaped slashes are decoded below the gateway only; elsewhere they belong
/// to their segment. Returns None for a malformed escape.
fn unescaped(path: &str) -> Option<String> {
    let is_gateways = Gateway::has(path);
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte) || is_gateways && byte == b'/';
    let (mut whole, mut left) = (String::new(), path);
    while let Some((before, after)) = left.split_once('%') {
        let digits = after.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        let byte = u8::from_str_radix(digits, 16).ok()?;
        whole.push_str(before);
        if is_plain(byte) {
            whole.push(byte.into())
        } else {
            whole.extend(["%", digits])
        }
        left = &after[2..];
    }
    whole.push_str(left);
    Some(whole)
}

/// Rejects all methods but GET, HEAD included, like etcd.
async fn only_get(request: Request, next: Next) -> Response {
    if request.method() == Method::GET {
        return next.run(request).await;
    }
    let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
    refusal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_cleaned_as_go_cleans_it() {
        for (path, wanted) in [
            ("/v3/kv/range", "/v3/kv/range"),
            ("//v3/kv/range", "/v3/kv/range"),
            ("/v3//kv/range//", "/v3/kv/range/"),
            ("/v3/../health", "/health"),
            ("/health/.", "/health"),
            ("/a/b/../", "/a/"),
            ("/..", "/"),
            ("//", "/"),
            ("/a%2f%2e/b", "/a%2f%2e/b"),
        ] {
            assert_eq!(cleaned(path), wanted, "{path}");
        }
    }
}
