//! Watches the source over one connection, and polls its revision.
//!
//! A watch without events while the source's revision increases is considered broken. So is one that was
//! cancelled for any reason but a compaction. Both are temporary errors; another connection may succeed.

use std::time::{Duration, Instant};

use api::etcdserverpb::WatchResponse;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::source::{Head, Session};

/// Polling interval of the source's revision.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time without events, although the source is ahead, after which the watch fails.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of the first watch response.
const WATCH_TIMEOUT: Duration = Duration::from_secs(10);

/// A message from the source.
pub enum News {
    /// The source's revision, by a linearizable read.
    Head(Head),
    Events(WatchResponse),
    /// The start revision is compacted. The watch is closed.
    Compacted(i64),
}

pub struct Events {
    events: Streaming<WatchResponse>,
    heads: mpsc::Receiver<Result<Head, Status>>,
    /// Last time at which events arrived, or the source was not ahead.
    moved: Instant,
}

impl Events {
    /// Watches all keys, starting at `from`.
    pub async fn begin(session: &Session, from: i64) -> Result<Events, Status> {
        let begun = tokio::time::timeout(WATCH_TIMEOUT, session.watch(from)).await;
        let events = begun.map_err(|_| Status::unavailable("no response to a watch"))??;
        Ok(Events { events, heads: ask(session.clone()), moved: Instant::now() })
    }

    /// Returns the next event or revision. Cancel safe.
    pub async fn next(&mut self) -> Result<News, Status> {
        let response = tokio::select! {
            biased;
            head = self.heads.recv() => {
                return head.unwrap_or_else(|| Err(Status::unavailable("no more responses"))).map(News::Head);
            }
            response = self.events.message() => {
                response?.ok_or_else(|| Status::unavailable("the watch ended"))?
            }
        };
        if response.canceled && response.compact_revision > 0 {
            return Ok(News::Compacted(response.compact_revision));
        }
        if response.canceled {
            return Err(Status::unavailable(format!("the watch was cancelled: {}", response.cancel_reason)));
        }
        if !response.events.is_empty() {
            self.moved = Instant::now();
        }
        Ok(News::Events(response))
    }

    /// Records the source's revision, after events up to `revision` were received. Fails if the watch appears
    /// broken.
    pub fn check(&mut self, head: Head, revision: i64) -> Result<(), Status> {
        if head.revision <= revision {
            self.moved = Instant::now();
        }
        match self.moved.elapsed() >= EVENTS_TIMEOUT {
            true => Err(Status::unavailable("the watch is silent")),
            false => Ok(()),
        }
    }
}

/// Polls the source's revision until a request fails or the receiver is dropped.
fn ask(session: Session) -> mpsc::Receiver<Result<Head, Status>> {
    let (answers, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let answer = session.head().await;
            let is_last = answer.is_err();
            if answers.send(answer).await.is_err() || is_last {
                return;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    });
    receiver
}
