//! The rows of a comparison: the put and range rows of etcd's own performance page, with as many keys as requests
//! where they write.

use crate::keys::Order;
use crate::workload::{Workload, Writes};
use api::etcdserverpb::RangeRequest;
use bytes::Bytes;

/// The key that range rows read.
pub(super) const READ_KEY: &[u8] = b"foo";
const KEY_BYTES: usize = 8;
const VALUE_BYTES: usize = 256;

/// One row: a kind of request, how many, from how many callers, to whom.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: String,
    pub total: u64,
    pub conns: usize,
    pub clients: usize,
    pub(super) target: Target,
    kind: Kind,
    /// How many numbers the keys of a writing row are made of.
    pub(super) key_space: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    All,
    Leader,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Put,
    PutOneKey,
    Linearizable,
    Serializable,
}

/// Name, kind, target, connections, clients, requests.
const ROWS: [(&str, Kind, Target, usize, usize, u64); 9] = [
    ("put-1", Kind::Put, Target::Leader, 1, 1, 3_000),
    ("put-1000-leader", Kind::Put, Target::Leader, 100, 1000, 50_000),
    ("put-1000-all", Kind::Put, Target::All, 100, 1000, 50_000),
    ("put-1000-leader-one-key", Kind::PutOneKey, Target::Leader, 100, 1000, 50_000),
    ("put-1000-all-one-key", Kind::PutOneKey, Target::All, 100, 1000, 50_000),
    ("range-l-1", Kind::Linearizable, Target::All, 1, 1, 5_000),
    ("range-l-1000", Kind::Linearizable, Target::All, 100, 1000, 50_000),
    ("range-s-1", Kind::Serializable, Target::All, 1, 1, 10_000),
    ("range-s-1000", Kind::Serializable, Target::All, 100, 1000, 100_000),
];

/// The rows of these names, in this order, with their requests multiplied by `scale`.
pub fn rows(names: &[String], scale: f64) -> Result<Vec<Row>, String> {
    if scale.is_nan() || scale <= 0.0 {
        return Err(format!("--scale={scale} leaves nothing to measure"));
    }
    names.iter().map(|name| row(name.trim(), scale)).collect()
}

fn row(name: &str, scale: f64) -> Result<Row, String> {
    let Some(&(name, kind, target, conns, clients, total)) = ROWS.iter().find(|row| row.0 == name) else {
        let known = ROWS.map(|row| row.0).join(", ");
        return Err(format!("there is no row {name:?}, there are {known}"));
    };
    let total = ((total as f64 * scale) as u64).max(clients as u64);
    let key_space = if kind == Kind::Put { total } else { 1 };
    Ok(Row { name: name.into(), total, conns, clients, target, kind, key_space })
}

impl Row {
    pub(super) fn workload(&self) -> Workload {
        match self.kind {
            Kind::Put | Kind::PutOneKey => Workload::Put(Writes {
                key_bytes: KEY_BYTES,
                value_bytes: VALUE_BYTES,
                key_space: self.key_space,
                order: Order::Sequential,
                seed: 1,
            }),
            Kind::Linearizable => {
                Workload::Range(RangeRequest { key: READ_KEY.into(), ..Default::default() })
            }
            Kind::Serializable => Workload::Range(RangeRequest {
                key: READ_KEY.into(),
                serializable: true,
                ..Default::default()
            }),
        }
    }

    /// What the key that range rows read holds.
    pub(super) fn value(&self) -> Bytes {
        vec![b'x'; VALUE_BYTES].into()
    }

    /// How many keys a store holds after the row, if it kept everything that it acknowledged.
    pub fn keys_expected(&self) -> i64 {
        let written = match self.kind {
            Kind::Put | Kind::PutOneKey => self.key_space as i64,
            Kind::Linearizable | Kind::Serializable => 0,
        };
        written + 1 // the key that range rows read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_name_and_scaled() {
        let found = rows(&["put-1".into(), " range-s-1000".into()], 0.1).unwrap();
        let short: Vec<_> =
            found.iter().map(|row| (row.name.as_str(), row.total, row.keys_expected())).collect();
        assert_eq!(short, [("put-1", 300, 301), ("range-s-1000", 10_000, 1)]);
    }

    #[test]
    fn a_row_never_has_fewer_requests_than_callers() {
        assert_eq!(rows(&["put-1000-all".into()], 0.0001).unwrap()[0].total, 1000);
    }

    #[test]
    fn unknown_rows_and_scales_are_refused() {
        let refused = rows(&["put-2".into()], 1.0).unwrap_err();
        assert!(
            refused.starts_with("there is no row \"put-2\", there are put-1, put-1000-leader,"),
            "{refused}"
        );
        assert!(rows(&[], 0.0).is_err());
        assert!(rows(&[], f64::NAN).is_err());
    }
}
