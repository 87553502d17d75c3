//! Results of an inspection: all contents, and every fault with its location. The store is not
//! modified.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::{range, tiny_options};
use bytes::Bytes;
use mvcc::inspect::{BlockSeen, Inspector};
use mvcc::{CompactProgress, Error, LogPosition, SledBackend};
use proptest::prelude::*;

/// Creates a closed store with at least four block files, dead records and an item.
fn make(home: &Path) {
    let backend = Box::new(SledBackend::open(home).unwrap());
    let (mut writer, _, mut maintainer) = mvcc::open(backend, tiny_options()).unwrap();
    for number in 0..120u8 {
        writer.begin().put(&[b'a' + number % 17], &[number.wrapping_mul(37); 60], i64::from(number % 2));
        if number % 40 == 39 {
            writer.begin().delete_range(&range("b", ""), mvcc::Previous::Skip).unwrap();
        }
    }
    writer.set_item(b"member/1", Some(b"one"));
    writer.compact(40).unwrap();
    writer.end_entry(LogPosition::new(7, 2)).unwrap();
    maintainer.persist().unwrap();
    while maintainer.compact_step(100).unwrap() == CompactProgress::More {}
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        make(&place.home());
        place
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn inspect(&self) -> Inspector {
        let scratch = tempfile::tempdir().unwrap();
        Inspector::open(&self.home(), scratch.path()).unwrap()
    }

    fn block_file(&self, number: usize) -> PathBuf {
        self.inspect().files().unwrap()[number].path.clone()
    }

    /// Returns the files below the store with their contents.
    fn content(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        fn walk(dir: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, found);
                } else {
                    found.insert(path.clone(), std::fs::read(&path).unwrap());
                }
            }
        }
        let mut found = BTreeMap::new();
        walk(&self.home(), &mut found);
        found
    }
}

fn all_blocks(inspector: &Inspector) -> Vec<BlockSeen> {
    inspector.files().unwrap().iter().flat_map(|file| inspector.blocks(file).unwrap()).collect()
}

fn faulty(inspector: &Inspector) -> Vec<BlockSeen> {
    all_blocks(inspector).into_iter().filter(|block| block.fault.is_some()).collect()
}

#[test]
fn an_intact_store_is_returned_completely_and_not_modified() {
    let place = Place::new();
    let before = place.content();
    let inspector = place.inspect();
    assert_eq!(inspector.faults(), []);
    let marks = inspector.marks().unwrap();
    assert_eq!((marks.applied, marks.revision), (LogPosition::new(7, 2), 124));
    assert_eq!((marks.compact_revision, marks.compacted, marks.items), (40, 40, 1));
    assert_eq!(
        inspector.items().map(|(key, value)| (&key[..], &value[..])).collect::<Vec<_>>(),
        [(&b"member/1"[..], &b"one"[..])]
    );
    let blocks = all_blocks(&inspector);
    assert!(blocks.iter().all(|block| block.fault.is_none()), "{blocks:?}");
    assert_eq!(blocks.iter().filter(|block| block.is_named).count() as u64, marks.blocks);
    assert_eq!(place.content(), before, "an inspection leaves no trace");
}

#[test]
fn records_are_returned_in_order_with_their_liveness() {
    let place = Place::new();
    let inspector = place.inspect();
    let mut named: Vec<_> = all_blocks(&inspector).into_iter().filter(|block| block.is_named).collect();
    named.sort_by_key(|block| block.content.unwrap().first);
    let records: Vec<_> = named.iter().flat_map(|block| inspector.records(block).unwrap()).collect();
    assert!(records.is_sorted_by(|left, right| left.revision < right.revision));
    let dead = records.iter().filter(|record| record.is_dead).count() as u32;
    assert_eq!(dead, named.iter().map(|block| block.content.unwrap().dead_records).sum());
    assert!(
        dead > 0 && records.iter().any(|record| record.put.is_none()),
        "something superseded, a tombstone"
    );
    let last = records.last().unwrap();
    assert_eq!((last.revision.main, last.put.is_none()), (124, true));
    let put = records[records.len() - 2].put.clone().unwrap();
    assert_eq!((put.value.len(), put.lease), (60, 1));
}

#[test]
fn a_flipped_byte_in_any_block_file_is_named_by_file_and_block() {
    let place = Place::new();
    let path = place.block_file(1);
    let intact = std::fs::read(&path).unwrap();
    let blocks: Vec<_> =
        all_blocks(&place.inspect()).into_iter().filter(|block| block.file == path).collect();
    for offset in (0..intact.len()).step_by(41) {
        let mut damaged = intact.clone();
        damaged[offset] ^= 1 << (offset % 8);
        std::fs::write(&path, &damaged).unwrap();
        let inspector = place.inspect();
        let faults: Vec<_> = faulty(&inspector);
        if offset < 24 {
            assert!(inspector.files().unwrap()[1].fault.is_some() && faults.is_empty(), "byte {offset}");
            continue;
        }
        let hit = blocks.iter().rfind(|block| block.offset <= offset as u64).unwrap();
        assert_eq!(faults.len(), 1, "byte {offset}");
        assert_eq!((&faults[0].file, faults[0].offset), (&hit.file, hit.offset), "byte {offset}");
        assert!(matches!(inspector.records(&faults[0]), Err(Error::Corrupt { .. })));
    }
}

#[test]
fn blocks_are_found_without_a_catalogue() {
    let place = Place::new();
    let before = all_blocks(&place.inspect());
    std::fs::remove_dir_all(place.home().join("catalogue")).unwrap();
    let inspector = place.inspect();
    assert!(inspector.marks().is_none() && inspector.faults().len() == 1, "{:?}", inspector.faults());
    let found = all_blocks(&inspector);
    let places = |blocks: &[BlockSeen]| -> Vec<_> {
        blocks.iter().map(|block| (block.file.clone(), block.offset, block.stored_bytes)).collect()
    };
    assert_eq!(places(&found), places(&before));
    assert!(found.iter().all(|block| !block.is_named && block.fault.is_none()));
    assert!(found.iter().all(|block| !inspector.records(block).unwrap().is_empty()));
}

/// The sequence file is ahead of the catalogue, which sled opens without an error.
#[test]
fn a_catalogue_that_lost_its_last_updates_shows_what_it_has_and_is_at_fault() {
    let place = Place::new();
    let marks = *place.inspect().marks().unwrap();
    let sequence = place.home().join("witness");
    let mut ahead = std::fs::read(&sequence).unwrap();
    for slot in [0, 4096] {
        let number = u64::from_le_bytes(ahead[slot + 12..slot + 20].try_into().unwrap()) + 2;
        ahead[slot + 12..slot + 20].copy_from_slice(&number.to_le_bytes());
        let crc = crc32c::crc32c(&ahead[slot..slot + 20]);
        ahead[slot + 20..slot + 24].copy_from_slice(&crc.to_le_bytes());
    }
    std::fs::write(&sequence, ahead).unwrap();
    let inspector = place.inspect();
    assert_eq!(inspector.marks(), Some(&marks));
    let [fault] = inspector.faults() else { panic!("{:?}", inspector.faults()) };
    assert!(fault.what.contains("without updates that were synced"), "{fault:?}");
}

#[test]
fn a_scan_without_a_catalogue_continues_after_unreadable_bytes() {
    let place = Place::new();
    let path = place.block_file(1);
    let blocks: Vec<_> =
        all_blocks(&place.inspect()).into_iter().filter(|block| block.file == path).collect();
    assert!(blocks.len() > 2, "{blocks:?}");
    std::fs::remove_dir_all(place.home().join("catalogue")).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    // The second block's length: the scan loses the end of the block.
    bytes[blocks[1].offset as usize + 4] ^= 0xff;
    std::fs::write(&path, &bytes).unwrap();
    let found: Vec<_> = all_blocks(&place.inspect()).into_iter().filter(|block| block.file == path).collect();
    assert_eq!(found.len(), blocks.len());
    assert_eq!((found[1].offset, found[1].stored_bytes), (blocks[1].offset, blocks[1].stored_bytes));
    assert_eq!(found[1].fault, Some("bytes that are no block"));
    assert_eq!(found[2].fault, None);
}

#[test]
fn files_that_are_cut_or_gone_are_faults_of_the_blocks_that_were_in_them() {
    let place = Place::new();
    let (cut, gone) = (place.block_file(0), place.block_file(1));
    let named: Vec<_> = all_blocks(&place.inspect()).into_iter().filter(|block| block.is_named).collect();
    let first_cut = named.iter().filter(|block| block.file == cut).nth(2).unwrap();
    std::fs::File::options().write(true).open(&cut).unwrap().set_len(first_cut.offset + 10).unwrap();
    std::fs::remove_file(&gone).unwrap();
    let found = faulty(&place.inspect());
    let lost =
        |block: &&BlockSeen| block.file == gone || block.file == cut && block.offset >= first_cut.offset;
    assert_eq!(found.len(), named.iter().filter(lost).count());
    for block in found {
        let expected = if block.file == gone { "the file is missing" } else { "the file is cut" };
        assert_eq!(block.fault, Some(expected), "{block:?}");
    }
}

#[test]
fn a_damaged_catalogue_is_a_fault_and_not_an_error() {
    let place = Place::new();
    let db = place.home().join("catalogue/db");
    let mut bytes = std::fs::read(&db).unwrap();
    bytes[..200].fill(0xee);
    std::fs::write(&db, bytes).unwrap();
    let inspector = place.inspect();
    assert!(inspector.marks().is_none());
    assert!(inspector.faults()[0].what.contains("does not recognise"), "{:?}", inspector.faults());
    assert!(!all_blocks(&inspector).is_empty());
}

#[test]
fn a_directory_that_is_not_there_is_an_error() {
    let scratch = tempfile::tempdir().unwrap();
    let absent = scratch.path().join("absent");
    assert!(matches!(Inspector::open(&absent, scratch.path()), Err(Error::Io { attempt: "look at", .. })));
    assert!(!absent.exists());
}

/// Holes in a copied file take no space.
#[test]
fn a_file_with_holes_is_copied_with_its_holes() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::new();
    let before = place.inspect().marks().copied();
    let path = place.home().join("catalogue/holes");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(256 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"in the middle", 99 << 20).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let inspector = Inspector::open(&place.home(), scratch.path()).unwrap();
    assert_eq!(inspector.marks().copied(), before);
    let copy = scratch.path().join("catalogue/holes");
    let metadata = copy.metadata().unwrap();
    assert_eq!(metadata.len(), 256 << 20);
    assert!(metadata.blocks() * 512 <= 1 << 20, "{} KiB", metadata.blocks() / 2);
    let mut middle = [0; 13];
    let copy = std::fs::File::open(copy).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&copy, &mut middle, 99 << 20).unwrap();
    assert_eq!(&middle, b"in the middle");
}

#[test]
fn pipes_and_links_in_place_of_files_are_refused() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    for (name, is_error_at_once) in
        [("catalogue/pipe", true), ("catalogue/db", true), ("witness", true), ("blocks/000001.blk", false)]
    {
        for is_pipe in [true, false] {
            let place = Place::new();
            let path = place.home().join(name);
            let secret = place.dir.path().join("secret");
            std::fs::write(&secret, "of another user").unwrap();
            drop(std::fs::remove_file(&path));
            match is_pipe {
                true => mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap(),
                false => std::os::unix::fs::symlink(&secret, &path).unwrap(),
            }
            let scratch = tempfile::tempdir().unwrap();
            let opened = Inspector::open(&place.home(), scratch.path());
            assert_eq!(opened.is_err(), is_error_at_once, "{name}, pipe: {is_pipe}");
            if let Ok(inspector) = opened {
                inspector.files().unwrap_err();
            }
        }
    }
}

fn newest(inspector: &Inspector) -> BTreeMap<Bytes, (i64, i64, i64, Bytes)> {
    let mut named: Vec<_> = all_blocks(inspector).into_iter().filter(|block| block.is_named).collect();
    named.sort_by_key(|block| block.content.unwrap().first);
    let mut newest = BTreeMap::new();
    for record in named.iter().flat_map(|block| inspector.records(block).unwrap()) {
        match record.put {
            _ if record.is_dead => {}
            Some(put) => {
                let seen = (put.create_revision, record.revision.main, put.version, put.value);
                newest.insert(record.key, seen);
            }
            None => drop(newest.remove(&record.key)),
        }
    }
    newest
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn an_inspection_shows_exactly_what_a_reader_gets(
        changes in prop::collection::vec((0..30u8, 0..5u8, 0..120usize), 1..150),
        compacted in 0..100usize,
        entry_changes in 1..40usize,
    ) {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        let backend = Box::new(SledBackend::open(&place.home()).unwrap());
        let (mut writer, store, mut maintainer) = mvcc::open(backend, tiny_options()).unwrap();
        for (number, (key, kind, bytes)) in changes.iter().enumerate() {
            if *kind == 0 {
                let doomed = mvcc::KeyRange::one(vec![b'k', *key].into());
                writer.begin().delete_range(&doomed, mvcc::Previous::Skip).unwrap();
            } else {
                writer.begin().put(&[b'k', *key], &vec![number as u8; *bytes], i64::from(*kind));
            }
            if number % entry_changes == entry_changes - 1 {
                writer.end_entry(LogPosition::new(number as u64, 1)).unwrap();
                maintainer.persist().unwrap();
            }
        }
        // From none to all of the history.
        let revision = store.revision() * compacted as i64 / 99;
        if revision > 0 {
            writer.compact(revision).unwrap();
        }
        writer.end_entry(LogPosition::new(1000, 1)).unwrap();
        maintainer.persist().unwrap();
        while maintainer.reclaim_step(10).unwrap() != CompactProgress::Idle {}
        let all = store.range(&mvcc::KeyRange::all(), 0, &mvcc::RangeOptions::default()).unwrap().kvs;
        let expected: BTreeMap<_, _> = all
            .into_iter()
            .map(|kv| (kv.key, (kv.create_revision, kv.mod_revision, kv.version, kv.value)))
            .collect();
        let (revision, compact_revision) = (store.revision(), store.compact_revision());
        drop((writer, store, maintainer));

        let inspector = place.inspect();
        prop_assert_eq!(inspector.faults(), []);
        let marks = inspector.marks().unwrap();
        prop_assert_eq!((marks.revision, marks.compact_revision), (revision, compact_revision));
        prop_assert_eq!(newest(&inspector), expected);
    }
}
