//! Tests of receiving a store, with a disk in memory.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::poll_immediate;
use mvcc::MemoryBackend;

use super::*;

/// A staging area in memory that records whether it is in use.
struct MemoryPlace {
    home: MemoryBackend,
    is_used: Arc<AtomicBool>,
    is_full: Arc<AtomicBool>,
}

impl StagingPlace for MemoryPlace {
    fn begin(&self) -> mvcc::Result<Box<dyn Backend>> {
        if self.is_full.load(Ordering::SeqCst) {
            let source = std::io::Error::from_raw_os_error(28);
            return Err(mvcc::Error::Io { attempt: "create", path: "incoming".into(), source });
        }
        self.is_used.store(true, Ordering::SeqCst);
        Ok(Box::new(self.home.incoming()))
    }

    fn wipe(&self) -> mvcc::Result<()> {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        assert!(name.starts_with("snapshot-"), "the thread {name} waits for the disk");
        self.is_used.store(false, Ordering::SeqCst);
        self.home.discard_staged()
    }

    fn room(&self) -> u64 {
        1 << 30
    }
}

fn at(index: u64) -> LogPosition {
    LogPosition::new(index, 1)
}

struct Fixture {
    incoming: ReceivePlace,
    is_used: Arc<AtomicBool>,
    is_full: Arc<AtomicBool>,
    fatal: Arc<Mutex<Option<String>>>,
}

fn fixture() -> Fixture {
    let (is_used, is_full) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let place = MemoryPlace {
        home: MemoryBackend::new(),
        is_used: Arc::clone(&is_used),
        is_full: Arc::clone(&is_full),
    };
    let fatal = Arc::new(Mutex::new(None));
    let reported = Arc::clone(&fatal);
    let on_fatal = move |error: Fatal| *reported.lock() = Some(base::causes(&error));
    let incoming = ReceivePlace::new(Box::new(place), Arc::default(), Arc::new(on_fatal));
    Fixture { incoming, is_used, is_full, fatal }
}

/// Returns the chunks of a store with `entries` entries.
fn chunks(entries: u64) -> Vec<Bytes> {
    let (mut writer, _store, mut maintainer) =
        mvcc::open(Box::new(MemoryBackend::new()), mvcc::StoreOptions::default()).unwrap();
    for index in 1..=entries {
        let mut revision = writer.begin();
        // Incompressible values, so that there are several chunks.
        let value: Vec<u8> =
            (0..500u64).map(|at| (at.wrapping_mul(at).wrapping_mul(index + at) >> 3) as u8).collect();
        revision.put(format!("k{index}").as_bytes(), &value, 0);
        revision.finish();
        writer.end_entry(LogPosition::new(index, 1)).unwrap();
    }
    maintainer.persist().unwrap();
    let mut export = maintainer.export();
    std::iter::from_fn(|| export.next(300).unwrap()).collect()
}

async fn receive(incoming: &ReceivePlace, chunks: Vec<Bytes>) -> Result<LogPosition, ReceiveError> {
    let mut reception = incoming.begin(1, Some(1)).await?;
    for chunk in chunks {
        reception.add(chunk).await?;
    }
    reception.finish().await
}

/// Waits for an effect of another thread.
async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waiting).await.expect(what);
}

#[tokio::test]
async fn a_whole_store_waits_until_it_is_taken() {
    let fixture = fixture();
    assert_eq!(receive(&fixture.incoming, chunks(9)).await.unwrap(), at(9));
    assert!(fixture.incoming.holds(at(9)) && !fixture.incoming.holds(at(8)));
    assert!(fixture.incoming.take(at(8)).is_none());
    let (staged, key) = fixture.incoming.take(at(9)).expect("it was received").into_parts();
    assert_eq!(staged.applied(), LogPosition::new(9, 1));
    assert!(!fixture.incoming.holds(at(9)));
    drop(key);
    assert_eq!(receive(&fixture.incoming, chunks(12)).await.unwrap(), at(12));
}

#[tokio::test]
async fn a_store_that_waits_is_not_replaced_and_one_that_is_discarded_is_removed() {
    let fixture = fixture();
    receive(&fixture.incoming, chunks(9)).await.unwrap();
    assert!(matches!(receive(&fixture.incoming, chunks(9)).await, Err(ReceiveError::Busy)));
    fixture.incoming.discard_soon(at(8));
    assert!(fixture.incoming.holds(at(9)), "the store of another entry is kept");
    fixture.incoming.discard_soon(at(9));
    eventually("it was not removed", || !fixture.is_used.load(Ordering::SeqCst)).await;
    assert_eq!(receive(&fixture.incoming, chunks(3)).await.unwrap(), at(3));
}

#[tokio::test]
async fn a_stream_that_breaks_off_leaves_nothing() {
    let fixture = fixture();
    let mut all = chunks(9);
    all.truncate(3);
    let mut reception = fixture.incoming.begin(1, Some(1)).await.unwrap();
    for chunk in all.clone() {
        reception.add(chunk).await.unwrap();
    }
    drop(reception);
    eventually("it was not wiped", || !fixture.is_used.load(Ordering::SeqCst)).await;
    // A stream that is finished early fails since its end is missing.
    let error = receive(&fixture.incoming, all).await.unwrap_err();
    assert!(matches!(error, ReceiveError::Damaged(_)), "{error}");
    assert!(!fixture.is_used.load(Ordering::SeqCst));
    assert_eq!(receive(&fixture.incoming, chunks(9)).await.unwrap(), at(9));
    assert_eq!(*fixture.fatal.lock(), None);
}

#[tokio::test]
async fn a_new_stream_ends_the_one_before_it() {
    let fixture = fixture();
    let mut older = fixture.incoming.begin(1, Some(1)).await.unwrap();
    let all = chunks(9);
    older.add(all[0].clone()).await.unwrap();
    let next = all[1].clone();
    let incoming = fixture.incoming.clone();
    let newer = tokio::spawn(async move { receive(&incoming, all).await });
    eventually("the older stream goes on", || older.replaced.is_stopped()).await;
    let error = older.add(next).await.unwrap_err();
    assert!(matches!(error, ReceiveError::Replaced), "{error}");
    drop(older);
    assert_eq!(newer.await.unwrap().unwrap(), at(9));
    assert!(fixture.incoming.holds(at(9)));
}

#[tokio::test]
async fn a_stream_that_is_replaced_when_it_is_whole_is_wiped_on_another_thread() {
    let fixture = fixture();
    let mut older = fixture.incoming.begin(1, Some(1)).await.unwrap();
    for chunk in chunks(9) {
        older.add(chunk).await.unwrap();
    }
    let mut newer = pin!(fixture.incoming.begin(2, Some(2)));
    assert!(poll_immediate(&mut newer).await.is_none(), "the directory is in use");
    let error = older.finish().await.unwrap_err();
    assert!(matches!(error, ReceiveError::Replaced), "{error}");
    newer.await.unwrap();
}

#[tokio::test]
async fn a_stream_that_ends_while_it_waits_for_the_place_leaves_it_to_any_other() {
    let fixture = fixture();
    let holder = fixture.incoming.begin(1, Some(1)).await.unwrap();
    {
        let mut waiting = pin!(fixture.incoming.begin(2, Some(2)));
        assert!(poll_immediate(&mut waiting).await.is_none(), "the directory is in use");
    }
    drop(holder);
    assert_eq!(receive(&fixture.incoming, chunks(9)).await.unwrap(), at(9));
}

#[tokio::test]
async fn a_flipped_bit_ends_the_stream_and_nothing_else() {
    let fixture = fixture();
    let mut all = chunks(9);
    let mut bytes = all[4].to_vec();
    bytes[100] ^= 1;
    all[4] = bytes.into();
    let error = receive(&fixture.incoming, all).await.unwrap_err();
    assert!(matches!(error, ReceiveError::Damaged(_)), "{error}");
    assert_eq!(*fixture.fatal.lock(), None);
    assert_eq!(receive(&fixture.incoming, chunks(9)).await.unwrap(), at(9));
}

#[tokio::test]
async fn a_disk_that_refuses_ends_the_process() {
    let fixture = fixture();
    fixture.is_full.store(true, Ordering::SeqCst);
    let error = receive(&fixture.incoming, chunks(9)).await.unwrap_err();
    assert!(matches!(error, ReceiveError::Stopping), "{error}");
    let said = fixture.fatal.lock().take().expect("no fatal error was reported");
    assert!(
        said.starts_with("receive a snapshot: create incoming") && said.contains("No space left"),
        "{said}"
    );
}
