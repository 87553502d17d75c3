//! Encoding of events and responses.
//!
//! Encodes a stream's parcels as gRPC frames, on the thread that sends them.
//!
//! ```text
//!   frame = 0u8 (not compressed) │ length u32, big endian │ WatchResponse
//! ```
//!
//! * Small responses share a buffer. A body of more than 4 KiB is passed on without copying.
//! * The parts of a fragmented response are consecutive frames, without other responses of the
//!   stream between them.
//!
//! A response to a single watcher adds some 35 bytes to its body.
//!
//! # Events
//!
//! `mvccpb.Event`, as the field `events` of a response.
//!
//! Key and value are copied once, from the block into the shared body, without an intermediate
//! message.
//!
//! # Parcels
//!
//! Pending responses of a stream, merged if they differ only in the watch id. Also bytes that count
//! towards totals until their last slice is dropped.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use api::grpc::{self, PREFIX_BYTES};
use base::varint::put_varint;
use bytes::Bytes;
use mvcc::{Change, KeyValue, KeyValueRef};

/// Maximum size of bodies that are copied: cheaper than a separate chunk for the socket.
const COPIED_MAX: usize = 4 << 10;
/// Minimum capacity of the frame buffer.
const BUFFER_BYTES: usize = 8 << 10;

/// Approximate size of a response without its body.
const OTHER_BYTES: usize = 48;

/// Encodes the parcels of a stream.
pub struct Encoder {
    cluster_id: u64,
    member_id: u64,
    /// Encoded size at which a response with several events is split, if the watcher requested it.
    fragment_bytes: usize,
    queue: VecDeque<Parcel>,
    /// Number of watch ids, and of body bytes, of the first parcel that are already encoded.
    sent: (usize, usize),
    is_broken: bool,
}

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

    /// Returns the queue. Parcels must be appended in the order in which the hub returned them.
    pub fn queue(&mut self) -> &mut VecDeque<Parcel> {
        &mut self.queue
    }

    pub fn push(&mut self, parcel: Parcel) {
        self.queue.push_back(parcel);
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Estimates the size of the queued frames, up to `bytes_max`.
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

    /// Reports whether the stream must be closed here, inside a message or between fragments of a
    /// response, because the rest was compacted. The encoder stops then.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Appends frames to `out`, and stops after the first one that reaches `bytes_max`. Returns the
    /// number of bytes; 0 if the queue is empty.
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

    /// Returns the next response of a parcel, and the position of its events in the body.
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

    /// Returns the size of the next fragment of a body: as many events as fit, but at least one.
    fn fragment(&self, fields: &ResponseFields<'_>, raft_term: u64, body: &Bytes, start: usize) -> usize {
        let rest = &body[start..];
        let other = self.message_bytes(fields, raft_term);
        if start == 0 && other + rest.len() < self.fragment_bytes {
            return rest.len();
        }
        let mut end = event_bytes(rest);
        // Two more bytes for the fragment flag.
        while end < rest.len() {
            let next = end + event_bytes(&rest[end..]);
            if other + 2 + next >= self.fragment_bytes {
                break;
            }
            end = next;
        }
        end
    }

    /// Appends the data before the body of a part, and returns its size.
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

    /// Returns the size of a response without its events.
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

/// Returns the size of the event at the start of a body, with its tag and length.
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

const EVENTS: u8 = 11;
const TYPE: u8 = 1;
const KV: u8 = 2;
const PREV_KV: u8 = 3;
const DELETE: u64 = 1;

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

// Protobuf fields that are encoded by hand. Values of 0 are omitted, as in proto3.

const VARINT: u8 = 0;
const COUNTED: u8 = 2;

fn number_bytes(value: u64) -> usize {
    if value == 0 { 0 } else { 1 + varint_bytes(value) }
}

/// Appends a number. Negative values of int64 are passed as their two's complement.
fn put_number(out: &mut Vec<u8>, field: u8, value: u64) {
    if value != 0 {
        out.push(field << 3 | VARINT);
        put_varint(out, value);
    }
}

/// Returns the size of a length-delimited field with its tag.
fn counted_bytes(bytes: usize) -> usize {
    1 + varint_bytes(bytes as u64) + bytes
}

/// Appends tag and length of a length-delimited field. Its bytes must follow.
fn put_counted(out: &mut Vec<u8>, field: u8, bytes: usize) {
    out.push(field << 3 | COUNTED);
    put_varint(out, bytes as u64);
}

/// Returns the size of a bytes or string field. Empty fields are omitted.
fn bytes_bytes(bytes: &[u8]) -> usize {
    if bytes.is_empty() { 0 } else { counted_bytes(bytes.len()) }
}

fn put_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_counted(out, field, bytes.len());
        out.extend_from_slice(bytes);
    }
}

/// One or more responses of a stream, for an [`Encoder`].
#[derive(Clone, Debug)]
pub struct Parcel {
    pub(crate) revision: i64,
    pub(crate) content: ParcelContent,
}

#[derive(Clone, Debug)]
pub(crate) enum ParcelContent {
    Created {
        watch_id: i64,
    },
    Refused {
        reason: Box<str>,
    },
    /// `compact_revision` is 0 if the client canceled it.
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
    Part {
        watch_id: i64,
        part: MessagePart,
        body: Bytes,
    },
}

/// Tracker of large bytes that were handed to a stream.
#[derive(Clone, Debug)]
pub struct HeldBytes(Weak<ByteCount<[Arc<AtomicUsize>; 2]>>);

impl HeldBytes {
    /// Reports whether the stream has dropped all of them.
    pub fn is_dropped(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// Framing of a part of a large revision.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MessagePart {
    /// First bytes of a message with `total` bytes of events.
    First { total: u32 },
    /// Further bytes of that message.
    Next,
    /// A complete response.
    Fragment { is_last: bool },
    /// The rest was compacted: the stream must be closed.
    Broken,
}

impl Parcel {
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

    /// Counts its events in these totals until they are dropped. Returns `None` without events.
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

    /// Returns the bytes that it holds in memory, including a shared body.
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

/// Bytes counted in each of some totals until this is dropped.
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

/// Wraps bytes so that they keep `count` until their last slice is dropped.
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
