//! A range of one key, the most frequent request: without the lists that a range makes.

use api::etcdserverpb::{RangeRequest, RangeResponse};
use mvcc::{Fetch, Store};

use super::range::{fetch, has_revision_filters, wire_kv};
use crate::failure::Failure;
use crate::outcome::header;

/// Whether [`get`] answers a request: it names one key, and wants all of the pair. A limit and an order make
/// no difference then.
pub fn is_get(request: &RangeRequest) -> bool {
    request.range_end.is_empty()
        && fetch(request) == Fetch::Full
        && !request.keys_only
        && !has_revision_filters(request)
}

/// As [`super::range()`], into a response that was used before: nothing is allocated if the pair is in
/// memory. Without a meter, since one pair is held anyway.
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
