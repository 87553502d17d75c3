//! Put and DeleteRange in a running revision.
//!
//! ```text
//!   check (on the state before the command) ──▶ change (sees the changes so far) ──▶ response
//! ```
//!
//! Checks may fail and have no side effects. Changes do not fail with request errors, so
//! transactions are atomic.

use api::Error;
use api::etcdserverpb::{DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse};
use bytes::Bytes;
use mvcc::{KeyRange, Previous, RevisionWriter};

use super::range::wire_kv;
use super::validate;
use crate::failure::{Answer, Failure, header};
use crate::lease::Leases;

pub(crate) fn check_put(
    writer: &RevisionWriter<'_>,
    leases: &Leases,
    request: &PutRequest,
) -> Result<(), Failure> {
    validate::put(request)?; // Held against every door to the log, not only this member's.
    leases.check(request.lease)?;
    if (request.ignore_value || request.ignore_lease) && writer.get(&request.key)?.is_none() {
        return Err(Error::KeyNotFound.into());
    }
    Ok(())
}

pub(crate) fn put(
    writer: &mut RevisionWriter<'_>,
    request: PutRequest,
    answer: Answer,
) -> Result<PutResponse, mvcc::Error> {
    let keeps = request.ignore_value || request.ignore_lease;
    let returns = request.prev_kv && answer == Answer::Wanted;
    let previous = if keeps || returns { writer.get(&request.key)? } else { None };
    // An earlier operation of the transaction may have deleted the key (see `duplicates`), so there
    // may be no value to keep.
    let (kept_value, kept_lease) = match &previous {
        Some(kv) => (kv.value.clone(), kv.lease),
        None => (Bytes::new(), 0),
    };
    let value = if request.ignore_value { kept_value } else { request.value };
    let lease = if request.ignore_lease { kept_lease } else { request.lease };
    let value = if base::mutant("flipped-value") && answer == Answer::Unwanted {
        value.iter().map(|byte| byte ^ u8::from(writer.revision() % 8 == 0)).collect()
    } else {
        value
    };
    let revision = writer.put(&request.key, &value, lease);
    assert_eq!(revision, writer.revision(), "a put is the newest change");
    let prev_kv = previous.filter(|_| returns).map(wire_kv);
    Ok(PutResponse { header: header(revision), prev_kv })
}

pub(crate) fn delete_range(
    writer: &mut RevisionWriter<'_>,
    request: DeleteRangeRequest,
    answer: Answer,
) -> Result<DeleteRangeResponse, mvcc::Error> {
    let keys = KeyRange::new(request.key, request.range_end);
    let returns = request.prev_kv && answer == Answer::Wanted;
    let previous = if returns { Previous::Return } else { Previous::Skip };
    let revision_before = writer.revision();
    let deleted = writer.delete_range(&keys, previous)?;
    assert!(deleted.count > 0 || writer.revision() == revision_before, "deleting nothing changed something");
    assert!(
        !returns || i64::try_from(deleted.previous.len()) == Ok(deleted.count),
        "not all that was deleted"
    );
    Ok(DeleteRangeResponse {
        header: header(writer.revision()),
        deleted: deleted.count,
        prev_kvs: deleted.previous.into_iter().map(wire_kv).collect(),
    })
}
