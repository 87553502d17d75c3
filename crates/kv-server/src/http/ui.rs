//! The status page and its data, only on the ports of `--listen-metrics-urls`.
//!
//! The page is one file. Its policy allows the embedded script and style, by their hashes, and requests to
//! this origin only.

use std::sync::LazyLock;

use axum::extract::{Request, State};
use axum::response::Response;
use base64::Engine;
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, LOCATION, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use http::{HeaderValue, StatusCode};
use sha2::{Digest, Sha256};

use super::handler::{Http, not_found, response};

const PAGE: &str = include_str!("ui/page.html");
/// Response to a request for the page on the client port. Names no address: the client is not authenticated.
pub(super) const NOT_ON_CLIENT_PORT: &str =
    "404 page not found: the status page is at /ui/ on the listeners of --listen-metrics-urls";
/// The page links its advice to headings of this document.
const TROUBLESHOOT: &str = include_str!("../../../../docs/operate/troubleshoot.md");

/// Computed from the page itself, so that the hashes always match.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let (script, style) = (hash_of("script"), hash_of("style"));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).expect("base64 is visible ASCII")
});

/// Returns the hash of the content of the page's only element of this name.
fn hash_of(element: &str) -> String {
    let inside = PAGE.split_once(&format!("<{element}>")).map_or("", |(_, rest)| rest);
    let inside = inside.split_once(&format!("</{element}>")).map_or("", |(inside, _)| inside);
    base64::engine::general_purpose::STANDARD.encode(Sha256::digest(inside))
}

fn guarded(mut answer: Response) -> Response {
    let headers: [(HeaderName, HeaderValue); 5] = [
        (CONTENT_SECURITY_POLICY, POLICY.clone()),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    answer.headers_mut().extend(headers);
    answer
}

/// Serves the page. It contains the health text, for readers without scripts.
pub(super) async fn page(State(http): State<Http>) -> Response {
    let health = http.status.health().await;
    let health = health.replace('&', "&amp;").replace('<', "&lt;");
    guarded(response(
        StatusCode::OK,
        "text/html; charset=utf-8",
        PAGE.replacen(">Loading<", &format!(">{health}<"), 1),
    ))
}

/// Redirects to the path with a slash, which relative addresses in the page need.
pub(super) async fn to_page() -> Response {
    let mut answer = response(StatusCode::MOVED_PERMANENTLY, "text/plain; charset=utf-8", String::new());
    answer.headers_mut().insert(LOCATION, HeaderValue::from_static("/ui/"));
    guarded(answer)
}

pub(super) async fn figures(State(http): State<Http>) -> Response {
    json(http.status.json().await)
}

fn json(json: Bytes) -> Response {
    guarded(response(StatusCode::OK, "application/json", json))
}

pub(super) async fn others(State(http): State<Http>) -> Response {
    json(http.status.of_others().await)
}

/// Serves the history of this member, or of the member with the id in the query.
pub(super) async fn history(State(http): State<Http>, request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let member = match query.strip_prefix("member=") {
        None => Some(http.status.own_id()),
        Some(id) => u64::from_str_radix(id, 16).ok(),
    };
    let Some(member) = member else { return guarded(not_found()) };
    match http.status.history(member).await {
        Some(history) => json(history),
        None => guarded(not_found()),
    }
}

pub(super) async fn troubleshoot() -> Response {
    guarded(response(StatusCode::OK, "text/plain; charset=utf-8", TROUBLESHOOT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_names_the_only_script_and_style() {
        for element in ["script", "style"] {
            assert_eq!(PAGE.matches(&format!("<{element}")).count(), 1, "{element}");
            assert_ne!(hash_of(element), hash_of("no such element"));
        }
        for outside in ["http://", "https://", "src=", "onclick", "innerHTML", " style=", "@import", "url("] {
            assert!(!PAGE.contains(outside), "{outside}");
        }
        assert!(POLICY.to_str().unwrap().starts_with("default-src 'none'; script-src 'sha256-"));
    }
}
