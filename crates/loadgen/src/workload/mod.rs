//! Workloads: turn a position in the run into a request.
//!
//! Must not depend on connections, time or results.

pub mod frame; // requests as bytes
pub mod keys; // etcd's key encoding

use api::etcdserverpb::RangeRequest;
use bench_report::model::Values;
use bytes::Bytes;
use frame::Template;
use keys::{Keys, Order};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::hash::{DefaultHasher, Hasher};

/// One kind of request, with its parameters.
#[derive(Clone, Debug)]
pub enum Workload {
    /// One Put per operation.
    Put(Writes),
    /// One Txn of several puts per operation.
    TxnPut {
        /// Puts in each transaction.
        ops: usize,
        /// Their keys and values.
        writes: Writes,
    },
    /// One Range per operation, always the same.
    Range(RangeRequest),
    /// One RangeStream per operation, read to its end.
    RangeStream(RangeRequest),
}

/// Keys and values of the writing workloads.
#[derive(Clone, Debug)]
pub struct Writes {
    pub key_bytes: usize,
    pub value_bytes: usize,
    /// How many numbers the keys are made of.
    pub key_space: u64,
    pub order: Order,
    pub values: Values,
    /// Chooses the bytes of values and the random keys.
    pub seed: u64,
}

/// A workload prepared for one worker.
#[derive(Debug)]
pub struct Source {
    template: Template,
    keys: Option<Keys>,
    /// The seed of values, where each key has its own.
    own_values: Option<u64>,
    constant: Option<Bytes>,
}

impl Workload {
    /// The value of the `:path` pseudo-header.
    pub fn path(&self) -> &'static str {
        match self {
            Workload::Put(_) => "/etcdserverpb.KV/Put",
            Workload::TxnPut { .. } => "/etcdserverpb.KV/Txn",
            Workload::Range(_) => "/etcdserverpb.KV/Range",
            Workload::RangeStream(_) => "/etcdserverpb.KV/RangeStream",
        }
    }

    /// A short name for reports.
    pub fn name(&self) -> &'static str {
        match self {
            Workload::Put(_) => "put",
            Workload::TxnPut { .. } => "txn-put",
            Workload::Range(_) | Workload::RangeStream(_) => "range",
        }
    }

    /// The requests of worker number `worker`.
    pub fn source(&self, worker: usize) -> Source {
        match self {
            Workload::Put(writes) => writes.source(worker, Template::put(writes.key_bytes, &writes.value())),
            Workload::TxnPut { ops, writes } => {
                writes.source(worker, Template::txn_put(*ops, writes.key_bytes, &writes.value()))
            }
            Workload::Range(request) | Workload::RangeStream(request) => {
                let template = Template::constant(request);
                let constant = Some(template.fill(|_, _, _| ()));
                Source { template, keys: None, own_values: None, constant }
            }
        }
    }
}

impl Writes {
    /// Random bytes, for every request of a run where values are the same.
    fn value(&self) -> Vec<u8> {
        let mut value = vec![0; self.value_bytes];
        SmallRng::seed_from_u64(self.seed).fill_bytes(&mut value);
        value
    }

    fn source(&self, worker: usize, template: Template) -> Source {
        let seed = self.seed.wrapping_add(worker as u64);
        let keys = Keys::new(self.order, self.key_space, self.key_bytes, seed);
        let own_values = (self.values == Values::PerKey).then_some(self.seed);
        Source { template, keys: Some(keys), own_values, constant: None }
    }
}

impl Source {
    /// The request at `position` of the run.
    pub fn request(&mut self, position: u64) -> Bytes {
        if let Some(constant) = &self.constant {
            return constant.clone();
        }
        let keys = self.keys.as_mut().expect("a workload without a constant request has keys");
        let first = position.wrapping_mul(self.template.keys_len() as u64);
        self.template.fill(|nth, key, value| {
            keys.write(first + nth as u64, key);
            if let Some(seed) = self.own_values {
                SmallRng::seed_from_u64(seed ^ number_of(key)).fill_bytes(value);
            }
        })
    }

    /// The keys and values that a request of this source writes.
    pub fn pairs_of<'a>(&'a self, request: &'a Bytes) -> impl Iterator<Item = (Bytes, Bytes)> + 'a {
        self.template.pairs(request)
    }
}

/// A hash of a key, equal in every run and worker.
fn number_of(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writes(key_space: u64) -> Writes {
        Writes {
            key_bytes: 4,
            value_bytes: 16,
            key_space,
            order: Order::Sequential,
            values: Values::Same,
            seed: 1,
        }
    }

    #[test]
    fn the_keys_of_a_txn_follow_on_those_of_the_one_before() {
        let mut source = Workload::TxnPut { ops: 3, writes: writes(100) }.source(0);
        let firsts: Vec<Vec<u8>> = (0..3)
            .map(|position| {
                let request = source.request(position);
                source.pairs_of(&request).map(|(key, _)| key[0] / 2).collect()
            })
            .collect();
        assert_eq!(firsts, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]);
    }

    #[test]
    fn all_workers_write_the_same_value_and_the_same_sequence() {
        let workload = Workload::Put(writes(1000));
        assert_eq!(workload.source(0).request(17), workload.source(5).request(17));
    }

    #[test]
    fn a_range_is_the_same_bytes_each_time_without_a_copy() {
        let range = RangeRequest { key: "foo".into(), ..Default::default() };
        let mut source = Workload::Range(range).source(0);
        assert_eq!(source.request(1).as_ptr(), source.request(2).as_ptr());
    }

    #[test]
    fn a_key_has_the_same_value_in_every_worker() {
        let workload = |values| Workload::Put(Writes { values, ..writes(100) });
        let value = |values, worker, position| {
            let mut source = workload(values).source(worker);
            let request = source.request(position);
            let (_, value) = source.pairs_of(&request).next().unwrap();
            value
        };
        assert_eq!(value(Values::Same, 0, 3), value(Values::Same, 1, 4));
        assert_ne!(value(Values::PerKey, 0, 3), value(Values::PerKey, 0, 4));
        assert_eq!(value(Values::PerKey, 0, 3), value(Values::PerKey, 1, 3));
    }
}
