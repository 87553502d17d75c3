//! Round trips, and rejection of corrupt files.

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use snapshot_file::bbolt::{Database, Error, FileWriter, PAGE_BYTES, Planner};

type Buckets = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>;

/// Writes a file with these buckets, in pieces of at least `piece_bytes`.
fn written(buckets: &Buckets, piece_bytes: usize) -> Vec<u8> {
    let mut planner = Planner::default();
    for (name, pairs) in buckets {
        planner.begin_bucket(name);
        pairs.iter().for_each(|(key, value)| planner.add(key, value.len()));
    }
    let plan = planner.finish();
    let (mut writer, mut file) = (FileWriter::new(plan), Vec::new());
    for (name, pairs) in buckets {
        writer.begin_bucket(name);
        for (key, value) in pairs {
            writer.add(key, value);
            if writer.pending() >= piece_bytes {
                file.extend(writer.take());
            }
        }
    }
    writer.finish();
    file.extend(writer.take());
    assert_eq!(file.len() as u64, plan.bytes(), "the plan has the size of the file");
    file
}

fn read(file: &[u8]) -> Result<Buckets, Error> {
    let database = Database::open(file, file.len() as u64)?;
    let mut found = Buckets::new();
    for bucket in database.buckets()? {
        let (mut cursor, mut pairs) = (database.cursor(&bucket)?, BTreeMap::new());
        while let Some((key, value)) = cursor.next_pair()? {
            pairs.insert(key.to_vec(), value.to_vec());
        }
        found.insert(bucket.name().to_vec(), pairs);
    }
    Ok(found)
}

/// Builds one bucket with `keys` pairs.
fn bucket_of(keys: u32, key_bytes: usize, value_bytes: usize) -> Buckets {
    let key = |number: u32| [&vec![b'k'; key_bytes][..], &number.to_be_bytes()].concat();
    let pairs = (0..keys).map(|number| (key(number), vec![number as u8; value_bytes]));
    [(b"key".to_vec(), pairs.collect())].into()
}

fn buckets() -> impl Strategy<Value = Buckets> {
    let key = prop_oneof![vec(any::<u8>(), 1..40), vec(any::<u8>(), 1..3000)];
    let value = prop_oneof![vec(any::<u8>(), 0..100), vec(any::<u8>(), 0..9000)];
    btree_map(vec(any::<u8>(), 1..20), btree_map(key, value, 0..60), 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_is_written_is_read_back(buckets in buckets(), piece_bytes in 1..100_000_usize) {
        prop_assert_eq!(read(&written(&buckets, piece_bytes)).unwrap(), buckets);
    }

    #[test]
    fn a_file_with_changed_bytes_is_read_or_refused(
        buckets in buckets(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut file = written(&buckets, usize::MAX);
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        let _either = read(&file);
    }
}

#[test]
fn trees_of_all_shapes_are_read_back() {
    for (keys, key_bytes, value_bytes) in [
        (0, 0, 0),
        (1, 0, 0),
        (2, 10, PAGE_BYTES),
        (5, 0, 100_000),
        (50_000, 13, 0),
        (20_000, 100, 30),
        (300, 2000, 10), // Two children per branch: nine levels.
        (40, 32_000, 10),
    ] {
        let buckets = bucket_of(keys, key_bytes, value_bytes);
        let file = written(&buckets, 1 << 16);
        assert!(read(&file).unwrap() == buckets, "{keys} keys of {key_bytes}, values of {value_bytes}");
    }
}

#[test]
fn a_cut_file_is_refused_with_the_first_missing_page() {
    let file = written(&bucket_of(500, 10, 100), usize::MAX);
    let pages = file.len() / PAGE_BYTES;
    for kept in 1..pages {
        match read(&file[..kept * PAGE_BYTES + 100]) {
            Err(Error::Truncated { page, .. }) => assert_eq!(page, kept as u64),
            other => panic!("{kept} pages were kept: {other:?}"),
        }
    }
    assert!(matches!(read(&file[..50]), Err(Error::NoMeta)));
    assert!(matches!(read(b""), Err(Error::NoMeta)));
}

#[test]
fn one_valid_meta_page_is_enough() {
    let buckets = bucket_of(500, 10, 100);
    let file = written(&buckets, usize::MAX);
    for damaged in [0, 1] {
        let mut file = file.clone();
        file[damaged * PAGE_BYTES + 40] ^= 1;
        assert!(read(&file).unwrap() == buckets, "meta page {damaged} is damaged");
    }
    let mut file = file;
    file[40] ^= 1;
    file[PAGE_BYTES + 40] ^= 1;
    assert!(matches!(read(&file), Err(Error::NoMeta)));
}

/// Overwrites bytes at `offset` of a page and returns the error, which must name a page.
fn damaged(page: usize, offset: usize, bytes: &[u8]) -> String {
    let mut file = written(&bucket_of(2000, 100, 10), usize::MAX);
    let at = page * PAGE_BYTES + offset;
    file[at..at + bytes.len()].copy_from_slice(bytes);
    match read(&file) {
        Err(error @ Error::Page { .. }) => error.to_string(),
        other => panic!("page {page}, offset {offset}: {:?}", other.map(|found| found.len())),
    }
}

#[test]
fn damage_is_refused_with_the_page_that_is_wrong() {
    let file = written(&bucket_of(2000, 100, 10), usize::MAX);
    let root = file.len() / PAGE_BYTES - 1;
    let top = root - 1; // The root of the bucket, a branch.
    let number = |number: u64| number.to_le_bytes();
    for (page, offset, bytes, wanted) in [
        (3, 0, &number(9)[..], "page 3: has the number of another page"),
        (3, 8, &[4], "page 3: neither a branch nor a leaf"),
        (3, 10, &[255, 255], "page 3: has more elements than fit on it"),
        (3, 12, &[255; 4], "page 3: continues after the last page"),
        (3, 20, &[255; 4], "page 3: a key or value is not inside of it"),
        (3, 24, &[0; 4], "page 3: an empty key"),
        (3, 24, &[255; 4], "page 3: a key or value is not inside of it"),
        (3, 16, &[1], "page 3: a bucket inside of a bucket"),
        (top, 10, &[0, 0], "a branch without a child"),
        (top, 24, &number(1 << 40), "page 1099511627776: referred to, but not a page of the file"),
        (top, 24, &number(1), "page 1: referred to, but not a page of the file"),
        (top, 24, &number(top as u64), "too many levels of branches"), // A cycle.
        (top, 24 + 16, &number(3), "keys do not ascend"),              // A page reached twice.
        (root, 16, &[0], "a key outside of every bucket"),
        (root, 28, &[3], "a bucket is cut"),
    ] {
        let error = damaged(page, offset, bytes);
        assert!(error.contains(wanted), "page {page}, offset {offset}: {error}");
    }
}

#[test]
#[should_panic(expected = "keys ascend")]
fn keys_in_another_order_are_the_callers_bug() {
    let mut planner = Planner::default();
    planner.begin_bucket(b"key");
    planner.add(b"b", 1);
    planner.add(b"a", 1);
}

#[test]
#[should_panic(expected = "the same keys and lengths were planned")]
fn another_content_than_planned_is_the_callers_bug() {
    let mut planner = Planner::default();
    planner.begin_bucket(b"key");
    let mut writer = FileWriter::new(planner.finish());
    writer.begin_bucket(b"key");
    writer.add(b"key", &[0; PAGE_BYTES]);
    writer.finish();
}
