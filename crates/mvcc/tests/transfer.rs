//! Time and memory to pin, send, receive and install a large checkpoint.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a measurement needs a clock, and says what it found"
)]

use std::time::Instant;

use mvcc::{
    Fetch, KeyRange, LogPosition, Maintainer, Pressure, RangeOptions, SledBackend, Staging, Store,
    StoreOptions, Writer,
};

const CHUNK_BYTES: usize = 256 << 10;

struct Member {
    dir: tempfile::TempDir,
    writer: Writer,
    store: Store,
    maintainer: Maintainer,
}

impl Member {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let backend = Box::new(SledBackend::open(&dir.path().join("store")).unwrap());
        let (writer, store, maintainer) = mvcc::open(backend, StoreOptions::default()).unwrap();
        Member { dir, writer, store, maintainer }
    }

    /// Puts values that do not compress, so that as much is sent as was put.
    fn fill(&mut self, puts: u64, value_bytes: usize) {
        let mut noise = 1u64;
        let mut value = vec![0; value_bytes];
        for number in 0..puts {
            for chunk in value.chunks_mut(8) {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                chunk.copy_from_slice(&noise.to_be_bytes()[..chunk.len()]);
            }
            self.writer.begin().put(&number.to_be_bytes(), &value, 0);
            if number % 100 == 99
                && self.writer.end_entry(LogPosition::new(number, 1)).unwrap() != Pressure::Calm
            {
                self.maintainer.persist().unwrap();
            }
        }
        self.writer.end_entry(LogPosition::new(puts, 1)).unwrap();
        self.maintainer.persist().unwrap();
    }

    fn count(&self) -> i64 {
        let options = RangeOptions { limit: 0, fetch: Fetch::CountOnly };
        self.store.range(&KeyRange::all(), 0, &options).unwrap().count
    }
}

fn travel(puts: u64, value_bytes: usize) {
    let (mut leader, mut follower) = (Member::new(), Member::new());
    leader.fill(puts, value_bytes);

    let begun = Instant::now();
    let mut export = leader.maintainer.export();
    let pinned = begun.elapsed();
    let bytes = export.bytes();
    let megabytes = bytes as f64 / 1e6;

    let begun = Instant::now();
    let mut sent = 0;
    while let Some(chunk) = export.next(CHUNK_BYTES).unwrap() {
        sent += chunk.len() as u64;
    }
    let sending = begun.elapsed().as_secs_f64();
    assert!(sent >= bytes && sent <= bytes + bytes / 20 + 4096, "{sent} bytes sent for {bytes} stored");

    let mut export = leader.maintainer.export();
    let begun = Instant::now();
    let incoming = Box::new(SledBackend::incoming(&follower.dir.path().join("store")).unwrap());
    let mut staging = Staging::begin(incoming, &StoreOptions::default()).unwrap();
    while let Some(chunk) = export.next(CHUNK_BYTES).unwrap() {
        staging.add(&chunk).unwrap();
    }
    let staged = staging.finish().unwrap();
    let receiving = begun.elapsed().as_secs_f64();

    let begun = Instant::now();
    follower.maintainer.install(staged).unwrap();
    let installing = begun.elapsed();
    assert_eq!((follower.count(), follower.store.revision()), (puts as i64, leader.store.revision()));
    println!(
        "{megabytes:.0} MB, {puts} keys: pinned in {pinned:.0?}, sent at {:.0} MB/s, \
         sent and received at {:.0} MB/s, \
         installed in {installing:.2?}",
        megabytes / sending,
        megabytes / receiving
    );
}

#[test]
fn a_checkpoint_of_several_files_is_transferred() {
    travel(3000, 100);
}

#[test]
#[ignore = "slow, and meant for a release build: half a gigabyte"]
fn half_a_gigabyte_is_transferred() {
    travel(1_000_000, 256);
    travel(200_000, 2560);
}
