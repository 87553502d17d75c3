//! Compares: the guards of a transaction.
//!
//! * Every key of the compare's range must satisfy it, in the state before the transaction.
//! * A missing key, or an empty range, has version, revisions and lease 0. It has no value, so
//!   comparing its value is false for every operator.
//! * An operand whose kind differs from the target counts as 0 or empty. An unknown target compares
//!   as equal, and an unknown operator is true, so a request of a newer client has the same result
//!   on every member.
//!
//! Memory is bounded: a wide range is read in chunks, up to the first key that fails.

use std::cmp::Ordering;

use api::etcdserverpb::Compare;
use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use bytes::{BufMut, Bytes, BytesMut};
use mvcc::{Error, Fetch, KeyRange, KeyValue, RangeOptions};

use super::view::ReadView;

/// Keys per read of a wide compare. With values of a few KiB this is a few MiB.
const CHUNK_KEYS: usize = 1000;

pub(super) fn all_hold<V: ReadView>(view: &V, compares: &[Compare]) -> Result<bool, Error> {
    for compare in compares {
        let held = view.meter().held();
        let holds = holds(view, compare)?;
        view.meter().release_to(held);
        if !holds {
            return Ok(false);
        }
    }
    Ok(true)
}

fn holds<V: ReadView>(view: &V, compare: &Compare) -> Result<bool, Error> {
    let options = RangeOptions { limit: CHUNK_KEYS, fetch: fetch(compare) };
    let mut from = compare.key.clone();
    let mut first_chunk = true;
    let held = view.meter().held();
    loop {
        view.meter().release_to(held); // A chunk is dropped before the next one is read.
        let keys = KeyRange::new(from, compare.range_end.clone());
        let chunk = view.page(&keys, 0, &options)?.kvs;
        if first_chunk && chunk.is_empty() {
            return Ok(holds_for_missing(compare));
        }
        if !chunk.iter().all(|kv| holds_for(compare, kv)) {
            return Ok(false);
        }
        assert!(chunk.len() <= CHUNK_KEYS, "the store gave more than was asked for");
        match chunk.last() {
            Some(last) if chunk.len() == CHUNK_KEYS => from = key_after(&last.key),
            Some(_) | None => return Ok(true),
        }
        first_chunk = false;
    }
}

/// Returns the successor of `key`.
pub(super) fn key_after(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}

/// Selects the fields to read. Versions and revisions are in the index; values and leases need the
/// record.
pub(crate) fn fetch(compare: &Compare) -> Fetch {
    match CompareTarget::try_from(compare.target) {
        Ok(CompareTarget::Value | CompareTarget::Lease) => Fetch::Full,
        Ok(CompareTarget::Version | CompareTarget::Create | CompareTarget::Mod) | Err(_) => Fetch::KeysOnly,
    }
}

fn holds_for_missing(compare: &Compare) -> bool {
    if compare.target == CompareTarget::Value as i32 {
        return false;
    }
    let missing = KeyValue {
        key: Bytes::new(),
        value: Bytes::new(),
        create_revision: 0,
        mod_revision: 0,
        version: 0,
        lease: 0,
    };
    holds_for(compare, &missing)
}

fn holds_for(compare: &Compare, kv: &KeyValue) -> bool {
    let ordering = stored_against_given(compare, kv);
    match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => ordering == Ordering::Equal,
        Ok(CompareResult::NotEqual) => ordering != Ordering::Equal,
        Ok(CompareResult::Greater) => ordering == Ordering::Greater,
        Ok(CompareResult::Less) => ordering == Ordering::Less,
        Err(_) => true,
    }
}

fn stored_against_given(compare: &Compare, kv: &KeyValue) -> Ordering {
    let given = compare.target_union.as_ref();
    match CompareTarget::try_from(compare.target) {
        Ok(CompareTarget::Version) => kv.version.cmp(&match given {
            Some(TargetUnion::Version(version)) => *version,
            _ => 0,
        }),
        Ok(CompareTarget::Create) => kv.create_revision.cmp(&match given {
            Some(TargetUnion::CreateRevision(revision)) => *revision,
            _ => 0,
        }),
        Ok(CompareTarget::Mod) => kv.mod_revision.cmp(&match given {
            Some(TargetUnion::ModRevision(revision)) => *revision,
            _ => 0,
        }),
        Ok(CompareTarget::Lease) => kv.lease.cmp(&match given {
            Some(TargetUnion::Lease(lease)) => *lease,
            _ => 0,
        }),
        Ok(CompareTarget::Value) => match given {
            Some(TargetUnion::Value(value)) => kv.value.cmp(value),
            _ => kv.value[..].cmp(&[]),
        },
        Err(_) => Ordering::Equal,
    }
}
