//! The core workloads of YCSB, A to F, and mixes of their operations.
//!
//! Shares, distributions and sizes match the files `workloads/workloada` to `workloadf` of YCSB
//! (github.com/brianfrankcooper/YCSB) and its `CoreWorkload` class. Cooper et al., "Benchmarking Cloud
//! Serving Systems with YCSB", SoCC 2010, section 4, describes the workloads.
//!
//! * A record is a single key. Its value has the size of YCSB's ten fields of 100 bytes. An update writes
//!   all of it, because a key-value store has no fields.
//! * Keys match YCSB's: `user` and the hash of the record's number, here with leading zeros.
//! * Operations choose among the contiguous range of acknowledged records.
//! * A read-modify-write commits by compare-and-swap on the record's revision, and is retried on conflicts.
//!
//! Independent of connections and time.

use crate::workload::distribution::{Chooser, Distribution, Sizes, scrambled};
use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{Compare, PutRequest, RangeRequest, RequestOp, TxnRequest};
use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Names of [`YcsbOperation`]s, in order.
pub const OPERATIONS: [&str; 5] = ["Read", "Update", "Insert", "Scan", "Read-Modify-Write"];
/// YCSB's `maxscanlength`.
pub const SCAN_MAX: u64 = 100;
/// Size of YCSB's ten fields of 100 bytes.
pub const VALUE_BYTES: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YcsbOperation {
    Read,
    Update,
    Insert,
    /// A range that starts at a record.
    Scan,
    ReadModifyWrite,
}

/// Weights of the operations; the sum is above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix([f64; OPERATIONS.len()]);

/// A mix of operations on a set of records.
#[derive(Clone, Debug)]
pub struct Ycsb {
    pub mix: Mix,
    pub prefix: Bytes,
    pub sizes: Sizes,
    /// Maximum number of records of a scan.
    pub scan_max: u64,
    /// Serializable reads and scans.
    pub serializable: bool,
    pub seed: u64,
    /// Number of records before the first insert.
    loaded: u64,
    chooser: Chooser,
    records: Arc<Records>,
}

/// Numbers of the records, extended by inserts.
#[derive(Debug, Default)]
struct Records {
    /// All records below this were acknowledged.
    existing: AtomicU64,
    inserts: Mutex<Inserts>,
}

#[derive(Debug, Default)]
struct Inserts {
    /// Next unused number.
    next: u64,
    /// Acknowledged numbers above an unacknowledged one.
    ahead: BTreeSet<u64>,
    /// Numbers of failed inserts, reused by the next ones.
    failed: BTreeSet<u64>,
}

/// An operation with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum YcsbStep {
    Read(RangeRequest),
    Update(PutRequest),
    /// Insert the record with this number.
    Insert(PutRequest, u64),
    Scan(RangeRequest),
    /// Read, then write this value.
    ReadModifyWrite(RangeRequest, Bytes),
}

impl Ycsb {
    /// Creates a workload over `records` records, which either exist or are loaded first.
    pub fn new(mix: Mix, distribution: Distribution, records: u64, loaded: bool) -> Self {
        let all = Records { existing: AtomicU64::new(0), inserts: Mutex::default() };
        if loaded {
            all.existing.store(records, Relaxed);
            all.lock().next = records;
        }
        Self {
            mix,
            prefix: Bytes::new(),
            sizes: Sizes::one(VALUE_BYTES),
            scan_max: SCAN_MAX,
            serializable: false,
            seed: 0,
            loaded: records,
            chooser: Chooser::new(distribution, records, mix.share(YcsbOperation::Insert) > 0.0),
            records: Arc::new(all),
        }
    }

    /// Returns the number of records before the first operation.
    pub fn loaded(&self) -> u64 {
        self.loaded
    }

    pub fn distribution(&self) -> Distribution {
        self.chooser.distribution()
    }

    /// Returns the load phase: only inserts of the same records.
    pub fn load_phase(&self) -> Self {
        Self { mix: Mix::of(&[(YcsbOperation::Insert, 1.0)]), ..self.clone() }
    }

    /// Returns the end of the contiguous range of acknowledged records.
    pub fn existing(&self) -> u64 {
        self.records.existing.load(Relaxed)
    }

    pub fn operation(&self, position: u64) -> YcsbOperation {
        self.mix.choose(&mut self.random(position))
    }

    /// Returns the operation at a position. An insert reserves its number now.
    pub fn step(&self, position: u64) -> YcsbStep {
        let mut random = self.random(position);
        let operation = self.mix.choose(&mut random);
        let mut chosen = || self.key(self.chooser.choose(position, self.existing(), &mut random));
        match operation {
            YcsbOperation::Read => YcsbStep::Read(self.read(chosen())),
            YcsbOperation::Update => {
                let key = chosen();
                YcsbStep::Update(PutRequest { key, value: self.value(&mut random), ..Default::default() })
            }
            YcsbOperation::Insert => {
                let number = self.records.lock().begin();
                let (key, value) = (self.key(number), self.value(&mut random));
                YcsbStep::Insert(PutRequest { key, value, ..Default::default() }, number)
            }
            YcsbOperation::Scan => {
                let key = chosen();
                let limit = random.random_range(1..=self.scan_max) as i64;
                let range_end = [&self.prefix[..], b"uses"].concat().into();
                YcsbStep::Scan(RangeRequest { limit, range_end, ..self.read(key) })
            }
            YcsbOperation::ReadModifyWrite => {
                let range = RangeRequest { serializable: false, ..self.read(chosen()) };
                YcsbStep::ReadModifyWrite(range, self.value(&mut random))
            }
        }
    }

    /// Records the outcome of an insert.
    pub fn inserted(&self, number: u64, acknowledged: bool) {
        let mut inserts = self.records.lock();
        if !acknowledged {
            inserts.failed.insert(number);
            return;
        }
        inserts.ahead.insert(number);
        let mut existing = self.existing();
        while inserts.ahead.remove(&existing) {
            existing += 1;
        }
        self.records.existing.store(existing, Relaxed);
    }

    /// Returns the write of a read-modify-write, conditional on the record's revision. On a conflict the
    /// transaction reads it again.
    pub fn swap(range: &RangeRequest, mod_revision: i64, value: &Bytes) -> TxnRequest {
        let op = |request| RequestOp { request: Some(request) };
        let key = range.key.clone();
        let compare = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: key.clone(),
            target_union: Some(TargetUnion::ModRevision(mod_revision)),
            ..Default::default()
        };
        let put = PutRequest { key, value: value.clone(), ..Default::default() };
        TxnRequest {
            compare: vec![compare],
            success: vec![op(Request::RequestPut(put))],
            failure: vec![op(Request::RequestRange(range.clone()))],
        }
    }

    fn random(&self, position: u64) -> SmallRng {
        SmallRng::seed_from_u64(self.seed ^ position)
    }

    fn key(&self, number: u64) -> Bytes {
        [&self.prefix[..], format!("user{:020}", scrambled(number)).as_bytes()].concat().into()
    }

    fn value(&self, random: &mut SmallRng) -> Bytes {
        let mut value = vec![0; self.sizes.choose(random)];
        random.fill_bytes(&mut value);
        value.into()
    }

    fn read(&self, key: Bytes) -> RangeRequest {
        RangeRequest { key, serializable: self.serializable, ..Default::default() }
    }
}

impl Records {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inserts> {
        self.inserts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inserts {
    fn begin(&mut self) -> u64 {
        self.failed.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

impl Mix {
    fn of(shares: &[(YcsbOperation, f64)]) -> Self {
        let mut mix = Self([0.0; OPERATIONS.len()]);
        shares.iter().for_each(|(operation, share)| mix.0[*operation as usize] = *share);
        mix
    }

    /// Returns the mix and the distribution of a YCSB workload by its letter.
    pub fn of_workload(letter: char) -> Option<(Self, Distribution)> {
        use YcsbOperation::{Insert, Read, ReadModifyWrite, Scan, Update};
        let (shares, distribution) = match letter {
            'a' => ([(Read, 0.5), (Update, 0.5)], Distribution::Zipfian),
            'b' => ([(Read, 0.95), (Update, 0.05)], Distribution::Zipfian),
            'c' => ([(Read, 1.0), (Update, 0.0)], Distribution::Zipfian),
            'd' => ([(Read, 0.95), (Insert, 0.05)], Distribution::Latest),
            'e' => ([(Scan, 0.95), (Insert, 0.05)], Distribution::Zipfian),
            'f' => ([(Read, 0.5), (ReadModifyWrite, 0.5)], Distribution::Zipfian),
            _ => return None,
        };
        Some((Self::of(&shares), distribution))
    }

    /// Returns the share of an operation, 0 to 1.
    pub fn share(&self, operation: YcsbOperation) -> f64 {
        self.0[operation as usize] / self.0.iter().sum::<f64>()
    }

    /// Reports whether the operation at this index of [`OPERATIONS`] is included.
    pub fn has(&self, place: usize) -> bool {
        self.0[place] > 0.0
    }

    fn choose(&self, random: &mut SmallRng) -> YcsbOperation {
        const ALL: [YcsbOperation; OPERATIONS.len()] = [
            YcsbOperation::Read,
            YcsbOperation::Update,
            YcsbOperation::Insert,
            YcsbOperation::Scan,
            YcsbOperation::ReadModifyWrite,
        ];
        let mut rest = random.random::<f64>() * self.0.iter().sum::<f64>();
        let wanted = ALL.into_iter().filter(|operation| self.0[*operation as usize] > 0.0);
        // The last one also covers the rounding error.
        let mut last = YcsbOperation::Read;
        for operation in wanted {
            last = operation;
            rest -= self.0[operation as usize];
            if rest < 0.0 {
                break;
            }
        }
        last
    }
}

impl FromStr for Mix {
    type Err = String;

    /// Parses `read=70,update=30`: weights.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut mix = Self([0.0; OPERATIONS.len()]);
        for part in text.split(',') {
            let (name, share) = part.split_once('=').ok_or(format!("{part:?}: expected OPERATION=PART"))?;
            let place = match name {
                "read" => YcsbOperation::Read,
                "update" => YcsbOperation::Update,
                "insert" => YcsbOperation::Insert,
                "scan" => YcsbOperation::Scan,
                "rmw" => YcsbOperation::ReadModifyWrite,
                _ => return Err(format!("{name:?}: expected read, update, insert, scan or rmw")),
            };
            let share: f64 = share.parse().map_err(|_| format!("{share:?} is no number"))?;
            if !share.is_finite() || share < 0.0 {
                return Err(format!("{part:?}: expected a part that is not negative"));
            }
            mix.0[place as usize] = share;
        }
        let sum: f64 = mix.0.iter().sum();
        if sum > 0.0 && sum.is_finite() { Ok(mix) } else { Err("the parts add up to nothing".into()) }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (name, part) in ["read", "update", "insert", "scan", "rmw"].iter().zip(self.0) {
            if part > 0.0 {
                write!(formatter, "{between}{name}={part}")?;
                between = ",";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ycsb(letter: char, records: u64) -> Ycsb {
        let (mix, distribution) = Mix::of_workload(letter).unwrap();
        Ycsb { prefix: "p/".into(), seed: 3, ..Ycsb::new(mix, distribution, records, true) }
    }

    #[test]
    fn each_workload_has_the_shares_of_its_file() {
        const DRAWS: u64 = 40_000;
        for (letter, shown, distribution, shares) in [
            ('a', "read=0.5,update=0.5", Distribution::Zipfian, [0.5, 0.5, 0.0, 0.0, 0.0]),
            ('b', "read=0.95,update=0.05", Distribution::Zipfian, [0.95, 0.05, 0.0, 0.0, 0.0]),
            ('c', "read=1", Distribution::Zipfian, [1.0, 0.0, 0.0, 0.0, 0.0]),
            ('d', "read=0.95,insert=0.05", Distribution::Latest, [0.95, 0.0, 0.05, 0.0, 0.0]),
            ('e', "insert=0.05,scan=0.95", Distribution::Zipfian, [0.0, 0.0, 0.05, 0.95, 0.0]),
            ('f', "read=0.5,rmw=0.5", Distribution::Zipfian, [0.5, 0.0, 0.0, 0.0, 0.5]),
        ] {
            let (mix, of) = Mix::of_workload(letter).unwrap();
            assert_eq!((mix.to_string().as_str(), of), (shown, distribution));
            let ycsb = ycsb(letter, 100);
            let mut counts = [0.0; OPERATIONS.len()];
            (0..DRAWS).for_each(|position| counts[ycsb.operation(position) as usize] += 1.0);
            for (count, share) in counts.into_iter().zip(shares) {
                let drawn: f64 = count / DRAWS as f64;
                assert!(
                    (drawn - share).abs() < 0.01 && (share > 0.0 || count == 0.0),
                    "{letter}: {counts:?}"
                );
            }
        }
        assert!(Mix::of_workload('g').is_none());
    }

    #[test]
    fn a_mix_is_read_as_parts_of_a_whole() {
        let mix: Mix = "read=3,rmw=1".parse().unwrap();
        assert_eq!([mix.share(YcsbOperation::Read), mix.share(YcsbOperation::ReadModifyWrite)], [0.75, 0.25]);
        for text in ["", "read", "read=x", "read=0", "read=-1", "read=inf", "get=1", "read=nan"] {
            assert!(text.parse::<Mix>().is_err(), "{text}");
        }
    }

    #[test]
    fn keys_are_those_of_ycsb_below_the_prefix() {
        let ycsb = ycsb('c', 1);
        let YcsbStep::Read(range) = ycsb.step(0) else { panic!("C only reads") };
        assert_eq!(range.key, "p/user06284781860667377211");
    }

    #[test]
    fn records_exist_when_their_insert_and_all_before_it_are_acknowledged() {
        let load = Ycsb::new(Mix::of_workload('a').unwrap().0, Distribution::Uniform, 4, false).load_phase();
        let begin = |position| match load.step(position) {
            YcsbStep::Insert(_, number) => number,
            other => panic!("{other:?}"),
        };
        assert_eq!([0, 1, 2].map(begin), [0, 1, 2]);
        load.inserted(2, true);
        assert_eq!(load.existing(), 0);
        load.inserted(0, true);
        assert_eq!(load.existing(), 1);
        load.inserted(1, false);
        assert_eq!(load.existing(), 1);
        assert_eq!(begin(3), 1, "a failed insert is sent again");
        load.inserted(1, true);
        assert_eq!((load.existing(), begin(4)), (3, 3));
    }

    #[test]
    fn scans_ask_for_every_length_and_end_after_the_last_record() {
        let ycsb = Ycsb { scan_max: 5, ..ycsb('e', 50) };
        let mut lengths = BTreeSet::new();
        for position in 0..500 {
            if let YcsbStep::Scan(range) = ycsb.step(position) {
                assert!(range.key.starts_with(b"p/user") && range.key < range.range_end);
                lengths.insert(range.limit);
            }
        }
        assert_eq!(lengths, (1..=5).collect());
    }

    #[test]
    fn values_have_the_sizes_asked_for_and_repeat_with_the_seed() {
        let ycsb = Ycsb { sizes: Sizes::Uniform { least: 10, most: 20 }, ..ycsb('a', 50) };
        let values = (0..200).filter_map(|position| match ycsb.step(position) {
            YcsbStep::Update(put) => Some((position, put)),
            _ => None,
        });
        for (position, put) in values {
            assert!((10..=20).contains(&put.value.len()));
            assert_eq!(ycsb.step(position), YcsbStep::Update(put));
        }
    }

    #[test]
    fn a_read_modify_write_depends_on_the_revision_that_it_read() {
        let ycsb = Ycsb { serializable: true, ..ycsb('f', 50) };
        let (range, value) = (0..100)
            .find_map(|position| match ycsb.step(position) {
                YcsbStep::ReadModifyWrite(range, value) => Some((range, value)),
                _ => None,
            })
            .unwrap();
        assert!(!range.serializable, "what a swap depends on is read from the leader's log");
        let txn = Ycsb::swap(&range, 7, &value);
        assert_eq!(txn.compare[0].target_union, Some(TargetUnion::ModRevision(7)));
        assert_eq!(txn.failure[0].request, Some(Request::RequestRange(range)));
    }
}
