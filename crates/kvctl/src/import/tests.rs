//! Cleanup after a failed import.

use std::fs;
use std::path::Path;

use config::Settings;
use tempfile::TempDir;

use super::command::MemberFlags;
use super::file::{ImportError, NewDirectory};

fn settings(parent: &Path, wal_dir: Option<&str>) -> Settings {
    let flags = MemberFlags {
        data_dir: parent.join("data").display().to_string(),
        wal_dir: wal_dir.map(|dir| parent.join(dir).display().to_string()),
        name: "default".to_owned(),
        initial_cluster: None,
        initial_cluster_token: "token".to_owned(),
        initial_advertise_peer_urls: "http://127.0.0.1:1".to_owned(),
    };
    flags.settings().unwrap()
}

#[test]
fn a_directory_that_is_not_finished_is_removed_and_nothing_that_was_there() {
    for (wal_dir, there, other, left) in [
        (None, "", "", ""),
        (None, "data", "", "data"),
        (Some("log"), "", "", ""),
        (Some("data"), "", "", ""),
        (Some("new/log"), "", "", ""),
        (Some("log"), "data log", "", "data log"),
        (Some("log"), "log", "data/notes", "data log"),
        (None, "", "data/wal/notes/1", "data"),
    ] {
        let parent = TempDir::new().unwrap();
        let parent = parent.path();
        there.split_whitespace().for_each(|dir| fs::create_dir(parent.join(dir)).unwrap());
        let directory = NewDirectory::make(&settings(parent, wal_dir)).unwrap();
        fs::create_dir(directory.store_dir()).unwrap();
        fs::write(directory.store_dir().join("pages"), "").unwrap();
        fs::write(parent.join(wal_dir.unwrap_or("data/wal")).join("segment"), "").unwrap();
        fs::write(parent.join("data/identity.json"), "").unwrap();
        if !other.is_empty() {
            fs::create_dir_all(parent.join(other)).unwrap();
        }
        drop(directory);
        let mut found: Vec<String> = fs::read_dir(parent)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        found.sort();
        assert_eq!(found.join(" "), left, "{wal_dir:?}, {there:?}, {other:?}");
        assert!(other.is_empty() || parent.join(other).exists());
        if other.is_empty() {
            drop(NewDirectory::make(&settings(parent, wal_dir)).unwrap());
        }
    }
}

#[test]
fn a_directory_that_is_not_empty_is_left_as_it_was() {
    for (wal_dir, file) in [(None, "data/notes"), (Some("log"), "log/1.wal")] {
        let parent = TempDir::new().unwrap();
        let file = parent.path().join(file);
        fs::create_dir(file.parent().unwrap()).unwrap();
        fs::write(&file, "").unwrap();
        let made = NewDirectory::make(&settings(parent.path(), wal_dir));
        assert!(matches!(made, Err(ImportError::NotEmpty(_))));
        assert!(file.exists() && fs::read_dir(parent.path()).unwrap().count() == 1);
    }
}

#[test]
fn a_directory_that_cannot_be_made_leaves_nothing() {
    for (wal_dir, there) in [("/proc/none/log", false), ("/proc/none/log", true), ("data/store", false)] {
        let parent = TempDir::new().unwrap();
        let data_dir = parent.path().join("data");
        if there {
            fs::create_dir(&data_dir).unwrap();
        }
        NewDirectory::make(&settings(parent.path(), Some(wal_dir))).unwrap_err();
        assert_eq!(data_dir.exists(), there, "{wal_dir}");
        drop(NewDirectory::make(&settings(parent.path(), Some("log"))).unwrap());
    }
}
