//! The workload that a row of a suite describes.

use crate::workload::keys::{Order, varint_bytes_max};
use crate::workload::{Workload, Writes};
use api::etcdserverpb::RangeRequest;
use bench_report::model::{Operation, RowSpec};
use bytes::Bytes;

/// The key that range rows read.
pub const READ_KEY: &[u8] = b"foo";
/// Fixed: a row that is read back must know the values that it wrote.
const SEED: u64 = 1;

pub fn workload(spec: &RowSpec) -> Workload {
    let read = |serializable| {
        Workload::Range(RangeRequest { key: READ_KEY.into(), serializable, ..Default::default() })
    };
    match spec.operation {
        Operation::Put => Workload::Put(writes(spec)),
        Operation::TxnPut => Workload::TxnPut { ops: 1, writes: writes(spec) },
        Operation::RangeLinearizable => read(false),
        Operation::RangeSerializable => read(true),
    }
}

fn writes(spec: &RowSpec) -> Writes {
    let &RowSpec { key_bytes, value_bytes, keys: key_space, values, .. } = spec;
    assert!(key_bytes >= varint_bytes_max(key_space), "a key holds its number");
    Writes { key_bytes, value_bytes, key_space, order: Order::Sequential, values, seed: SEED }
}

/// The value of [`READ_KEY`].
pub fn read_value(spec: &RowSpec) -> Bytes {
    vec![b'x'; spec.value_bytes].into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_report::suite::{CORE, find};

    #[test]
    fn every_row_has_a_workload_at_every_scale() {
        let suites = find(&["all".into(), CORE.into()]).unwrap();
        for scale in [0.001, 0.1, 1.0, 10.0] {
            for row in suites.iter().flat_map(|suite| &suite.rows).map(|row| row.scaled(scale, None)) {
                assert!(workload(&row.spec).source(0).request(0).len() > 5, "{}", row.id);
            }
        }
    }
}
