//! The workload that a row of a suite describes.

use crate::run::watchers::{Awaits, OpenWatchers};
use crate::workload::keys::{KeyOrder, varint_bytes_max};
use crate::workload::stm::{Isolation, KEY_BYTES, Locker, Stm};
use crate::workload::{Workload, Writes, prefix_end};
use api::etcdserverpb::RangeRequest;
use bench_report::model::{READ_KEY, RowOperation, RowSpec};
use bench_report::suite::SuiteRow;
use bytes::Bytes;
use std::sync::Arc;

/// Fixed, because reading back a row requires its values.
const SEED: u64 = 1;

const WATCHED_KEY: u8 = b'w';
/// Limit of a range, like in etcd's tool.
const RANGE_LIMIT: i64 = 1000;

/// Prerequisites of a row, created before its first run.
#[derive(Clone, Debug, Default)]
pub struct PreparedRow {
    /// Prefix of all keys; empty in a dedicated cluster.
    pub prefix: Bytes,
    pub leases: Arc<[i64]>,
    /// First revision and number of the historical events.
    pub history: (i64, u64),
}

/// Returns the watchers of a row, of which a run awaits at most `total` historical events.
pub fn watching(spec: &RowSpec, prepared: &PreparedRow, total: u64) -> Option<OpenWatchers> {
    let awaits = match spec.operation {
        RowOperation::Watch => Awaits::Puts,
        RowOperation::WatchHistory => {
            let (revision, events) = prepared.history;
            Awaits::History { revision, events: events.min(total) }
        }
        RowOperation::Put
        | RowOperation::TxnPut
        | RowOperation::RangeLinearizable
        | RowOperation::RangeSerializable
        | RowOperation::TxnMixed
        | RowOperation::LeaseKeepAlive
        | RowOperation::Stm
        | RowOperation::Mixed => Awaits::Nothing,
    };
    let &RowSpec { streams, watchers_per_stream: per_stream, .. } = spec;
    let keys = watched_keys(spec, prepared);
    (streams > 0).then_some(OpenWatchers {
        streams,
        per_stream,
        keys,
        prev_kv: false,
        awaits,
        since_answer: false,
    })
}

/// Returns the workload that writes events of the watched key.
pub fn events(spec: &RowSpec, prepared: &PreparedRow) -> Workload {
    Workload::PutKeys { keys: watched_keys(spec, prepared), value_bytes: spec.value_bytes }
}

fn watched_keys(spec: &RowSpec, PreparedRow { prefix, .. }: &PreparedRow) -> Arc<[Bytes]> {
    let rest = vec![WATCHED_KEY; spec.key_bytes.saturating_sub(prefix.len())];
    [Bytes::from([&prefix[..], &rest].concat())].into()
}

pub fn workload(spec: &RowSpec, prepared: &PreparedRow) -> Workload {
    let read = |serializable| {
        Workload::Range(RangeRequest { key: read_key(spec, prepared), serializable, ..Default::default() })
    };
    match spec.operation {
        RowOperation::Put => Workload::Put(writes(spec, prepared)),
        RowOperation::TxnPut => Workload::TxnPut { ops: 1, writes: writes(spec, prepared) },
        RowOperation::RangeLinearizable => read(false),
        RowOperation::RangeSerializable => read(true),
        RowOperation::TxnMixed => {
            let (key, range_end) = prefix_range(&prepared.prefix);
            let range = RangeRequest { key, range_end, limit: RANGE_LIMIT, ..Default::default() };
            Workload::TxnMixed { range, read_share: 0.5, writes: writes(spec, prepared) }
        }
        RowOperation::LeaseKeepAlive => Workload::LeaseKeepAlive(prepared.leases.clone()),
        RowOperation::Watch | RowOperation::WatchHistory => events(spec, prepared),
        RowOperation::Mixed => unreachable!("no suite has a mix"),
        RowOperation::Stm => Workload::Stm(Stm {
            keys: spec.keys,
            keys_per_txn: 1,
            write_percent: 100,
            value_bytes: spec.value_bytes,
            prefix: prepared.prefix.clone(),
            isolation: Isolation::RepeatableReads,
            locker: Locker::None,
            seed: SEED,
        }),
    }
}

fn writes(spec: &RowSpec, prepared: &PreparedRow) -> Writes {
    let &RowSpec { key_bytes, value_bytes, keys: key_space, values, .. } = spec;
    let prefix = prepared.prefix.clone();
    let number_bytes = varint_bytes_max(key_space);
    assert!(key_bytes >= prefix.len() + number_bytes, "a key holds its prefix and its number");
    Writes { key_bytes, value_bytes, prefix, key_space, order: KeyOrder::Sequential, values, seed: SEED }
}

/// Checks that the keys of a row are long enough for a prefix.
pub fn check_prefix(row: &SuiteRow, prefix: &Bytes) -> Result<(), String> {
    let RowSpec { operation, key_bytes, keys, .. } = row.spec;
    let (room, wanted) = match operation {
        RowOperation::Put | RowOperation::TxnPut | RowOperation::TxnMixed => {
            (key_bytes, varint_bytes_max(keys))
        }
        RowOperation::Stm => (KEY_BYTES, varint_bytes_max(keys)),
        RowOperation::RangeLinearizable | RowOperation::RangeSerializable => (key_bytes, READ_KEY.len()),
        RowOperation::Watch | RowOperation::WatchHistory => (key_bytes, 1),
        RowOperation::LeaseKeepAlive | RowOperation::Mixed => return Ok(()),
    };
    if prefix.len() + wanted <= room {
        return Ok(());
    }
    let prefix = String::from_utf8_lossy(prefix);
    Err(format!("--prefix={prefix}: the {room} bytes of a key of {} need {wanted} for its name", row.id))
}

/// Returns the range below a prefix; every key without one.
fn prefix_range(prefix: &Bytes) -> (Bytes, Bytes) {
    if prefix.is_empty() {
        return (Bytes::from_static(b"\0"), Bytes::from_static(b"\0"));
    }
    (prefix.clone(), prefix_end(prefix))
}

pub fn read_key(spec: &RowSpec, PreparedRow { prefix, .. }: &PreparedRow) -> Bytes {
    let rest = spec.key_bytes.saturating_sub(prefix.len());
    [&prefix[..], format!("{READ_KEY:0<rest$}").as_bytes()].concat().into()
}

/// Returns the value of [`read_key`].
pub fn read_value(spec: &RowSpec) -> Bytes {
    vec![b'x'; spec.value_bytes].into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_report::suite::{COORDINATION, CORE, find};

    #[test]
    fn every_row_has_a_workload_at_every_scale() {
        let suites = find(&["all".into(), CORE.into(), COORDINATION.into()]).unwrap();
        for scale in [0.001, 0.1, 1.0, 10.0] {
            for row in suites.iter().flat_map(|suite| &suite.rows).map(|row| row.scaled(scale, None)) {
                let prepared = PreparedRow { leases: [1].into(), ..PreparedRow::default() };
                if row.spec.operation == RowOperation::Stm {
                    continue; // its requests depend on responses
                }
                assert!(workload(&row.spec, &prepared).source(0).request(0).len() > 5, "{}", row.id);
            }
        }
    }

    #[test]
    fn every_key_of_every_row_keeps_to_a_prefix() {
        let suites = find(&["all".into(), CORE.into(), COORDINATION.into()]).unwrap();
        let prepared = PreparedRow { prefix: "lgen/".into(), leases: [1].into(), ..PreparedRow::default() };
        for row in suites.iter().flat_map(|suite| &suite.rows).map(|row| row.scaled(1.0, None)) {
            check_prefix(&row, &prepared.prefix).unwrap();
            let spec = &row.spec;
            let key = read_key(spec, &prepared);
            assert_eq!(key.len(), spec.key_bytes.max(8), "{}", row.id);
            assert!(key.starts_with(b"lgen/key"), "{}: {key:?}", row.id);
            let workload = workload(spec, &prepared);
            if let Workload::Range(range) | Workload::TxnMixed { range, .. } = &workload {
                assert!(range.key.starts_with(b"lgen/"), "{}", row.id);
                assert!(range.range_end.is_empty() || range.range_end == "lgen0", "{}", row.id);
            }
            if let Workload::Stm(stm) = &workload {
                assert_eq!(stm.prefix, "lgen/");
                continue;
            }
            let mut source = workload.source(0);
            for position in [0, 1, spec.total / 2, spec.total - 1] {
                let request = source.request(position);
                for (key, _) in source.pairs_of(position, &request) {
                    assert_eq!((key.len(), &key[..5]), (spec.key_bytes, &b"lgen/"[..]), "{}", row.id);
                }
            }
        }
        let long = Bytes::from_static(b"loadgen/");
        let refused =
            suites.iter().flat_map(|suite| &suite.rows).find_map(|row| check_prefix(row, &long).err());
        assert!(
            refused.unwrap().starts_with("--prefix=loadgen/: the 8 bytes of a key of put-1-one-key need 1")
        );
    }
}
