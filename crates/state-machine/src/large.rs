//! A large range as the bytes of its answer, made piece by piece.
//!
//!   find: places of the records ──▶ measure: bytes of each pair ──▶ windows: any stretch of the pairs' bytes, when it is wanted
//!
//!   message: header │ pair │ pair │ … │ more, count        a concatenation of protobuf fields is the message that has them all
//!            before ├───── windows ───┤ after
//!
//! * Before, all windows in order, and after are byte for byte what the whole answer encodes to.
//! * Its length is known before its first byte is made: gRPC wants it in front.
//! * It holds 12 bytes per key, and 32 while it is found; a window is made of blocks that are read one after the other and written into it at once.
//! * Found is found: neither a write nor a compaction changes what the windows say.
//!
//! Cost: one walk over the index, one look at every record to measure it, and one more for each window that it is in. Of keys that
//! are scattered over all blocks each window takes a look at every block, so windows should not be small.

use std::collections::VecDeque;
use std::ops::Range;

use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::{RangeRequest, RangeResponse, ResponseHeader};
use bytes::{BufMut, Bytes};
use mvcc::{Held, KeyRange, KeyValueRef, Store};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, int64, key_len};

use crate::failure::Failure;
use crate::header;
use crate::range::has_revision_filters;

/// Field number of the pairs in a `RangeResponse`.
const KVS: u32 = 2;

/// As much as a connection buffers of one answer: what is sent is freed in such steps.
const PIECE_BYTES: u32 = 1 << 20;

/// A range that was found and measured.
pub struct LargeRange {
    /// Measured are pairs as fields of the answer.
    held: Held,
    pairs_bytes: u64,
}

/// A stretch of pairs.
struct Window {
    numbers: Range<usize>,
    /// Bytes of the first pair that come before what was asked for.
    skipped: usize,
}

/// Room for the pairs of a window.
struct Pieces {
    bytes: Vec<Vec<u8>>,
    /// Of each pair: the piece that it is in, and where it ends there.
    ends: Vec<(u32, u32)>,
}

impl LargeRange {
    /// Whether a request can be answered so: pairs in full and in key order, none of them left out in between.
    pub fn serves(request: &RangeRequest) -> bool {
        let in_key_order = request.sort_target == SortTarget::Key as i32
            && [SortOrder::None as i32, SortOrder::Ascend as i32].contains(&request.sort_order);
        in_key_order && !has_revision_filters(request) && !request.keys_only && !request.count_only
    }

    /// Finds and measures. Refusals: `Compacted`, `FutureRev`.
    pub fn find(store: &Store, request: &RangeRequest) -> Result<Self, Failure> {
        assert!(Self::serves(request), "an answer that has to be sorted or filtered");
        let keys = KeyRange::new(request.key.clone(), request.range_end.clone());
        // As everywhere, a negative limit is none.
        let limit = usize::try_from(request.limit).unwrap_or(0);
        let held = store.hold(&keys, request.revision, limit, |kv| {
            u32::try_from(field_bytes(kv)).expect("a pair is far below 4 GiB")
        })?;
        assert!(limit == 0 || held.len() <= limit, "the store gave more than was asked for");
        let pairs_bytes = held.sizes(0..held.len()).map(u64::from).sum();
        Ok(LargeRange { held, pairs_bytes })
    }

    /// The header as far as this crate knows it.
    pub fn header(&self) -> Option<ResponseHeader> {
        header(self.held.revision)
    }

    /// The fields before the pairs, with the header as completed by who answers.
    pub fn before(&self, header: Option<ResponseHeader>) -> Vec<u8> {
        RangeResponse { header, ..RangeResponse::default() }.encode_to_vec()
    }

    /// Bytes of all pairs.
    pub fn pairs_bytes(&self) -> u64 {
        self.pairs_bytes
    }

    /// The fields behind the pairs.
    pub fn after(&self) -> Vec<u8> {
        let count = self.held.count;
        let keys = i64::try_from(self.held.len()).expect("pairs fit in memory");
        assert!(keys <= count, "a count below what is returned");
        RangeResponse { more: keys < count, count, ..RangeResponse::default() }.encode_to_vec()
    }

    /// The pairs' bytes from `start` on, to the end of a pair: `bytes_max` or one pair at the most. They come in pieces, so that
    /// what was sent of a window can make room for the next one.
    ///
    /// Fails only if a block cannot be read back any more.
    pub fn window(&self, start: u64, bytes_max: usize) -> Result<VecDeque<Bytes>, Failure> {
        let window = self.stretch(start, bytes_max);
        let mut pieces = Pieces::of(self.held.sizes(window.numbers.clone()));
        let first = window.numbers.start;
        self.held.visit(window.numbers, |number, kv| {
            let mut room = pieces.room(number - first);
            encode_field(kv, &mut room);
            assert!(room.is_empty(), "a pair that is shorter than it was measured");
        })?;
        let mut pieces: VecDeque<Bytes> = pieces.bytes.into_iter().map(Bytes::from).collect();
        let begun = pieces.front_mut().expect("a window holds a pair");
        *begun = begun.split_off(window.skipped);
        Ok(pieces)
    }

    /// Which pairs hold the bytes from `start` on.
    fn stretch(&self, start: u64, bytes_max: usize) -> Window {
        assert!(start < self.pairs_bytes, "a window behind the last pair");
        let (mut numbers, mut before, mut bytes) = (0..0, 0, 0);
        for (number, size) in self.held.sizes(0..self.held.len()).enumerate() {
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
        Window { numbers, skipped }
    }
}

impl Pieces {
    /// Pairs of these sizes fill one piece after the other, each as far as it goes.
    fn of(sizes: impl Iterator<Item = u32>) -> Self {
        let mut ends: Vec<(u32, u32)> = Vec::with_capacity(sizes.size_hint().0);
        let (mut piece, mut end) = (0, 0);
        let mut lengths = Vec::new();
        for size in sizes {
            if end > 0 && end + size > PIECE_BYTES {
                lengths.push(end);
                (piece, end) = (piece + 1, 0);
            }
            end += size;
            ends.push((piece, end));
        }
        lengths.push(end);
        Pieces { bytes: lengths.into_iter().map(|length| vec![0; length as usize]).collect(), ends }
    }

    /// Where the pair of this number belongs.
    fn room(&mut self, number: usize) -> &mut [u8] {
        let (piece, end) = self.ends[number];
        let start = match number.checked_sub(1).map(|before| self.ends[before]) {
            Some((same, start)) if same == piece => start,
            Some(_) | None => 0,
        };
        &mut self.bytes[piece as usize][start as usize..end as usize]
    }
}

/// Bytes of a pair as a field of a `RangeResponse`.
fn field_bytes(kv: &KeyValueRef<'_>) -> usize {
    let bytes = message_bytes(kv);
    key_len(KVS) + encoded_len_varint(bytes as u64) + bytes
}

/// Bytes of a pair as a `KeyValue`.
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

/// Writes a pair as a field of a `RangeResponse`: what the generated code writes, without a `KeyValue` that owns its bytes. Fields
/// that are empty or zero are left out, as it leaves them out.
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
