//! Archives, restores and live imports of a source that was restored to an earlier revision: different
//! histories are never joined.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::archive::{archiver, lone_cluster, objects, restore, wait_for};
use crate::common::{Cluster, Member, put};
use crate::run;
use api::etcdserverpb::{CompactionRequest, SnapshotRequest, StatusRequest};
use futures_util::StreamExt;
use sha2::{Digest, Sha256};

/// Revision to which the source is restored.
const BACK: i64 = 6;
/// Last revision of the abandoned history.
const LOST: i64 = 12;
/// Last revision of the history after the restore.
const LAST: i64 = 20;
const NEWEST: &str = "--time=9999-01-01T00:00:00Z";

async fn write_new(member: &Member, revisions: RangeInclusive<i64>) {
    for at in revisions {
        assert_eq!(member.put(&format!("new-{at}"), "1").await, at);
    }
}

async fn compact(member: &Member, revision: i64) {
    let request = CompactionRequest { revision, physical: true };
    member.kv().await.compact(request).await.unwrap();
}

async fn archived(archive: &Path) -> Cluster {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let archiver = archiver(member, archive, &[]);
    archiver.wait_for("archiving");
    for at in 2..LOST {
        member.put(&format!("old-{at}"), "1").await;
    }
    member.put("last", "1").await;
    wait_for(archive, LOST).await;
    archiver.kill();
    cluster
}

/// Returns the ids of the histories, latest first.
async fn history(member: &Member) -> String {
    let status = member.client().await.maintenance().status(StatusRequest {}).await.unwrap();
    status.metadata().get("kv-history").unwrap().to_str().unwrap().to_owned()
}

/// Converts the archive to the format of an older version, without history ids.
async fn forget_id(archive: &Path, member: &Member) {
    let id = &*history(member).await;
    for path in [objects(archive, "base"), objects(archive, "log")].concat() {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 32);
        // Names in a base must remain sorted.
        for (known, unknown) in [(id, "0".repeat(id.len())), ("kvServerHistory", "kvServerHistorx".into())] {
            while let Some(at) = bytes.windows(known.len()).position(|window| window == known.as_bytes()) {
                bytes[at..at + known.len()].copy_from_slice(unknown.as_bytes());
            }
        }
        bytes.extend(Sha256::digest(&bytes).to_vec());
        std::fs::write(&path, bytes).unwrap();
    }
}

/// Restores a member to [`BACK`], with its previous name, URLs and token.
fn go_back(archive: &Path, member: &mut Member) {
    member.kill();
    member.data_dir.set_extension("restored");
    let (is_made, said) = restore(archive, member, &[&format!("--revision={BACK}")]);
    assert!(is_made, "{said}");
    member.launch();
    member.wait_ready();
}

/// Returns the value of a key at a revision of the archive, from a restored member. The restore starts with
/// the latest base up to the revision.
async fn value_at(archive: &Path, revision: i64, key: &str) -> Result<Option<String>, String> {
    let mut restored = Cluster::new(1);
    let member = &mut restored.members[0];
    let (is_made, said) = restore(archive, member, &[&format!("--revision={revision}"), NEWEST]);
    if !is_made {
        return Err(said);
    }
    member.launch();
    member.wait_ready();
    Ok(member.get(key).await)
}

/// Writes the second history: `last` is the key of revision [`LOST`].
async fn go_on(member: &Member, last: &str) {
    write_new(member, BACK + 1..=LOST - 1).await;
    member.put(last, "1").await;
    write_new(member, LOST + 1..=LAST).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_goes_on_over_the_history_that_it_has_and_over_no_other() {
    for (name, goes_back, last, compacted) in [
        ("the same, compacted to its end", false, "", Some(LOST)),
        ("another", true, "other", None),
        ("another, with an equal last revision", true, "last", None),
        ("another, compacted to the end of the archive", true, "other", Some(LOST)),
        ("another, compacted close to the end", true, "other", Some(LOST - 2)),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let archive = directory.path().join("archive");
        let mut cluster = archived(&archive).await;
        let member = &mut cluster.members[0];
        forget_id(&archive, member).await;
        if goes_back {
            go_back(&archive, member);
            go_on(member, last).await;
        } else {
            write_new(member, LOST + 1..=LAST).await;
        }
        if let Some(revision) = compacted {
            compact(member, revision).await;
        }
        let again = archiver(member, &archive, &[]);
        if goes_back {
            let (status, said) = again.wait_end();
            assert!(!status.success() && said.contains("another history"), "{name}: {said}");
            let after = value_at(&archive, LAST, "old-7").await.unwrap_err();
            assert!(after.contains(&format!("which has 1 to {LOST}")), "{name}: {after}");
            assert_eq!(value_at(&archive, LOST, "old-7").await.unwrap().as_deref(), Some("1"), "{name}");
        } else {
            wait_for(&archive, LAST).await;
            let found = value_at(&archive, LOST + 2, &format!("new-{}", LOST + 2)).await;
            assert_eq!(found.unwrap().as_deref(), Some("1"), "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_of_a_base_alone_does_not_go_on_over_another_history() {
    let directory = tempfile::tempdir().unwrap();
    let [archive, alone] = ["archive", "alone"].map(|name| directory.path().join(name));
    let mut cluster = archived(&archive).await;
    let member = &mut cluster.members[0];
    let base = archiver(member, &alone, &[]);
    base.wait_for("archiving");
    base.kill();
    forget_id(&archive, member).await;
    forget_id(&alone, member).await;
    go_back(&archive, member);
    go_on(member, "other").await;
    for is_compacted in [false, true] {
        if is_compacted {
            compact(member, LOST).await;
        }
        let (status, said) = archiver(member, &alone, &[]).wait_end();
        assert!(!status.success() && said.contains("another history"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_quiet_and_compacted_makes_no_gap() {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("archive");
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    member.put("a", "1").await;
    compact(member, member.put("a", "2").await).await;
    for _ in 0..2 {
        let archiver = archiver(member, &archive, &[]);
        archiver.wait_for("archiving");
        archiver.kill();
    }
    assert_eq!(objects(&archive, "base").len(), 1, "the second archiver goes on after the first");
}

fn copy_objects(paths: &[PathBuf], to: &Path) {
    for path in paths {
        std::fs::copy(path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_refuses_objects_of_two_histories() {
    let directory = tempfile::tempdir().unwrap();
    let [old, new, compacted] = ["old", "new", "compacted"].map(|name| directory.path().join(name));
    let mut cluster = archived(&old).await;
    let member = &mut cluster.members[0];
    go_back(&old, member);
    let of_new = archiver(member, &new, &[]);
    of_new.wait_for("archiving");
    write_new(member, BACK + 1..=LOST).await;
    wait_for(&new, LOST).await;
    let segments = objects(&new, "log");
    of_new.kill();
    let of_base = archiver(member, &new, &["--base-every=0s"]);
    of_base.wait_for(&format!("base at revision {LOST}"));
    write_new(member, LOST + 1..=LAST).await;
    wait_for(&new, LAST).await;
    of_base.kill();
    let later: Vec<PathBuf> =
        objects(&new, "log").into_iter().filter(|path| !segments.contains(path)).collect();
    let base = |archive: &Path, revision: i64| -> Vec<PathBuf> {
        let name = format!("{revision:020}-");
        let is_of = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&name);
        objects(archive, "base").into_iter().filter(is_of).take(1).collect()
    };
    compact(member, LAST).await;
    archiver(member, &compacted, &[]).wait_for("archiving");
    for (name, bases, copied, revision) in [
        ("segments after those of another history", vec![], later, LAST),
        ("segments of two archivers", vec![], objects(&new, "log"), LAST),
        ("a base among segments of another history", base(&new, LOST), vec![], LOST),
    ] {
        let mixed = directory.path().join(name);
        for part in ["base", "log"] {
            std::fs::create_dir_all(mixed.join(part)).unwrap();
            copy_objects(&objects(&old, part), &mixed.join(part));
        }
        copy_objects(&[old.join("archive.json"), old.join("head.json")], &mixed);
        copy_objects(&bases, &mixed.join("base"));
        copy_objects(&copied, &mixed.join("log"));
        let said = value_at(&mixed, revision, "old-7").await.expect_err(name);
        assert!(said.contains("another history"), "{name}: {said}");
    }
    // A complete history, and a base without an earlier segment.
    copy_objects(&base(&compacted, LAST), &new.join("base"));
    let found = value_at(&new, LAST, &format!("new-{LAST}")).await.unwrap();
    assert_eq!(found.as_deref(), Some("1"));
    // Bases with the names of the first version.
    for path in objects(&new, "base") {
        let name = path.to_str().unwrap().replace("-taken", "");
        std::fs::rename(&path, name).unwrap();
    }
    let found = value_at(&new, LAST - 1, &format!("new-{}", LAST - 1)).await.unwrap();
    assert_eq!(found.as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_gives_no_later_state_when_the_snapshot_of_a_base_has_waited() {
    let (cluster, _directory, archive) = lone_cluster();
    let member = &cluster.members[0];
    // More than the connections buffer.
    for key in ["a", "b", "c", "d"] {
        member.kv().await.put(put(key, &"x".repeat(1 << 20))).await.unwrap();
    }
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut client = member.client().await.maintenance();
        slow.push(tokio::spawn(async move {
            let _unread = client.snapshot(SnapshotRequest {}).await;
            std::future::pending::<()>().await;
        }));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let archiver = archiver(member, &archive, &["--base-every=1h"]);
    let began = std::time::Instant::now();
    while !archive.join("archive.json").exists() {
        assert!(began.elapsed() < crate::common::PATIENCE, "{}", archiver.said());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The base's snapshot is requested, and waits.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let later = member.put("later", "1").await;
    slow.iter().for_each(tokio::task::JoinHandle::abort);
    wait_for(&archive, later).await;
    let restored = Cluster::new(1);
    let (is_made, said) = restore(&archive, &restored.members[0], &[&format!("--time={before}")]);
    let is_later = said.contains(&format!("revision {later},"));
    assert!(!is_later && (is_made || said.contains("the archive has no data at or before")), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_import_does_not_go_on_over_another_history() {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("archive");
    let mut cluster = archived(&archive).await;
    let mut target = Cluster::new(1);
    let identity = target.members[0].identity();
    let finished = target.members[0].data_dir.join("identity.json");
    let import_with = |port: u16, flags: &[&str]| {
        let live = format!("--live=127.0.0.1:{port}");
        let from = ["import".to_owned(), "--until-caught-up".to_owned(), live];
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        run(&[&from[..], &flags, &identity].concat())
    };
    let import = |member: &Member| import_with(member.client_port, &[]);
    let member = &mut cluster.members[0];
    let (is_made, said) = import(member);
    assert!(is_made && said.contains(&format!("revision {LOST}")), "{said}");
    // Failed imports leave a finished one unchanged.
    let other = Cluster::started(1);
    for (port, flags, wanted) in [
        (1, &["--timeout=1"][..], "The previous import is unchanged"),
        (
            member.client_port,
            &["--initial-cluster-token=other"],
            "started with a different --name, --initial-cluster or token",
        ),
        (other.members[0].client_port, &[], "the copy to cluster"),
    ] {
        let (is_made, said) = import_with(port, flags);
        assert!(!is_made && said.contains(wanted), "{said}");
        assert!(finished.exists(), "{said}");
    }
    // The source continues, and compacts the entries that follow the copy.
    let of_source = history(member).await;
    for at in LOST + 1..LOST + 4 {
        assert_eq!(member.put("more", "1").await, at);
    }
    compact(member, LOST + 3).await;
    let again = format!("finished at revision {LOST} again");
    let (is_made, said) = import(member);
    assert!(!is_made && said.contains("compacted") && said.contains(&again), "{said}");
    go_back(&archive, member);
    go_on(member, "last").await;
    let (is_made, said) = import(member);
    assert!(!is_made && said.contains("another history"), "{said}");
    assert!(said.contains(&again) && finished.exists(), "{said}");
    // Writes of the copy belong to a new history.
    let member = &mut target.members[0];
    member.launch();
    member.wait_ready();
    assert!(history(member).await.ends_with(&format!(",{of_source}@{LOST}")));
}

/// Fills the history with enough identical puts that any comparison of entries finds them equal.
async fn tick(member: &Member) -> i64 {
    let puts = (0..1_200).map(|_| async { member.kv().await.put(put("tick", "")).await.unwrap() });
    let answers: Vec<_> = futures_util::stream::iter(puts).buffer_unordered(64).collect().await;
    answers.into_iter().map(|answer| answer.into_inner().header.unwrap().revision).max().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_that_agree_wherever_they_are_compared_are_told_apart_by_their_ids() {
    let directory = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| directory.path().join(name));
    let mut cluster = archived(&old).await;
    let member = &mut cluster.members[0];
    let of_old = archiver(member, &old, &[]);
    let ticked = tick(member).await;
    wait_for(&old, ticked).await;
    of_old.kill();
    go_back(&old, member);
    let of_new = archiver(member, &new, &[]);
    of_new.wait_for("archiving");
    write_new(member, BACK + 1..=LOST).await;
    assert_eq!(tick(member).await, ticked);
    wait_for(&new, ticked).await;
    let segments = objects(&new, "log");
    let last = member.put("last", "2").await;
    wait_for(&new, last).await;
    let (status, said) = archiver(member, &old, &[]).wait_end();
    let wanted = format!("up to revision {ticked}. It was restored");
    assert!(!status.success() && said.contains(&wanted), "{said}");
    // Segments of the new history after segments of the old history.
    let later: Vec<PathBuf> =
        objects(&new, "log").into_iter().filter(|path| !segments.contains(path)).collect();
    copy_objects(&later, &old.join("log"));
    let said = value_at(&old, last, "old-7").await.unwrap_err();
    assert!(said.contains("another history"), "{said}");
    // A restore to the end of an archive loses no revision, and the archive continues there.
    of_new.kill();
    member.kill();
    member.data_dir.set_extension("again");
    let (is_made, said) = restore(&new, member, &[]);
    assert!(is_made && said.contains(&format!("revision {last},")), "{said}");
    member.launch();
    member.wait_ready();
    let of_new = archiver(member, &new, &[]);
    wait_for(&new, member.put("last", "3").await).await;
    of_new.kill();
    let found = value_at(&new, last + 1, "last").await;
    assert_eq!(found.unwrap().as_deref(), Some("3"));
}
