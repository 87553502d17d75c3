//! Watchers: each follows all keys of the run at a member, and reports received events to the checker.
//!
//! * A broken stream is reopened after the last received revision. So is an old stream, because resuming is
//!   part of the check.
//! * Progress is requested regularly, so that operations are compared soon even without changes.

use super::names::KeyNames;
use super::{CheckerMessage, Messages};
use crate::Input;
use crate::operation::Revision;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse};
use client::Client;
use std::convert::Infallible;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;

/// Delay before a broken stream is reopened.
const REST: Duration = Duration::from_millis(200);
/// Interval between two requests for progress.
const PROGRESS: Duration = Duration::from_millis(100);
/// Lifetime of a stream.
const OPEN: Duration = Duration::from_secs(10);
/// Limit of requests that the stream has not accepted yet. Further ones are dropped, because requests are
/// identical.
const REQUESTS_MAX: usize = 4;

/// A watcher of all keys at a member.
pub struct Feed {
    pub watcher: usize,
    pub channel: Client,
    pub names: KeyNames,
    /// Revision up to which everything was received.
    pub received: Revision,
    pub messages: Messages,
    pub start: Instant,
}

/// Reason why a stream was closed.
enum StreamEnd {
    /// A failure; the stream is reopened.
    Stream,
    /// No failure: the stream is reopened to check that it resumes correctly.
    Resume,
    /// The events were compacted, or the checker has stopped.
    Feed(String),
}

impl Feed {
    /// Follows until the task is aborted, or the events are not available any more.
    pub async fn follow(mut self) {
        loop {
            match self.stream().await {
                Ok(never) => match never {},
                Err(StreamEnd::Stream) => tokio::time::sleep(REST).await,
                Err(StreamEnd::Resume) => {}
                Err(StreamEnd::Feed(reason)) => {
                    // Without a receiver the run is over.
                    let _ = self.messages.send(CheckerMessage::Failed(reason)).await;
                    return;
                }
            }
        }
    }

    async fn stream(&mut self) -> Result<Infallible, StreamEnd> {
        let (requests, queue) = mpsc::channel(REQUESTS_MAX);
        let (key, range_end) = self.names.watched();
        let start_revision = self.received.saturating_add(1);
        let create =
            WatchCreateRequest { key, range_end, start_revision, prev_kv: true, ..Default::default() };
        let request = |union| WatchRequest { request_union: Some(union) };
        let _ = requests.try_send(request(RequestUnion::CreateRequest(create)));
        let mut client = self.channel.watch();
        let opened = client.watch(ReceiverStream::new(queue)).await;
        let mut responses = opened.map_err(|_| StreamEnd::Stream)?.into_inner();
        let mut progress = tokio::time::interval(PROGRESS);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut resume = std::pin::pin!(tokio::time::sleep(OPEN));
        loop {
            tokio::select! {
                response = responses.message() => match response {
                    Ok(Some(response)) => self.received(&response).await?,
                    Ok(None) | Err(_) => return Err(StreamEnd::Stream),
                },
                () = &mut resume => return Err(StreamEnd::Resume),
                _ = progress.tick() => {
                    let ask = RequestUnion::ProgressRequest(WatchProgressRequest {});
                    let _ = requests.try_send(request(ask));
                }
            }
        }
    }

    async fn received(&mut self, response: &WatchResponse) -> Result<(), StreamEnd> {
        if response.compact_revision > 0 {
            let (watcher, compacted) = (self.watcher, response.compact_revision);
            return Err(StreamEnd::Feed(format!(
                "watcher {watcher} needs events after revision {}, and history was compacted at {compacted}",
                self.received
            )));
        }
        if response.canceled {
            return Err(StreamEnd::Stream);
        }
        if response.created {
            return Ok(());
        }
        let watcher = self.watcher;
        let input = match response.events.last() {
            None => {
                let revision = response.header.map_or(0, |header| header.revision);
                self.received = self.received.max(revision);
                Input::Progress { watcher, revision }
            }
            Some(_) => {
                let changes: Vec<_> = response.events.iter().map(|event| self.names.change(event)).collect();
                let newest = changes.iter().map(|change| change.revision).max();
                self.received = self.received.max(newest.unwrap_or_default());
                let before = response.events.iter();
                let before = before.map(|event| event.prev_kv.as_ref().map(|kv| self.names.record(kv)));
                Input::Watched { watcher, at: self.start.elapsed(), changes, before: before.collect() }
            }
        };
        let sent = self.messages.send(CheckerMessage::Input(input)).await;
        sent.map_err(|_| StreamEnd::Feed("the checker ended".into()))
    }
}
