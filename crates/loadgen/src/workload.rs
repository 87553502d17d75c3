//! What is sent: one value that turns a position in the run into a request.
//!
//! Knows nothing of connections, time or results.

use crate::frame::Template;
use crate::keys::{Keys, Order};
use api::etcdserverpb::RangeRequest;
use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

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
    /// Chooses the value's bytes and the random keys.
    pub seed: u64,
}

/// A workload made ready for one worker.
#[derive(Debug)]
pub struct Source {
    template: Template,
    keys: Option<Keys>,
    constant: Option<Bytes>,
}

impl Workload {
    /// The method as it stands in `:path`.
    pub fn path(&self) -> &'static str {
        match self {
            Workload::Put(_) => "/etcdserverpb.KV/Put",
            Workload::TxnPut { .. } => "/etcdserverpb.KV/Txn",
            Workload::Range(_) => "/etcdserverpb.KV/Range",
            Workload::RangeStream(_) => "/etcdserverpb.KV/RangeStream",
        }
    }

    /// What every key of a writing workload gets.
    pub fn value(&self) -> Vec<u8> {
        match self {
            Workload::Put(writes) | Workload::TxnPut { writes, .. } => writes.value(),
            Workload::Range(_) | Workload::RangeStream(_) => Vec::new(),
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
            Workload::Put(writes) => {
                let template = Template::put(writes.key_bytes, &writes.value());
                Source { template, keys: Some(writes.keys(worker)), constant: None }
            }
            Workload::TxnPut { ops, writes } => {
                let template = Template::txn_put(*ops, writes.key_bytes, &writes.value());
                Source { template, keys: Some(writes.keys(worker)), constant: None }
            }
            Workload::Range(request) | Workload::RangeStream(request) => {
                let template = Template::constant(request);
                let constant = Some(template.fill(|_, _| ()));
                Source { template, keys: None, constant }
            }
        }
    }
}

impl Writes {
    /// Random bytes, the same for every request of a run.
    fn value(&self) -> Vec<u8> {
        let mut value = vec![0; self.value_bytes];
        SmallRng::seed_from_u64(self.seed).fill_bytes(&mut value);
        value
    }

    fn keys(&self, worker: usize) -> Keys {
        let seed = self.seed.wrapping_add(worker as u64);
        Keys::new(self.order, self.key_space, self.key_bytes, seed)
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
        self.template.fill(|nth, key| keys.write(first + nth as u64, key))
    }

    /// The keys that a request of this source writes.
    pub fn keys_of<'a>(&'a self, request: &'a Bytes) -> impl Iterator<Item = Bytes> + 'a {
        self.template.keys(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writes(key_space: u64) -> Writes {
        Writes { key_bytes: 4, value_bytes: 16, key_space, order: Order::Sequential, seed: 1 }
    }

    #[test]
    fn the_keys_of_a_txn_follow_on_those_of_the_one_before() {
        let mut source = Workload::TxnPut { ops: 3, writes: writes(100) }.source(0);
        let firsts: Vec<Vec<u8>> = (0..3)
            .map(|position| {
                let request = source.request(position);
                source.keys_of(&request).map(|key| key[0] / 2).collect()
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
}
