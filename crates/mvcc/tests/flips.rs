//! A flipped byte anywhere in a store: the store is rejected with file and offset, or all reads are
//! correct.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Oracle, tiny_options};
use mvcc::{
    Backend, CompactProgress, Error, KeyRange, LogPosition, MemoryBackend, RangeOptions, SledBackend,
    StoreOptions,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// The store fails to open, and the error includes a file.
    Refused,
    Right,
    /// The store is at an earlier checkpoint, complete and correct. The log has the later entries.
    Earlier,
}

#[derive(Default, Debug)]
struct Tally {
    refused: usize,
    right: usize,
    earlier: usize,
}

impl Tally {
    fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Refused => self.refused += 1,
            Verdict::Right => self.right += 1,
            Verdict::Earlier => self.earlier += 1,
        }
    }
}

/// A store on disk with some checkpoints and a compaction, and its past states.
struct Subject {
    dir: tempfile::TempDir,
    past: Vec<Oracle>,
}

#[derive(Clone, Copy, Debug)]
enum End {
    /// Closed the store, then opened and closed it again.
    Closed,
    /// Killed, with the files as they were then.
    Killed,
}

impl Subject {
    fn new(end: End) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("store");
        let backend = Box::new(SledBackend::open(&home).unwrap());
        let (mut writer, store, mut maintainer) = mvcc::open(backend, tiny_options()).unwrap();
        let mut oracle = Oracle::default();
        let mut past = vec![oracle.clone()];
        for number in 1..=24u64 {
            let (key, value) = (format!("k{}", number % 7), number.to_string().repeat(30));
            oracle.request(|request| request.put(&key, &value, 0));
            writer.begin().put(key.as_bytes(), value.as_bytes(), 0);
            oracle.items.insert(b"item".to_vec(), vec![number as u8; 40]);
            writer.set_item(b"item", Some(&[number as u8; 40]));
            oracle.applied = LogPosition::new(number, 1);
            writer.end_entry(oracle.applied).unwrap();
            if number % 4 == 0 {
                maintainer.persist().unwrap();
                past.push(oracle.clone());
            }
            if number == 12 {
                oracle.compact_revision = 8;
                writer.compact(8).unwrap();
            }
        }
        while maintainer.compact_step(100).unwrap() != CompactProgress::Idle {}
        match end {
            End::Closed => {
                drop((writer, store, maintainer));
                drop(mvcc::open(Box::new(SledBackend::open(&home).unwrap()), tiny_options()).unwrap());
            }
            End::Killed => {
                copy(&home, &dir.path().join("killed"));
                drop((writer, store, maintainer));
                fs::remove_dir_all(&home).unwrap();
                fs::rename(dir.path().join("killed"), &home).unwrap();
            }
        }
        Subject { dir, past }
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Opens a copy of the store with one changed file.
    fn verdict(&self, file: &Path, change: impl FnOnce(&mut Vec<u8>)) -> Verdict {
        let place = tempfile::tempdir().unwrap();
        let home = place.path().join("store");
        copy(&self.home(), &home);
        let changed = home.join(file);
        let mut bytes = fs::read(&changed).unwrap();
        change(&mut bytes);
        fs::write(&changed, bytes).unwrap();
        let opened =
            SledBackend::open(&home).and_then(|backend| mvcc::open(Box::new(backend), tiny_options()));
        let store = match opened {
            Ok((_, store, _)) => store,
            Err(Error::Corrupt { file, .. }) => {
                assert!(!file.is_empty());
                return Verdict::Refused;
            }
            Err(other) => panic!("damage must not look like an error of the disk: {other:?}"),
        };
        let found = self.past.iter().find(|past| past.applied == store.applied());
        let expected = found.unwrap_or_else(|| panic!("no checkpoint at {:?}", store.applied()));
        // A compaction becomes durable with the next checkpoint.
        let mut expected = expected.clone();
        expected.compact_revision = store.compact_revision();
        expected.check_all(&store);
        if store.applied().index.0 == 24 { Verdict::Right } else { Verdict::Earlier }
    }

    /// Returns the relative paths of all files of the store.
    fn files(&self) -> Vec<PathBuf> {
        let of = |dir: &str| -> Vec<PathBuf> {
            let entries = fs::read_dir(self.home().join(dir)).unwrap().map(|entry| entry.unwrap());
            entries
                .filter(|entry| entry.path().is_file())
                .map(|entry| Path::new(dir).join(entry.file_name()))
                .collect()
        };
        [of("blocks"), of("catalogue")].concat()
    }

    /// Flips a bit in every `step`-th byte, skipping most zeros.
    fn flip(&self, step: usize) -> Tally {
        let mut tally = Tally::default();
        for file in self.files() {
            let bytes = fs::read(self.home().join(&file)).unwrap();
            let is_telling = |offset: &usize| bytes[*offset] != 0 || offset.is_multiple_of(997);
            let offsets: Vec<usize> = (0..bytes.len()).filter(is_telling).collect();
            for offset in offsets.into_iter().step_by(step) {
                tally.count(self.verdict(&file, |bytes| bytes[offset] ^= 1 << (offset % 8)));
            }
        }
        tally
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

#[test]
fn flipped_bytes_of_a_store_on_disk_are_refused_or_change_nothing() {
    for end in [End::Closed, End::Killed] {
        let tally = Subject::new(end).flip(31);
        assert!(tally.refused > 20 && tally.right > 10, "{end:?}: {tally:?}");
    }
}

#[test]
#[ignore = "slow: some minutes"]
fn every_flipped_byte_of_a_store_on_disk_is_refused_or_changes_nothing() {
    for end in [End::Closed, End::Killed] {
        let tally = Subject::new(end).flip(1);
        println!("{end:?}: {tally:?}, silently accepted 0");
    }
}

#[test]
fn cut_files_of_a_store_on_disk_are_refused_or_change_nothing() {
    let subject = Subject::new(End::Killed);
    let mut tally = Tally::default();
    for file in subject.files() {
        let length = fs::metadata(subject.home().join(&file)).unwrap().len() as usize;
        for part in 0..6 {
            tally.count(subject.verdict(&file, |bytes| bytes.truncate(length * part / 6)));
        }
    }
    assert!(tally.refused > 6, "{tally:?}");
}

#[test]
fn zeroed_sectors_of_the_catalogue_are_refused_or_change_nothing() {
    let subject = Subject::new(End::Closed);
    let db = Path::new("catalogue/db");
    let length = fs::metadata(subject.home().join(db)).unwrap().len() as usize;
    let content = fs::read(subject.home().join(db)).unwrap();
    let mut tally = Tally::default();
    for sector in (0..length).step_by(512).filter(|at| content[*at..].iter().take(512).any(|byte| *byte != 0))
    {
        tally.count(subject.verdict(db, |bytes| {
            let end = length.min(sector + 512);
            bytes[sector..end].fill(0);
        }));
    }
    assert!(tally.refused > 0, "{tally:?}");
}

#[test]
fn a_store_without_one_of_its_files_is_refused_or_whole() {
    let subject = Subject::new(End::Closed);
    for file in subject.files() {
        let place = tempfile::tempdir().unwrap();
        let home = place.path().join("store");
        copy(&subject.home(), &home);
        fs::remove_file(home.join(&file)).unwrap();
        let opened =
            SledBackend::open(&home).and_then(|backend| mvcc::open(Box::new(backend), tiny_options()));
        match opened {
            Err(Error::Corrupt { .. } | Error::Io { .. }) => {}
            Err(other) => panic!("{}: {other:?}", file.display()),
            // sled rewrites its settings and its snapshot.
            Ok((_, store, _)) => {
                assert!(!file.ends_with("db") && file.extension().is_none_or(|kind| kind != "blk"));
                subject.past.last().unwrap().check_all(&store);
            }
        }
        // The remaining blocks are not removed.
        let left = fs::read_dir(home.join("blocks")).unwrap().count();
        let had = fs::read_dir(subject.home().join("blocks")).unwrap().count();
        assert_eq!(left, had - usize::from(file.starts_with("blocks")), "{}", file.display());
    }
}

#[test]
fn leftovers_of_a_start_that_was_killed_are_cleared_away() {
    type Leftover = (&'static str, fn(&Path));
    let leftovers: [Leftover; 6] = [
        ("an empty directory", |home| fs::create_dir_all(home).unwrap()),
        ("no catalogue yet", |home| fs::create_dir_all(home.join("blocks")).unwrap()),
        ("a catalogue in the making", |home| {
            fs::create_dir_all(home.join("catalogue.new")).unwrap();
            fs::write(home.join("catalogue.new/conf"), b"").unwrap();
            fs::write(home.join("catalogue.new/db"), b"half").unwrap();
        }),
        ("a catalogue without marks", |home| drop(SledBackend::open(home).unwrap())),
        ("sled's summary in the making", |home| {
            drop(SledBackend::open(home).unwrap());
            fs::write(home.join("catalogue/snap.0000000000000FFF.generating"), b"half").unwrap();
        }),
        ("an empty store", |home| {
            drop(mvcc::open(Box::new(SledBackend::open(home).unwrap()), tiny_options()).unwrap());
        }),
    ];
    for (what, make) in leftovers {
        let place = tempfile::tempdir().unwrap();
        let home = place.path().join("store");
        make(&home);
        let backend = SledBackend::open(&home).unwrap_or_else(|error| panic!("{what}: {error}"));
        let (_, store, _) = mvcc::open(Box::new(backend), tiny_options()).unwrap();
        assert_eq!((store.revision(), store.applied()), (1, LogPosition::default()), "{what}");
        assert!(!home.join("catalogue.new").exists(), "{what}");
    }
}

/// Creates a store in memory with block files of about `bytes`. The record at main revision `n` has the
/// key `n`.
fn sample(bytes: usize) -> (MemoryBackend, mvcc::Store) {
    let backend = MemoryBackend::new();
    let options = StoreOptions {
        block_bytes: 4096,
        block_file_bytes: 256 << 10,
        cache_bytes: 0,
        ..StoreOptions::default()
    };
    let (mut writer, store, mut maintainer) = mvcc::open(Box::new(backend.clone()), options).unwrap();
    let (mut written, mut noise) = (0, 1u64);
    while written < bytes {
        let main = store.revision() + 1;
        let mut value = Vec::new();
        for _ in 0..25 {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            value.extend(noise.to_be_bytes());
        }
        assert_eq!(writer.begin().put(&main.to_be_bytes(), &value, 0), main);
        written += value.len() + 16;
    }
    writer.end_entry(LogPosition::new(1, 1)).unwrap();
    maintainer.persist().unwrap();
    (backend, store)
}

/// Flips every `step`-th byte of every block and reads a record of it through the store.
fn flip_under_readers(bytes: usize, step: usize) -> usize {
    let (mut backend, store) = sample(bytes);
    let read = |main: i64| {
        let range = KeyRange::one(main.to_be_bytes().to_vec().into());
        store.range(&range, 0, &RangeOptions::default())
    };
    let mut flips = 0;
    for number in backend.files().unwrap() {
        let file = backend.open_file(number).unwrap();
        let end = file.bytes().unwrap();
        let mut at = 24;
        while at < end {
            let mut header = [0; 48];
            file.read_at(&mut header, at).unwrap();
            let payload = u32::from_le_bytes(header[4..8].try_into().unwrap());
            let first = i64::from_le_bytes(header[16..24].try_into().unwrap());
            let next = at + 48 + u64::from(payload);
            assert_eq!(read(first).unwrap().count, 1);
            for offset in (at..next).step_by(step) {
                let mut byte = [0];
                file.read_at(&mut byte, offset).unwrap();
                file.write_at(&[byte[0] ^ 1 << (offset % 8)], offset).unwrap();
                let found = read(first);
                let is_named = matches!(&found, Err(Error::Corrupt { offset, .. }) if *offset == at);
                assert!(is_named, "file {number}, byte {offset}: {found:?}");
                file.write_at(&byte, offset).unwrap();
                flips += 1;
            }
            assert_eq!(read(first).unwrap().count, 1, "intact again");
            at = next;
        }
    }
    flips
}

#[test]
fn flipped_bytes_are_never_served_to_a_reader() {
    assert!(flip_under_readers(64 << 10, 17) > 3000);
}

#[test]
#[ignore = "slow: every byte of a mebibyte of blocks"]
fn every_flipped_byte_of_a_mebibyte_is_refused_to_a_reader() {
    let flips = flip_under_readers(1 << 20, 1);
    println!("{flips} bytes flipped, silently accepted 0");
    assert!(flips > 1 << 20);
}
