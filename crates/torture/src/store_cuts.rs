//! The store's catalog under a kill followed by a power loss.
//!
//! A process that opens a store and updates its catalog is killed at each of its operations. A second
//! process opens the resulting page cache. The power then fails at each operation of the second process and,
//! if the first one was not killed, also at each operation of the first. The store must open.
//!
//! sled syncs its file itself during recovery, unless its log ends at a segment boundary, so the order of
//! the syncs matters only there after a kill. `mutant-sequence-before-sync` omits the sync of an update. A
//! unit test in `mvcc` covers the sync of an opening.

use std::path::Path;
use std::process::Command;

use mvcc::{Backend, Error, SledBackend, Update};

use crate::disk::image::DiskImage;
use crate::disk::loss::{Loss, Manner};
use crate::disk::recorder::{Interference, RecorderLibrary};
use crate::disk::recording::{self, DiskOperation};

/// Environment variable with the directory of the store.
const HOME: &str = "TORTURE_STORE";
const UPDATES: u8 = 2;

/// Body of the process: opens the store and updates it `updates` times.
fn live(updates: u8) {
    let Some(home) = std::env::var_os(HOME) else { return };
    let mut backend = SledBackend::open(Path::new(&home)).expect("a store that was killed opens");
    for number in 0..updates {
        // Large enough for several pieces.
        let puts = vec![(vec![b'i', number], vec![number; 9000])];
        backend.update(Update { puts, removals: Vec::new() }).expect("the disk works");
    }
}

#[test]
#[ignore = "a process of a_store_killed_anywhere_opens_after_a_power_cut"]
fn life_that_updates() {
    live(UPDATES);
}

#[test]
#[ignore = "a process of a_store_killed_anywhere_opens_after_a_power_cut"]
fn life_that_opens() {
    live(0);
}

#[test]
fn a_store_killed_anywhere_opens_after_a_power_cut() {
    let scratch = tempfile::tempdir().expect("a directory can be made");
    let recorder = RecorderLibrary::build(scratch.path()).expect("there is a C compiler");
    let mut images = 0;
    for kill_at in 1.. {
        let dir = scratch.path().join(kill_at.to_string());
        let (root, log) = (dir.join("root"), dir.join("log"));
        std::fs::create_dir_all(&root).expect("a directory can be made");
        let run = |life: &str, interference| {
            Command::new(std::env::current_exe().expect("a test knows its program"))
                .args(["--exact", &format!("store_cuts::{life}"), "--ignored"])
                .env(HOME, root.join("store"))
                .envs(recorder.environment(&root, &log, interference))
                .output()
                .expect("a process can be started")
        };
        let is_whole = run("life_that_updates", Interference::KillAt(kill_at)).status.success();
        let second = run("life_that_opens", Interference::None);
        assert!(second.status.success(), "killed at {kill_at}: {}", String::from_utf8_lossy(&second.stdout));
        let lives = if is_whole { Lives::Both } else { Lives::Second };
        images += cut_everywhere(&root, &log, lives, &format!("killed at {kill_at}"));
        std::fs::remove_dir_all(&dir).expect("a directory can be removed");
        if is_whole {
            assert!(kill_at > 40, "a life of {kill_at} operations");
            break;
        }
    }
    assert!(images > 100, "{images} images");
}

/// The lives in which the power fails.
#[derive(PartialEq, Eq)]
enum Lives {
    Second,
    Both,
}

/// Cuts the power after each completed sync of these lives, and at the end. Returns the number of failures.
fn cut_everywhere(root: &Path, log: &Path, lives: Lives, what: &str) -> u64 {
    let operations = recording::read(log).expect("the recorder wrote it");
    let starts = operations.iter().rposition(|recorded| matches!(recorded.operation, DiskOperation::Start));
    let (second, last) = (starts.expect("two lives"), operations.len() - 1);
    let first_cut = if lives == Lives::Both { 0 } else { second };
    let (mut disk, mut images) = (DiskImage::new(), 0);
    for (at, recorded) in operations.iter().enumerate() {
        disk.play(&recorded.operation).expect("an operation that can be played");
        let is_cut = at == last || matches!(recorded.operation, DiskOperation::SyncEnd { .. });
        if at < first_cut || !is_cut {
            continue;
        }
        for manner in [Manner::Synced, Manner::Subset] {
            let image = tempfile::tempdir().expect("a directory can be made");
            disk.write_image(image.path(), &mut Loss::new(manner, at as u64))
                .expect("an image can be written");
            let opened =
                SledBackend::open(&image.path().join("store")).and_then(|mut store| store.catalogue());
            let refusal: Option<Error> = opened.err();
            assert!(refusal.is_none(), "{what}, {manner:?} after operation {at} of {last}: {refusal:?}");
            images += 1;
        }
    }
    disk.check_equals(root).expect("what was played is what was done");
    images
}
