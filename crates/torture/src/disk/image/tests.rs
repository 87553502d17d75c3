//! The disk against short sequences of calls with a known result.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

use super::*;
use crate::disk::loss::Manner;

/// Plays a sequence of operations, one per word of `create:F:name`, `write:F:offset:text`, `cut:F:length`,
/// `sync:F`, `begin:F`, `end`, `rename:a:b`, `remove:a`, `mkdir:F:name`, `open:F:name`.
fn played(story: &str) -> DiskImage {
    let mut disk = DiskImage::new();
    let mut play = |operation: DiskOperation| disk.play(&operation).unwrap();
    for word in story.split_whitespace() {
        let parts: Vec<&str> = word.split(':').collect();
        let number = |at: usize| parts[at].parse::<u64>().unwrap();
        let name = |at: usize| parts[at].to_owned();
        match parts[0] {
            "create" => play(DiskOperation::Create { file: number(1), name: name(2) }),
            "open" => {
                play(DiskOperation::Open { file: number(1), name: parts.get(2).unwrap_or(&"").to_string() })
            }
            "mkdir" => play(DiskOperation::MakeDirectory { file: number(1), name: name(2) }),
            "write" => {
                let data = Bytes::from(parts[3].to_owned());
                play(DiskOperation::Write { file: number(1), offset: number(2), data });
            }
            "cut" => play(DiskOperation::Truncate { file: number(1), length: number(2) }),
            "begin" => play(DiskOperation::SyncBegin { file: number(1), number: 1 }),
            "end" => play(DiskOperation::SyncEnd { number: 1 }),
            "sync" => {
                play(DiskOperation::SyncBegin { file: number(1), number: 2 });
                play(DiskOperation::SyncEnd { number: 2 });
            }
            "rename" => play(DiskOperation::Rename { from: name(1), to: name(2) }),
            "remove" => play(DiskOperation::Remove { name: name(1) }),
            other => panic!("{other}"),
        }
    }
    disk
}

/// Returns the files and their contents after a power loss.
fn left(disk: &DiskImage, manner: Manner, seed: u64) -> String {
    fn list(dir: &Path, prefix: &str, into: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                list(&entry.path(), &format!("{name}/"), into);
            } else {
                into.push(format!("{name}={}", std::fs::read_to_string(entry.path()).unwrap()));
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    disk.write_image(dir.path(), &mut Loss::new(manner, seed)).unwrap();
    let mut found = Vec::new();
    list(dir.path(), "", &mut found);
    found.sort();
    found.join(" ")
}

#[test]
fn only_what_was_synced_is_left_for_certain() {
    let cases = [
        ("create:5:a write:5:0:xy sync:5", ""),
        ("open:9 create:5:a write:5:0:xy sync:9", "a="),
        ("open:9 create:5:a write:5:0:xy sync:5 sync:9 write:5:1:z", "a=xy"),
        ("open:9 create:5:a sync:9 write:5:0:xy begin:5 write:5:2:z end", "a=xy"),
        ("open:9 create:5:a sync:9 write:5:0:xy begin:5", "a="),
        ("open:9 create:5:a write:5:0:xy sync:5 sync:9 rename:a:b", "a=xy"),
        ("open:9 create:5:a write:5:0:xy sync:5 rename:a:b sync:9", "b=xy"),
        ("open:9 create:5:a sync:9 remove:a create:5:a write:5:0:z sync:5", "a="),
        ("open:9 create:5:a write:5:0:xyz sync:5 sync:9 cut:5:1", "a=xyz"),
        ("open:9 create:5:a write:5:0:xyz cut:5:1 sync:5 sync:9", "a=x"),
        ("open:9 mkdir:8:d create:5:d/a sync:8", ""),
        ("open:9 mkdir:8:d create:5:d/a sync:8 sync:9", "d/a="),
        ("open:9 mkdir:8:d create:5:d/a sync:8 sync:9 rename:d:e sync:9", "e/a="),
        ("open:9 mkdir:8:d create:5:a rename:a:d/b sync:8 sync:9", "d/b="),
    ];
    for (story, wanted) in cases {
        assert_eq!(left(&played(story), Manner::Synced, 0), wanted, "{story}");
    }
}

#[test]
fn nothing_lost_is_what_the_process_saw() {
    let disk = played("create:5:a write:5:3:x mkdir:6:d create:7:d/b write:7:0:q cut:7:0 rename:a:c");
    assert_eq!(left(&disk, Manner::Nothing, 0), "c=\0\0\0x d/b=");
}

#[test]
fn names_and_bytes_are_lost_apart() {
    let disk = played("open:9 create:5:a sync:9 write:5:0:x rename:a:b");
    assert_eq!(left(&disk, Manner::NamesOnly, 0), "b=");
    assert_eq!(left(&disk, Manner::BytesOnly, 0), "a=x");
}

#[test]
fn chance_finds_every_combination_and_repeats_with_its_seed() {
    let disk = played("open:9 create:5:a sync:9 write:5:0:x write:5:1:y");
    let found: std::collections::BTreeSet<String> =
        (0..200).map(|seed| left(&disk, Manner::Subset, seed)).collect();
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["a=", "a=\0y", "a=x", "a=xy"]);
    let prefixes: std::collections::BTreeSet<String> =
        (0..100).map(|seed| left(&disk, Manner::Prefix, seed)).collect();
    assert_eq!(prefixes.into_iter().collect::<Vec<_>>(), ["a=", "a=x", "a=xy"]);
    assert_eq!(left(&disk, Manner::Torn512, 5), left(&disk, Manner::Torn512, 5));
}

#[test]
fn torn_writes_lose_whole_sectors_only() {
    let text = "x".repeat(1200);
    let disk = played(&format!("open:9 create:5:a sync:9 write:5:100:{text}"));
    for seed in 0..50 {
        let found = left(&disk, Manner::Torn512, seed);
        let bytes = found.strip_prefix("a=").unwrap().as_bytes();
        if bytes.is_empty() {
            continue;
        }
        assert_eq!(bytes.len(), 1300, "the length is one fact");
        for sector in [100..512, 512..1024, 1024..1300] {
            let kept = bytes[sector.clone()].iter().filter(|byte| **byte == b'x').count();
            assert!(kept == 0 || kept == sector.len(), "{kept} bytes of {sector:?}");
        }
    }
}

#[test]
fn a_directory_that_differs_from_its_recording_is_noticed() {
    let disk = played("create:5:a write:5:0:x");
    let dir = tempfile::tempdir().unwrap();
    assert!(disk.check_equals(dir.path()).unwrap_err().to_string().contains("recorded"));
    std::fs::write(dir.path().join("a"), "y").unwrap();
    assert!(disk.check_equals(dir.path()).unwrap_err().to_string().contains("differs"));
    std::fs::write(dir.path().join("a"), "x").unwrap();
    disk.check_equals(dir.path()).unwrap();
}
