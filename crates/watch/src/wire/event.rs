//! `mvccpb.Event`, as the field `events` of a response.
//!
//! One copy of key and value, from the block into the shared body. No message is built in between.

use mvcc::{Change, KeyValue, KeyValueRef};

use super::protobuf::{bytes_bytes, counted_bytes, number_bytes, put_bytes, put_counted, put_number};

/// Field of `WatchResponse`.
pub(super) const EVENTS: u8 = 11;
/// Fields of `Event`.
const TYPE: u8 = 1;
const KV: u8 = 2;
const PREV_KV: u8 = 3;
const DELETE: u64 = 1;

/// Appends an event with its tag and length.
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

/// `mvccpb.KeyValue`.
fn put_kv(out: &mut Vec<u8>, field: u8, kv: &KeyValueRef<'_>) {
    put_counted(out, field, kv_bytes(kv));
    put_bytes(out, 1, kv.key);
    put_number(out, 2, kv.create_revision as u64);
    put_number(out, 3, kv.mod_revision as u64);
    put_number(out, 4, kv.version as u64);
    put_bytes(out, 5, kv.value);
    put_number(out, 6, kv.lease as u64);
}
