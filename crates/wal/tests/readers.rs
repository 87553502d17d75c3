//! Readers on other threads while the writer appends, replaces, releases and restarts; on a real disk.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{IDENTITY, append, at, entries, kind, payload};
use wal::{Error, LogIndex, LogPosition, Reader, RealFs, Wal, WalOptions};

const OPTIONS: WalOptions = WalOptions { segment_bytes: 64 << 10, salt: [7; 16] };

fn create(dir: &Path) -> Wal<RealFs> {
    Wal::create(RealFs, dir, IDENTITY, LogPosition::default(), OPTIONS).unwrap()
}

/// Reads repeatedly from the oldest entry on, and verifies each entry.
fn read_on(reader: &Reader<RealFs>, stop: &AtomicBool) -> u64 {
    let (mut next, mut seen) = (reader.start().index.next(), 0);
    while !stop.load(Ordering::Relaxed) {
        match reader.read(next, 20_000) {
            Ok(found) => {
                for entry in &found {
                    assert_eq!(entry.index, next);
                    assert_eq!(entry.kind, kind(entry.index.0));
                    assert_eq!(entry.payload, payload(entry.index.0, entry.term.0, entry.payload.len()));
                    next = next.next();
                    seen += 1;
                }
                if found.is_empty() {
                    next = reader.start().index.next();
                }
            }
            Err(Error::Released { first, .. }) => next = first,
            Err(error) => panic!("entry {next}: {error}"),
        }
    }
    seen
}

#[test]
fn readers_see_right_entries_while_the_writer_goes_on() {
    let temp = tempfile::tempdir().unwrap();
    let mut wal = create(&temp.path().join("wal"));
    let stop = AtomicBool::new(false);
    let seen: u64 = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let reader = wal.reader();
                let stop = &stop;
                scope.spawn(move || read_on(&reader, stop))
            })
            .collect();
        let (mut index, mut term) = (0, 1);
        for round in 1..=300u64 {
            for _ in 0..10 {
                index += 1;
                append(&mut wal, index, term, &payload(index, term, 700));
            }
            wal.sync().unwrap();
            if round % 20 == 0 {
                wal.release_before(LogIndex(index - 100)).unwrap();
            }
            if round % 33 == 0 {
                term += 1;
                index -= 15;
            }
            if round % 140 == 0 {
                index += 1000;
                wal.restart_at(at(index, term), b"restarted").unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    assert!(seen > 0);
}

#[test]
fn a_real_log_is_closed_to_other_users_and_found_again() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("wal");
    let mut wal = create(&dir);
    (1..=400).for_each(|index| append(&mut wal, index, 1, &payload(index, 1, 400)));
    wal.put_state(b"state");
    wal.sync().unwrap();
    wal.close().unwrap();

    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    for name in wal::Fs::list(&RealFs, &dir).unwrap() {
        assert_eq!(mode(&dir.join(name)), 0o600);
    }
    let (wal, found) = Wal::open(RealFs, &dir, OPTIONS).unwrap();
    assert_eq!((found.last, found.torn_bytes, found.state), (at(400, 1), 0, Some(b"state".to_vec())));
    assert_eq!(entries(&wal).unwrap().len(), 400);
}

#[test]
fn an_absent_directory_holds_no_log() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("wal");
    assert!(!Wal::exists(&RealFs, &dir).unwrap());
    assert!(matches!(Wal::open(RealFs, &dir, OPTIONS), Err(Error::Missing { .. })));
    let orphan = Wal::create(RealFs, &dir.join("deeper"), IDENTITY, LogPosition::default(), OPTIONS);
    assert!(matches!(orphan, Err(Error::Io { attempt: "create directory", .. })));
}
