//! Watch hub of a member, driven manually: requests, turns, and responses read as bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{WatchRequest, WatchResponse};
use api::grpc;
use bytes::BytesMut;
use mvcc::Store;
use prost::Message;
use watch::{CreateRequest, Encoder, Hub, WatchLimits, WatchStreamId};

/// Fragment size, small enough to split responses with a few events.
const FRAGMENT_BYTES: usize = 1_500;
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// Hub of a running member, and its streams by client number.
pub(crate) struct MemberHub {
    hub: Hub,
    streams: BTreeMap<u64, (WatchStreamId, Encoder)>,
    /// Set at the end of an entry, which wakes the real hub thread.
    woken: Arc<AtomicBool>,
    is_planned: bool,
}

impl MemberHub {
    pub fn new(store: Store) -> MemberHub {
        let woken = Arc::new(AtomicBool::new(true));
        let to_wake = Arc::clone(&woken);
        let is_first = store.wake_with(Arc::new(move || to_wake.store(true, Ordering::Relaxed)));
        assert!(is_first, "a store has one hub");
        let limits = WatchLimits {
            outbox_bytes: 4 << 10,
            bodies_bytes: 16 << 10,
            step_bytes: 2 << 10,
            response_revisions_max: 5,
            step_watchers: 4,
            progress_interval: PROGRESS_INTERVAL,
            ..WatchLimits::default()
        };
        MemberHub { hub: Hub::new(store, limits), streams: BTreeMap::new(), woken, is_planned: false }
    }

    /// Reports whether to schedule a turn: the hub was woken, and no turn is scheduled.
    pub fn must_plan(&mut self) -> bool {
        let plan = !self.is_planned && self.woken.swap(false, Ordering::Relaxed);
        self.is_planned |= plan;
        plan
    }

    /// Runs a turn of the hub. Returns true, and marks the next turn as scheduled, if there is more
    /// work.
    pub fn turn(&mut self, now: Duration) -> mvcc::Result<bool> {
        if self.hub.next_periodic().is_some_and(|due| now >= due) {
            self.hub.periodic(now);
        }
        let more = self.hub.turn()?.more;
        self.hub.ready();
        self.is_planned = more;
        Ok(more)
    }

    pub fn open(&mut self, client: u64, id: u64, now: Duration) {
        let encoder = Encoder::new(1, id, FRAGMENT_BYTES);
        let before = self.streams.insert(client, (self.hub.open(now), encoder));
        assert!(before.is_none(), "client {client} has one stream");
    }

    pub fn close(&mut self, client: u64) {
        let (stream, _) = self.streams.remove(&client).expect("the client has a stream");
        self.hub.close(stream);
    }

    pub fn request(&mut self, client: u64, request: WatchRequest) {
        let (stream, _) = self.streams[&client];
        match request.request_union.expect("clients ask for something") {
            RequestUnion::CreateRequest(create) => self.hub.create(stream, CreateRequest::from(create)),
            RequestUnion::CancelRequest(cancel) => self.hub.cancel(stream, cancel.watch_id),
            RequestUnion::ProgressRequest(_) => self.hub.progress(stream),
        }
        self.woken.store(true, Ordering::Relaxed);
    }

    /// Reads responses for the client, about `bytes_max` bytes.
    pub fn read(&mut self, client: u64, bytes_max: usize) -> Vec<WatchResponse> {
        let (stream, encoder) = self.streams.get_mut(&client).expect("the client has a stream");
        if encoder.is_empty() {
            self.hub.take(*stream, bytes_max, encoder.queue());
        }
        let mut pieces = Vec::new();
        encoder.encode(1, bytes_max, &mut pieces);
        self.woken.store(true, Ordering::Relaxed);
        messages(BytesMut::from(&pieces.concat()[..]))
    }
}

fn messages(mut bytes: BytesMut) -> Vec<WatchResponse> {
    let mut messages = Vec::new();
    while let Some((prefix, message)) = grpc::take(&mut bytes) {
        assert_eq!(prefix.format, 0, "it was not asked for");
        messages.push(WatchResponse::decode(message).expect("a response"));
    }
    assert!(bytes.is_empty(), "half a message");
    messages
}
