//! Range: what a range request answers, on any view of the store.
//!
//!   fetch in key order ──▶ drop by revision filters ──▶ sort ──▶ cut to the limit ──▶ blank what was not asked for
//!
//! * `count` is the number of keys in the range at that revision, whatever the limit and the filters.
//! * The header carries the store's newest revision at read time, not the revision that was read.
//! * Only a range in key order without filters hands its limit down to the store: one key more than asked for tells
//!   whether there is more. Everything else has to see all keys first.
//!
//! Kept as etcd has it, though it surprises: an order of NONE with a target other than the key fetches the smallest
//! *keys* up to the limit and one, sorts those by the target and then cuts. Equal elements keep their key order.
//!
//! Knows nothing of linearizability: the caller has waited for its read point.

use std::cmp::Ordering;

use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::{RangeRequest, RangeResponse};
use api::mvccpb;
use mvcc::{Fetch, KeyRange, KeyValue, RangeOptions, Store};

use crate::failure::Failure;
use crate::header;
use crate::view::View;

/// Answers a range from the store as it is now. Refusals: `Compacted`, `FutureRev`.
pub fn range(store: &Store, request: &RangeRequest) -> Result<RangeResponse, Failure> {
    execute(store, request)
}

pub(crate) fn execute<V: View>(view: &V, request: &RangeRequest) -> Result<RangeResponse, Failure> {
    let keys = KeyRange::new(request.key.clone(), request.range_end.clone());
    let options = RangeOptions { limit: fetch_limit(request), fetch: fetch(request) };
    let fetched = view.range(&keys, request.revision, &options)?;
    assert!(
        options.limit == 0 || fetched.kvs.len() <= options.limit,
        "the store gave more than was asked for"
    );
    let mut kvs = fetched.kvs;
    if has_revision_filters(request) {
        kvs.retain(|kv| passes_filters(kv, request));
    }
    sort(&mut kvs, request);
    let limit = usize::try_from(request.limit).unwrap_or(0);
    let more = limit > 0 && kvs.len() > limit;
    if more {
        kvs.truncate(limit);
    }
    assert!(
        i64::try_from(kvs.len()).is_ok_and(|keys| keys <= fetched.count),
        "a count below what is returned"
    );
    Ok(RangeResponse {
        header: header(fetched.revision),
        kvs: kvs.into_iter().map(|kv| blanked(kv, request)).collect(),
        more,
        count: fetched.count,
    })
}

/// True if the store's own order, by key, is the order asked for (before the surprise of the module's head).
pub(crate) fn is_default_order(request: &RangeRequest) -> bool {
    request.sort_order == SortOrder::None as i32
        || (request.sort_order == SortOrder::Ascend as i32 && request.sort_target == SortTarget::Key as i32)
}

pub(crate) fn has_revision_filters(request: &RangeRequest) -> bool {
    let filters = [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ];
    filters.iter().any(|bound| *bound != 0)
}

/// How many keys an answer is made from, if so many are in the range. A limit bounds that only where the store may cut.
pub fn keys_read(request: &RangeRequest, keys: i64) -> i64 {
    match i64::try_from(fetch_limit(request)) {
        Ok(limit) if limit > 0 => keys.min(limit),
        _ => keys,
    }
}

/// Keys to ask the store for; 0 means all.
fn fetch_limit(request: &RangeRequest) -> usize {
    let store_may_cut = is_default_order(request) && !has_revision_filters(request);
    match usize::try_from(request.limit) {
        Ok(limit) if store_may_cut && limit > 0 => limit.saturating_add(1),
        _ => 0, // Unlimited, negative, or to be cut only after filtering and sorting.
    }
}

/// What an answer is made from.
pub(crate) fn fetch(request: &RangeRequest) -> Fetch {
    if request.count_only {
        Fetch::CountOnly
    } else if request.keys_only && request.sort_target != SortTarget::Value as i32 {
        Fetch::KeysOnly // Answered from the index alone; sorting by value needs the values.
    } else {
        Fetch::Full
    }
}

fn passes_filters(kv: &KeyValue, request: &RangeRequest) -> bool {
    let within =
        |revision: i64, min: i64, max: i64| (min == 0 || revision >= min) && (max == 0 || revision <= max);
    within(kv.mod_revision, request.min_mod_revision, request.max_mod_revision)
        && within(kv.create_revision, request.min_create_revision, request.max_create_revision)
}

fn sort(kvs: &mut [KeyValue], request: &RangeRequest) {
    // Both numbers were validated before the read; an unknown one would sort as the default does.
    let target = SortTarget::try_from(request.sort_target).unwrap_or(SortTarget::Key);
    match SortOrder::try_from(request.sort_order).unwrap_or(SortOrder::None) {
        SortOrder::None | SortOrder::Ascend if target == SortTarget::Key => {} // The store's own order.
        SortOrder::None | SortOrder::Ascend => kvs.sort_by(|a, b| compare_by(target, a, b)),
        SortOrder::Descend => kvs.sort_by(|a, b| compare_by(target, b, a)),
    }
}

fn compare_by(target: SortTarget, a: &KeyValue, b: &KeyValue) -> Ordering {
    match target {
        SortTarget::Key => a.key.cmp(&b.key),
        SortTarget::Version => a.version.cmp(&b.version),
        SortTarget::Create => a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => a.value.cmp(&b.value),
    }
}

fn blanked(kv: KeyValue, request: &RangeRequest) -> mvccpb::KeyValue {
    let mut wire = wire_kv(kv);
    if request.keys_only {
        wire.value.clear();
        if request.sort_target != SortTarget::Value as i32 {
            wire.lease = 0; // The index does not hold leases.
        }
    }
    wire
}

/// A stored record as clients see it.
pub(crate) fn wire_kv(kv: KeyValue) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: kv.key,
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        value: kv.value,
        lease: kv.lease,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_bounds_what_is_read_only_where_the_store_may_cut() {
        let descend = SortOrder::Descend as i32;
        let of_value = (SortOrder::Ascend as i32, SortTarget::Value as i32);
        // (limit, order and target, a filter, keys in the range, keys read)
        let cases = [
            (0, (0, 0), 0, 50, 50),
            (10, (0, 0), 0, 50, 11),
            (10, (0, 0), 0, 5, 5),
            (-1, (0, 0), 0, 50, 50),
            (i64::MAX, (0, 0), 0, 50, 50),
            (10, (descend, 0), 0, 50, 50),
            (10, of_value, 0, 50, 50),
            (10, (0, 0), 7, 50, 50),
        ];
        for (limit, (sort_order, sort_target), min_mod_revision, keys, read) in cases {
            let request =
                RangeRequest { limit, sort_order, sort_target, min_mod_revision, ..RangeRequest::default() };
            assert_eq!(keys_read(&request, keys), read, "{request:?}");
        }
    }
}
