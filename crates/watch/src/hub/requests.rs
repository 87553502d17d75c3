//! Client requests: create and cancel.

use std::borrow::Cow;
use std::sync::Arc;

use mvcc::KeyRange;

use super::state::{Hub, HubWatcher, WatcherState};
use crate::interest::{Form, InterestGroup};
use crate::types::{CreateRequest, WatchStreamId};
use crate::wire::ParcelContent;

/// etcd's texts, which clients use to distinguish the causes.
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const EMPTY_RANGE: &str = "mvcc: watcher range is empty";
const DUPLICATE_ID: &str = "mvcc: duplicate watch ID provided on the WatchStream";

/// Maximum number of watchers per permission review step: less than a millisecond.
const REVIEWED_MAX: usize = 1024;

impl Hub {
    /// Creates a watcher. The response, or the reason of a rejection, is added to the outbox.
    pub fn create(&mut self, stream: WatchStreamId, request: CreateRequest) {
        let Some(slot) = self.slot(stream) else { return };
        let keys = request.keys();
        let key: &[u8] = keys.start();
        let form = Form::new(request.prev_kv, request.no_put, request.no_delete, request.fragment);
        let watch_id = match self.check(slot, key, &request) {
            Ok(watch_id) => watch_id,
            Err(reason) => return self.refuse(stream, &reason),
        };
        self.follow();
        let watcher = self.watchers.insert(HubWatcher {
            watch_id,
            next: 0,
            stream: slot,
            group: 0,
            in_group: 0,
            place: 0,
            state: WatcherState::Idle,
            is_notified: request.progress_notify,
            is_active: false,
        });
        self.join_group(watcher, InterestGroup::new(key, &request.range_end, form));
        let revision = self.store.revision();
        let stream = &mut self.streams[slot];
        self.owners.add_watcher(stream.owner);
        stream.watchers.insert(watch_id, watcher);
        stream.notified += usize::from(request.progress_notify);
        if let Some(asked_at) = &mut stream.asked_at {
            *asked_at = revision.max(*asked_at);
        }
        self.push_answer(slot, revision, ParcelContent::Created { watch_id });
        self.start(watcher, request.start_revision, revision);
    }

    /// Responds to a create request that the owner rejected, with its reason.
    pub fn refuse(&mut self, stream: WatchStreamId, reason: &str) {
        let Some(slot) = self.slot(stream) else { return };
        self.push_answer(slot, self.store.revision(), ParcelContent::Refused { reason: reason.into() });
    }

    /// Cancels a watcher. Unknown ids are ignored.
    pub fn cancel(&mut self, stream: WatchStreamId, watch_id: i64) {
        let Some(slot) = self.slot(stream) else { return };
        let Some(watcher) = self.streams[slot].watchers.get(&watch_id).copied() else { return };
        if self.watchers[watcher].state != WatcherState::Live {
            // It had delayed the response to a progress request, which etcd does not send later.
            self.streams[slot].asked_at = None;
        }
        self.remove_watcher(watcher);
        let content = ParcelContent::Canceled { watch_id, compact_revision: 0 };
        self.push_answer(slot, self.store.revision(), content);
    }

    /// Cancels the watchers of a stream with ranges that are no longer permitted, with a reason.
    /// Checks a bounded number, starting at the id `from`. Returns the id at which to continue, if
    /// there are more.
    pub fn review(
        &mut self,
        stream: WatchStreamId,
        from: i64,
        reason: &Arc<str>,
        is_kept: impl Fn(KeyRange) -> bool,
    ) -> Option<i64> {
        let slot = self.slot(stream)?;
        let ids = self.streams[slot].watchers.range(from..).take(REVIEWED_MAX + 1);
        let mut ids: Vec<(i64, u32)> = ids.map(|(id, watcher)| (*id, *watcher)).collect();
        let next = ids.get(REVIEWED_MAX).map(|(id, _)| *id);
        ids.truncate(REVIEWED_MAX);
        for (watch_id, watcher) in ids {
            if self.watchers[watcher].state == WatcherState::Compacted {
                continue; // It gets no events.
            }
            if is_kept(self.interest.groups[self.watchers[watcher].group].keys()) {
                continue;
            }
            if self.watchers[watcher].state != WatcherState::Live {
                self.streams[slot].asked_at = None; // As in `cancel`.
            }
            self.remove_watcher(watcher);
            let content = ParcelContent::Revoked { watch_id, reason: Arc::clone(reason) };
            self.push_answer(slot, self.store.revision(), content);
        }
        next
    }

    /// Returns the id of a new watcher, or an error. Checks in etcd's order.
    fn check(&mut self, slot: u32, key: &[u8], request: &CreateRequest) -> Result<i64, Cow<'static, str>> {
        if request.start_revision < 0 {
            return Err(COMPACTED.into());
        }
        let end = &request.range_end[..];
        if !end.is_empty() && end != b"\0" && end <= key {
            return Err(EMPTY_RANGE.into());
        }
        let stream = &mut self.streams[slot];
        if request.watch_id != 0 && stream.watchers.contains_key(&request.watch_id) {
            return Err(DUPLICATE_ID.into());
        }
        let (watchers, key_bytes) = (self.watchers.len(), self.interest.key_bytes());
        let bytes = key.len() + end.len();
        if let Some(reason) = self.owners.refuses(stream.owner, watchers, key_bytes, bytes, &self.limits) {
            return Err(reason.into());
        }
        if request.watch_id != 0 {
            return Ok(request.watch_id);
        }
        while stream.watchers.contains_key(&stream.next_id) {
            stream.next_id += 1;
        }
        stream.next_id += 1;
        Ok(stream.next_id - 1)
    }

    /// Gives a new watcher its first state. `revision` is the current one.
    ///
    /// A start in the past is read from history, even if the hub has not reached it yet: then its
    /// first response is that of a lagging watcher, as in etcd. A history step detects whether it
    /// is compacted.
    fn start(&mut self, watcher: u32, start: i64, revision: i64) {
        if start > revision {
            self.make(watcher, WatcherState::Future, start);
        } else if start > 0 {
            self.make(watcher, WatcherState::Lagging, start);
        } else if revision > self.position {
            self.make(watcher, WatcherState::Joining, revision + 1);
        } else {
            self.make_live(watcher);
        }
    }
}
