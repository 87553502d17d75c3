//! The encoded form of events and responses.
//!
//! Makes gRPC frames of a stream's parcels, on the thread that sends them.
//!
//!   frame = 0u8 (not compressed) │ length u32, big endian │ WatchResponse
//!
//! * Small responses share one buffer. A body of more than 4 KiB is passed on as it is, so it is never
//!   copied.
//! * The parts of a fragmented response are consecutive frames: no other response of the stream is between
//!   them.
//!
//! A response to one watcher costs some 35 bytes besides its body.
//!
//! # Events
//!
//! `mvccpb.Event`, as the field `events` of a response.
//!
//! One copy of key and value, from the block into the shared body. No message is built in between.
//!
//! # Parcels
//!
//! What one stream has to send: responses that share everything but their watch id. Bytes that count in sums
//! until their last slice is dropped.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use api::grpc::{self, PREFIX_BYTES};
use base::varint::put_varint;
use bytes::Bytes;
use mvcc::{Change, KeyValue, KeyValueRef};

/// Bodies up to this size are copied: cheaper than a separate piece for the socket.
const COPIED_MAX: usize = 4 << 10;
/// Frames that the buffer is made for, at least.
const BUFFER_BYTES: usize = 8 << 10;

/// What a response has apart from its body.
const OTHER_BYTES: usize = 48;

/// Encodes the parcels of one stream.
pub struct Encoder {
    cluster_id: u64,
    member_id: u64,
    /// Encoded size from which a response with several events is split, if the watcher asked for it.
    fragment_bytes: usize,
    queue: VecDeque<Parcel>,
    /// Watch ids and bytes of the body of the first parcel that are encoded already.
    sent: (usize, usize),
    is_broken: bool,
}

/// One response without its events.
#[derive(Default)]
struct ResponseFields<'a> {
    revision: i64,
    watch_id: i64,
    created: bool,
    canceled: bool,
    compact_revision: i64,
    cancel_reason: &'a str,
    fragment: bool,
}

impl Encoder {
    pub fn new(cluster_id: u64, member_id: u64, fragment_bytes: usize) -> Self {
        Encoder {
            cluster_id,
            member_id,
            fragment_bytes,
            queue: VecDeque::new(),
            sent: (0, 0),
            is_broken: false,
        }
    }

    /// Parcels are appended here, in the order in which the hub returned them.
    pub fn queue(&mut self) -> &mut VecDeque<Parcel> {
        &mut self.queue
    }

    pub fn push(&mut self, parcel: Parcel) {
        self.queue.push_back(parcel);
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// About how many bytes the queue's frames have, at most `bytes_max`.
    pub fn bytes_up_to(&self, bytes_max: usize) -> usize {
        let bytes = self.queue.iter().scan(0, |bytes, parcel| {
            let is_enough = *bytes >= bytes_max;
            *bytes += match &parcel.content {
                ParcelContent::Events { watch_ids, body, .. } => watch_ids.len() * (OTHER_BYTES + body.len()),
                ParcelContent::Part { body, .. } => OTHER_BYTES + body.len(),
                _ => OTHER_BYTES,
            };
            (!is_enough).then_some(*bytes)
        });
        bytes.last().unwrap_or_default().min(bytes_max)
    }

    /// Whether the stream has to end here, inside a message or between fragments of a response: a compaction
    /// has taken the rest away. Nothing more is encoded then.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Appends frames to `out`, and stops after the first one that reaches `bytes_max`. Returns their bytes;
    /// 0 if there is nothing to encode.
    pub fn encode(&mut self, raft_term: u64, bytes_max: usize, out: &mut Vec<Bytes>) -> usize {
        let (mut bytes, mut buffer) = (0, Vec::new());
        while bytes < bytes_max {
            let Some(parcel) = self.queue.front() else { break };
            if buffer.capacity() == 0 {
                buffer.reserve(BUFFER_BYTES.min(bytes_max));
            }
            let before = buffer.len();
            if let ParcelContent::Part { watch_id, part, body } = &parcel.content {
                let fields = ResponseFields {
                    revision: parcel.revision,
                    watch_id: *watch_id,
                    ..ResponseFields::default()
                };
                let body = body.clone();
                bytes += self.put_part(fields, *part, body.len(), raft_term, &mut buffer) + body.len();
                if matches!(part, MessagePart::Broken) {
                    self.is_broken = true;
                    self.queue.clear();
                    break;
                }
                out.extend((!buffer.is_empty()).then(|| Bytes::from(std::mem::take(&mut buffer))));
                out.push(body);
                self.queue.pop_front();
                continue;
            }
            let (fields, body) = self.next_response(parcel, raft_term);
            let frame = self.put_frame(&fields, body.map_or(0, |body| body.1), raft_term, &mut buffer);
            assert_eq!(buffer.len() - before + body.map_or(0, |body| body.1), frame, "a frame of its length");
            if let (Some((start, length)), ParcelContent::Events { body, .. }) = (body, &parcel.content) {
                let body = body.slice(start..start + length);
                if length <= COPIED_MAX {
                    buffer.extend_from_slice(&body);
                } else {
                    out.push(Bytes::from(std::mem::take(&mut buffer)));
                    out.push(body);
                }
            }
            bytes += frame;
            self.advance(body);
        }
        if !buffer.is_empty() {
            out.push(Bytes::from(buffer));
        }
        bytes
    }

    /// The next response of a parcel, and where its events are in the body.
    fn next_response<'p>(
        &self,
        parcel: &'p Parcel,
        raft_term: u64,
    ) -> (ResponseFields<'p>, Option<(usize, usize)>) {
        let fields = ResponseFields { revision: parcel.revision, ..ResponseFields::default() };
        let fields = match &parcel.content {
            ParcelContent::Created { watch_id } => {
                ResponseFields { watch_id: *watch_id, created: true, ..fields }
            }
            ParcelContent::Refused { reason } => ResponseFields {
                watch_id: -1,
                created: true,
                canceled: true,
                cancel_reason: reason,
                ..fields
            },
            ParcelContent::Canceled { watch_id, compact_revision } => {
                let compact_revision = *compact_revision;
                ResponseFields { watch_id: *watch_id, canceled: true, compact_revision, ..fields }
            }
            ParcelContent::Revoked { watch_id, reason } => {
                ResponseFields { watch_id: *watch_id, canceled: true, cancel_reason: reason, ..fields }
            }
            ParcelContent::Progress { watch_id } => ResponseFields { watch_id: *watch_id, ..fields },
            ParcelContent::Part { .. } => unreachable!("encoded by `put_part`"),
            ParcelContent::Events { watch_ids, body, may_fragment } => {
                let (number, start) = self.sent;
                let whole = ResponseFields { watch_id: watch_ids[number], ..fields };
                let part = match may_fragment {
                    true => self.fragment(&whole, raft_term, body, start),
                    false => body.len() - start,
                };
                let fragment = start + part < body.len();
                return (ResponseFields { fragment, ..whole }, Some((start, part)));
            }
        };
        (fields, None)
    }

    /// Bytes of the next fragment of a body: at least one event, and as many as fit.
    fn fragment(&self, fields: &ResponseFields<'_>, raft_term: u64, body: &Bytes, start: usize) -> usize {
        let rest = &body[start..];
        let other = self.message_bytes(fields, raft_term);
        if start == 0 && other + rest.len() < self.fragment_bytes {
            return rest.len();
        }
        let mut end = event_bytes(rest);
        // Two bytes more for the flag of a fragment.
        while end < rest.len() {
            let next = end + event_bytes(&rest[end..]);
            if other + 2 + next >= self.fragment_bytes {
                break;
            }
            end = next;
        }
        end
    }

    /// Appends what comes before the body of a part, and returns how many bytes that is.
    fn put_part(
        &self,
        fields: ResponseFields<'_>,
        part: MessagePart,
        body: usize,
        raft_term: u64,
        out: &mut Vec<u8>,
    ) -> usize {
        let before = out.len();
        match part {
            MessagePart::First { total } => {
                self.put_frame(&fields, total as usize, raft_term, out);
            }
            MessagePart::Fragment { is_last } => {
                let fields = ResponseFields { fragment: !is_last, ..fields };
                self.put_frame(&fields, body, raft_term, out);
            }
            MessagePart::Next | MessagePart::Broken => {}
        }
        out.len() - before
    }

    /// Moves to the next response after one with these events.
    fn advance(&mut self, body: Option<(usize, usize)>) {
        if let (Some((start, length)), Some(ParcelContent::Events { watch_ids, body, .. })) =
            (body, self.queue.front().map(|parcel| &parcel.content))
        {
            self.sent.1 = start + length;
            if self.sent.1 == body.len() {
                self.sent = (self.sent.0 + 1, 0);
            }
            if self.sent.0 < watch_ids.len() {
                return;
            }
        }
        self.sent = (0, 0);
        self.queue.pop_front();
    }

    /// Appends a frame up to its events, and returns its whole length.
    fn put_frame(
        &self,
        fields: &ResponseFields<'_>,
        body: usize,
        raft_term: u64,
        out: &mut Vec<u8>,
    ) -> usize {
        let message = self.message_bytes(fields, raft_term) + body;
        out.extend_from_slice(&grpc::prefix(message).expect("responses are far below 4 GiB"));
        put_counted(out, 1, self.header_bytes(fields.revision, raft_term));
        put_number(out, 1, self.cluster_id);
        put_number(out, 2, self.member_id);
        put_number(out, 3, fields.revision as u64);
        put_number(out, 4, raft_term);
        put_number(out, 2, fields.watch_id as u64);
        put_number(out, 3, u64::from(fields.created));
        put_number(out, 4, u64::from(fields.canceled));
        put_number(out, 5, fields.compact_revision as u64);
        put_bytes(out, 6, fields.cancel_reason.as_bytes());
        put_number(out, 7, u64::from(fields.fragment));
        PREFIX_BYTES + message
    }

    fn header_bytes(&self, revision: i64, raft_term: u64) -> usize {
        [self.cluster_id, self.member_id, revision as u64, raft_term].into_iter().map(number_bytes).sum()
    }

    /// Bytes of a response without its events.
    fn message_bytes(&self, fields: &ResponseFields<'_>, raft_term: u64) -> usize {
        let flags = [fields.created, fields.canceled, fields.fragment];
        let flag_bytes: usize = flags.into_iter().map(|flag| number_bytes(u64::from(flag))).sum();
        let reason = fields.cancel_reason.len();
        counted_bytes(self.header_bytes(fields.revision, raft_term))
            + number_bytes(fields.watch_id as u64)
            + number_bytes(fields.compact_revision as u64)
            + if reason == 0 { 0 } else { counted_bytes(reason) }
            + flag_bytes
    }
}

/// Bytes of the event at the start of a body, with its tag and length.
fn event_bytes(body: &[u8]) -> usize {
    assert_eq!(body[0], EVENTS << 3 | 2, "a body consists of events");
    let (mut length, mut shift) = (0u64, 0);
    for byte in &body[1..] {
        length |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
    }
    1 + varint_bytes(length) + length as usize
}

/// Field of `WatchResponse`.
const EVENTS: u8 = 11;
/// Fields of `Event`.
const TYPE: u8 = 1;
const KV: u8 = 2;
const PREV_KV: u8 = 3;
const DELETE: u64 = 1;

/// Appends an event with its tag and length.
pub(crate) fn put_event(out: &mut Vec<u8>, change: &Change<'_>, previous: Option<&KeyValue>) {
    let (kind, kv) = match change {
        Change::Put { kv, .. } => (0, *kv),
        Change::Delete { revision, key } => {
            let mod_revision = revision.main;
            (DELETE, KeyValueRef { key, value: b"", create_revision: 0, mod_revision, version: 0, lease: 0 })
        }
    };
    let previous = previous.map(|kv| KeyValueRef {
        key: &kv.key,
        value: &kv.value,
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        lease: kv.lease,
    });
    let previous_bytes = previous.as_ref().map(kv_bytes);
    let bytes = number_bytes(kind) + counted_bytes(kv_bytes(&kv)) + previous_bytes.map_or(0, counted_bytes);
    out.reserve(counted_bytes(bytes));
    put_counted(out, EVENTS, bytes);
    put_number(out, TYPE, kind);
    put_kv(out, KV, &kv);
    if let Some(previous) = &previous {
        put_kv(out, PREV_KV, previous);
    }
}

fn kv_bytes(kv: &KeyValueRef<'_>) -> usize {
    bytes_bytes(kv.key)
        + number_bytes(kv.create_revision as u64)
        + number_bytes(kv.mod_revision as u64)
        + number_bytes(kv.version as u64)
        + bytes_bytes(kv.value)
        + number_bytes(kv.lease as u64)
}

/// `mvccpb.KeyValue`.
fn put_kv(out: &mut Vec<u8>, field: u8, kv: &KeyValueRef<'_>) {
    put_counted(out, field, kv_bytes(kv));
    put_bytes(out, 1, kv.key);
    put_number(out, 2, kv.create_revision as u64);
    put_number(out, 3, kv.mod_revision as u64);
    put_number(out, 4, kv.version as u64);
    put_bytes(out, 5, kv.value);
    put_number(out, 6, kv.lease as u64);
}

pub(super) use base::varint::varint_bytes;

// Protobuf fields that are written by hand. Values of 0 are left out, as in proto3.

/// Wire type of varints.
const VARINT: u8 = 0;
/// Wire type of bytes, strings and messages.
const COUNTED: u8 = 2;

/// Bytes of a number with its tag.
fn number_bytes(value: u64) -> usize {
    if value == 0 { 0 } else { 1 + varint_bytes(value) }
}

/// A number. Negative values of int64 are passed as their two's complement.
fn put_number(out: &mut Vec<u8>, field: u8, value: u64) {
    if value != 0 {
        out.push(field << 3 | VARINT);
        put_varint(out, value);
    }
}

/// Bytes of a counted field with its tag.
fn counted_bytes(bytes: usize) -> usize {
    1 + varint_bytes(bytes as u64) + bytes
}

/// Tag and length of a counted field. Its bytes must follow.
fn put_counted(out: &mut Vec<u8>, field: u8, bytes: usize) {
    out.push(field << 3 | COUNTED);
    put_varint(out, bytes as u64);
}

/// Bytes of a bytes or string field; empty ones are left out.
fn bytes_bytes(bytes: &[u8]) -> usize {
    if bytes.is_empty() { 0 } else { counted_bytes(bytes.len()) }
}

fn put_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_counted(out, field, bytes.len());
        out.extend_from_slice(bytes);
    }
}

/// One or more responses of one stream. An [`Encoder`] makes bytes of it.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// Revision of the header.
    pub(crate) revision: i64,
    pub(crate) content: ParcelContent,
}

#[derive(Clone, Debug)]
pub(crate) enum ParcelContent {
    Created {
        watch_id: i64,
    },
    /// A create request that was refused.
    Refused {
        reason: Box<str>,
    },
    /// `compact_revision` is 0 if the client asked for it.
    Canceled {
        watch_id: i64,
        compact_revision: i64,
    },
    /// Canceled by the owner, which shares the reason between watchers.
    Revoked {
        watch_id: i64,
        reason: Arc<str>,
    },
    Progress {
        watch_id: i64,
    },
    /// The same events for each of the watchers.
    Events {
        watch_ids: Box<[i64]>,
        body: Bytes,
        may_fragment: bool,
    },
    /// A part of a large revision.
    Part {
        watch_id: i64,
        part: MessagePart,
        body: Bytes,
    },
}

/// Large bytes of a parcel that a stream was handed.
#[derive(Clone, Debug)]
pub struct HeldBytes(Weak<ByteCount<[Arc<AtomicUsize>; 2]>>);

impl HeldBytes {
    /// Whether the stream has dropped them all.
    pub fn is_dropped(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// How a part of a large revision is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MessagePart {
    /// The first bytes of a message whose events are so many bytes.
    First { total: u32 },
    /// More bytes of that message.
    Next,
    /// A response.
    Fragment { is_last: bool },
    /// The rest was compacted: the stream has to end.
    Broken,
}

impl Parcel {
    /// Bytes of its events.
    pub(crate) fn body_bytes(&self) -> usize {
        match &self.content {
            ParcelContent::Events { body, .. } | ParcelContent::Part { body, .. } => body.len(),
            ParcelContent::Created { .. }
            | ParcelContent::Refused { .. }
            | ParcelContent::Canceled { .. }
            | ParcelContent::Revoked { .. }
            | ParcelContent::Progress { .. } => 0,
        }
    }

    /// Has its events counted in these sums until they are dropped. `None` if it has none.
    pub(crate) fn hold(&mut self, sums: [Arc<AtomicUsize>; 2]) -> Option<HeldBytes> {
        let (ParcelContent::Events { body, .. } | ParcelContent::Part { body, .. }) = &mut self.content
        else {
            return None;
        };
        let count = Arc::new(ByteCount::new(body.len(), sums));
        let noticed = HeldBytes(Arc::downgrade(&count));
        *body = counted(std::mem::take(body), count);
        Some(noticed)
    }

    /// Bytes that it holds in memory, a body that is shared included.
    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            + match &self.content {
                ParcelContent::Events { watch_ids, body, .. } => 8 * watch_ids.len() + body.len(),
                ParcelContent::Part { body, .. } => body.len(),
                ParcelContent::Refused { reason } => reason.len(),
                ParcelContent::Revoked { .. } => 0,
                ParcelContent::Created { .. }
                | ParcelContent::Canceled { .. }
                | ParcelContent::Progress { .. } => 0,
            }
    }
}

/// A part of each of some sums, until this is dropped.
#[derive(Debug)]
pub(crate) struct ByteCount<S: AsRef<[Arc<AtomicUsize>]>> {
    bytes: usize,
    sums: S,
}

impl<S: AsRef<[Arc<AtomicUsize>]>> ByteCount<S> {
    pub fn new(bytes: usize, sums: S) -> ByteCount<S> {
        for sum in sums.as_ref() {
            sum.fetch_add(bytes, Relaxed);
        }
        ByteCount { bytes, sums }
    }
}

impl<S: AsRef<[Arc<AtomicUsize>]>> Drop for ByteCount<S> {
    fn drop(&mut self) {
        for sum in self.sums.as_ref() {
            sum.fetch_sub(self.bytes, Relaxed);
        }
    }
}

struct CountedBytes<B, C> {
    bytes: B,
    _count: C,
}

impl<B: AsRef<[u8]>, C> AsRef<[u8]> for CountedBytes<B, C> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// The same bytes, which keep `count` until their last slice is dropped.
pub(crate) fn counted<B, C>(bytes: B, count: C) -> Bytes
where
    B: AsRef<[u8]> + Send + 'static,
    C: Send + 'static,
{
    Bytes::from_owner(CountedBytes { bytes, _count: count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_varint_takes_as_many_bytes_as_are_counted() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX >> 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out.len(), varint_bytes(value), "{value}");
        }
    }
}
