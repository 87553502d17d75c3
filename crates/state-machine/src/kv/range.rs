//! Range requests, on any view of the store.
//!
//! ```text
//!   fetch in key order ─▶ apply revision filters ─▶ sort ─▶ truncate to the limit ─▶ remove fields not requested
//! ```
//!
//! * `count` is the number of keys in the range at that revision, regardless of limit and filters.
//! * The header has the store's latest revision at read time, not the requested revision.
//! * Only a range in key order without filters passes its limit to the store, plus one key to
//!   determine `more`. Other ranges read all keys first.
//!
//! As in etcd, an order of NONE with a target other than the key fetches the smallest *keys* up to
//! the limit plus one, sorts those by the target and then truncates. Equal elements keep their key
//! order.

use std::cmp::Ordering;

use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::{RangeRequest, RangeResponse};
use api::mvccpb;
use mvcc::{Fetch, KeyRange, KeyValue, Meter, RangeOptions, RangeResult, Store};

use super::view::{MeteredStore, ReadView};
use crate::failure::{Failure, header};

/// Executes a range on the current state of the store. `meter` may interrupt it. Request errors:
/// `Compacted`, `FutureRev`.
pub fn range(store: &Store, request: &RangeRequest, meter: &dyn Meter) -> Result<RangeResponse, Failure> {
    execute(&MeteredStore { store, meter }, request)
}

pub(super) fn execute<V: ReadView>(view: &V, request: &RangeRequest) -> Result<RangeResponse, Failure> {
    let keys = KeyRange::new(request.key.clone(), request.range_end.clone());
    let options = RangeOptions { limit: fetch_limit(request), fetch: fetch(request) };
    Ok(response(request, &options, view.range(&keys, request.revision, &options)?))
}

/// Executes a range for a page: `count` includes only the page and one more key.
pub(super) fn page<V: ReadView>(view: &V, request: &RangeRequest) -> Result<RangeResponse, Failure> {
    let keys = KeyRange::new(request.key.clone(), request.range_end.clone());
    let options = RangeOptions { limit: fetch_limit(request), fetch: fetch(request) };
    Ok(response(request, &options, view.page(&keys, request.revision, &options)?))
}

fn response(request: &RangeRequest, options: &RangeOptions, fetched: RangeResult) -> RangeResponse {
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
    RangeResponse {
        header: header(fetched.revision),
        kvs: kvs.into_iter().map(|kv| blanked(kv, request)).collect(),
        more,
        count: fetched.count,
    }
}

/// Reports whether the requested order is the store's order, by key. Includes the exception
/// described in the module documentation.
pub(super) fn is_default_order(request: &RangeRequest) -> bool {
    request.sort_order == SortOrder::None as i32
        || (request.sort_order == SortOrder::Ascend as i32 && request.sort_target == SortTarget::Key as i32)
}

pub(super) fn has_revision_filters(request: &RangeRequest) -> bool {
    let filters = [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ];
    filters.iter().any(|bound| *bound != 0)
}

/// Returns the number of keys read for a range that contains `keys`. The limit applies only if the
/// store enforces it.
pub fn keys_read(request: &RangeRequest, keys: i64) -> i64 {
    match i64::try_from(fetch_limit(request)) {
        Ok(limit) if limit > 0 => keys.min(limit),
        _ => keys,
    }
}

/// Returns the limit for the store; 0 means no limit.
fn fetch_limit(request: &RangeRequest) -> usize {
    let store_may_cut = is_default_order(request) && !has_revision_filters(request);
    match usize::try_from(request.limit) {
        Ok(limit) if store_may_cut && limit > 0 => limit.saturating_add(1),
        _ => 0, // Unlimited, negative, or to be cut only after filtering and sorting.
    }
}

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
    // Both numbers are validated. Unknown ones sort like the default.
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

pub(super) fn wire_kv(kv: KeyValue) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: kv.key,
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        value: kv.value,
        lease: kv.lease,
    }
}

/// Reports whether [`get`] supports a request: it names a single key and wants the complete pair.
/// Limit and order have no effect then.
pub fn is_get(request: &RangeRequest) -> bool {
    request.range_end.is_empty()
        && fetch(request) == Fetch::Full
        && !request.keys_only
        && !has_revision_filters(request)
}

/// Executes a range on a single key, the most frequent request, and reuses the response. Does not
/// allocate if the pair is in memory. Takes no meter, since one pair is held anyway.
pub fn get(store: &Store, request: &RangeRequest, response: &mut RangeResponse) -> Result<(), Failure> {
    assert!(is_get(request), "a request that is more than a get");
    let got = store.get(&request.key, request.revision)?;
    response.header = header(got.revision);
    response.more = false;
    response.kvs.clear();
    response.kvs.extend(got.kv.map(wire_kv));
    response.count = i64::from(!response.kvs.is_empty());
    Ok(())
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
