//! Plain input and output values of the hub.

use std::time::Duration;

use api::etcdserverpb::WatchCreateRequest;
use api::etcdserverpb::watch_create_request::FilterType;
use bytes::Bytes;
use mvcc::KeyRange;

/// A stream id. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchStreamId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// A request for a watcher, with the fields of etcd's `WatchCreateRequest`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreateRequest {
    pub key: Bytes,
    pub range_end: Bytes,
    /// First revision to deliver; 0 starts after the current one.
    pub start_revision: i64,
    /// 0: assigned by the hub.
    pub watch_id: i64,
    pub prev_kv: bool,
    pub progress_notify: bool,
    pub no_put: bool,
    pub no_delete: bool,
    pub fragment: bool,
}

impl CreateRequest {
    /// Returns the watched keys. An empty key is the smallest one.
    pub fn keys(&self) -> KeyRange {
        let key = if self.key.is_empty() { Bytes::from_static(b"\0") } else { self.key.clone() };
        KeyRange::new(key, self.range_end.clone())
    }
}

impl From<WatchCreateRequest> for CreateRequest {
    /// Converts a request. Unknown filters are ignored, as in etcd.
    fn from(request: WatchCreateRequest) -> Self {
        let has = |filter: FilterType| request.filters.contains(&(filter as i32));
        CreateRequest {
            no_put: has(FilterType::Noput),
            no_delete: has(FilterType::Nodelete),
            start_revision: request.start_revision,
            watch_id: request.watch_id,
            prev_kv: request.prev_kv,
            progress_notify: request.progress_notify,
            fragment: request.fragment,
            key: request.key,
            range_end: request.range_end,
        }
    }
}

/// Limits of the hub. Reaching one never loses an event.
#[derive(Clone, Copy, Debug)]
pub struct WatchLimits {
    /// Maximum bytes in a stream's outbox. Above it, watchers of the stream that match an event
    /// become lagging, and read it again from the history when the outbox is half empty. 1 MiB:
    /// some ten milliseconds of a 1 Gbit/s link. A single event or revision may exceed it.
    pub outbox_bytes: usize,
    /// Maximum bytes of encoded events in all outboxes, each counted once, plus the entries that
    /// refer to them. Above it, the client with the most of them loses those of its stream that has
    /// been unread for the longest time, until an eighth is free again. The stream becomes lagging.
    /// 32 MiB: the same amount again is handed to 1000 streams ahead of their reading.
    pub bodies_bytes: usize,
    /// Maximum responses to requests (created, canceled, progress) in an outbox. At that number
    /// `accepts` is false, and the owner reads no further request of the stream.
    pub answers_max: usize,
    /// Maximum responses in all outboxes. When the remaining capacity is less than a client's
    /// usage, `accepts` is false for its streams with more than [`WatchLimits::answers_always`].
    /// Some 150 bytes each.
    pub answers_total_max: usize,
    /// Number of responses that any stream may always have.
    pub answers_always: usize,
    /// Maximum matches of events and ranges at a time, 8 bytes each: some milliseconds. A revision
    /// with more of them is delivered as history, some ranges per step.
    pub matches_max: usize,
    /// Maximum event bytes copied per step, for ranges that match some events of a revision but not
    /// those between them. The remaining ranges are served by the next steps.
    pub copied_bytes_max: usize,
    /// Approximate bytes of a history step with previous pairs. A revision that exceeds it is sent
    /// in parts.
    pub previous_bytes_max: usize,
    /// Approximate size of a part of such a revision; at least one event. Each stream holds a part:
    /// 16 MiB for 1000 streams. Larger responses are tracked while streams hold them.
    pub part_bytes: usize,
    /// Maximum bytes of responses above `part_bytes` that streams hold in total. Beyond it, a
    /// stream with such a response waits. 64 MiB: 40 events of the largest size.
    pub handed_bytes_max: usize,
    /// Maximum watchers of all streams. Further ones are rejected, as are new watchers of a client
    /// with more watchers than the remaining capacity. 4 million: 400 MB.
    pub watchers_max: usize,
    /// Maximum key bytes of all watchers, each distinct range counted once per form. Watchers
    /// beyond it are rejected, as are new ones of a client with more key bytes than the remaining
    /// capacity.
    pub key_bytes_max: usize,
    /// Raw bytes of history read per step.
    pub step_bytes: usize,
    /// Watchers served per step: some milliseconds. The rest continue in the next step.
    pub step_watchers: usize,
    /// Maximum per turn of each of: removed watchers of closed streams, watchers that become live
    /// after their first revision is reached, and watchers checked for a periodic notification.
    /// Some milliseconds.
    pub turn_watchers: usize,
    /// Distinct revisions per response to a lagging watcher, as in etcd.
    pub response_revisions_max: usize,
    /// Interval between progress notifications, to which each stream adds up to a tenth.
    pub progress_interval: Duration,
}

impl Default for WatchLimits {
    fn default() -> Self {
        WatchLimits {
            outbox_bytes: 1 << 20,
            bodies_bytes: 32 << 20,
            answers_max: 1024,
            answers_total_max: 128 << 10,
            answers_always: 32,
            matches_max: 256 << 10,
            copied_bytes_max: 4 << 20,
            previous_bytes_max: 8 << 20,
            part_bytes: 16 << 10,
            handed_bytes_max: 64 << 20,
            watchers_max: 4_000_000,
            key_bytes_max: 1 << 30,
            step_bytes: 1 << 20,
            step_watchers: 64 << 10,
            turn_watchers: 4 << 10,
            response_revisions_max: 1000,
            progress_interval: Duration::from_secs(600),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubOutput {
    /// True if there is more work now. Otherwise the next turn is due when the store publishes a
    /// revision, a request arrives, or an outbox was read.
    pub more: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub streams: usize,
    pub watchers: usize,
    /// Watchers that read history, including those of full outboxes.
    pub lagging: usize,
    /// Watchers with a first revision that is not published yet.
    pub future: usize,
    /// Distinct ranges, each form counted.
    pub ranges: usize,
    pub key_bytes: usize,
    /// Bytes of encoded events in all outboxes, each counted once, plus the entries that refer to
    /// them.
    pub body_bytes: usize,
    /// Bytes of large responses that streams hold.
    pub handed_bytes: usize,
    /// Responses with events in all outboxes, once per watcher.
    pub pending: usize,
    /// Events delivered to outboxes, once per watcher.
    pub events: u64,
    /// Number of times that a stream's events were evicted from its outbox, to be read again.
    pub evictions: u64,
}
