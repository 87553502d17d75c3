//! Heap profiles: which code allocated what is in use, and all that was allocated since the start.
//!
//! Allocations are sampled from the start of a member with `--enable-pprof`. One profile is made at a time:
//! the names of its functions are looked up, which takes seconds of processor time.

use std::sync::Arc;
use std::time::SystemTime;

use axum::response::Response;
use http::StatusCode;
use tokio::sync::Semaphore;

use super::super::handler::plain;
use super::format::{self, ShownProfile};
use super::profile::answered;

/// The profile of now.
pub(super) async fn answer(one_at_a_time: Arc<Semaphore>, shown: ShownProfile) -> Response {
    let Ok(_permit) = one_at_a_time.try_acquire() else {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, "a heap profile is being made already");
    };
    let made = tokio::task::spawn_blocking(move || made(shown)).await;
    match made.map_err(|error| error.to_string()).and_then(|made| made) {
        Ok(profile) => answered(profile, "heap"),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, &error),
    }
}

fn made(shown: ShownProfile) -> Result<Vec<u8>, String> {
    let heap = heap_profile::profile().ok_or("allocations are not sampled")?;
    if heap.missing > 0 {
        tracing::warn!(missing = heap.missing, "the heap profile lacks samples: its table is full");
    }
    let profile = format::of_heap(&heap, heap_profile::functions, shown, SystemTime::now());
    heap_profile::forget_symbols();
    profile.map_err(|error| error.to_string())
}
