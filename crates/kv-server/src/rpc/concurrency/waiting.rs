//! Waiting until all preceding keys are deleted.

use std::sync::Arc;

use api::etcdserverpb::RangeResponse;
use api::mvccpb::event::EventType;
use bytes::Bytes;
use tonic::Status;
use watch::CreateRequest;

use super::follow::{Follow, FollowEnd};
use super::inner::{Inner, revision};
use super::keys::{self, Prefix};
use admission::{ClientId, Share, Shares};
use process::shutdown::Stop;

/// Memory limit of active lock and election calls, observers included. Further calls are rejected.
const BYTES_MAX: usize = 80 << 20;
/// Memory of a call, besides its name: a task and a watcher.
const CALL_BYTES: usize = 8 << 10;
/// Copies of the name that a call holds: in its request, its key, and its watcher.
const NAME_COPIES: usize = 6;

/// Permits for calls, and the implementation of their waits. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WaitingPlaces {
    places: Arc<Shares>,
    pub stop: Stop,
}

impl WaitingPlaces {
    pub fn new(stop: Stop) -> WaitingPlaces {
        WaitingPlaces { places: Shares::new(BYTES_MAX, CALL_BYTES), stop }
    }

    /// Returns a permit for one call. A client with very many calls does not block other clients.
    pub fn enter(&self, client: ClientId, name: &Bytes) -> Result<Share, Status> {
        let bytes = CALL_BYTES + NAME_COPIES * name.len();
        let place = self.places.take(client, bytes);
        place.ok_or_else(too_many)
    }
}

/// Returns when no key below the name was created before this revision; immediately for the first.
///
/// Keys that are created later do not matter, so each round leaves fewer keys.
async fn until_first(inner: &Inner, prefix: &Prefix, created: i64) -> Result<(), Status> {
    loop {
        let before = inner.range(prefix.last_created_before(created)).await?;
        let Some(last) = before.kvs.first() else { return Ok(()) };
        until_deleted(inner, last.key.clone(), revision(before.header.as_ref()) + 1).await?;
    }
}

/// Waits until the key, which was created at this revision, is the first one. Returns the key. Fails if it
/// was deleted, even if it was created again by the same lease.
pub async fn until_owned(
    inner: &Inner,
    prefix: &Prefix,
    key: &Bytes,
    created: i64,
) -> Result<RangeResponse, Status> {
    until_first(inner, prefix, created).await?;
    let held = inner.range(keys::get(key)).await?;
    let is_there = held.kvs.first().is_some_and(|kv| kv.create_revision == created);
    let owns = is_there || base::mutant("owner-without-lease");
    if owns { Ok(held) } else { Err(grpc_errors::session_expired()) }
}

/// Waits for a delete of the key starting at a revision. Also returns when that revision is compacted or
/// the permission is lost: the caller checks again.
async fn until_deleted(inner: &Inner, key: Bytes, start_revision: i64) -> Result<(), Status> {
    let request = CreateRequest { key, start_revision, no_put: true, ..CreateRequest::default() };
    let follow = async {
        let mut follow = Follow::open(inner, request).await?;
        loop {
            let deleted = EventType::Delete as i32;
            if follow.next().await?.events.iter().any(|event| event.r#type == deleted) {
                return Ok(());
            }
        }
    };
    match follow.await {
        Ok(()) | Err(FollowEnd::Ended) => Ok(()),
        Err(FollowEnd::Refused) => Err(too_many()),
        Err(FollowEnd::Stopped) => Err(grpc_errors::stopped()),
    }
}

/// Returns the error of a call, or its watcher, beyond a limit.
pub fn too_many() -> Status {
    grpc_errors::passed_on(grpc_errors::refused(api::Error::TooManyRequests))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_beyond_the_bound_is_refused() {
        let (_stopper, stop) = process::shutdown::stop();
        let waiting = WaitingPlaces { places: Shares::new(2 * CALL_BYTES, CALL_BYTES), stop };
        let (client, name) = (ClientId::alone(1), Bytes::from_static(b""));
        let place = waiting.enter(client, &name).unwrap();
        for (client, name) in [(client, name.clone()), (ClientId::alone(2), vec![b'n'; CALL_BYTES].into())] {
            let refused = waiting.enter(client, &name).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unknown);
            assert_eq!(refused.message(), "etcdserver: too many requests");
        }
        drop(place);
        assert!(waiting.enter(client, &name).is_ok());
    }
}
