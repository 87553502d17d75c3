//! Workloads: turn a position in the run into a request.
//!
//! Independent of connections, time and results.

pub mod distribution; // choice of records and value sizes
pub mod frame; // requests as bytes
pub mod keys; // etcd's key encoding
pub mod kubernetes; // objects of a cluster
pub mod stm; // transactions that depend on their reads
pub mod ycsb; // the core workloads of YCSB

use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{LeaseKeepAliveRequest, RangeRequest, RequestOp, TxnRequest};
use bench_report::model::{KeyOrder, Values};
use bytes::Bytes;
use frame::Template;
use keys::KeySequence;
use kubernetes::Kubernetes;
use prost::Message;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use stm::Stm;
use ycsb::Ycsb;

/// A kind of request with its parameters.
#[derive(Clone, Debug)]
pub enum Workload {
    /// A Put per operation.
    Put(Writes),
    /// A Txn of several puts per operation.
    TxnPut {
        /// Puts in each transaction.
        ops: usize,
        /// Their keys and values.
        writes: Writes,
    },
    /// A constant Range per operation.
    Range(RangeRequest),
    /// A RangeStream per operation, read completely.
    RangeStream(RangeRequest),
    /// This range in pages per operation, with a call per page.
    Pages(RangeRequest),
    /// A Txn per operation, with this range or with a put.
    TxnMixed {
        range: RangeRequest,
        /// Ranges among all operations, 0 to 1.
        read_share: f64,
        writes: Writes,
    },
    /// A Put per operation, round-robin over these keys. The value starts with the position of the put.
    PutKeys { keys: Arc<[Bytes]>, value_bytes: usize },
    /// A LeaseKeepAlive stream with a single renewal per operation, round-robin over these leases.
    LeaseKeepAlive(Arc<[i64]>),
    /// A transaction per operation, with all its calls.
    Stm(Stm),
    /// An operation of a mix, with all its calls.
    Ycsb(Ycsb),
    /// An operation of an API server, with all its calls.
    Kubernetes(Kubernetes),
}

/// Maximum bytes of the position in the value of a [`Workload::PutKeys`].
const POSITION_BYTES: usize = 8;

/// Returns the position at the start of the value of a [`Workload::PutKeys`].
pub fn position_of(value: &[u8]) -> u64 {
    let mut bytes = [0; POSITION_BYTES];
    let len = value.len().min(POSITION_BYTES);
    bytes[..len].copy_from_slice(&value[..len]);
    u64::from_le_bytes(bytes)
}

/// Returns the number of bytes for the positions of `total` puts.
pub fn position_bytes(total: u64) -> usize {
    (u64::BITS - total.saturating_sub(1).leading_zeros()).div_ceil(8) as usize
}

/// Returns the first key after all keys with this prefix.
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end.into();
        }
    }
    Bytes::from_static(b"\0")
}

/// Keys and values of the writing workloads.
#[derive(Clone, Debug)]
pub struct Writes {
    pub key_bytes: usize,
    pub value_bytes: usize,
    /// Prefix of all keys; the numbers follow.
    pub prefix: Bytes,
    /// Number of distinct key numbers.
    pub key_space: u64,
    pub order: KeyOrder,
    pub values: Values,
    /// Seed of values and random keys.
    pub seed: u64,
}

/// A workload prepared for a worker.
#[derive(Debug)]
pub enum WorkloadSource {
    /// Constant requests, used round-robin.
    Constant(Vec<Bytes>),
    Writes(WriteSource),
    /// Reads at some positions, writes at the remaining ones.
    Mixed {
        read: Bytes,
        read_share: f64,
        seed: u64,
        writer: WriteSource,
    },
    Listed {
        template: Template,
        keys: Arc<[Bytes]>,
    },
}

/// Write requests of a worker.
#[derive(Debug)]
pub struct WriteSource {
    template: Template,
    prefix: Bytes,
    keys: KeySequence,
    /// Seed of values, if each key has a distinct one.
    own_values: Option<u64>,
}

impl Workload {
    /// Returns the value of the `:path` pseudo-header.
    pub fn path(&self) -> &'static str {
        match self {
            Workload::Put(_) | Workload::PutKeys { .. } => "/etcdserverpb.KV/Put",
            Workload::TxnPut { .. }
            | Workload::TxnMixed { .. }
            | Workload::Stm(_)
            | Workload::Kubernetes(_) => "/etcdserverpb.KV/Txn",
            Workload::Range(_) | Workload::Pages(_) | Workload::Ycsb(_) => "/etcdserverpb.KV/Range",
            Workload::RangeStream(_) => "/etcdserverpb.KV/RangeStream",
            Workload::LeaseKeepAlive(_) => "/etcdserverpb.Lease/LeaseKeepAlive",
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Workload::Put(_) | Workload::PutKeys { .. } => "put",
            Workload::TxnPut { .. } => "txn-put",
            Workload::Range(_) | Workload::RangeStream(_) | Workload::Pages(_) => "range",
            Workload::TxnMixed { .. } => "txn-mixed",
            Workload::LeaseKeepAlive(_) => "lease-keepalive",
            Workload::Stm(_) => "stm",
            Workload::Ycsb(_) => "ycsb",
            Workload::Kubernetes(_) => "kubernetes",
        }
    }

    /// Returns the kinds of operations that are reported separately, indexed by `Source::kind`.
    pub fn kinds(&self) -> &'static [&'static str] {
        match self {
            Workload::TxnMixed { .. } => &["Read", "Write"],
            Workload::Ycsb(_) => &ycsb::OPERATIONS,
            Workload::Kubernetes(_) => &kubernetes::OPERATIONS,
            Workload::Put(_)
            | Workload::TxnPut { .. }
            | Workload::Range(_)
            | Workload::RangeStream(_)
            | Workload::Pages(_)
            | Workload::PutKeys { .. }
            | Workload::LeaseKeepAlive(_)
            | Workload::Stm(_) => &[""],
        }
    }

    pub fn kind(&self, position: u64) -> usize {
        match self {
            Workload::Ycsb(ycsb) => ycsb.operation(position) as usize,
            Workload::Kubernetes(cluster) => cluster.operation(position) as usize,
            Workload::TxnMixed { .. } => self.source(0).kind(position),
            Workload::Put(_)
            | Workload::TxnPut { .. }
            | Workload::Range(_)
            | Workload::RangeStream(_)
            | Workload::Pages(_)
            | Workload::PutKeys { .. }
            | Workload::LeaseKeepAlive(_)
            | Workload::Stm(_) => 0,
        }
    }

    /// Reports whether it contains operations of a kind.
    pub fn has_kind(&self, kind: usize) -> bool {
        match self {
            Workload::Ycsb(ycsb) => ycsb.mix.has(kind),
            _ => kind < self.kinds().len(),
        }
    }

    pub fn needs_tasks(&self) -> bool {
        match self {
            Workload::Pages(_) | Workload::Stm(_) | Workload::Ycsb(_) | Workload::Kubernetes(_) => true,
            Workload::Put(_)
            | Workload::TxnPut { .. }
            | Workload::Range(_)
            | Workload::RangeStream(_)
            | Workload::TxnMixed { .. }
            | Workload::PutKeys { .. }
            | Workload::LeaseKeepAlive(_) => false,
        }
    }

    pub fn source(&self, worker: usize) -> WorkloadSource {
        match self {
            Workload::Put(writes) => {
                let template = Template::put(writes.key_bytes, &writes.value());
                WorkloadSource::Writes(writes.writer(worker, template))
            }
            Workload::TxnPut { ops, writes } => WorkloadSource::Writes(writes.txn_writer(worker, *ops)),
            Workload::Range(request) | Workload::RangeStream(request) => {
                WorkloadSource::Constant(vec![constant(request)])
            }
            Workload::TxnMixed { range, read_share, writes } => {
                let op = RequestOp { request: Some(Op::RequestRange(range.clone())) };
                let read = constant(&TxnRequest { success: vec![op], ..Default::default() });
                let writer = writes.txn_writer(worker, 1);
                WorkloadSource::Mixed { read, read_share: *read_share, seed: writes.seed, writer }
            }
            Workload::PutKeys { keys, value_bytes } => {
                let template = Template::put(keys[0].len(), &vec![0; *value_bytes]);
                WorkloadSource::Listed { template, keys: keys.clone() }
            }
            // Callers derive the requests of these from previous responses.
            Workload::Pages(_) | Workload::Stm(_) | Workload::Ycsb(_) | Workload::Kubernetes(_) => {
                WorkloadSource::Constant(Vec::new())
            }
            Workload::LeaseKeepAlive(leases) => WorkloadSource::Constant(
                leases.iter().map(|&id| constant(&LeaseKeepAliveRequest { id })).collect(),
            ),
        }
    }
}

fn constant(message: &impl Message) -> Bytes {
    Template::constant(message).fill(|_, _, _| ())
}

impl Writes {
    /// Returns random bytes, for every request of a run with equal values.
    fn value(&self) -> Vec<u8> {
        let mut value = vec![0; self.value_bytes];
        SmallRng::seed_from_u64(self.seed).fill_bytes(&mut value);
        value
    }

    fn txn_writer(&self, worker: usize, ops: usize) -> WriteSource {
        self.writer(worker, Template::txn_put(ops, self.key_bytes, &self.value()))
    }

    fn writer(&self, worker: usize, template: Template) -> WriteSource {
        let seed = self.seed.wrapping_add(worker as u64);
        let prefix = self.prefix.clone();
        let keys = KeySequence::new(self.order, self.key_space, self.key_bytes - prefix.len(), seed);
        let own_values = (self.values == Values::PerKey).then_some(self.seed);
        WriteSource { template, prefix, keys, own_values }
    }
}

impl WorkloadSource {
    /// Returns the request at `position` of the run.
    pub fn request(&mut self, position: u64) -> Bytes {
        let kind = self.kind(position);
        match self {
            WorkloadSource::Constant(requests) => {
                requests[(position % requests.len() as u64) as usize].clone()
            }
            WorkloadSource::Mixed { read, .. } if kind == 0 => read.clone(),
            WorkloadSource::Writes(writer) | WorkloadSource::Mixed { writer, .. } => writer.request(position),
            WorkloadSource::Listed { template, keys } => template.fill(|_, key, value| {
                key.copy_from_slice(&keys[(position % keys.len() as u64) as usize]);
                let len = value.len().min(POSITION_BYTES);
                value[..len].copy_from_slice(&position.to_le_bytes()[..len]);
            }),
        }
    }

    /// Returns the index in [`Workload::kinds`] of the request at `position`.
    pub fn kind(&self, position: u64) -> usize {
        match self {
            WorkloadSource::Mixed { read_share, seed, .. } => {
                let chance: f64 = SmallRng::seed_from_u64(seed ^ position).random();
                usize::from(chance >= *read_share)
            }
            WorkloadSource::Constant(_) | WorkloadSource::Writes(_) | WorkloadSource::Listed { .. } => 0,
        }
    }

    /// Returns the keys and values written by the request at `position`, which was made by this source.
    pub fn pairs_of<'a>(
        &'a self,
        position: u64,
        request: &'a Bytes,
    ) -> impl Iterator<Item = (Bytes, Bytes)> + 'a {
        let template = match self {
            WorkloadSource::Constant(_) => None,
            WorkloadSource::Mixed { .. } if self.kind(position) == 0 => None,
            WorkloadSource::Writes(writer) | WorkloadSource::Mixed { writer, .. } => Some(&writer.template),
            WorkloadSource::Listed { template, .. } => Some(template),
        };
        template.into_iter().flat_map(|template| template.pairs(request))
    }
}

impl WriteSource {
    fn request(&mut self, position: u64) -> Bytes {
        let Self { template, prefix, keys, own_values } = self;
        let first = position.wrapping_mul(template.keys_len() as u64);
        template.fill(|nth, key, value| {
            let (first_bytes, number) = key.split_at_mut(prefix.len());
            first_bytes.copy_from_slice(prefix);
            keys.write(first + nth as u64, number);
            if let Some(seed) = own_values {
                SmallRng::seed_from_u64(*seed ^ number_of(key)).fill_bytes(value);
            }
        })
    }
}

/// Hashes a key, equally in every run and worker.
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
            prefix: Bytes::new(),
            key_space,
            order: KeyOrder::Sequential,
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
                source.pairs_of(position, &request).map(|(key, _)| key[0] / 2).collect()
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
    fn keys_begin_with_their_prefix_and_go_on_as_without_it() {
        let plain = Writes { key_bytes: 3, ..writes(1000) };
        let prefixed = Writes { key_bytes: 8, prefix: "lgen/".into(), ..writes(1000) };
        let key = |writes: &Writes, position| {
            let mut source = Workload::Put(writes.clone()).source(0);
            let request = source.request(position);
            source.pairs_of(position, &request).next().unwrap().0
        };
        for position in [0, 1, 64, 999, 1000] {
            let expected = [b"lgen/", &key(&plain, position)[..]].concat();
            assert_eq!(key(&prefixed, position), expected);
        }
    }

    #[test]
    fn a_range_is_the_same_bytes_each_time_without_a_copy() {
        let range = RangeRequest { key: "foo".into(), ..Default::default() };
        let mut source = Workload::Range(range).source(0);
        assert_eq!(source.request(1).as_ptr(), source.request(2).as_ptr());
    }

    #[test]
    fn reads_and_writes_are_mixed_in_the_intended_ratio_and_alike_in_every_worker() {
        let range = RangeRequest { key: "k".into(), ..Default::default() };
        let mixed = Workload::TxnMixed { range, read_share: 0.75, writes: writes(100) };
        let (mut first, second) = (mixed.source(0), mixed.source(1));
        let kinds: Vec<_> = (0..4000).map(|position| first.kind(position)).collect();
        assert_eq!(kinds, (0..4000).map(|position| second.kind(position)).collect::<Vec<_>>());
        let reads = kinds.iter().filter(|kind| **kind == 0).count();
        assert!((2850..3150).contains(&reads), "{reads} of 4000");
        for (position, kind) in (0..50).zip(kinds) {
            let request = first.request(position);
            assert_eq!(first.pairs_of(position, &request).count(), kind, "a write has one pair, a read none");
        }
    }

    #[test]
    fn a_listed_key_carries_the_position_of_its_put() {
        let keys = ["aa", "bb", "cc"].map(Bytes::from).into();
        for (value_bytes, total) in [(1, 256), (2, 1000), (8, 1 << 40), (32, 1 << 40)] {
            let mut source = Workload::PutKeys { keys: Arc::clone(&keys), value_bytes }.source(0);
            assert!(position_bytes(total) <= value_bytes);
            for position in [0, 1, 2, 3, total - 1] {
                let request = source.request(position);
                let (key, value) = source.pairs_of(position, &request).next().unwrap();
                assert_eq!((&key, value.len()), (&keys[(position % 3) as usize], value_bytes));
                assert_eq!(position_of(&value), position);
            }
        }
        assert_eq!([0, 1, 2, 256, 257, 1 << 32].map(position_bytes), [0, 0, 1, 1, 2, 4]);
    }

    #[test]
    fn leases_are_renewed_in_turn() {
        let mut source = Workload::LeaseKeepAlive([7, 1 << 60].into()).source(0);
        let lease =
            |request: Bytes| LeaseKeepAliveRequest::decode(request.slice(frame::PREFIX_BYTES..)).unwrap().id;
        assert_eq!([0, 1, 2].map(|position| lease(source.request(position))), [7, 1 << 60, 7]);
    }

    #[test]
    fn a_key_has_the_same_value_in_every_worker() {
        let workload = |values| Workload::Put(Writes { values, ..writes(100) });
        let value = |values, worker, position| {
            let mut source = workload(values).source(worker);
            let request = source.request(position);
            let (_, value) = source.pairs_of(position, &request).next().unwrap();
            value
        };
        assert_eq!(value(Values::Same, 0, 3), value(Values::Same, 1, 4));
        assert_ne!(value(Values::PerKey, 0, 3), value(Values::PerKey, 0, 4));
        assert_eq!(value(Values::PerKey, 0, 3), value(Values::PerKey, 1, 3));
    }
}
