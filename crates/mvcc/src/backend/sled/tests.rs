//! The store in a directory: reopened, corrupted, interrupted, and the files that sled writes.

use super::*;

fn put(key: &str, value: &str) -> Update {
    Update { puts: vec![(key.into(), value.into())], removals: vec![] }
}

#[test]
fn the_catalogue_opens_despite_a_half_written_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("store");
    let mut backend = SledBackend::open(&home).unwrap();
    backend.update(put("a", "1")).unwrap();
    backend.update(Update { puts: vec![("b".into(), "2".into())], removals: vec!["a".into()] }).unwrap();
    drop(backend);

    let leftover = home.join("catalogue/snap.0000000000000ABC.generating");
    fs::write(&leftover, b"half").unwrap();
    let mut backend = SledBackend::open(&home).unwrap();
    assert_eq!(backend.catalogue().unwrap(), [(b"b".to_vec(), b"2".to_vec())]);
    assert!(!leftover.exists());
}

/// Opens a store with one flipped bit in the catalogue's log. It must never silently lose the last
/// updates.
#[test]
fn a_damaged_catalogue_has_all_updates_or_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("store");
    let mut backend = SledBackend::open(&home).unwrap();
    for (key, value) in [("a", "1"), ("b", "2"), ("c", "3")] {
        backend.update(put(key, value)).unwrap();
    }
    let truth = backend.catalogue().unwrap();
    assert_eq!(truth.len(), 3);
    drop(backend);
    let db = home.join("catalogue/db");
    let intact = fs::read(&db).unwrap();
    let mut refusals = 0;
    for at in (0..1200).step_by(29) {
        let copy = dir.path().join(format!("copy{at}"));
        for location in ["catalogue", "blocks"] {
            fs::create_dir_all(copy.join(location)).unwrap();
        }
        for name in ["catalogue/conf", "witness"] {
            fs::copy(home.join(name), copy.join(name)).unwrap();
        }
        let mut damaged = intact.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(copy.join("catalogue/db"), damaged).unwrap();
        match SledBackend::open(&copy).and_then(|mut backend| backend.catalogue()) {
            Ok(found) => assert_eq!(found, truth, "byte {at}"),
            Err(Error::Corrupt { .. }) => refusals += 1,
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    assert!(refusals > 5, "the bytes that were changed mean something: {refusals}");
}

/// A kill between the syncs of the catalogue and the sequence file: the update is present, and the
/// following one gets a new number.
#[test]
fn a_sequence_file_that_is_one_update_behind_is_updated() {
    let dir = tempfile::tempdir().unwrap();
    let mut backend = SledBackend::open(dir.path()).unwrap();
    backend.update(put("a", "1")).unwrap();
    let before = fs::read(dir.path().join("witness")).unwrap();
    backend.update(put("b", "2")).unwrap();
    drop(backend);
    fs::write(dir.path().join("witness"), before).unwrap();
    let mut backend = SledBackend::open(dir.path()).unwrap();
    assert_eq!(backend.sequence.number(), 2);
    backend.update(put("c", "3")).unwrap();
    assert_eq!(backend.catalogue().unwrap().len(), 3);
}

/// A kill between an update and its sync: the update is only in the page cache. `/dev/null` simulates a
/// catalogue with a failing sync.
#[test]
fn an_update_that_is_read_back_is_synced_before_the_sequence_file_names_it() {
    for is_behind in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (file, catalogue_dir) = (dir.path().join("witness"), dir.path().join("catalogue"));
        let mut backend = SledBackend::open(dir.path()).unwrap();
        backend.update(put("a", "1")).unwrap();
        let before = fs::read(&file).unwrap();
        backend.update(put("b", "2")).unwrap();
        drop(backend);
        if is_behind { fs::write(&file, before) } else { fs::remove_file(&file) }.unwrap();

        let catalogue = open_catalogue(&catalogue_dir).unwrap();
        let unsyncable = File::open("/dev/null").unwrap();
        let refused = check_sequence(dir.path(), &catalogue_dir, &catalogue, &unsyncable).unwrap_err();
        assert!(refused.to_string().contains("sync"), "{refused}");
        let named = SequenceFile::open(dir.path()).unwrap().map(|sequence| sequence.number());
        assert_eq!(named, is_behind.then_some(1), "the update may not be on the disk");

        let synced = File::open(catalogue_dir.join("db")).unwrap();
        let sequence = check_sequence(dir.path(), &catalogue_dir, &catalogue, &synced).unwrap();
        assert_eq!(sequence.number(), 2);
    }
}

#[test]
fn a_flush_that_is_polled_all_the_time_leaves_no_entries() {
    let dir = tempfile::tempdir().unwrap();
    let mut backend = SledBackend::open(dir.path()).unwrap();
    backend.update(put("a", "1")).unwrap();
    for _ in 0..20 {
        backend.catalogue.insert("b", "2").unwrap();
        flush(&backend.catalogue, &FLUSH_KEY, Duration::ZERO).unwrap();
        backend.catalogue.remove("b").unwrap();
    }
    assert_eq!(backend.catalogue().unwrap(), [(b"a".to_vec(), b"1".to_vec())]);
}

#[test]
fn stored_files_are_readable_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("store");
    SledBackend::open(&home).unwrap().create_file(1).unwrap();
    for (path, mode) in [("", 0o700), ("catalogue", 0o700), ("blocks", 0o700), ("blocks/000001.blk", 0o600)] {
        let found = fs::metadata(home.join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{path:?}");
    }
}

#[test]
fn block_files_are_listed_read_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mut backend = SledBackend::open(dir.path()).unwrap();
    fs::write(dir.path().join("blocks/notes.txt"), b"not ours").unwrap();
    let file = backend.create_file(7).unwrap();
    file.write_at(b"hello", 3).unwrap();
    file.sync().unwrap();
    assert_eq!((backend.files().unwrap(), file.bytes().unwrap()), (vec![7], 8));
    assert!(matches!(backend.create_file(7), Err(Error::Io { attempt: "open", .. })), "never overwritten");

    let reader = backend.open_file(7).unwrap();
    backend.remove_file(7).unwrap();
    let mut buffer = [0; 5];
    reader.read_at(&mut buffer, 3).unwrap();
    assert_eq!(&buffer, b"hello", "an open file outlives its name");
    assert!(backend.open_file(7).is_err());
}

/// Returns the unexpected files of the catalogue.
fn blobs(home: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(home.join("catalogue/blobs")).map_or(Vec::new(), Iterator::collect);
    entries.into_iter().map(|entry| entry.unwrap().path()).collect()
}

/// Builds an entry of this size, like an item or a block with a long dead list.
fn large(number: u64, bytes: usize) -> (Vec<u8>, Vec<u8>) {
    let mut key = vec![b'i'; 1 + (number as usize * 37) % (KEY_BYTES_MAX - 9)];
    key.extend(number.to_be_bytes());
    (key, (0..bytes).map(|at| (at as u64 * 31 + number) as u8).collect())
}

#[test]
fn no_entry_is_written_to_a_file_that_is_never_synced() {
    let dir = tempfile::tempdir().unwrap();
    let mut truth = BTreeMap::new();
    let mut backend = SledBackend::open(dir.path()).unwrap();
    // As many of each size as fit into a node, written separately and together, changed, and partly
    // removed.
    for (round, bytes) in [10_000, 64 << 10, 7000, 4096, 4097, 0, 8192].into_iter().enumerate() {
        for numbers in [0..1, 1..30, 30..80] {
            let puts: Vec<_> = numbers.map(|number| large(number, bytes)).collect();
            truth.extend(puts.iter().cloned());
            backend.update(Update { puts, removals: Vec::new() }).unwrap();
            assert_eq!(blobs(dir.path()), [] as [PathBuf; 0], "{bytes} bytes");
        }
        let removals: Vec<_> = (0..80).step_by(3 + round).map(|number| large(number, 0).0).collect();
        removals.iter().for_each(|key| drop(truth.remove(key)));
        backend.update(Update { puts: Vec::new(), removals }).unwrap();
        assert_eq!(blobs(dir.path()), [] as [PathBuf; 0], "{bytes} bytes");
        if round % 2 == 1 {
            drop(backend);
            backend = SledBackend::open(dir.path()).unwrap();
        }
        assert_eq!(backend.catalogue().unwrap(), Vec::from_iter(truth.clone()), "{bytes} bytes");
    }
}

#[test]
fn entries_of_an_older_version_are_split_when_it_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let mut backend = SledBackend::open(dir.path()).unwrap();
    let truth: BTreeMap<_, _> = (0..40).map(|number| large(number, 30_000)).collect();
    // Written like an older version: not split.
    let mut batch = sled::Batch::default();
    truth.iter().for_each(|(key, value)| batch.insert(key.as_slice(), value.as_slice()));
    batch.insert(&NUMBER_KEY, &1u64.to_le_bytes());
    backend.catalogue.apply_batch(batch).unwrap();
    backend.catalogue.flush().unwrap();
    backend.sequence.advance(1).unwrap();
    drop(backend);

    let mut backend = SledBackend::open(dir.path()).unwrap();
    assert_eq!(backend.catalogue().unwrap(), Vec::from_iter(truth.clone()));
    let longest = backend.catalogue.iter().map(|entry| entry.unwrap().1.len()).max().unwrap();
    assert_eq!((longest, backend.sequence.number()), (PART_BYTES, 2));
    drop(backend);
    let mut backend = SledBackend::open(dir.path()).unwrap();
    assert_eq!(backend.catalogue().unwrap(), Vec::from_iter(truth));
    assert_eq!(backend.sequence.number(), 2, "once");
}

#[test]
fn a_value_part_without_its_entry_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let mut backend = SledBackend::open(dir.path()).unwrap();
    let (key, value) = large(1, 10_000);
    backend.update(Update { puts: vec![(key.clone(), value)], removals: Vec::new() }).unwrap();
    backend.catalogue.remove(&key).unwrap();
    assert!(matches!(backend.catalogue(), Err(Error::Corrupt { what: STRAY_PART, .. })));
}
