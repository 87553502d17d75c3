//! Tests of the archiver without a cluster.

use std::path::Path;

use config::PortTls;
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::super::inventory::{BASES, Base, SEGMENTS};
use super::*;
use crate::live_import::{CopyError, Digests};

/// Creates an archiver for an empty directory and an unreachable cluster.
fn archiver(directory: &Path, keep: Option<Duration>) -> Archiver {
    let client = OperatorClient::new(vec!["http://127.0.0.1:1".to_owned()], &PortTls::default(), None);
    let place = ArchivePlace::take(directory.to_str().unwrap(), &Handle::current()).unwrap();
    let hour = Duration::from_secs(3600);
    let options = FollowOptions { base_every: hour, segment_every: hour, segment_bytes: 1 << 20, keep };
    Archiver::open(client.unwrap(), place, options, watch::channel(false).1, Arc::default()).unwrap()
}

fn base(revision: i64, time_ms: i64) -> Base {
    Base { revision, time_ms, is_taken: true }
}

fn made(base: Base) -> Result<BaseResult, BaseError> {
    Ok(BaseResult { base, bytes: 0, digests: Digests::default(), auth_revision: 0 })
}

/// The verification of a draft cannot be aborted, and another base would be written to the same draft.
#[tokio::test(flavor = "multi_thread")]
async fn a_base_outlives_the_connection_that_it_was_begun_over() {
    let directory = TempDir::new().unwrap();
    let mut archiver = archiver(directory.path(), None);
    let base = tokio::spawn(std::future::pending());
    let (task, metrics) = (base.abort_handle(), Arc::clone(&archiver.metrics));
    archiver.base = Some(base);
    let failed_twice = async {
        while metrics.failures.get() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        _ = archiver.run() => panic!("nothing asked it to end"),
        () = failed_twice => assert!(!task.is_finished()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_that_was_removed_is_not_what_older_ones_are_removed_for() {
    let directory = TempDir::new().unwrap();
    let mut archiver = archiver(directory.path(), Some(Duration::ZERO));
    let (older, removed, newest) = (base(10, 1), base(20, 2), base(30, now_ms() + 3_600_000));
    archiver.inventory.bases = vec![older, removed];
    archiver.place.put(&older.name(), b"").unwrap();
    archiver.place.put(&newest.name(), b"").unwrap();
    archiver.last = newest.revision;
    assert!(archiver.take_base(made(newest)).is_ok());
    let removed = finished(&mut archiver.removal).await;
    archiver.take_removed(removed);
    let names: Vec<String> = [older, newest].iter().map(Base::name).collect();
    let found = archiver.place.list(BASES).unwrap();
    assert_eq!(found.iter().map(|name| format!("{BASES}/{name}")).collect::<Vec<_>>(), names);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_removed_is_counted_and_the_archiver_goes_on() {
    let directory = TempDir::new().unwrap();
    let mut archiver = archiver(directory.path(), Some(Duration::ZERO));
    let (refused, newest) = (base(10, 1), base(20, 2));
    std::fs::create_dir(directory.path().join(refused.name())).unwrap();
    archiver.inventory.bases = vec![refused];
    archiver.place.put(&newest.name(), b"").unwrap();
    archiver.last = newest.revision;
    assert!(archiver.take_base(made(newest)).is_ok());
    let removed = finished(&mut archiver.removal).await;
    archiver.take_removed(removed);
    assert_eq!((archiver.metrics.failures.get(), archiver.metrics.bases.get()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_base_is_not_tried_again_at_once() {
    let directory = TempDir::new().unwrap();
    let mut archiver = archiver(directory.path(), None);
    assert!(archiver.take_base(Err(BaseError::Copy(CopyError::Silent))).is_ok());
    assert!(archiver.base_pause > Instant::now());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_gets_another_name_if_another_archiver_has_its_own_by_that_name() {
    let directory = TempDir::new().unwrap();
    let mut archiver = archiver(directory.path(), None);
    archiver.last = 1;
    archiver.push(WholeRevision { revision: 2, events: Vec::new() });
    let (first, last, time_ms) = archiver.segment.span().unwrap();
    let segment = |time_ms| Segment { first, last, time_ms };
    archiver.place.put(&segment(time_ms).name(), b"theirs").unwrap();
    let written = tokio::time::timeout(2 * PAUSE, archiver.write(None)).await;
    assert!(written.is_ok_and(|written| written.is_ok()));
    let names = archiver.place.list(SEGMENTS).unwrap();
    let wanted = [segment(time_ms), segment(time_ms + 1)].map(|segment| segment.name());
    assert_eq!(names.iter().map(|name| format!("{SEGMENTS}/{name}")).collect::<Vec<_>>(), wanted);
    assert_eq!(archiver.place.get(&wanted[0]).unwrap().as_deref(), Some(&b"theirs"[..]));
}
