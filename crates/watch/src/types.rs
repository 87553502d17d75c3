//! Plain values in and out of the hub.

use std::time::Duration;

use api::etcdserverpb::WatchCreateRequest;
use api::etcdserverpb::watch_create_request::FilterType;
use bytes::Bytes;
use mvcc::KeyRange;

/// A stream. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// A request for a watcher. The fields are those of etcd's `WatchCreateRequest`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreateRequest {
    pub key: Bytes,
    pub range_end: Bytes,
    /// The first revision to deliver; 0 means the next one.
    pub start_revision: i64,
    /// 0: the hub chooses one.
    pub watch_id: i64,
    pub prev_kv: bool,
    pub progress_notify: bool,
    pub no_put: bool,
    pub no_delete: bool,
    pub fragment: bool,
}

impl CreateRequest {
    /// The keys that are watched. An empty key is the smallest one.
    pub fn keys(&self) -> KeyRange {
        let key = if self.key.is_empty() { Bytes::from_static(b"\0") } else { self.key.clone() };
        KeyRange::new(key, self.range_end.clone())
    }
}

impl From<WatchCreateRequest> for CreateRequest {
    /// Unknown filters are ignored, as in etcd.
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

/// Bounds of the hub. None of them loses an event.
#[derive(Clone, Copy, Debug)]
pub struct WatchLimits {
    /// Bytes that wait in one stream's outbox. Above it, watchers of the stream that match an event become
    /// lagging, and read it again from the history when the outbox is half empty. 1 MiB: some ten
    /// milliseconds of a 1 Gbit/s link. One event or one revision may exceed it.
    pub outbox_bytes: usize,
    /// Encoded events that wait in all outboxes, each counted once, and the entries that refer to them. Above
    /// it, the client with most of them loses those of its stream that has had something to read for the
    /// longest time, until an eighth is free again. The stream becomes lagging. 32 MiB: what is handed to
    /// 1000 streams ahead of their reading is as much again.
    pub bodies_bytes: usize,
    /// Answers to requests (created, canceled, progress) that wait in one outbox. At that number `accepts` is
    /// false, and the owner reads no further request of the stream.
    pub answers_max: usize,
    /// Answers that wait in all outboxes. When what is left of it is less than what a client has, `accepts`
    /// is false for its streams with more than [`WatchLimits::answers_always`]. Some 150 bytes each.
    pub answers_total_max: usize,
    /// Answers that any stream may have.
    pub answers_always: usize,
    /// Pairs of an event and a range that are found at a time, at 8 bytes: some milliseconds. One revision
    /// with more of them is delivered as history, some ranges in each step.
    pub matches_max: usize,
    /// Bytes of events that are copied in one step, for ranges that take some events of a revision and not
    /// those between them. The other ranges get theirs in the next steps.
    pub copied_bytes_max: usize,
    /// Bytes of a step of history with previous pairs, about. A revision that exceeds it is sent in parts.
    pub previous_bytes_max: usize,
    /// Bytes of a part of such a revision, about, or one event. Each stream holds one: 1000 streams, 16 MiB.
    /// Responses above it are large: what streams hold of them is counted.
    pub part_bytes: usize,
    /// Bytes that streams were handed of responses above `part_bytes`, in all. A stream with such a response
    /// waits beyond it. 64 MiB: 40 events of the largest size.
    pub handed_bytes_max: usize,
    /// Watchers of all streams. Further ones are refused, and those of a client that has more than are left.
    /// 4 million: 400 MB.
    pub watchers_max: usize,
    /// Bytes of the keys of all watchers, each distinct range counted once for each form. Watchers beyond it
    /// are refused, and those of a client that has more than are left.
    pub key_bytes_max: usize,
    /// Raw bytes of history read in one step.
    pub step_bytes: usize,
    /// Watchers served in one step: some milliseconds. The others continue in the next one.
    pub step_watchers: usize,
    /// Watchers of closed streams that are removed in one turn, watchers that become live in one since their
    /// first revision is reached, and watchers that are asked in one whether they get a periodic
    /// notification: some milliseconds.
    pub turn_watchers: usize,
    /// Distinct revisions in one response to a lagging watcher, as in etcd.
    pub response_revisions_max: usize,
    /// Time between two progress notifications, to which each stream adds up to a tenth.
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

/// What one turn left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubOutput {
    /// Whether there is more to do now. Otherwise the next turn is due when the store publishes a revision, a
    /// request arrives, or an outbox was read.
    pub more: bool,
}

/// Counters and sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub streams: usize,
    pub watchers: usize,
    /// Watchers that read history, those of full outboxes included.
    pub lagging: usize,
    /// Watchers whose first revision is not published yet.
    pub future: usize,
    /// Distinct ranges, each form counted.
    pub ranges: usize,
    pub key_bytes: usize,
    /// Encoded events in all outboxes, each counted once, and the entries that refer to them.
    pub body_bytes: usize,
    /// Bytes of large responses that streams hold.
    pub handed_bytes: usize,
    /// Responses with events in all outboxes, once per watcher.
    pub pending: usize,
    /// Events delivered to outboxes, once per watcher.
    pub events: u64,
    /// Streams whose events were dropped from their outbox, to be read again.
    pub evictions: u64,
}
