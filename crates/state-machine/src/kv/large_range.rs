//! Large range responses, encoded in windows.
//!
//! ```text
//!   find: locations of the records ─▶ measure: bytes of each pair ─▶ windows: any part of the pairs' bytes, on demand
//!
//!   message: header │ pair │ pair │ … │ more, count        concatenated protobuf fields are one message
//!            before ├───── windows ───┤ after
//! ```
//!
//! * `before`, all windows in order, and `after` are byte for byte the encoded response.
//! * The length is known before the first byte is encoded, because gRPC sends it first.
//! * It takes 12 bytes of memory per key, and 32 while being resolved. A window is encoded directly
//!   from blocks, which are read sequentially.
//! * The result set is fixed when the range is resolved. Later writes and compactions do not change
//!   it.
//!
//! Cost: an index scan, a read of every record to measure it, and another for each window that
//! contains it. If keys are scattered over all blocks, each window reads every block, so windows
//! should not be small.

use std::collections::VecDeque;
use std::ops::Range;

use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::{RangeRequest, RangeResponse, ResponseHeader};
use bytes::{BufMut, Bytes};
use mvcc::{KeyRange, KeyValueRef, Meter, PinnedRange, Store};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, int64, key_len};

use super::range::has_revision_filters;
use crate::failure::{Failure, header};

const KVS: u32 = 2;

/// Size of a window's buffers. Sent buffers are freed individually; a connection buffers as much of
/// a response.
const BUFFER_BYTES: u32 = 1 << 20;

/// A resolved and measured range.
pub struct LargeRange {
    /// Pinned range with the encoded size of each pair as a field of the response.
    range: PinnedRange,
    pairs_bytes: u64,
}

struct PairWindow {
    numbers: Range<usize>,
    skipped: usize,
}

struct Buffers {
    bytes: Vec<Vec<u8>>,
    /// Buffer of each pair, and its end offset there.
    ends: Vec<(u32, u32)>,
}

impl LargeRange {
    /// Reports whether a request is supported: full pairs in key order, without filters.
    pub fn serves(request: &RangeRequest) -> bool {
        let in_key_order = request.sort_target == SortTarget::Key as i32
            && [SortOrder::None as i32, SortOrder::Ascend as i32].contains(&request.sort_order);
        in_key_order && !has_revision_filters(request) && !request.keys_only && !request.count_only
    }

    /// Resolves and measures a range on behalf of `caller`. `meter` may interrupt it. Request
    /// errors: `Compacted`, `FutureRev`.
    pub fn find(
        store: &Store,
        request: &RangeRequest,
        caller: u64,
        meter: &dyn Meter,
    ) -> Result<Self, Failure> {
        assert!(Self::serves(request), "an answer that has to be sorted or filtered");
        let keys = KeyRange::new(request.key.clone(), request.range_end.clone());
        // A negative limit means no limit.
        let limit = usize::try_from(request.limit).unwrap_or(0);
        let range = store.pin_range(&keys, request.revision, limit, caller, meter, |kv| {
            u32::try_from(field_bytes(kv)).expect("a pair is far below 4 GiB")
        })?;
        assert!(limit == 0 || range.len() <= limit, "the store gave more than was asked for");
        let pairs_bytes = range.sizes(0..range.len()).map(u64::from).sum();
        Ok(LargeRange { range, pairs_bytes })
    }

    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns the memory used between windows, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.range.memory_bytes()
    }

    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Returns the header without ids and term.
    pub fn header(&self) -> Option<ResponseHeader> {
        header(self.range.revision)
    }

    pub fn before(&self, header: Option<ResponseHeader>) -> Vec<u8> {
        RangeResponse { header, ..RangeResponse::default() }.encode_to_vec()
    }

    pub fn pairs_bytes(&self) -> u64 {
        self.pairs_bytes
    }

    pub fn after(&self) -> Vec<u8> {
        let count = self.range.count;
        let keys = i64::try_from(self.range.len()).expect("pairs fit in memory");
        assert!(keys <= count, "a count below what is returned");
        RangeResponse { more: keys < count, count, ..RangeResponse::default() }.encode_to_vec()
    }

    /// Encodes the pairs from byte offset `start`, up to the end of a pair: at most `bytes_max`, or
    /// one pair. Several buffers are returned, so that sent parts of a window can be freed.
    ///
    /// Fails only if a block cannot be read, or with `Released`.
    pub fn window(&self, start: u64, bytes_max: usize) -> Result<VecDeque<Bytes>, Failure> {
        let window = self.window_at(start, bytes_max);
        let mut buffers = Buffers::of(self.range.sizes(window.numbers.clone()));
        let first = window.numbers.start;
        self.range.visit(window.numbers, |number, kv| {
            let mut slice = buffers.slice(number - first);
            encode_field(kv, &mut slice);
            assert!(slice.is_empty(), "a pair that is shorter than it was measured");
        })?;
        let mut buffers: VecDeque<Bytes> = buffers.bytes.into_iter().map(Bytes::from).collect();
        let begun = buffers.front_mut().expect("a window holds a pair");
        *begun = begun.split_off(window.skipped);
        Ok(buffers)
    }

    /// Selects the pairs of the window that starts at byte offset `start`.
    fn window_at(&self, start: u64, bytes_max: usize) -> PairWindow {
        assert!(start < self.pairs_bytes, "a window after the last pair");
        let (mut numbers, mut before, mut bytes) = (0..0, 0, 0);
        for (number, size) in self.range.sizes(0..self.range.len()).enumerate() {
            if numbers.is_empty() && before + u64::from(size) <= start {
                before += u64::from(size);
                numbers = number + 1..number + 1;
            } else if numbers.is_empty() || bytes + size as usize <= bytes_max {
                bytes += size as usize;
                numbers.end = number + 1;
            } else {
                break;
            }
        }
        let skipped = usize::try_from(start - before).expect("less than one pair");
        PairWindow { numbers, skipped }
    }
}

impl Buffers {
    /// Allocates buffers for pairs of these sizes. Pairs are not split.
    fn of(sizes: impl Iterator<Item = u32>) -> Self {
        let mut ends: Vec<(u32, u32)> = Vec::with_capacity(sizes.size_hint().0);
        let (mut buffer, mut end) = (0, 0);
        let mut lengths = Vec::new();
        for size in sizes {
            if end > 0 && end + size > BUFFER_BYTES {
                lengths.push(end);
                (buffer, end) = (buffer + 1, 0);
            }
            end += size;
            ends.push((buffer, end));
        }
        lengths.push(end);
        Buffers { bytes: lengths.into_iter().map(|length| vec![0; length as usize]).collect(), ends }
    }

    fn slice(&mut self, number: usize) -> &mut [u8] {
        let (buffer, end) = self.ends[number];
        let start = match number.checked_sub(1).map(|before| self.ends[before]) {
            Some((same, start)) if same == buffer => start,
            Some(_) | None => 0,
        };
        &mut self.bytes[buffer as usize][start as usize..end as usize]
    }
}

/// Returns the encoded size of a pair as a field of a `RangeResponse`.
fn field_bytes(kv: &KeyValueRef<'_>) -> usize {
    let bytes = message_bytes(kv);
    key_len(KVS) + encoded_len_varint(bytes as u64) + bytes
}

/// Returns the encoded size of a pair as a `KeyValue`.
fn message_bytes(kv: &KeyValueRef<'_>) -> usize {
    let text = |tag, text: &[u8]| match text.len() {
        0 => 0,
        bytes => key_len(tag) + encoded_len_varint(bytes as u64) + bytes,
    };
    let number = |tag, number| if number == 0 { 0 } else { int64::encoded_len(tag, &number) };
    text(1, kv.key)
        + number(2, kv.create_revision)
        + number(3, kv.mod_revision)
        + number(4, kv.version)
        + text(5, kv.value)
        + number(6, kv.lease)
}

/// Encodes a pair as a field of a `RangeResponse`, like the generated code, but without an owned
/// `KeyValue`. Empty and zero fields are omitted.
fn encode_field(kv: &KeyValueRef<'_>, out: &mut impl BufMut) {
    let text = |tag, text: &[u8], out: &mut _| {
        if !text.is_empty() {
            encode_key(tag, WireType::LengthDelimited, out);
            encode_varint(text.len() as u64, out);
            BufMut::put_slice(out, text);
        }
    };
    let number = |tag, number, out: &mut _| {
        if number != 0 {
            int64::encode(tag, &number, out);
        }
    };
    encode_key(KVS, WireType::LengthDelimited, out);
    encode_varint(message_bytes(kv) as u64, out);
    text(1, kv.key, out);
    number(2, kv.create_revision, out);
    number(3, kv.mod_revision, out);
    number(4, kv.version, out);
    text(5, kv.value, out);
    number(6, kv.lease, out);
}
