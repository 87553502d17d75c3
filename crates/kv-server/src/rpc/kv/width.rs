//! How much a read touches, estimated without reading it, and so where it is made.
//!
//! ```text
//!   few keys in memory ──▶ the calling task
//!   many keys ───────────▶ admitted, on a blocking thread
//!   a large answer ──────▶ the same, piece by piece while it is sent
//! ```
//!
//! A wrong estimate costs time, not memory: a read in the calling task ends at its bound, and goes to a thread.

use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{RangeRequest, TxnRequest};
use mvcc::{Fetch, KeyRange, RangeOptions};
use state_machine::LargeRange;

use crate::member::Member;
use admission::{PAIR_BYTES, Small};

/// A read of at most so many keys is answered in the calling task if their blocks are in memory: some 300 µs,
/// where a separate thread would cost as much again. A page of a thousand keys, and the one after it, which
/// shows whether there are more.
const KEYS_IN_TASK_MAX: i64 = 1024;
/// And if a block may have to be unpacked for each: some 40 µs a key.
const COLD_KEYS_IN_TASK_MAX: i64 = 32;
/// An answer of about so much is made as a whole, 60,000 keys with values of 256 bytes: it is read once, a
/// large one twice or more.
pub(super) const WHOLE_BYTES_MAX: u64 = 32 << 20;

/// How much a range touches, estimated without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// One pair: read in the calling task.
    One,
    /// A few keys, or only a count: read in the calling task unless values are large or many keys lie in the
    /// way.
    Narrow,
    /// Admitted and read on a blocking thread.
    Wide { bytes: u64 },
    /// Too large to be held in memory as a whole, and of a kind that need not be.
    Large { keys: u64 },
}

/// Keys of the newest revision: cheap, and about what any revision holds.
fn count(member: &Member, request: &RangeRequest) -> i64 {
    let keys = KeyRange::new(request.key.clone(), request.range_end.clone());
    let options = RangeOptions { limit: 0, fetch: Fetch::CountOnly };
    // More than is counted from here: no range has more keys than the store has records.
    let many = |_| i64::try_from(member.store.records()).unwrap_or(i64::MAX);
    let counted = member.store.range_metered(&keys, 0, &options, &Small::default());
    counted.map_or_else(many, |counted| counted.count)
}

/// How many keys a range reads, of those that are there.
fn keys_of_range(request: &RangeRequest, there: impl FnOnce() -> i64) -> i64 {
    if is_narrow(request) {
        1
    } else if request.revision > 0 {
        i64::MAX // Keys of an older revision are found by looking at all.
    } else {
        state_machine::keys_read(request, there())
    }
}

/// How many keys a transaction that only reads may touch, whichever branch it takes.
pub(super) fn keys_of_txn(member: &Member, request: &TxnRequest) -> i64 {
    let compared =
        request.compare.iter().map(|compare| if compare.range_end.is_empty() { 1 } else { i64::MAX });
    let ops = request.success.iter().chain(&request.failure).flat_map(|op| &op.request);
    let read = ops.map(|op| match op {
        Op::RequestRange(range) => keys_of_range(range, || count(member, range)),
        _ => i64::MAX,
    });
    compared.chain(read).fold(0, i64::saturating_add)
}

/// Whether so many keys are read in less time than a thread takes to wake and answer.
pub(super) fn is_quick(member: &Member, keys: i64) -> bool {
    keys <= if member.store.fits_in_cache() { KEYS_IN_TASK_MAX } else { COLD_KEYS_IN_TASK_MAX }
}

pub(super) fn width(member: &Member, request: &RangeRequest) -> Width {
    if request.range_end.is_empty() {
        return Width::One;
    }
    if is_narrow(request) {
        return Width::Narrow;
    }
    let keys = count(member, request);
    let wanted = if request.limit > 0 { keys.min(request.limit) } else { keys };
    let pair_bytes = member.store.record_bytes() + PAIR_BYTES;
    let bytes = wanted.unsigned_abs().saturating_mul(pair_bytes);
    if bytes > WHOLE_BYTES_MAX && LargeRange::serves(request) {
        Width::Large { keys: wanted.unsigned_abs() }
    } else if is_quick(member, keys_of_range(request, || keys)) {
        Width::Narrow
    } else {
        Width::Wide { bytes }
    }
}

/// True if the request alone says that it touches few keys.
fn is_narrow(request: &RangeRequest) -> bool {
    let one_key = request.range_end.is_empty();
    let counts_newest = request.count_only && request.revision <= 0;
    one_key || counts_newest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_range_reads_is_known_before() {
        let page = RangeRequest { range_end: "z".into(), limit: 1000, ..RangeRequest::default() };
        let cases = [
            (RangeRequest { range_end: Vec::new().into(), ..page.clone() }, 1),
            (RangeRequest { count_only: true, ..page.clone() }, 1),
            (RangeRequest { limit: 0, ..page.clone() }, 5000),
            (RangeRequest { revision: 7, ..page.clone() }, i64::MAX),
            (page, 1001),
        ];
        for (request, read) in cases {
            assert_eq!(keys_of_range(&request, || 5000), read, "{request:?}");
        }
    }
}
