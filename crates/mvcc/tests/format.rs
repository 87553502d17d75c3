//! Golden bytes: a store writes exactly these bytes and reads them back. A change needs a new format
//! version and documentation, not a new constant.

use crate::common::{everything, range};
use mvcc::{Backend, CompactProgress, KeyRange, LogPosition, MemoryBackend, Previous, StoreOptions, Update};

/// File 1 of the store of `write`: its header, then two blocks, the first compressed.
const BLOCK_FILE: &str = include_str!("format/block_file.hex");
/// Its catalogue, one `key value` per line.
const CATALOGUE: &str = include_str!("format/catalogue.hex");

fn write() -> MemoryBackend {
    let backend = MemoryBackend::new();
    let (mut writer, _, mut maintainer) =
        mvcc::open(Box::new(backend.clone()), StoreOptions::default()).unwrap();
    let mut request = writer.begin();
    request.put(b"a", &[b'x'; 100], 0);
    request.put(b"b", b"value of b", 0x0102_0304_0506_0708);
    request.finish();
    writer.begin().put(b"a", &[b'y'; 100], -2);
    writer.begin().put(b"a", &[b'z'; 100], 0);
    writer.set_item(b"member/1", Some(b"url"));
    writer.end_entry(LogPosition::new(300, 2)).unwrap();
    maintainer.persist().unwrap();

    writer.begin().delete_range(&range("b", ""), Previous::Skip).unwrap();
    writer.begin().put(b"c", b"", 0);
    writer.begin().put(b"d", &(0..=200).collect::<Vec<u8>>(), 0);
    writer.compact(3).unwrap();
    writer.end_entry(LogPosition::new(301, 2)).unwrap();
    maintainer.persist().unwrap();
    // One of the first block's four records is superseded. It is listed, and the block is kept.
    while maintainer.compact_step(1000).unwrap() == CompactProgress::More {}
    backend
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn file_bytes(backend: &mut MemoryBackend, number: u64) -> Vec<u8> {
    let file = backend.open_file(number).unwrap();
    let mut bytes = vec![0; file.bytes().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn wrapped(text: &str) -> String {
    text.as_bytes().chunks(64).map(|line| format!("{}\n", std::str::from_utf8(line).unwrap())).collect()
}

#[test]
fn a_store_writes_the_bytes_that_it_always_wrote() {
    let mut backend = write();
    assert_eq!(backend.files().unwrap(), [1]);
    let found = wrapped(&hex(&file_bytes(&mut backend, 1)));
    assert_eq!(found, BLOCK_FILE, "the block file is now:\n{found}");
    let entries = backend.catalogue().unwrap();
    let found: String = entries.iter().map(|(key, value)| format!("{} {}\n", hex(key), hex(value))).collect();
    assert_eq!(found, CATALOGUE, "the catalogue is now:\n{found}");
}

#[test]
fn bytes_of_an_earlier_program_are_read_back() {
    let mut backend = MemoryBackend::new();
    backend.create_file(1).unwrap().write_at(&unhex(BLOCK_FILE), 0).unwrap();
    let entry = |line: &str| line.split_once(' ').map(|(key, value)| (unhex(key), unhex(value))).unwrap();
    backend.update(Update { puts: CATALOGUE.lines().map(entry).collect(), removals: vec![] }).unwrap();

    let (_, store, _) = mvcc::open(Box::new(backend), StoreOptions::default()).unwrap();
    assert_eq!((store.revision(), store.compact_revision()), (7, 3));
    assert_eq!(store.applied(), LogPosition::new(301, 2));
    assert_eq!(store.item(b"member/1").unwrap(), "url");
    let found = store.range(&KeyRange::all(), 0, &everything()).unwrap();
    let keys: Vec<_> =
        found.kvs.iter().map(|kv| (kv.key.clone(), kv.mod_revision, kv.version, kv.lease)).collect();
    assert_eq!(keys, [("a".into(), 4, 3, 0), ("c".into(), 6, 1, 0), ("d".into(), 7, 1, 0)]);
    assert_eq!(found.kvs[2].value, (0..=200).collect::<Vec<u8>>());
    let past = store.range(&range("a", "c"), 3, &everything()).unwrap();
    assert_eq!(past.kvs[0].value, vec![b'y'; 100]);
    assert_eq!((past.kvs[0].lease, past.kvs[1].lease), (-2, 0x0102_0304_0506_0708));
}
