//! A large range as the bytes of its answer, made piece by piece.
//!
//!   find: places of the records ──▶ measure: bytes of each pair ──▶ windows: any stretch of the pairs' bytes, when it is wanted
//!
//!   message: header │ pair │ pair │ … │ more, count        a concatenation of protobuf fields is the message that has them all
//!            before ├───── windows ───┤ after
//!
//! * Before, all windows in order, and after are byte for byte what the whole answer encodes to.
//! * Its length is known before its first byte is made: gRPC wants it in front.
//! * It holds 20 bytes per key; a window is made of blocks that are read one after the other and written into it at once.
//! * Found is found: neither a write nor a compaction changes what the windows say.
//!
//! Cost: one walk over the index, one look at every record to measure it, and one more for each window that it is in. Of keys that
//! are scattered over all blocks each window takes a look at every block, so windows should not be small.

use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::{RangeRequest, RangeResponse, ResponseHeader};
use bytes::Bytes;
use mvcc::{Held, KeyRange, Store};
use prost::Message;
use prost::encoding::message;

use crate::failure::Failure;
use crate::header;
use crate::range::{has_revision_filters, wire_kv};

/// Field number of the pairs in a `RangeResponse`.
const KVS: u32 = 2;

/// A range that was found and measured.
pub struct LargeRange {
    held: Held,
    /// Bytes of each pair as a field of the answer, in key order.
    sizes: Vec<u32>,
    pairs_bytes: u64,
}

/// A stretch of pairs.
struct Window {
    numbers: std::ops::Range<usize>,
    bytes: usize,
    /// Bytes of the first pair that come before what was asked for.
    skipped: usize,
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
        let held = store.hold(&keys, request.revision, limit)?;
        assert!(limit == 0 || held.len() <= limit, "the store gave more than was asked for");
        let mut sizes = vec![0; held.len()];
        held.visit(0..held.len(), |number, kv| {
            let bytes = message::encoded_len(KVS, &wire_kv(kv));
            sizes[number] = u32::try_from(bytes).expect("a pair is far below 4 GiB");
        })?;
        let pairs_bytes = sizes.iter().map(|bytes| u64::from(*bytes)).sum();
        Ok(LargeRange { held, sizes, pairs_bytes })
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

    /// The pairs' bytes from `start` on: up to the end of a pair, `bytes_max` or one pair at the most.
    ///
    /// Fails only if a block cannot be read back any more.
    pub fn window(&self, start: u64, bytes_max: usize) -> Result<Bytes, Failure> {
        let window = self.stretch(start, bytes_max);
        let first = window.numbers.start;
        let mut ends = Vec::with_capacity(window.numbers.len());
        let mut end = 0;
        ends.extend(self.sizes[window.numbers.clone()].iter().map(|bytes| {
            end += *bytes as usize;
            end
        }));
        let mut bytes = vec![0; window.bytes];
        self.held.visit(window.numbers, |number, kv| {
            let end = ends[number - first];
            let mut room = &mut bytes[end - self.sizes[number] as usize..end];
            message::encode(KVS, &wire_kv(kv), &mut room);
            assert!(room.is_empty(), "a pair that is shorter than it was measured");
        })?;
        let mut bytes = Bytes::from(bytes);
        Ok(bytes.split_off(window.skipped))
    }

    /// Which pairs hold the bytes from `start` on.
    fn stretch(&self, start: u64, bytes_max: usize) -> Window {
        assert!(start < self.pairs_bytes, "a window behind the last pair");
        let (mut first, mut before) = (0, 0);
        while before + u64::from(self.sizes[first]) <= start {
            before += u64::from(self.sizes[first]);
            first += 1;
        }
        let (mut end, mut bytes) = (first, 0);
        while end < self.sizes.len() && (end == first || bytes + self.sizes[end] as usize <= bytes_max) {
            bytes += self.sizes[end] as usize;
            end += 1;
        }
        let skipped = usize::try_from(start - before).expect("less than one pair");
        Window { numbers: first..end, bytes, skipped }
    }
}
