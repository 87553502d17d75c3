//! The events of a key or prefix, from a watcher of the hub.
//!
//! Dropping it frees its watcher.

use std::sync::Arc;

use api::etcdserverpb::WatchResponse;
use api::grpc;
use bytes::BytesMut;
use prost::Message;
use state_machine::{KeyAccess, Need};
use tokio::sync::watch::Receiver;
use watch::{CreateRequest, Encoder};

use super::inner::Inner;
use crate::member::{Member, WatchRequest, WatchStopped, WatchStream};
use crate::rpc::guard::ServedCall;
use crate::rpc::watch::{changed, review_now};
use ::auth::Requester;

/// Size of a chunk to encode.
const CHUNK_BYTES: usize = 64 << 10;

/// A watcher in this process. Like clients' watchers, it is checked again after users or roles change, if
/// the member is configured to do so.
pub struct Follow {
    member: Arc<Member>,
    requester: Requester,
    changes: Option<Receiver<()>>,
    stream: WatchStream,
    encoder: Encoder,
    frames: BytesMut,
}

/// Reason why a watcher gets no more events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowEnd {
    /// The required revision was compacted, or the client may not read the keys. A range request distinguishes the two.
    Ended,
    /// A limit of all watchers, or of the client's watchers, is reached; or the client has not read a large
    /// response for long.
    Refused,
    /// The member stops.
    Stopped,
}

impl From<WatchStopped> for FollowEnd {
    fn from(_: WatchStopped) -> FollowEnd {
        FollowEnd::Stopped
    }
}

impl Follow {
    pub async fn open(inner: &Inner, request: CreateRequest) -> Result<Follow, FollowEnd> {
        let ServedCall { member, requester, .. } = &inner.0;
        // Subscribed before the check, so that a later change triggers a new check.
        let changes = member.auth.changes.clone();
        let caller = member.caller(requester).await.map_err(|_| FollowEnd::Ended)?;
        let need = Need::Keys(KeyAccess::Read, request.keys());
        caller.check(&member.store, need).map_err(|_| FollowEnd::Ended)?;
        let stream = member.watching.open(inner.client()).await?;
        stream.place().await;
        stream.request(WatchRequest::Create(request)).await?;
        let encoder = Encoder::new(member.ids.cluster, member.ids.member, usize::MAX);
        let (member, requester, frames) = (Arc::clone(member), requester.clone(), BytesMut::new());
        Ok(Follow { member, requester, changes, stream, encoder, frames })
    }

    pub async fn next(&mut self) -> Result<WatchResponse, FollowEnd> {
        loop {
            while let Some(response) = self.decoded() {
                if response.canceled {
                    let is_refused = response.created;
                    return Err(if is_refused { FollowEnd::Refused } else { FollowEnd::Ended });
                }
                if !response.events.is_empty() {
                    return Ok(response);
                }
            }
            if self.encoder.is_empty() {
                tokio::select! {
                    biased;
                    () = self.stream.ended() => return Err(FollowEnd::Refused),
                    () = changed(&mut self.changes) => {
                        review_now(&self.member, &self.requester, &self.stream).await?;
                    }
                    () = self.stream.read(self.encoder.queue()) => {}
                }
            }
            let mut frames = Vec::new();
            self.encoder.encode(self.member.status().term.0, CHUNK_BYTES, &mut frames);
            frames.iter().for_each(|frame| self.frames.extend_from_slice(frame));
        }
    }

    /// Decodes the next complete response from the frames.
    fn decoded(&mut self) -> Option<WatchResponse> {
        let (_, message) = grpc::take(&mut self.frames)?;
        Some(WatchResponse::decode(message).expect("the encoder of this process makes whole responses"))
    }
}
