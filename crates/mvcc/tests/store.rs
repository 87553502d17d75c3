//! Properties of the store that need more than a script (`scripts.rs`).

use crate::common;
use crate::common::{everything, tiny_options};
use mvcc::{CompactProgress, KeyRange, LogPosition, MemoryBackend, Writer};

fn put(writer: &mut Writer, key: &str, value: &str) {
    writer.begin().put(key.as_bytes(), value.as_bytes(), 0);
}

#[test]
fn the_hash_of_a_known_history_is_the_known_value() {
    let (mut writer, store, _maintainer) =
        mvcc::open(Box::new(MemoryBackend::new()), tiny_options()).unwrap();
    assert_eq!(store.hash_kv(0).unwrap().hash, common::crc_bitwise(b"key"));
    put(&mut writer, "foo", "bar");
    let stored = [
        b"key".as_slice(),
        b"\0\0\0\0\0\0\0\x02_\0\0\0\0\0\0\0\0",
        b"\x0a\x03foo\x10\x02\x18\x02\x20\x01\x2a\x03bar",
    ];
    assert_eq!(store.hash_kv(2).unwrap().hash, common::crc_bitwise(&stored.concat()));
}

#[test]
fn returned_pairs_do_not_change_later() {
    let (mut writer, store, mut maintainer) =
        mvcc::open(Box::new(MemoryBackend::new()), tiny_options()).unwrap();
    put(&mut writer, "a", "first");
    let held = store.range(&KeyRange::all(), 0, &everything()).unwrap();
    for number in 0..200 {
        put(&mut writer, "a", &format!("later {number}"));
    }
    writer.compact(store.revision()).unwrap();
    writer.end_entry(LogPosition::new(1, 1)).unwrap();
    while maintainer.compact_step(5).unwrap() == CompactProgress::More {}
    assert_eq!((held.kvs[0].value.as_ref(), held.kvs[0].mod_revision), (b"first".as_slice(), 2));
}
