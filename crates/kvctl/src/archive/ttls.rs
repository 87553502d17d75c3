//! TTLs of leases, which a watch does not report. They are requested while events are received.

use std::collections::HashSet;

use tokio::sync::mpsc;

use super::segment::Lease;
use crate::live_import::Session;

/// Leases per batch. A batch succeeds or fails as a whole.
const MAX_CONCURRENT_LEASES: usize = 256;

/// Requested IDs, and the existing ones with their TTLs.
type Answer = (Vec<i64>, Vec<(i64, i64)>);

/// Leases attached to keys, until a segment contains their TTLs.
#[derive(Default)]
pub struct Ttls {
    /// Attached since the last request: a lease that was granted again may have another TTL.
    attached: HashSet<i64>,
    /// Requested without a response yet.
    asked: HashSet<i64>,
    answers: Option<mpsc::UnboundedReceiver<Answer>>,
    /// Session of the next request, sent after the current one completes.
    next: Option<Session>,
    found: Vec<Lease>,
}

impl Ttls {
    pub fn attach(&mut self, id: i64) {
        self.attached.insert(id);
    }

    /// Reports whether segments contain all TTLs.
    pub fn is_empty(&self) -> bool {
        self.attached.is_empty() && self.asked.is_empty() && self.found.is_empty()
    }

    pub fn is_asking(&self) -> bool {
        self.answers.is_some()
    }

    /// Requests all missing TTLs, after the current request.
    pub fn ask(&mut self, session: &Session) {
        let session = session.clone();
        if self.is_asking() {
            self.next = Some(session);
            return;
        }
        if self.attached.is_empty() {
            return;
        }
        self.asked = std::mem::take(&mut self.attached);
        let ids: Vec<i64> = self.asked.iter().copied().collect();
        let (sender, answers) = mpsc::unbounded_channel();
        self.answers = Some(answers);
        tokio::spawn(async move {
            for ids in ids.chunks(MAX_CONCURRENT_LEASES) {
                let Ok(found) = session.ttls(ids).await else { return };
                if sender.send((ids.to_vec(), found)).is_err() {
                    return;
                }
            }
        });
    }

    /// Completes when no request is in flight. Cancel safe.
    pub async fn answered(&mut self) {
        loop {
            let Some(answers) = &mut self.answers else { return std::future::pending().await };
            if let Some(answer) = answers.recv().await {
                self.note(answer);
                continue;
            }
            let next = self.next.take();
            self.end();
            if let Some(session) = next {
                self.ask(&session);
            }
            if !self.is_asking() {
                return;
            }
        }
    }

    fn note(&mut self, (ids, found): Answer) {
        for id in ids {
            self.asked.remove(&id);
        }
        self.found.extend(found.into_iter().map(|(id, ttl)| Lease { id, ttl }));
    }

    /// Returns the TTLs received so far, for a segment.
    pub fn take(&mut self) -> Vec<Lease> {
        while let Some(answer) = self.answers.as_mut().and_then(|answers| answers.try_recv().ok()) {
            self.note(answer);
        }
        std::mem::take(&mut self.found)
    }

    /// Cancels the request. Missing TTLs are requested again later.
    pub fn end(&mut self) {
        self.found = self.take();
        (self.answers, self.next) = (None, None);
        self.attached.extend(self.asked.drain());
    }
}
