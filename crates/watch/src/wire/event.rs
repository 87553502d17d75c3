//! `mvccpb.Event`, as the field `events` of a response.
//!
//! One copy of key and value, from the block into the shared body. No message is built in between.

use base::varint::put_varint;
use mvcc::{Change, KeyValue, KeyValueRef};

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

pub(super) use base::varint::varint_bytes;

// Protobuf fields that are written by hand. Values of 0 are left out, as in proto3.

/// Wire type of varints.
const VARINT: u8 = 0;
/// Wire type of bytes, strings and messages.
const COUNTED: u8 = 2;

/// Bytes of a number with its tag.
pub(super) fn number_bytes(value: u64) -> usize {
    if value == 0 { 0 } else { 1 + varint_bytes(value) }
}

/// A number. Negative values of int64 are passed as their two's complement.
pub(super) fn put_number(out: &mut Vec<u8>, field: u8, value: u64) {
    if value != 0 {
        out.push(field << 3 | VARINT);
        put_varint(out, value);
    }
}

/// Bytes of a counted field with its tag.
pub(super) fn counted_bytes(bytes: usize) -> usize {
    1 + varint_bytes(bytes as u64) + bytes
}

/// Tag and length of a counted field. Its bytes must follow.
pub(super) fn put_counted(out: &mut Vec<u8>, field: u8, bytes: usize) {
    out.push(field << 3 | COUNTED);
    put_varint(out, bytes as u64);
}

/// Bytes of a bytes or string field; empty ones are left out.
pub(super) fn bytes_bytes(bytes: &[u8]) -> usize {
    if bytes.is_empty() { 0 } else { counted_bytes(bytes.len()) }
}

pub(super) fn put_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_counted(out, field, bytes.len());
        out.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_varint_takes_as_many_bytes_as_are_counted() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX >> 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out.len(), varint_bytes(value), "{value}");
        }
    }
}
