//! A watch over one connection, and how far the source is meanwhile.
//!
//! A watch that sends nothing while the source has more is broken. So is one that was cancelled for another
//! reason than a compaction. Both are errors that may pass on another connection.

use std::time::{Duration, Instant};

use api::etcdserverpb::WatchResponse;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::source::{Head, Session};

/// Between two questions for the revision of the source.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// A watch that sends nothing for so long, while the source has more, is replaced.
const EVENTS_WITHIN: Duration = Duration::from_secs(30);
/// For the first answer of a watch.
const WATCH_WITHIN: Duration = Duration::from_secs(10);

/// What comes over the connection.
pub enum News {
    /// Where the source is, by a linearizable read.
    Head(Head),
    Events(WatchResponse),
    /// The revision to watch from is compacted. The watch has ended.
    Compacted(i64),
}

pub struct Events {
    events: Streaming<WatchResponse>,
    heads: mpsc::Receiver<Result<Head, Status>>,
    /// When the last events came, or none were missing.
    moved: Instant,
}

impl Events {
    /// Watches all keys from a revision on.
    pub async fn begin(session: &Session, from: i64) -> Result<Events, Status> {
        let begun = tokio::time::timeout(WATCH_WITHIN, session.watch(from)).await;
        let events = begun.map_err(|_| Status::unavailable("no answer to a watch"))??;
        Ok(Events { events, heads: ask(session.clone()), moved: Instant::now() })
    }

    /// The next of both. Nothing is lost if it is not awaited to the end.
    pub async fn next(&mut self) -> Result<News, Status> {
        let response = tokio::select! {
            biased;
            head = self.heads.recv() => {
                return head.unwrap_or_else(|| Err(Status::unavailable("no more answers"))).map(News::Head);
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

    /// Events up to `revision` have come, and the source is at `head`.
    pub fn check(&mut self, head: Head, revision: i64) -> Result<(), Status> {
        if head.revision <= revision {
            self.moved = Instant::now();
        }
        match self.moved.elapsed() >= EVENTS_WITHIN {
            true => Err(Status::unavailable("the watch sends nothing")),
            false => Ok(()),
        }
    }
}

/// Asks for the source's revision again and again, until an answer fails or is not wanted.
fn ask(session: Session) -> mpsc::Receiver<Result<Head, Status>> {
    let (answers, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let answer = session.head().await;
            let is_last = answer.is_err();
            if answers.send(answer).await.is_err() || is_last {
                return;
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    });
    receiver
}
