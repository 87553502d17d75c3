//! Model of a watcher. It must receive each change of its keys once, in order, in whole revisions,
//! and never before the sending member serves that revision. All changes up to a progress
//! notification must have been sent before it.

use api::etcdserverpb::WatchResponse;
use api::mvccpb::event::EventType;
use api::mvccpb::{Event, KeyValue};
use bytes::Bytes;

use super::model::{KeyPair, Model, WatchedChange};

#[derive(Clone, Debug)]
pub(crate) struct Interest {
    pub key: Bytes,
    pub range_end: Bytes,
    pub puts: bool,
    pub deletes: bool,
    pub previous: bool,
}

/// The oracle, and the state of the member that sent a response.
#[derive(Clone, Copy)]
pub(crate) struct OracleView<'a> {
    pub model: &'a Model,
    pub revision: i64,
    pub compact_revision: i64,
}

#[derive(Clone, Debug)]
pub(crate) struct WatcherModel {
    pub interest: Interest,
    /// First revision that was not completely received. 0 until the create request is confirmed,
    /// without a start revision.
    pub next: i64,
    /// Fragments of an incomplete response.
    parts: Vec<Event>,
}

impl WatcherModel {
    /// Creates a watcher that starts at `next`; 0 means after the revision at its creation.
    pub fn new(interest: Interest, next: i64) -> WatcherModel {
        WatcherModel { interest, next, parts: Vec::new() }
    }

    /// Checks the response to the create request, with the header's `revision`.
    pub fn created(&mut self, revision: i64, view: OracleView<'_>) -> Result<(), String> {
        if revision > view.revision {
            return Err(format!("created at {revision}, on a member at {}", view.revision));
        }
        if self.next == 0 {
            self.next = revision + 1;
        }
        Ok(())
    }

    /// Checks a response with events. Returns the number of completely received events.
    pub fn events(&mut self, response: WatchResponse, view: OracleView<'_>) -> Result<u64, String> {
        let header = response.header.as_ref().map_or(0, |header| header.revision);
        self.parts.extend(response.events);
        if response.fragment {
            return Ok(0);
        }
        let events = std::mem::take(&mut self.parts);
        let last = events.last().and_then(|event| event.kv.as_ref()).map_or(0, |kv| kv.mod_revision);
        if last > header || header > view.revision {
            return Err(format!("events up to {last} at {header}, on a member at {}", view.revision));
        }
        let expected = self.expected(view.model, last);
        if expected.len() != events.len() {
            return Err(format!(
                "{} events up to {last}, and {} from {} on in the oracle",
                events.len(),
                expected.len(),
                self.next
            ));
        }
        for (event, change) in events.iter().zip(expected) {
            self.check(event, change, view)?;
        }
        self.next = self.next.max(last + 1);
        Ok(events.len() as u64)
    }

    pub fn progress(&mut self, revision: i64, view: OracleView<'_>) -> Result<(), String> {
        if revision > view.revision {
            return Err(format!("progress to {revision}, on a member at {}", view.revision));
        }
        if !self.parts.is_empty() {
            return Err("progress between the parts of a response".into());
        }
        if let Some(missing) = self.expected(view.model, revision).first() {
            return Err(format!("progress to {revision} before {missing:?}, with {} next", self.next));
        }
        self.next = self.next.max(revision + 1);
        Ok(())
    }

    pub fn compacted(&mut self, revision: i64, view: OracleView<'_>) -> Result<(), String> {
        if self.next >= revision || revision > view.compact_revision {
            let (next, compacted) = (self.next, view.compact_revision);
            return Err(format!(
                "compacted at {revision} with {next} next, on a member compacted at {compacted}"
            ));
        }
        self.next = revision;
        self.parts.clear();
        Ok(())
    }

    /// Handles a broken stream, dropping an incomplete response.
    pub fn disconnected(&mut self) {
        self.parts.clear();
    }

    /// Reports whether a change up to `revision` was not received.
    pub fn lacks(&self, model: &Model, revision: i64) -> bool {
        self.next > 0 && !self.expected(model, revision).is_empty()
    }

    /// Returns the changes from the next revision to `last` that match the watcher.
    fn expected<'m>(&self, model: &'m Model, last: i64) -> Vec<&'m WatchedChange> {
        let Interest { key, range_end, puts, deletes, .. } = &self.interest;
        let inside = |at: &Bytes| if range_end.is_empty() { at == key } else { at >= key && at < range_end };
        let wanted = |change: &&WatchedChange| {
            inside(&change.key) && (if change.put.is_some() { *puts } else { *deletes })
        };
        model.changes(self.next, last).iter().filter(wanted).collect()
    }

    fn check(&self, event: &Event, change: &WatchedChange, view: OracleView<'_>) -> Result<(), String> {
        let kind = if change.put.is_some() { EventType::Put } else { EventType::Delete };
        let kv = match &change.put {
            Some(pair) => key_value(&change.key, pair),
            None => KeyValue { key: change.key.clone(), mod_revision: change.main, ..KeyValue::default() },
        };
        let found = event.kv.clone().unwrap_or_default();
        if event.r#type() != kind || found != kv {
            return Err(format!("{event:?} instead of {change:?}"));
        }
        let previous = change.previous.as_ref().filter(|_| self.interest.previous);
        let previous = previous.map(|pair| key_value(&change.key, pair));
        let found = event.prev_kv.clone();
        let may_lack = change.main - 1 < view.compact_revision;
        if found != previous && !(found.is_none() && may_lack) {
            return Err(format!("{event:?} has another previous pair than {change:?}"));
        }
        Ok(())
    }
}

fn key_value(key: &Bytes, pair: &KeyPair) -> KeyValue {
    KeyValue {
        key: key.clone(),
        value: pair.value.clone(),
        create_revision: pair.create,
        mod_revision: pair.main,
        version: pair.version,
        lease: pair.lease,
    }
}
