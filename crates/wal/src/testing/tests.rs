//! Tests of the simulated disk.

use std::path::PathBuf;

use super::*;

const DIR: &str = "/d";

fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

fn disk() -> SimFs {
    let fs = SimFs::new();
    fs.create_dir(Path::new(DIR)).unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    fs
}

fn power_cut(fs: &SimFs) -> SimFs {
    fs.crashed(Crash::Synced, &mut || unreachable!("nothing is left to chance"))
}

#[test]
fn a_power_cut_keeps_what_was_synced_and_nothing_else() {
    let fs = disk();
    let file = fs.create(&path("a")).unwrap();
    file.write_at(0, b"kept").unwrap();
    file.sync_data().unwrap();
    fs.sync_dir(Path::new(DIR)).unwrap();
    file.write_at(2, b"LOST").unwrap();
    assert_eq!(fs.bytes(&path("a")), b"keLOST");
    assert_eq!(power_cut(&fs).bytes(&path("a")), b"kept");
    assert_eq!(fs.crashed(Crash::Kill, &mut || false).bytes(&path("a")), b"keLOST");
    assert_eq!(fs.crashed(Crash::Subset, &mut || true).bytes(&path("a")), b"keLOST");
}

#[test]
fn a_name_needs_a_sync_of_its_directory() {
    let fs = disk();
    fs.create(&path("a")).unwrap().sync_data().unwrap();
    assert!(power_cut(&fs).list(Path::new(DIR)).unwrap().is_empty());
    fs.sync_dir(Path::new(DIR)).unwrap();
    fs.rename(&path("a"), &path("b")).unwrap();
    assert_eq!(fs.list(Path::new(DIR)).unwrap(), ["b"]);
    assert_eq!(power_cut(&fs).list(Path::new(DIR)).unwrap(), ["a"]);
    fs.sync_dir(Path::new(DIR)).unwrap();
    fs.remove(&path("b")).unwrap();
    assert_eq!(power_cut(&fs).list(Path::new(DIR)).unwrap(), ["b"]);
}

#[test]
fn a_kill_leaves_unsynced_writes_at_the_mercy_of_the_next_power_cut() {
    let fs = disk();
    let file = fs.create(&path("a")).unwrap();
    fs.sync_dir(Path::new(DIR)).unwrap();
    file.write_at(0, b"cached").unwrap();
    let killed = fs.crashed(Crash::Kill, &mut || false);
    assert_eq!(killed.bytes(&path("a")), b"cached");
    assert!(power_cut(&killed).bytes(&path("a")).is_empty());
    killed.open(&path("a")).unwrap().sync_data().unwrap();
    assert_eq!(power_cut(&killed).bytes(&path("a")), b"cached");
}

#[test]
fn a_torn_write_is_cut_at_sectors() {
    let fs = disk();
    let file = fs.create(&path("a")).unwrap();
    fs.sync_dir(Path::new(DIR)).unwrap();
    file.write_at(500, &[1; 600]).unwrap();
    let mut turn = 0;
    let torn = fs.crashed(Crash::Torn, &mut || {
        turn += 1;
        turn == 2
    });
    assert_eq!(turn, 3, "12 bytes, a sector, 76 bytes");
    let mut expected = vec![0; 1024];
    expected[512..].fill(1);
    assert_eq!(torn.bytes(&path("a")), expected);
}

#[test]
fn a_failed_sync_loses_what_later_syncs_report_as_safe() {
    let fs = disk();
    let file = fs.create(&path("a")).unwrap();
    fs.sync_dir(Path::new(DIR)).unwrap();
    file.write_at(0, b"gone").unwrap();
    fs.fail_at(fs.calls(), Fault::InputOutput);
    assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(5));
    file.sync_data().unwrap();
    assert_eq!(fs.bytes(&path("a")), b"gone", "reads still show it");
    assert!(power_cut(&fs).bytes(&path("a")).is_empty());
}

#[test]
fn a_full_disk_takes_half_a_write() {
    let fs = disk();
    let file = fs.create(&path("a")).unwrap();
    fs.fail_at(fs.calls(), Fault::NoSpace);
    assert_eq!(file.write_at(0, b"12345678").unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(fs.bytes(&path("a")), b"1234");
    file.write_at(0, b"12345678").unwrap();
}

#[test]
fn a_stopped_process_does_nothing_more() {
    let fs = disk();
    let file = fs.create(&path("a")).unwrap();
    file.write_at(0, b"before").unwrap();
    fs.fail_at(fs.calls(), Fault::Stop);
    assert!(file.write_at(0, b"AFTER.").is_err());
    assert!(file.sync_data().is_err());
    assert!(fs.remove(&path("a")).is_err());
    assert_eq!(fs.crashed(Crash::Kill, &mut || false).bytes(&path("a")), b"before");
}

#[test]
fn a_handle_of_a_crashed_process_does_not_reach_the_new_disk() {
    let fs = disk();
    let file = fs.create(&path("a")).unwrap();
    let next = fs.crashed(Crash::Kill, &mut || false);
    file.write_at(0, b"zombie").unwrap();
    assert!(next.bytes(&path("a")).is_empty());
}

#[test]
fn a_removed_file_lives_as_long_as_its_handles_and_no_longer() {
    let fs = disk();
    let file = fs.create(&path("a")).unwrap();
    file.write_at(0, b"bytes").unwrap();
    fs.remove(&path("a")).unwrap();
    fs.sync_dir(Path::new(DIR)).unwrap();
    let mut buffer = [0; 5];
    assert_eq!(file.read_at(0, &mut buffer).unwrap(), 5);
    drop(file);
    for _ in 0..100 {
        drop(fs.create(&path("b")).unwrap());
        fs.remove(&path("b")).unwrap();
        fs.sync_dir(Path::new(DIR)).unwrap();
    }
    assert!(fs.disk().inodes.len() <= 2, "places of removed files are used again");
}

#[test]
fn wrong_names_are_refused_as_a_real_disk_does() {
    let fs = disk();
    let kind = |result: io::Result<()>| result.unwrap_err().kind();
    fs.create(&path("a")).unwrap();
    assert_eq!(kind(fs.create(&path("a")).map(drop)), io::ErrorKind::AlreadyExists);
    assert_eq!(kind(fs.open(&path("b")).map(drop)), io::ErrorKind::NotFound);
    assert_eq!(kind(fs.remove(&path("b"))), io::ErrorKind::NotFound);
    assert_eq!(kind(fs.create(Path::new("/none/a")).map(drop)), io::ErrorKind::NotFound);
    assert_eq!(kind(fs.create_dir(Path::new("/none/a"))), io::ErrorKind::NotFound);
    fs.create_dir(Path::new(DIR)).unwrap();
}

#[test]
fn a_full_disk_takes_nothing_more_and_still_reads_until_it_is_healed() {
    let fs = disk();
    let file = fs.create(&path("a")).unwrap();
    file.write_at(0, b"12345678").unwrap();
    fs.fail_from(fs.calls(), Fault::NoSpace);
    for _ in 0..3 {
        assert_eq!(file.write_at(8, b"abcd").unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(fs.create(&path("b")).is_err());
        let mut buffer = [0; 8];
        assert_eq!(file.read_at(0, &mut buffer).unwrap(), 8);
        file.sync_data().unwrap();
    }
    fs.heal();
    file.write_at(8, b"abcd").unwrap();
    assert_eq!(fs.bytes(&path("a")), b"12345678abcd");
}

#[test]
fn a_disk_that_is_gone_fails_every_call() {
    let fs = disk();
    let file = fs.create(&path("a")).unwrap();
    fs.fail_from(fs.calls() + 1, Fault::InputOutput);
    file.write_at(0, b"one").unwrap();
    for _ in 0..3 {
        assert!(
            file.write_at(0, b"two").is_err() && file.sync_data().is_err() && fs.open(&path("a")).is_err()
        );
    }
    fs.heal();
    file.sync_data().unwrap();
    assert_eq!(fs.crashed(Crash::Synced, &mut || false).calls(), 0);
}
