//! Measures a recount of the state: CPU time per record, and the time of a pass at the server's pace.
//!
//! ```sh
//! cargo run --release -p mvcc --example recount -- 1000000 256      # keys, bytes of each value
//! ```
//!
//! The store is on disk, in `target/`. Most blocks are read from there, decompressed and checked.

#![allow(clippy::unwrap_used, reason = "an example that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "it measures time, and reads its arguments")]
#![allow(clippy::print_stdout, reason = "its result")]

use std::time::Duration;

use mvcc::{LogPosition, RecountAnswer, RecountBounds, SledBackend, StoreOptions};
use rustix::time::{ClockId, clock_gettime};

/// The server's bounds, and its CPU share.
const BOUNDS: RecountBounds = RecountBounds { records: 4096, raw_bytes: 2 << 20 };
const PAUSE_FACTOR: u32 = 60;
const PAUSE_MIN: Duration = Duration::from_millis(50);

fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap()
}

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).map(|it| it.parse().unwrap()).collect();
    let (keys, value_bytes) =
        (numbers.first().copied().unwrap_or(1_000_000), numbers.get(1).copied().unwrap_or(256));
    let dir = tempfile::tempdir_in("target").unwrap();
    let backend = Box::new(SledBackend::open(&dir.path().join("store")).unwrap());
    let (mut writer, store, mut maintainer) = mvcc::open(backend, StoreOptions::default()).unwrap();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for number in 0..keys as u64 {
        let mut value = Vec::with_capacity(value_bytes + 8);
        while value.len() < value_bytes {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            value.extend_from_slice(&random.to_le_bytes());
        }
        // Keys are not put in key order.
        let key = format!("key/{:012}", number.wrapping_mul(0x9e37_79b1) % (1 << 40));
        writer.begin().put(key.as_bytes(), &value[..value_bytes], 0);
        writer.end_entry(LogPosition::new(number + 1, 1)).unwrap();
        if number % 50_000 == 0 {
            maintainer.persist().unwrap();
        }
    }
    maintainer.persist().unwrap();
    for pass in 1..=3 {
        let (mut walk, mut parts, mut longest, mut paced) =
            (store.recount_pass(), 0_u32, Duration::ZERO, Duration::ZERO);
        let began = thread_time();
        while let Some(span) = store.next_span(&mut walk, BOUNDS) {
            let part_began = thread_time();
            assert!(matches!(store.recount(&span, &()).unwrap(), RecountAnswer::Digest(_)));
            let took = thread_time() - part_began;
            paced += took + (took * PAUSE_FACTOR).max(PAUSE_MIN);
            (parts, longest) = (parts + 1, longest.max(took));
        }
        let took = thread_time() - began;
        println!(
            "pass {pass}: {keys} records of {value_bytes} bytes in {parts} parts: {:.2} s of CPU, {:.0} ns per record, {:.0} MB/s; \
             longest part {:.1} ms; at the server's pace {:.0} s, {:.2} % of a processor",
            took.as_secs_f64(),
            took.as_nanos() as f64 / keys as f64,
            (keys * value_bytes) as f64 / took.as_secs_f64() / 1e6,
            longest.as_secs_f64() * 1e3,
            paced.as_secs_f64(),
            took.as_secs_f64() / paced.as_secs_f64() * 100.0
        );
    }
}
