//! Generates client requests: puts, deletes, transactions, compactions, and reads of all kinds.
//!
//! All requests pass the checks before consensus. Later errors, for a compacted or a future
//! revision, are part of the run.

use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use bytes::Bytes;
use state_machine::command::Kind;

use super::ask::Ask;
use crate::chance::{Chance, mix};
use crate::plan::{IDENTITY, RunConfig};

/// Probability, per thousand, that the value of a put imitates log frames, in seeds with such
/// values.
const FORGED: u64 = 300;
const FORGED_FRAMES: u64 = 60;
/// Approximate number of log segments in a run.
const FORGED_SEQUENCES: u64 = 40;

/// Request generator. `id` makes values unique; `newest` is the latest revision known to any
/// client.
pub(crate) struct Draw<'a> {
    pub config: &'a RunConfig,
    pub chance: &'a mut Chance,
    pub id: u64,
    pub newest: i64,
}

impl Draw<'_> {
    pub fn ask(mut self) -> Ask {
        match self.chance.within(0, 100) {
            0..42 => Ask::Write(Kind::Put(self.put())),
            42..50 => Ask::Write(Kind::DeleteRange(self.delete())),
            50..64 => Ask::Write(Kind::Txn(self.txn())),
            64..67 => Ask::Write(Kind::Compact(self.compaction())),
            67..90 => Ask::Read(self.range()),
            _ => Ask::Serializable(self.range()),
        }
    }

    fn key(&mut self) -> Bytes {
        key(self.chance.within(0, self.config.keys))
    }

    pub(super) fn put(&mut self) -> PutRequest {
        if self.config.forges && self.chance.per_mille(FORGED) {
            return PutRequest { key: self.key(), value: self.forged(), ..PutRequest::default() };
        }
        // Vary the size, and so the size of groups, segments, batches and blocks.
        let size = self.chance.within(8, self.config.value_bytes_max) as usize;
        PutRequest { key: self.key(), value: value(self.id, size), ..PutRequest::default() }
    }

    /// Creates a value with frames of possible future segments, at all offsets modulo four, the
    /// alignment of log frames. They are harmful if their segment is later reused under the name
    /// that they contain.
    fn forged(&mut self) -> Bytes {
        let mut words = (0..).map(|part: u64| mix(self.id << 16 | part));
        let mut noise = || words.next().expect("noise does not end");
        let mut value = Vec::new();
        for _ in 0..FORGED_FRAMES {
            let sequence = noise() % FORGED_SEQUENCES;
            let group = self.config.segment_bytes - noise() % (self.config.segment_bytes / 4);
            value.extend(wal::testing::forged(IDENTITY, sequence, group as u32, &mut noise));
            value.push(noise() as u8);
        }
        value.into()
    }

    fn delete(&mut self) -> DeleteRangeRequest {
        let (key, range_end) = self.keys();
        DeleteRangeRequest { key, range_end, prev_kv: false }
    }

    fn keys(&mut self) -> (Bytes, Bytes) {
        neighbours(self.config.keys, self.chance)
    }

    /// Draws a revision: mostly the latest, otherwise an older, possibly compacted one, or a future
    /// one.
    fn revision(&mut self) -> i64 {
        match self.chance.within(0, 10) {
            0..6 => 0,
            6..9 => (self.newest - self.chance.within(0, 60) as i64).max(0),
            _ => self.newest + self.chance.within(0, 4) as i64,
        }
    }

    pub(super) fn range(&mut self) -> RangeRequest {
        let (key, range_end) = self.keys();
        RangeRequest { key, range_end, revision: self.revision(), ..RangeRequest::default() }
    }

    fn compaction(&mut self) -> CompactionRequest {
        // Not at 0, although that is allowed: afterwards etcd, and this store as well, returns the
        // hash of revision 0 if the latest one is requested.
        let revision = (self.newest - self.chance.within(0, 40) as i64).max(1);
        CompactionRequest { revision, physical: false }
    }

    fn txn(&mut self) -> TxnRequest {
        let count = self.chance.within(0, 3);
        let compare = (0..count).map(|_| self.compare()).collect();
        // Keys within a branch must differ: a revision changes a key at most once.
        let first = self.chance.within(0, self.config.keys);
        let mut success = vec![self.op(first)];
        success.push(self.op(first + 1));
        TxnRequest { compare, success, failure: vec![self.op(first)] }
    }

    fn compare(&mut self) -> Compare {
        let results =
            [CompareResult::Equal, CompareResult::Greater, CompareResult::Less, CompareResult::NotEqual];
        let revision = (self.newest - self.chance.within(0, 10) as i64).max(0);
        let (target, union) = match self.chance.within(0, 4) {
            0 => (CompareTarget::Version, TargetUnion::Version(self.chance.within(0, 4) as i64)),
            1 => (CompareTarget::Create, TargetUnion::CreateRevision(revision)),
            2 => (CompareTarget::Mod, TargetUnion::ModRevision(revision)),
            _ => (CompareTarget::Value, TargetUnion::Value(value(self.id / 2, 8))),
        };
        Compare {
            result: *self.chance.pick(&results) as i32,
            target: target as i32,
            key: self.key(),
            target_union: Some(union),
            ..Compare::default()
        }
    }

    fn op(&mut self, on: u64) -> RequestOp {
        let request = match self.chance.within(0, 4) {
            0 => Request::RequestRange(self.range()),
            1 => Request::RequestDeleteRange(DeleteRangeRequest {
                key: key(on),
                ..DeleteRangeRequest::default()
            }),
            _ => Request::RequestPut(PutRequest { key: key(on), ..self.put() }),
        };
        RequestOp { request: Some(request) }
    }
}

pub(super) fn neighbours(keys: u64, chance: &mut Chance) -> (Bytes, Bytes) {
    let from = chance.within(0, keys);
    if chance.per_mille(700) {
        return (key(from), Bytes::new());
    }
    (key(from), key(from + chance.within(1, 4)))
}

pub(super) fn key(number: u64) -> Bytes {
    Bytes::from(format!("key{number:02}"))
}

/// Creates a unique value. Most are incompressible; otherwise there would be little to log, trim
/// and stream. Some are compressible, so that compressed batches occur as well.
fn value(id: u64, size: usize) -> Bytes {
    if id.is_multiple_of(8) {
        return Bytes::from(format!("{id:0size$}"));
    }
    let noise = (0..).flat_map(|part: u64| mix(id << 16 | part).to_le_bytes());
    noise.take(size).collect()
}
