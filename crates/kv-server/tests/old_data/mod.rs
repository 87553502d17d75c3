//! Data directories of older versions open with their full contents.
//!
//! Each is a text file in this directory: for each of its files a line `PATH SIZE`, then `OFFSET: BYTES` in
//! hexadecimal for non-zero data. A format change adds a file; existing ones never change.

use std::path::Path;

use api::etcdserverpb::RangeRequest;

use crate::common::Cluster;

/// Data of the last version without watch and leases: a member that was stopped, restarted, and killed after
/// further writes, so that both store and log are needed. Compacted up to revision 4.
const WITHOUT_LEASES: &str = include_str!("without_leases.txt");

fn write(text: &str, directory: &Path) {
    let mut files = Vec::<(String, Vec<u8>)>::new();
    for line in text.lines() {
        if let Some((offset, bytes)) = line.split_once(": ") {
            let at = usize::from_str_radix(offset, 16).unwrap();
            let bytes = bytes
                .as_bytes()
                .chunks(2)
                .map(|digits| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap());
            let (_, file) = files.last_mut().unwrap();
            file.splice(at..at + bytes.len(), bytes);
        } else {
            let (path, size) = line.rsplit_once(' ').unwrap();
            files.push((path.to_owned(), vec![0; size.parse().unwrap()]));
        }
    }
    for (path, bytes) in files {
        let path = directory.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

#[tokio::test]
async fn a_data_directory_of_a_version_without_leases_opens() {
    let mut cluster = Cluster::new(1);
    let member = &mut cluster.members[0];
    write(WITHOUT_LEASES, &member.data_dir);
    member.launch();
    member.wait_ready();
    let mut kv = member.kv().await;
    // Key, value, create revision, mod revision, version.
    type Pair = (&'static str, &'static str, i64, i64, i64);
    let now: [Pair; 4] =
        [("k1", "again", 2, 7, 2), ("k4", "last", 5, 10, 2), ("k5", "v5", 6, 6, 1), ("t", "txn", 9, 9, 1)];
    let then: [Pair; 5] = [
        ("k1", "v1", 2, 2, 1),
        ("k2", "v2", 3, 3, 1),
        ("k3", "v3", 4, 4, 1),
        ("k4", "v4", 5, 5, 1),
        ("k5", "v5", 6, 6, 1),
    ];
    for (revision, expected) in [(0, &now[..]), (6, &then[..])] {
        let all = RangeRequest {
            key: b"\0".as_slice().into(),
            range_end: b"\0".as_slice().into(),
            revision,
            ..RangeRequest::default()
        };
        let response = kv.range(all).await.unwrap().into_inner();
        assert_eq!(response.header.unwrap().revision, 10);
        let pairs: Vec<_> = response.kvs.iter().collect();
        assert_eq!(pairs.len(), expected.len());
        for (pair, &(key, value, create_revision, mod_revision, version)) in pairs.iter().zip(expected) {
            assert_eq!((&pair.key[..], &pair.value[..]), (key.as_bytes(), value.as_bytes()));
            assert_eq!(
                (pair.create_revision, pair.mod_revision, pair.version),
                (create_revision, mod_revision, version),
                "{key}"
            );
        }
    }
    let compacted = RangeRequest { key: b"k1".as_slice().into(), revision: 3, ..RangeRequest::default() };
    assert!(kv.range(compacted).await.unwrap_err().message().contains("has been compacted"));
    assert_eq!(member.put("k2", "new").await, 11);
}
