//! The workload that a row of a suite describes.

use crate::run::watchers::{Awaits, Watching};
use crate::workload::keys::{Order, varint_bytes_max};
use crate::workload::stm::{Isolation, Locker, Stm};
use crate::workload::{Workload, Writes};
use api::etcdserverpb::RangeRequest;
use bench_report::model::{Operation, RowSpec};
use bytes::Bytes;
use std::sync::Arc;

/// Fixed: a row that is read back must know the values that it wrote.
const SEED: u64 = 1;

/// The key that watchers watch.
const WATCHED_KEY: u8 = b'w';
/// The keys in the answer of a range, as in etcd's tool.
const RANGE_LIMIT: i64 = 1000;

/// What a row needs before its first run.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    pub leases: Arc<[i64]>,
    /// The revision of the first event of the history, and how many there are.
    pub history: (i64, u64),
}

/// The watchers of a row, of which a run awaits at most `total` events from history.
pub fn watching(spec: &RowSpec, prepared: &Prepared, total: u64) -> Option<Watching> {
    let awaits = match spec.operation {
        Operation::Watch => Awaits::Puts,
        Operation::WatchHistory => {
            let (revision, events) = prepared.history;
            Awaits::History { revision, events: events.min(total) }
        }
        Operation::Put
        | Operation::TxnPut
        | Operation::RangeLinearizable
        | Operation::RangeSerializable
        | Operation::TxnMixed
        | Operation::LeaseKeepAlive
        | Operation::Stm
        | Operation::Mixed => Awaits::Nothing,
    };
    let &RowSpec { streams, watchers_per_stream: per_stream, .. } = spec;
    let keys = watched_keys(spec);
    (streams > 0).then_some(Watching {
        streams,
        per_stream,
        keys,
        prev_kv: false,
        awaits,
        since_answer: false,
    })
}

/// The events of the watched key.
pub fn events(spec: &RowSpec) -> Workload {
    Workload::PutKeys { keys: watched_keys(spec), value_bytes: spec.value_bytes }
}

fn watched_keys(spec: &RowSpec) -> Arc<[Bytes]> {
    [Bytes::from(vec![WATCHED_KEY; spec.key_bytes])].into()
}

pub fn workload(spec: &RowSpec, prepared: &Prepared) -> Workload {
    let read = |serializable| {
        Workload::Range(RangeRequest { key: read_key(spec), serializable, ..Default::default() })
    };
    match spec.operation {
        Operation::Put => Workload::Put(writes(spec)),
        Operation::TxnPut => Workload::TxnPut { ops: 1, writes: writes(spec) },
        Operation::RangeLinearizable => read(false),
        Operation::RangeSerializable => read(true),
        Operation::TxnMixed => {
            let all = Bytes::from_static(b"\0");
            let range =
                RangeRequest { range_end: all.clone(), key: all, limit: RANGE_LIMIT, ..Default::default() };
            Workload::TxnMixed { range, read_share: 0.5, writes: writes(spec) }
        }
        Operation::LeaseKeepAlive => Workload::LeaseKeepAlive(prepared.leases.clone()),
        Operation::Watch | Operation::WatchHistory => events(spec),
        Operation::Mixed => unreachable!("no suite has a mix"),
        Operation::Stm => Workload::Stm(Stm {
            keys: spec.keys,
            keys_per_txn: 1,
            write_percent: 100,
            value_bytes: spec.value_bytes,
            isolation: Isolation::RepeatableReads,
            locker: Locker::None,
            seed: SEED,
        }),
    }
}

fn writes(spec: &RowSpec) -> Writes {
    let &RowSpec { key_bytes, value_bytes, keys: key_space, values, .. } = spec;
    assert!(key_bytes >= varint_bytes_max(key_space), "a key holds its number");
    Writes { key_bytes, value_bytes, key_space, order: Order::Sequential, values, seed: SEED }
}

/// The key that rows of reads read.
pub fn read_key(spec: &RowSpec) -> Bytes {
    spec.read_key().into()
}

/// The value of [`read_key`].
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
                let prepared = Prepared { leases: [1].into(), ..Prepared::default() };
                if row.spec.operation == Operation::Stm {
                    continue; // its requests depend on answers
                }
                assert!(workload(&row.spec, &prepared).source(0).request(0).len() > 5, "{}", row.id);
            }
        }
    }
}
