//! Corruption on disk is detected at the start or at the first read, and never served.

use crate::common::{everything, range, tiny_options};
use mvcc::{
    Backend, Error, KeyRange, LogPosition, Maintainer, MemoryBackend, SledBackend, Store, StoreOptions,
    Update, Writer,
};

type Handles = (Writer, Store, Maintainer);

fn open(backend: &MemoryBackend, options: StoreOptions) -> Result<Handles, Error> {
    mvcc::open(Box::new(backend.clone()), options)
}

/// Fills and persists a store of a few blocks, one of them with dead records, and an item.
fn populate((writer, _, maintainer): &mut Handles) {
    for number in 0..20u8 {
        let mut request = writer.begin();
        request.put(&[b'a' + number % 7], &[number; 60], i64::from(number % 2));
        request.finish();
    }
    writer.begin().delete_range(&range("b", "c"), mvcc::Previous::Skip).unwrap();
    writer.set_item(b"member", Some(b"one"));
    writer.compact(9).unwrap();
    writer.end_entry(LogPosition::new(5, 1)).unwrap();
    maintainer.persist().unwrap();
    while maintainer.compact_step(100).unwrap() == mvcc::CompactProgress::More {}
}

fn populated() -> MemoryBackend {
    let backend = MemoryBackend::new();
    populate(&mut open(&backend, tiny_options()).unwrap());
    backend
}

/// Opens a corrupt store and reads all of it. Returns whether the corruption was detected.
fn notices(backend: &MemoryBackend) -> bool {
    let Ok((_, store, _)) = open(backend, tiny_options()) else { return true };
    store.range(&KeyRange::all(), 0, &everything()).is_err()
}

#[test]
fn every_flipped_byte_of_every_block_file_is_noticed() {
    let mut intact = populated();
    assert!(!notices(&intact.fork()));
    let mut flipped = 0;
    for number in intact.files().unwrap() {
        let bytes = intact.open_file(number).unwrap().bytes().unwrap();
        for offset in 0..bytes {
            let mut damaged = intact.fork();
            let file = damaged.open_file(number).unwrap();
            let mut byte = [0];
            file.read_at(&mut byte, offset).unwrap();
            file.write_at(&[byte[0] ^ 1 << (offset % 8)], offset).unwrap();
            assert!(notices(&damaged), "file {number}, byte {offset}: silently accepted");
            flipped += 1;
        }
    }
    assert!(flipped > 500, "only {flipped} bytes to flip");
}

#[test]
fn every_cut_block_file_is_noticed() {
    let mut intact = populated();
    for number in intact.files().unwrap() {
        let bytes = intact.open_file(number).unwrap().bytes().unwrap();
        for length in 0..bytes {
            let mut damaged = intact.fork();
            damaged.open_file(number).unwrap().truncate(length).unwrap();
            assert!(notices(&damaged), "file {number}, cut to {length}");
        }
        let mut damaged = intact.fork();
        damaged.remove_file(number).unwrap();
        assert!(notices(&damaged), "file {number}, removed");
    }
}

#[test]
fn every_flipped_byte_of_the_catalogue_is_noticed() {
    let mut intact = populated();
    for (key, value) in intact.catalogue().unwrap() {
        for position in 0..value.len() {
            let mut value = value.clone();
            value[position] ^= 1 << (position % 8);
            let mut damaged = intact.fork();
            damaged.update(Update { puts: vec![(key.clone(), value)], removals: vec![] }).unwrap();
            assert!(notices(&damaged), "{key:?}, byte {position} of its value");
        }
        for position in 0..key.len() {
            let mut other = key.clone();
            other[position] ^= 1;
            let mut damaged = intact.fork();
            let update = Update { puts: vec![(other, value.clone())], removals: vec![key.clone()] };
            damaged.update(update).unwrap();
            assert!(notices(&damaged), "{key:?}, byte {position} of the key");
        }
        let mut damaged = intact.fork();
        damaged.update(Update { puts: vec![], removals: vec![key.clone()] }).unwrap();
        assert!(notices(&damaged), "{key:?}, missing");
    }
}

#[test]
fn an_entry_of_an_earlier_checkpoint_is_noticed() {
    let mut backend = MemoryBackend::new();
    let mut handles = open(&backend, tiny_options()).unwrap();
    handles.0.set_item(b"member", Some(b"old"));
    handles.0.end_entry(LogPosition::new(1, 1)).unwrap();
    handles.2.persist().unwrap();
    let old: Vec<_> = backend.catalogue().unwrap().into_iter().filter(|(key, _)| key[0] == b'i').collect();
    handles.0.set_item(b"member", Some(b"new"));
    handles.0.end_entry(LogPosition::new(2, 1)).unwrap();
    handles.2.persist().unwrap();
    drop(handles);
    backend.update(Update { puts: old, removals: vec![] }).unwrap();
    assert!(notices(&backend), "each entry is intact, but they do not belong together");
}

#[test]
fn a_block_damaged_while_the_store_runs_is_never_served() {
    let mut backend = populated();
    // No cache: every read is cold.
    let (_, store, _) = open(&backend, StoreOptions { cache_bytes: 0, ..tiny_options() }).unwrap();
    let before = store.range(&KeyRange::all(), 0, &everything()).unwrap();
    for number in backend.files().unwrap() {
        let file = backend.open_file(number).unwrap();
        let damaged = vec![0xee; (file.bytes().unwrap() - 24) as usize];
        file.write_at(&damaged, 24).unwrap();
    }
    let error = store.range(&KeyRange::all(), 0, &everything()).unwrap_err();
    let Error::Corrupt { file, offset, what } = &error else { panic!("{error:?}") };
    assert!(file.contains("block file") && *offset >= 24 && what.contains("checksum"), "{error}");
    assert!(!before.kvs.is_empty());
    assert!(matches!(store.hash_kv(0), Err(Error::Corrupt { .. })));
}

#[test]
fn compaction_stops_at_a_damaged_block_and_the_maintainer_with_it() {
    let mut backend = populated();
    let (mut writer, _store, mut maintainer) =
        open(&backend, StoreOptions { cache_bytes: 0, ..tiny_options() }).unwrap();
    for number in backend.files().unwrap() {
        let file = backend.open_file(number).unwrap();
        file.truncate(30).unwrap();
    }
    writer.compact(20).unwrap();
    writer.end_entry(LogPosition::new(6, 1)).unwrap();
    let outcome = loop {
        match maintainer.compact_step(100) {
            Ok(mvcc::CompactProgress::More) => {}
            other => break other,
        }
    };
    assert!(matches!(outcome, Err(Error::Corrupt { .. })), "{outcome:?}");
    assert!(matches!(maintainer.persist(), Err(Error::Poisoned)));
}

#[test]
fn a_flipped_byte_in_a_real_file_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("store");
    let backend = || Box::new(SledBackend::open(&home).unwrap());
    let mut handles = mvcc::open(backend(), tiny_options()).unwrap();
    populate(&mut handles);
    drop(handles);
    drop(mvcc::open(backend(), tiny_options()).unwrap());

    let file = std::fs::read_dir(home.join("blocks")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(&file, bytes).unwrap();
    let Err(error) = mvcc::open(backend(), tiny_options()) else { panic!("accepted") };
    assert!(matches!(&error, Error::Corrupt { file, .. } if file.ends_with(".blk")), "{error}");
}
