//! The log on a real disk: what a group costs, by its length, and how fast a log is read back.
//!
//! Set `BENCH_DIR` to measure another disk than the one of the target directory. The figures of `append_sync`
//! are mostly the disk's; those of `append_sync_in_memory` are ours.

use std::path::{Path, PathBuf};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use wal::testing::SimFs;
use wal::{Entry, Fs, LogIndex, LogPosition, RealFs, Term, Wal, WalOptions};

const OPTIONS: WalOptions = WalOptions { segment_bytes: WalOptions::SEGMENT_BYTES, salt: [7; 16] };

fn disk() -> PathBuf {
    std::env::var_os("BENCH_DIR").map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from)
}

fn temp_dir() -> tempfile::TempDir {
    tempfile::tempdir_in(disk()).expect("make a directory for the benchmark")
}

fn create(dir: &Path) -> Wal<RealFs> {
    Wal::create(RealFs, &dir.join("wal"), b"benchmark", LogPosition::default(), OPTIONS)
        .expect("create the log")
}

fn append<F: Fs>(wal: &mut Wal<F>, count: u64, payload: &[u8]) {
    for _ in 0..count {
        wal.append(Entry { index: wal.last().index.next(), term: Term(1), kind: 0, payload });
    }
}

fn append_sync(criterion: &mut Criterion) {
    for payload_bytes in [256, 4096] {
        let mut group = criterion.benchmark_group(format!("append_sync/{payload_bytes}B"));
        let payload = vec![0x5a; payload_bytes];
        for entries in [1, 10, 100, 1000] {
            group.throughput(Throughput::Elements(entries));
            let dir = temp_dir();
            let mut wal = create(dir.path());
            group.bench_function(BenchmarkId::from_parameter(entries), |bencher| {
                bencher.iter(|| {
                    append(&mut wal, entries, &payload);
                    if wal.sync().expect("sync the group").cuts > 0 {
                        wal.release_before(wal.last().index).expect("release segments");
                    }
                });
            });
        }
        group.finish();
    }
}

/// The same without a disk: what the processor spends on a group, with a second copy by the simulated disk.
fn append_sync_in_memory(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("append_sync_in_memory");
    for payload_bytes in [256, 4096] {
        let payload = vec![0x5a; payload_bytes];
        let dir = Path::new("/wal");
        let mut wal = Wal::create(SimFs::new(), dir, b"benchmark", LogPosition::default(), OPTIONS)
            .expect("create the log");
        group.throughput(Throughput::Elements(1000));
        group.bench_function(BenchmarkId::new("1000", format!("{payload_bytes}B")), |bencher| {
            bencher.iter(|| {
                append(&mut wal, 1000, &payload);
                if wal.sync().expect("sync the group").cuts > 0 {
                    wal.release_before(wal.last().index).expect("release segments");
                }
            });
        });
    }
    group.finish();
}

fn recovery(criterion: &mut Criterion) {
    let dir = temp_dir();
    let mut wal = create(dir.path());
    let payload = vec![0x5a; 256];
    for _ in 0..200 {
        append(&mut wal, 1000, &payload);
        wal.sync().expect("sync the group");
    }
    let entries = wal.last().index.0;
    wal.close().expect("close the log");

    let mut group = criterion.benchmark_group("recovery");
    group.throughput(Throughput::Elements(entries));
    group.bench_function("open/200000x256B", |bencher| {
        bencher.iter(|| Wal::open(RealFs, &dir.path().join("wal"), OPTIONS).expect("open the log").1);
    });
    let (wal, _) = Wal::open(RealFs, &dir.path().join("wal"), OPTIONS).expect("open the log");
    let reader = wal.reader();
    group.bench_function("read/200000x256B", |bencher| {
        bencher.iter(|| {
            let mut next = LogIndex(1);
            while let Some(last) = reader.read(next, 1 << 20).expect("read entries").last() {
                next = last.index.next();
            }
            assert_eq!(next.0, entries + 1);
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(2));
    targets = append_sync, append_sync_in_memory, recovery
}
criterion_main!(benches);
