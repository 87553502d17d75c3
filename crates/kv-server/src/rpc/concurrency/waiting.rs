//! Waiting until all keys before one's own are deleted.

use std::sync::Arc;

use api::mvccpb::event::EventType;
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use watch::CreateRequest;

use super::follow::{Broken, Follow};
use super::inner::{Inner, revision};
use super::keys::Prefix;
use crate::errors;
use crate::process::shutdown::Stop;

/// Calls of locks and elections under way, observers included. Each holds a task and a watcher, some 8 KiB:
/// 80 MiB. Beyond it they are refused.
const CALLS_MAX: usize = 10_000;

/// Places for calls, and the end of their waits. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Waiting {
    places: Arc<Semaphore>,
    pub stop: Stop,
}

impl Waiting {
    pub fn new(stop: Stop) -> Waiting {
        Waiting { places: Arc::new(Semaphore::new(CALLS_MAX)), stop }
    }

    /// A place for one call, until it is dropped.
    pub fn enter(&self) -> Result<OwnedSemaphorePermit, Status> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        place.map_err(|_| errors::passed_on(errors::refused(api::Error::TooManyRequests)))
    }
}

/// Returns when no key below the name was created before this revision: at once for the first.
///
/// Keys that are created later do not matter, so each round leaves fewer keys.
pub async fn until_first(inner: &Inner, prefix: &Prefix, created: i64) -> Result<(), Status> {
    loop {
        let before = inner.range(prefix.last_created_before(created)).await?;
        let Some(last) = before.kvs.first() else { return Ok(()) };
        until_deleted(inner, last.key.clone(), revision(before.header.as_ref()) + 1).await?;
    }
}

/// Waits for a delete of the key from a revision on. A compaction past it ends the wait as well: the caller
/// looks again.
async fn until_deleted(inner: &Inner, key: Bytes, start_revision: i64) -> Result<(), Status> {
    let request = CreateRequest { key, start_revision, no_put: true, ..CreateRequest::default() };
    let follow = async {
        let mut follow = Follow::open(&inner.member, request).await?;
        loop {
            let deleted = EventType::Delete as i32;
            if follow.next().await?.events.iter().any(|event| event.r#type == deleted) {
                return Ok(());
            }
        }
    };
    match follow.await {
        Ok(()) | Err(Broken::Compacted) => Ok(()),
        Err(Broken::Stopped) => Err(errors::stopped()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_beyond_the_bound_is_refused() {
        let (_stopper, stop) = crate::process::shutdown::stop();
        let waiting = Waiting { places: Arc::new(Semaphore::new(1)), stop };
        let place = waiting.enter().unwrap();
        let refused = waiting.enter().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unknown);
        assert_eq!(refused.message(), "etcdserver: too many requests");
        drop(place);
        assert!(waiting.enter().is_ok());
    }
}
