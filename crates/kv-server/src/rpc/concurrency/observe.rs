//! Observe: the current leader, each of its values, then the next leader.
//!
//! ```text
//!   look for the first key ──none──▶ wait for a put below the name ─┐
//!        ▲         └────────────────found───────────────────────────┴─▶ follow its key ──put──▶ send
//!        └───────────────────────────────deleted───────────────────────────┘
//! ```
//!
//! * Values written between a range and its watcher are not lost: the watcher starts after the revision of
//!   the range.
//! * The stream closes with OK when a required revision was compacted, as in etcd, and when its client may
//!   no longer read the leader, if the member rechecks watchers.

use std::collections::VecDeque;

use api::Method;
use api::etcdserverpb::{ResponseHeader, WatchResponse};
use api::mvccpb::event::EventType;
use api::mvccpb::{Event, KeyValue};
use api::v3electionpb::LeaderResponse;
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use tonic::Status;
use watch::CreateRequest;

use super::follow::{Follow, FollowEnd};
use super::inner::{Inner, revision};
use super::keys::Prefix;
use super::waiting::too_many;
use crate::audit::AuditSubject;
use admission::{CountedAnswer, Share};

/// Returns the responses to one observer.
pub fn leaders(
    inner: Inner,
    place: Share,
    prefix: Prefix,
) -> impl Stream<Item = Result<LeaderResponse, Status>> {
    let observer = Observer { inner, prefix, leader: None, ready: VecDeque::new(), _place: place };
    stream::unfold(Some(observer), async |observer| {
        let mut observer = observer?;
        match observer.next().await {
            Ok(response) => Some((Ok(response), Some(observer))),
            Err(FollowEnd::Refused) => Some((Err(too_many()), None)),
            Err(FollowEnd::Ended | FollowEnd::Stopped) => None,
        }
    })
}

struct Observer {
    inner: Inner,
    prefix: Prefix,
    leader: Option<Follow>,
    /// Responses from one batch of events.
    ready: VecDeque<LeaderResponse>,
    _place: Share,
}

impl Observer {
    async fn next(&mut self) -> Result<LeaderResponse, FollowEnd> {
        loop {
            if let Some(response) = self.ready.pop_front() {
                return Ok(response);
            }
            match &mut self.leader {
                None => return self.find().await,
                Some(leader) => {
                    let response = leader.next().await?;
                    self.take(response);
                }
            }
        }
    }

    /// Queues the values of a batch, up to the delete of the key.
    fn take(&mut self, response: WatchResponse) {
        for event in response.events {
            if is_delete(&event) {
                self.leader = None;
                return;
            }
            self.ready.push_back(LeaderResponse { header: response.header, kv: event.kv });
        }
    }

    /// Finds the leader, or waits for one, and follows its key.
    async fn find(&mut self) -> Result<LeaderResponse, FollowEnd> {
        let read = self.inner.leader(&self.prefix).await.map_err(|status| {
            self.audit(&status);
            FollowEnd::Stopped
        })?;
        // Held until the watcher is open, which is when the response is sent.
        let CountedAnswer { response: first, mut memory } = read;
        let found = match first.kvs.into_iter().next() {
            Some(kv) => LeaderResponse { header: first.header, kv: Some(kv) },
            None => {
                memory.take();
                self.first_put(revision(first.header.as_ref()) + 1).await?
            }
        };
        let key = found.kv.as_ref().map_or_else(Bytes::new, |kv| kv.key.clone());
        let start_revision = revision(found.header.as_ref()) + 1;
        let request = CreateRequest { key, start_revision, ..CreateRequest::default() };
        self.leader = Some(Follow::open(&self.inner, request).await?);
        Ok(found)
    }

    /// Writes an audit line, since the client does not receive the error.
    fn audit(&self, status: &Status) {
        if let Some(call) = self.inner.0.member.audited(&self.inner.0.requester, Method::ElectionObserve) {
            call.end_of(AuditSubject::read(&self.prefix.start(), &self.prefix.end()), Err(status));
        }
    }

    /// Returns the first put below the name after a revision. The header has the revision of the put.
    async fn first_put(&self, start_revision: i64) -> Result<LeaderResponse, FollowEnd> {
        let request = CreateRequest {
            key: self.prefix.start(),
            range_end: self.prefix.end(),
            start_revision,
            no_delete: true,
            ..CreateRequest::default()
        };
        let mut puts = Follow::open(&self.inner, request).await?;
        loop {
            let response = puts.next().await?;
            if let Some(kv) = response.events.into_iter().find_map(|event| event.kv) {
                return Ok(with_revision_of(kv, response.header));
            }
        }
    }
}

fn with_revision_of(kv: KeyValue, header: Option<ResponseHeader>) -> LeaderResponse {
    let header = header.map(|header| ResponseHeader { revision: kv.mod_revision, ..header });
    LeaderResponse { header, kv: Some(kv) }
}

fn is_delete(event: &Event) -> bool {
    event.r#type == EventType::Delete as i32
}
