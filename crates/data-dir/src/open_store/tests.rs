use std::fs;

use mvcc::{LogPosition, Staging};
use raft_node::Term;

use super::*;

/// A data directory, and what its store should hold.
struct Fixture {
    _parent: tempfile::TempDir,
    directory: Directory,
}

fn fixture() -> Fixture {
    let parent = tempfile::tempdir().unwrap();
    let directory = Directory::open(&parent.path().join("data"), None).unwrap();
    Fixture { _parent: parent, directory }
}

impl Fixture {
    fn dir(&self) -> PathBuf {
        self.directory.store_dir()
    }

    /// A store in `dir` with one key per entry, persisted.
    fn write(&self, dir: &Path, entries: u64) -> Parts {
        let (mut writer, store, mut maintainer) = open_parts(dir).unwrap();
        for index in store.applied().index.0 + 1..=entries {
            let mut revision = writer.begin();
            revision.put(format!("k{index}").as_bytes(), b"v", 0);
            revision.finish();
            writer.end_entry(LogPosition::new(index, 1)).unwrap();
        }
        maintainer.persist().unwrap();
        (writer, store, maintainer)
    }

    fn written(self, entries: u64) -> Fixture {
        drop(self.write(&self.dir(), entries));
        self
    }

    /// Writes a complete received store next to the current one.
    fn received(self, entries: u64) -> Fixture {
        let elsewhere = tempfile::tempdir().unwrap();
        let (_writer, _store, maintainer) = self.write(&elsewhere.path().join("store"), entries);
        let place = SledBackend::incoming(&self.dir()).unwrap();
        let mut staging = Staging::begin(Box::new(place), &mvcc::StoreOptions::default()).unwrap();
        let mut export = maintainer.export();
        while let Some(chunk) = export.next(1000).unwrap() {
            staging.add(&chunk).unwrap();
        }
        staging.finish().unwrap();
        self
    }

    fn damaged(self) -> Fixture {
        let block = self.dir().join("blocks/000001.blk");
        let mut bytes = fs::read(&block).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(block, bytes).unwrap();
        self
    }

    /// Opens the store. Returns its state and last index, or the error text.
    fn open(&self, start: u64, last: u64, others: usize) -> Result<(StoreState, u64), String> {
        self.open_of_term(1, start, last, others)
    }

    /// Opens the store with a log whose entries have this term; those of the stores have term 1.
    fn open_of_term(
        &self,
        term: u64,
        start: u64,
        last: u64,
        others: usize,
    ) -> Result<(StoreState, u64), String> {
        let (start, last) = (LogIndex(start), LogIndex(last));
        let log = LogSpan { start, last, term: &|_| Some(Term(term)) };
        match open(&self.directory, log, others) {
            Ok(home) => Ok((home.state, home.store.applied().index.0)),
            Err(error) => Err(causes(&error)),
        }
    }

    /// Names of stores in the data directory.
    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.directory.path()).unwrap();
        let mut names: Vec<String> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name != "LOCK" && name != "wal");
        names.sort();
        names
    }
}

#[test]
fn a_store_that_fits_its_log_is_opened_and_leftovers_go() {
    let fixture = fixture().written(5).received(9);
    assert_eq!(fixture.open(3, 7, 2), Ok((StoreState::Whole, 5)));
    assert_eq!(fixture.names(), ["store"]);
}

#[test]
fn an_install_that_the_log_waits_for_is_finished() {
    let fixture = fixture().written(5).received(9);
    assert_eq!(fixture.open(9, 9, 2), Ok((StoreState::Whole, 9)));
    assert_eq!(fixture.names(), ["store"]);
}

#[test]
fn a_received_store_that_the_log_does_not_reach_is_of_no_use() {
    let fixture = fixture().written(5).received(9);
    assert_eq!(fixture.open(7, 8, 2), Ok((StoreState::Lost, 5)));
    assert_eq!(fixture.names(), ["store"]);
}

#[test]
fn a_received_store_of_another_term_than_the_log_is_of_no_use() {
    let fixture = fixture().written(5).received(9);
    assert_eq!(fixture.open_of_term(2, 7, 12, 2), Ok((StoreState::Lost, 5)));
    assert_eq!(fixture.names(), ["store"]);
}

#[test]
fn an_install_cut_between_its_renames_is_ended_as_the_log_says() {
    for (start, wanted) in [(9, 9), (4, 5)] {
        let fixture = fixture().written(5).received(9);
        fs::rename(fixture.dir(), fixture.dir().with_extension("old")).unwrap();
        let last = start.max(5);
        assert_eq!(fixture.open(start, last, 2), Ok((StoreState::Whole, wanted)), "log from {start}");
        assert_eq!(fixture.names(), ["store"]);
    }
}

#[test]
fn a_damaged_store_is_set_aside_and_rebuilt_from_a_log_that_holds_everything() {
    for others in [0, 2] {
        let fixture = fixture().written(5).damaged();
        assert_eq!(fixture.open(0, 7, others), Ok((StoreState::Whole, 0)));
        assert_eq!(fixture.names(), ["store", "store.damaged-1"]);
    }
}

#[test]
fn a_damaged_store_behind_a_trimmed_log_is_missed() {
    let fixture = fixture().written(5).damaged();
    assert_eq!(fixture.open(3, 7, 2), Ok((StoreState::Lost, 0)));
    // Still lost after a crash, until the leader has sent another.
    assert_eq!(fixture.open(3, 7, 2), Ok((StoreState::Lost, 0)));
    assert_eq!(fixture.names(), ["store", "store.damaged-1"]);
    let fixture = fixture.received(7);
    assert_eq!(fixture.open(7, 7, 2), Ok((StoreState::Whole, 7)));
}

/// A crash while an install removed the store before.
#[test]
fn the_rest_of_a_removed_store_does_not_come_into_the_place_of_a_damaged_one() {
    let fixture = fixture().written(5).damaged();
    let old = fixture.directory.path().join("store.old");
    fs::create_dir_all(old.join("blocks")).unwrap();
    assert_eq!(fixture.open(3, 7, 2), Ok((StoreState::Lost, 0)));
    assert_eq!(fixture.names(), ["store", "store.damaged-1"]);
}

#[test]
fn alone_a_damaged_store_behind_a_trimmed_log_is_refused_and_left_as_it_was() {
    let fixture = fixture().written(5).damaged();
    let text = fixture.open(3, 7, 0).unwrap_err();
    for part in ["000001.blk is corrupt", "the log begins only after entry 3", "cp -a", "kvctl restore"] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    assert_eq!(text.lines().count(), 1);
    assert_eq!(fixture.names(), ["store"]);
}

#[test]
fn a_store_that_vanished_is_rebuilt_missed_or_refused() {
    for (start, others, wanted) in
        [(0, 0, Some(StoreState::Whole)), (3, 2, Some(StoreState::Lost)), (3, 0, None)]
    {
        let fixture = fixture().written(5);
        fs::remove_dir_all(fixture.dir()).unwrap();
        assert_eq!(fixture.open(start, 7, others).ok().map(|(state, _)| state), wanted, "{start} {others}");
    }
}

#[test]
fn every_part_of_a_store_that_is_cut_off_or_gone_is_damage() {
    for part in ["blocks/000001.blk", "catalogue/db", "catalogue/conf"] {
        for bytes in [None, Some(0), Some(10)] {
            let fixture = fixture().written(5);
            let path = fixture.dir().join(part);
            match bytes {
                None => fs::remove_file(&path).unwrap(),
                Some(bytes) => {
                    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(bytes).unwrap()
                }
            }
            let opened = fixture.open(0, 7, 0);
            // Its engine makes a new configuration by itself, and then finds everything.
            let is_whole = part == "catalogue/conf" && opened == Ok((StoreState::Whole, 5));
            assert!(is_whole || opened == Ok((StoreState::Whole, 0)), "{part} {bytes:?}: {opened:?}");
        }
    }
}

#[test]
fn a_disk_that_refuses_is_no_damage() {
    let fixture = fixture().written(5);
    let away = fixture.dir().with_extension("away");
    fs::rename(fixture.dir(), &away).unwrap();
    fs::write(fixture.dir(), b"a file where a directory should be").unwrap();
    let text = fixture.open(0, 7, 2).unwrap_err();
    assert!(text.starts_with("open the store: create "), "{text}");
    assert!(!fixture.names().iter().any(|name| name.contains("damaged")), "{:?}", fixture.names());
}
