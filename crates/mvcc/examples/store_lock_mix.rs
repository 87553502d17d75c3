//! Measures lock holds of the store under a mixed load: `cargo run --release -p mvcc --example
//! store_lock_mix -- [keys] [seconds] [cpu|wall]`.
//!
//! Loads the keys, then runs for the given time with a thread each: a writer (puts, a DeleteRange over
//! a tenth of the keys and the puts that restore them, a request that puts and then reads everything,
//! compactions), three readers (single keys, pages, ranges and counts of everything at current and old
//! revisions, large ranges, HashKV), and the maintainer (checkpoints, compaction, defragmentation).
//! Prints the number and the longest of all holds, by purpose.
//!
//! `cpu` measures processor time of the holding thread. `wall` includes time in which the thread was
//! not running, so it needs a free core per thread.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measuring tool talks to its user and may die"
)]
#![allow(clippy::disallowed_methods, reason = "clocks and threads are the tool's; the store never sees them")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mvcc::{
    CompactProgress, Error, Fetch, KeyRange, LockPurpose, LogPosition, Maintainer, Previous, RangeOptions,
    SledBackend, Store, StoreOptions, Writer,
};
use rustix::time::{ClockId, clock_gettime};

/// The server's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap()
}

fn wall_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap()
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize, otherwise| arguments.get(at).map_or(otherwise, |text| text.parse().unwrap());
    let (keys, seconds) = (number(1, 10_000_000), number(2, 30));
    let is_cpu = arguments.get(3).is_none_or(|clock| clock == "cpu");
    let clock: fn() -> Duration = if is_cpu { cpu_time } else { wall_time };
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { lock_clock: Some(clock), ..StoreOptions::default() };
    let (writer, store, mut maintainer) =
        mvcc::open(Box::new(SledBackend::open(dir.path()).unwrap()), options).unwrap();
    let mut load = Load { writer, keys, index: 0 };

    let began = Instant::now();
    for key in 0..keys {
        load.put(key * 7_919 % keys, key);
        if key % 100_000 == 0 {
            maintainer.persist().unwrap();
        }
    }
    maintainer.persist().unwrap();
    println!("{keys} keys loaded in {:.1} s", began.elapsed().as_secs_f64());
    print_holds(&store, is_cpu);

    let is_over = AtomicBool::new(false);
    let (mut slowest_put, mut published) = (Duration::ZERO, Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| maintain(&mut maintainer, &is_over));
        let readers: [fn(&Store, u64, &AtomicBool) -> u64; 3] = [read_narrow, read_wide, read_everything];
        let readers = readers.map(|read| {
            let (store, is_over) = (store.clone(), &is_over);
            scope.spawn(move || read(&store, keys, is_over))
        });
        let until = Instant::now() + Duration::from_secs(seconds);
        let mut rounds = 0;
        while Instant::now() < until {
            slowest_put = slowest_put.max(load.round(&store, rounds));
            rounds += 1;
        }
        is_over.store(true, Ordering::Relaxed);
        published.push(("rounds of the writer", rounds));
        let names = ["one key and pages", "ranges and counts of all", "large ranges and hashes"];
        published.extend(names.into_iter().zip(readers.map(|reader| reader.join().unwrap())));
    });
    for (name, count) in published {
        println!("{name}: {count}");
    }
    println!("slowest single put, wall: {:.3} ms", slowest_put.as_secs_f64() * 1e3);
    print_holds(&store, is_cpu);
}

/// Prints the holds since the store was opened.
fn print_holds(store: &Store, is_cpu: bool) {
    let clock = if is_cpu { "cpu" } else { "wall" };
    println!("{:<12} {:>12} {:>14}   ({clock})", "hold", "holds", "longest ms");
    for hold in LockPurpose::ALL {
        let lock_stats = store.lock_stats(hold);
        let longest = lock_stats.longest.as_secs_f64() * 1e3;
        println!("{:<12} {:>12} {longest:>14.3}", format!("{hold:?}"), lock_stats.count);
    }
}

fn name(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

/// The writer and its data.
struct Load {
    writer: Writer,
    keys: u64,
    index: u64,
}

impl Load {
    fn put(&mut self, key: u64, value: u64) {
        self.writer.begin().put(&name(key), &value.to_le_bytes().repeat(8), 0);
        self.end_entry();
    }

    fn end_entry(&mut self) {
        self.index += 1;
        self.writer.end_entry(LogPosition::new(self.index, 1)).unwrap();
    }

    /// Does one write of each kind. Returns the slowest single put.
    fn round(&mut self, store: &Store, round: u64) -> Duration {
        let mut slowest = Duration::ZERO;
        for number in 0..20_000 {
            let began = Instant::now();
            self.put((round * 20_000 + number) * 7_919 % self.keys, round);
            slowest = slowest.max(began.elapsed());
        }
        let tenth = self.keys / 10;
        let first = round % 10 * tenth;
        let range = KeyRange::new(name(first).to_vec().into(), name(first + tenth).to_vec().into());
        self.writer.begin().delete_range(&range, Previous::Skip).unwrap();
        self.end_entry();
        let mut request = self.writer.begin();
        for key in first..first + tenth {
            request.put(&name(key), b"again", 0);
        }
        let own = RangeOptions { limit: 0, fetch: Fetch::KeysOnly };
        assert_eq!(request.range(&KeyRange::all(), 0, &own).unwrap().count as u64, self.keys);
        request.finish();
        self.end_entry();
        self.writer.compact(store.revision() - 5000).unwrap();
        self.end_entry();
        slowest
    }
}

fn maintain(maintainer: &mut Maintainer, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        maintainer.persist().unwrap();
        for _ in 0..100 {
            if maintainer.reclaim_step(1000).unwrap() != CompactProgress::More {
                break;
            }
        }
    }
}

/// Reports whether a read succeeded. A compaction may have removed its revision.
fn is_answered<T>(answer: mvcc::Result<T>) -> bool {
    match answer {
        Ok(_) => true,
        Err(Error::Compacted { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

fn read_narrow(store: &Store, keys: u64, is_over: &AtomicBool) -> u64 {
    let mut reads = 0;
    while !is_over.load(Ordering::Relaxed) {
        let key = name(reads * 104_729 % keys).to_vec().into();
        let range =
            if reads % 10 == 0 { KeyRange::new(key, b"\0".to_vec().into()) } else { KeyRange::one(key) };
        store.range(&range, 0, &RangeOptions { limit: 1000, fetch: Fetch::Full }).unwrap();
        reads += 1;
    }
    reads
}

fn read_wide(store: &Store, _keys: u64, is_over: &AtomicBool) -> u64 {
    let mut reads = 0;
    while !is_over.load(Ordering::Relaxed) {
        let fetch = [Fetch::CountOnly, Fetch::KeysOnly, Fetch::CountOnly, Fetch::Full][reads as usize % 4];
        let (limit, at) = (if fetch == Fetch::Full { 200_000 } else { 0 }, [0, store.revision() - 1000]);
        for at in at {
            is_answered(store.range(&KeyRange::all(), at, &RangeOptions { limit, fetch }));
        }
        reads += 1;
    }
    reads
}

fn read_everything(store: &Store, _keys: u64, is_over: &AtomicBool) -> u64 {
    let mut reads = 0;
    while !is_over.load(Ordering::Relaxed) {
        if reads % 2 == 0 {
            is_answered(store.hash_kv(0));
        } else {
            is_answered(store.pin_range(&KeyRange::all(), 0, 0, 0, &(), |_| 1));
        }
        reads += 1;
    }
    reads
}
