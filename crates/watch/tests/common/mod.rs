//! A store with a hub, and a client that decodes what its streams send.
#![allow(dead_code, reason = "each test uses a part")]

use std::time::Duration;

use api::etcdserverpb::WatchResponse;
use api::grpc;
use bytes::{Bytes, BytesMut};
use mvcc::{
    CompactProgress, KeyRange, LogPosition, Maintainer, MemoryBackend, Previous, Staging, Store,
    StoreOptions, Writer,
};
use prost::Message;
use watch::{Encoder, Hub, WatchLimits, WatchStreamId};

pub const CLUSTER: u64 = 0x1234_5678_9abc;
pub const MEMBER: u64 = 77;
pub const TERM: u64 = 5;

/// Sizes that make every bound matter after a few requests.
pub fn tiny_options() -> StoreOptions {
    StoreOptions {
        block_bytes: 256,
        block_file_bytes: 4000,
        cache_bytes: 1000,
        checkpoint_due_bytes: 1 << 20,
        changes_per_hold: 2,
        ..StoreOptions::default()
    }
}

pub struct Member {
    pub backend: MemoryBackend,
    pub writer: Writer,
    pub store: Store,
    pub maintainer: Maintainer,
    pub index: u64,
}

impl Member {
    pub fn new() -> Self {
        let backend = MemoryBackend::new();
        let (writer, store, maintainer) = mvcc::open(Box::new(backend.clone()), tiny_options()).unwrap();
        Member { backend, writer, store, maintainer, index: 0 }
    }

    /// Puts, then deletes, as one request.
    pub fn request(&mut self, puts: &[(Vec<u8>, Vec<u8>)], deletes: &[KeyRange]) -> i64 {
        let mut request = self.writer.begin();
        for (key, value) in puts {
            request.put(key, value, 0);
        }
        for range in deletes {
            request.delete_range(range, Previous::Skip).unwrap();
        }
        let revision = request.finish();
        self.end_entry();
        revision
    }

    pub fn end_entry(&mut self) {
        self.index += 1;
        self.writer.end_entry(LogPosition::new(self.index, 1)).unwrap();
    }

    pub fn compact(&mut self, revision: i64) -> bool {
        let is_compacted = self.writer.compact(revision).is_ok();
        self.end_entry();
        is_compacted
    }

    /// Runs some steps of physical compaction. Returns the revision of the last finished
    /// compaction.
    pub fn steps(&mut self, count: usize) -> Option<i64> {
        self.maintainer.persist().unwrap();
        let steps = (0..count).map(|_| self.maintainer.compact_step(3).unwrap());
        let finished = steps.filter_map(|step| match step {
            CompactProgress::Finished { revision } => Some(revision),
            CompactProgress::Idle | CompactProgress::More | CompactProgress::Waiting => None,
        });
        finished.last()
    }

    /// Replaces the state by the one of `source`.
    pub fn install(&mut self, source: &mut Member) {
        source.maintainer.persist().unwrap();
        let mut export = source.maintainer.export();
        let mut staging = Staging::begin(Box::new(self.backend.incoming()), &tiny_options()).unwrap();
        while let Some(chunk) = export.next(500).unwrap() {
            staging.add(&chunk).unwrap();
        }
        self.maintainer.install(staging.finish().unwrap()).unwrap();
        self.index = source.index;
    }
}

pub struct Client {
    pub stream: WatchStreamId,
    pub encoder: Encoder,
    /// Start of an incomplete message.
    begun: BytesMut,
}

impl Client {
    pub fn open(hub: &mut Hub, fragment_bytes: usize) -> Self {
        Client::of(hub.open(Duration::ZERO), fragment_bytes)
    }

    pub fn of(stream: WatchStreamId, fragment_bytes: usize) -> Self {
        Client { stream, encoder: Encoder::new(CLUSTER, MEMBER, fragment_bytes), begun: BytesMut::new() }
    }

    /// Takes parcels of up to `bytes_max`, and decodes them.
    pub fn read(&mut self, hub: &mut Hub, bytes_max: usize) -> Vec<WatchResponse> {
        hub.take(self.stream, bytes_max, self.encoder.queue());
        let mut responses = Vec::new();
        while !self.encoder.is_empty() {
            let mut pieces = Vec::new();
            let bytes = self.encoder.encode(TERM, bytes_max, &mut pieces);
            assert_eq!(bytes, pieces.iter().map(Bytes::len).sum::<usize>(), "the bytes that it reports");
            pieces.iter().for_each(|piece| self.begun.extend_from_slice(piece));
        }
        self.decode(&mut responses);
        responses
    }

    pub fn is_inside_message(&self) -> bool {
        !self.begun.is_empty()
    }

    /// The responses in gRPC frames.
    fn decode(&mut self, responses: &mut Vec<WatchResponse>) {
        while let Some((prefix, message)) = grpc::take(&mut self.begun) {
            assert_eq!(prefix.format, 0);
            let response = WatchResponse::decode(message).unwrap();
            assert_eq!(response.encoded_len(), prefix.message_bytes, "the canonical encoding");
            let header = response.header.as_ref().unwrap();
            assert_eq!((header.cluster_id, header.member_id, header.raft_term), (CLUSTER, MEMBER, TERM));
            responses.push(response);
        }
    }
}

pub fn revision(response: &WatchResponse) -> i64 {
    response.header.as_ref().unwrap().revision
}

/// Runs turns until the hub is idle.
pub fn settle(hub: &mut Hub) {
    for _ in 0..5000 {
        if !hub.turn().unwrap().more {
            return;
        }
    }
    panic!("the hub does not come to rest");
}

/// Limits that are reached after a few events.
pub fn tiny_limits() -> WatchLimits {
    WatchLimits {
        outbox_bytes: 700,
        bodies_bytes: 1500,
        step_bytes: 300,
        step_watchers: 3,
        response_revisions_max: 3,
        matches_max: 5,
        copied_bytes_max: 100,
        previous_bytes_max: 150,
        part_bytes: 60,
        handed_bytes_max: 300,
        turn_watchers: 2,
        ..WatchLimits::default()
    }
}
