//! `/debug/vars`, and with `--enable-pprof` `/debug/pprof/`: endpoints for troubleshooting.

mod format; // a profile in pprof's format
mod profile; // CPU profiles
mod vars; // /debug/vars

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::any;
use http::StatusCode;
use tokio::sync::Semaphore;

use super::handler::{Http, plain, response};

/// The index of `/debug/pprof/`.
const INDEX: &str = "/debug/pprof/\n\n\
    cmdline              the command line\n\
    profile?seconds=30   a CPU profile in pprof's format: go tool pprof URL\n";
const NO_GO: &str = "this server has no such profile: it is not written in Go";

/// Paths below `/debug/`.
pub(super) fn routes(enable_pprof: bool) -> Router<Http> {
    let vars = Router::new().route("/debug/vars", any(vars::answer));
    if !enable_pprof {
        return vars;
    }
    let one_at_a_time = Arc::new(Semaphore::new(1));
    let profile = move |request: Request| profile::answer(Arc::clone(&one_at_a_time), request);
    vars.route("/debug/pprof/", any(|| async { text(INDEX) }))
        .route("/debug/pprof/cmdline", any(|| async { text(&vars::command_line().join("\0")) }))
        .route("/debug/pprof/profile", any(profile))
        .route("/debug/pprof/{profile}", any(|| async { plain(StatusCode::NOT_IMPLEMENTED, NO_GO) }))
}

fn text(text: &str) -> Response {
    response(StatusCode::OK, "text/plain; charset=utf-8", text.to_owned())
}
