//! CPU profiles of the next seconds.
//!
//! * One profile at a time, of a bounded length. It stops when its client disconnects.
//! * There is no handler and no overhead while no profile is taken.
//!
//! A timer signal samples the stack of the running thread. Samples inside the C library and the unwinder
//! are omitted, since they cannot be unwound safely.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use pprof::{ProfilerGuard, ProfilerGuardBuilder};
use tokio::sync::Semaphore;

use super::super::handler::{plain, query_values};
use super::format;

/// Samples per second of processor time: about Go's rate, but not in step with periodic timers.
const FREQUENCY: i32 = 99;
const SECONDS: u64 = 30;
/// The library bounds the table of samples; this bounds the time.
const SECONDS_MAX: u64 = 300;
/// Libraries excluded from stack unwinding.
const NOT_WALKED: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

/// The profile of the next `seconds` of the query.
pub(super) async fn answer(one_at_a_time: Arc<Semaphore>, request: Request) -> Response {
    let seconds = match seconds(request.uri().query()) {
        Ok(seconds) => seconds,
        Err(reason) => return plain(StatusCode::BAD_REQUEST, &reason),
    };
    let Ok(_permit) = one_at_a_time.try_acquire() else {
        let reason = "Could not enable CPU profiling: cpu profiling already in use";
        return plain(StatusCode::INTERNAL_SERVER_ERROR, reason);
    };
    tracing::info!(seconds, "taking a CPU profile");
    match take(Duration::from_secs(seconds)).await {
        Ok(profile) => as_file(profile),
        Err(error) => {
            let reason = format!("Could not enable CPU profiling: {error}");
            plain(StatusCode::INTERNAL_SERVER_ERROR, &reason)
        }
    }
}

fn seconds(query: Option<&str>) -> Result<u64, String> {
    let Some(given) = query_values(query, "seconds").next() else { return Ok(SECONDS) };
    match given.parse::<u64>() {
        // Like Go: malformed numbers mean the default.
        Ok(0) | Err(_) => Ok(SECONDS),
        Ok(seconds) if seconds > SECONDS_MAX => {
            Err(format!("seconds[{seconds}] is too large: a profile takes at most {SECONDS_MAX} seconds"))
        }
        Ok(seconds) => Ok(seconds),
    }
}

/// A profile, compressed.
async fn take(length: Duration) -> Result<Vec<u8>, String> {
    let began = SystemTime::now();
    let guard = tokio::task::spawn_blocking(start).await.map_err(|error| error.to_string())??;
    tokio::time::sleep(length).await;
    // Symbol lookup takes a few hundred milliseconds of processor time.
    let profile = tokio::task::spawn_blocking(move || finish(&guard, began, length)).await;
    profile.map_err(|error| error.to_string())?
}

fn start() -> Result<ProfilerGuard<'static>, String> {
    let builder = ProfilerGuardBuilder::default().frequency(FREQUENCY).blocklist(&NOT_WALKED);
    builder.build().map_err(|error| error.to_string())
}

fn finish(guard: &ProfilerGuard<'_>, began: SystemTime, length: Duration) -> Result<Vec<u8>, String> {
    let report = guard.report().build();
    backtrace::clear_symbol_cache();
    let report = report.map_err(|error| error.to_string())?;
    format::of_cpu(&report, FREQUENCY, began, length).map_err(|error| error.to_string())
}

fn as_file(profile: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(profile));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    let disposition = HeaderValue::from_static("attachment; filename=\"profile\"");
    headers.insert(CONTENT_DISPOSITION, disposition);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_is_bounded() {
        for (query, wanted) in [
            (None, Some(30)),
            (Some("seconds=1"), Some(1)),
            (Some("seconds=x"), Some(30)),
            (Some("seconds=0"), Some(30)),
            (Some("seconds=300"), Some(300)),
            (Some("seconds=301"), None),
        ] {
            assert_eq!(seconds(query).ok(), wanted, "{query:?}");
        }
    }
}
