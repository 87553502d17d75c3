//! Who waits for what, on a store in memory whose durable updates are watched.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use std::time::Duration;

use mvcc::{
    Backend, BlockFile, CompactProgress, KeyRange, LogIndex, LogPosition, Maintainer, MemoryBackend, Present,
    Pressure, Previous, Staging, Store, StoreOptions, Update, Writer,
};
use parking_lot::{Condvar, Mutex};
use raft_node::Fatal;
use tokio::sync::watch;

use super::requests::CheckpointerShared;
use super::*;
use telemetry::metrics::Metrics;

/// What happened, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreEvent {
    /// The catalogue was updated: by a checkpoint, or by a step that moves or drops blocks.
    Update,
    /// A checkpoint up to this index is durable.
    Durable(u64),
}

type Hook = Box<dyn FnOnce() + Send>;

/// Records updates, and calls the hook within the next one.
#[derive(Clone, Default)]
struct Watch {
    events: Arc<Mutex<Vec<StoreEvent>>>,
    hook: Arc<Mutex<Option<Hook>>>,
}

struct WatchedBackend {
    backend: MemoryBackend,
    watch: Watch,
}

impl Backend for WatchedBackend {
    fn catalogue(&mut self) -> mvcc::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.backend.catalogue()
    }

    fn update(&mut self, update: Update) -> mvcc::Result<()> {
        self.watch.events.lock().push(StoreEvent::Update);
        let hook = self.watch.hook.lock().take();
        if let Some(hook) = hook {
            hook();
        }
        self.backend.update(update)
    }

    fn files(&mut self) -> mvcc::Result<Vec<u64>> {
        self.backend.files()
    }

    fn create_file(&mut self, number: u64) -> mvcc::Result<Arc<dyn BlockFile>> {
        self.backend.create_file(number)
    }

    fn open_file(&mut self, number: u64) -> mvcc::Result<Arc<dyn BlockFile>> {
        self.backend.open_file(number)
    }

    fn remove_file(&mut self, number: u64) -> mvcc::Result<()> {
        self.backend.remove_file(number)
    }

    fn complete(&mut self, applied: LogPosition) -> mvcc::Result<()> {
        self.backend.complete(applied)
    }

    fn replace(&mut self, incoming: Box<dyn Backend>) -> mvcc::Result<()> {
        self.backend.replace(incoming)
    }
}

/// A store of many files, every one of which has holes once it is compacted.
fn with_holes(watch: &Watch) -> (Writer, Store, Maintainer) {
    with_holes_in(MemoryBackend::new(), watch)
}

fn with_holes_in(backend: MemoryBackend, watch: &Watch) -> (Writer, Store, Maintainer) {
    let options = StoreOptions {
        block_bytes: 512,
        block_file_bytes: 4096,
        checkpoint_due_bytes: 1 << 20,
        ..StoreOptions::default()
    };
    let backend = WatchedBackend { backend, watch: watch.clone() };
    let (mut writer, store, mut maintainer) = mvcc::open(Box::new(backend), options).unwrap();
    for key in 0..2000u64 {
        let value: Vec<u8> =
            (0..60).map(|byte| (key.wrapping_mul(0x9e37_79b9) >> (byte % 23)) as u8).collect();
        writer.begin().put(&key.to_be_bytes(), &value, 0);
    }
    for key in (0..2000u64).step_by(5) {
        let key = KeyRange::one(key.to_be_bytes().to_vec().into());
        writer.begin().delete_range(&key, Previous::Skip).unwrap();
    }
    writer.compact(store.revision()).unwrap();
    writer.end_entry(LogPosition::new(1, 1)).unwrap();
    maintainer.persist().unwrap();
    (writer, store, maintainer)
}

#[tokio::test]
async fn a_checkpoint_is_written_in_the_middle_of_a_defragment() {
    let watch = Watch::default();
    let (mut writer, store, maintainer) = with_holes(&watch);
    let failed = |fatal: Fatal| panic!("{fatal}");
    let thread =
        StoreThread::start(maintainer, store, 1 << 20, Arc::new(Metrics::default()), failed).unwrap();
    let checkpoints = thread.checkpoints();
    let events = Arc::clone(&watch.events);
    checkpoints.on_checkpoint(move |applied| events.lock().push(StoreEvent::Durable(applied.index.0)));

    // In the first step of the Defragment a writer finds that it needs a checkpoint.
    let (asking, hook) = (checkpoints.clone(), Arc::clone(&watch.hook));
    let ask: Hook = Box::new(move || {
        writer.begin().put(b"key", b"value", 0);
        writer.end_entry(LogPosition::new(2, 1)).unwrap();
        asking.request_checkpoint();
    });
    // The first update is that of the checkpoint with which the Defragment begins, if there is one.
    *watch.hook.lock() = Some(Box::new(move || *hook.lock() = Some(ask)));
    assert!(checkpoints.defragment().await);
    let events = watch.events.lock().clone();
    let durable =
        events.iter().position(|event| *event == StoreEvent::Durable(2)).expect("the checkpoint is written");
    let steps = |events: &[StoreEvent]| events.iter().filter(|event| **event == StoreEvent::Update).count();
    let after = steps(&events[durable..]);
    assert!(after > 5, "the checkpoint waited for the Defragment: {after} steps came after it");
    tokio::task::spawn_blocking(|| thread.stop()).await.unwrap();
}

#[test]
fn a_compaction_that_waits_for_a_reader_delays_no_checkpoint() {
    let (mut writer, store, maintainer) = with_holes(&Watch::default());
    let failed = |fatal: Fatal| panic!("{fatal}");
    let thread =
        StoreThread::start(maintainer, store.clone(), 1 << 20, Arc::new(Metrics::default()), failed).unwrap();
    let (checkpoints, (sender, durable)) = (thread.checkpoints(), std::sync::mpsc::channel());
    checkpoints.on_checkpoint(move |applied| sender.send(applied.index.0).unwrap());
    let pinned = store.pin_history();
    writer.begin().put(b"key", b"value", 0);
    let compacted = store.revision();
    writer.compact(compacted).unwrap();
    let mut is_durable = |index| {
        writer.end_entry(LogPosition::new(index, 1)).unwrap();
        while durable.recv_timeout(Duration::from_secs(10)).expect("a checkpoint") < index {}
    };
    // The compaction begins with the first checkpoint. The others come after a time without entries.
    checkpoints.compaction_began();
    for index in 2..5 {
        is_durable(index);
    }
    assert!(*checkpoints.compacted().borrow() < compacted, "the compaction waits");
    drop(pinned);
    thread.stop();
}

#[tokio::test]
async fn a_compaction_that_an_installed_store_has_finished_is_announced() {
    // The sender is an entry ahead, and nothing is read from it.
    let (mut sender, _, mut sent) = with_holes(&Watch::default());
    sender.end_entry(LogPosition::new(2, 1)).unwrap();
    sent.persist().unwrap();
    while sent.compact_step(1000).unwrap() != CompactProgress::Idle {}
    let home = MemoryBackend::new();
    let mut staging = Staging::begin(Box::new(home.incoming()), &StoreOptions::default()).unwrap();
    let mut export = sent.export();
    while let Some(chunk) = export.next(1 << 20).unwrap() {
        staging.add(&chunk).unwrap();
    }
    let staged = staging.finish().unwrap();

    let (_writer, store, maintainer) = with_holes_in(home, &Watch::default());
    let _pinned = store.pin_history();
    let failed = |fatal: Fatal| panic!("{fatal}");
    let thread =
        StoreThread::start(maintainer, store.clone(), 1 << 20, Arc::new(Metrics::default()), failed).unwrap();
    let checkpoints = thread.checkpoints();
    checkpoints.compaction_began();
    let compacted = store.compact_revision();
    tokio::task::spawn_blocking(move || {
        checkpoints.install(staged, Present::Right).unwrap();
        checkpoints
    })
    .await
    .unwrap()
    .compacted()
    .wait_for(|finished| *finished >= compacted)
    .await
    .unwrap();
    tokio::task::spawn_blocking(|| thread.stop()).await.unwrap();
}

#[test]
fn a_thread_that_fails_reports_its_error_before_it_wakes_who_waits() {
    let shared = Arc::new(CheckpointerShared {
        wanted: Mutex::default(),
        wake: Condvar::new(),
        done: Condvar::new(),
        counted_from: AtomicU64::new(0),
        entries_max: 1,
    });
    let (_announce, compacted) = watch::channel(-1);
    let checkpoints = Checkpoints { shared: Arc::clone(&shared), compacted };
    let reports = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&reports);
    let waiting = std::thread::spawn(move || {
        let fatal = checkpoints.wait_for_checkpoint().unwrap_err();
        theirs.lock().push(fatal.what);
    });
    while !shared.wanted.lock().checkpoint {
        std::thread::yield_now();
    }
    shared.end(Err(Fatal::new("the disk")), |fatal| reports.lock().push(fatal.what));
    waiting.join().unwrap();
    assert_eq!(*reports.lock(), ["the disk", "wait for a checkpoint: its thread exited"]);
}

/// With 64 MiB that are not durable, and here with 4 KiB.
#[test]
fn apply_waits_for_a_checkpoint_when_the_store_is_full() {
    let watch = Watch::default();
    let options =
        StoreOptions { checkpoint_due_bytes: 1024, checkpoint_full_bytes: 4096, ..StoreOptions::default() };
    let backend = WatchedBackend { backend: MemoryBackend::new(), watch: watch.clone() };
    let (mut writer, store, maintainer) = mvcc::open(Box::new(backend), options).unwrap();
    let failed = |fatal: Fatal| panic!("{fatal}");
    let thread =
        StoreThread::start(maintainer, store, 1 << 20, Arc::new(Metrics::default()), failed).unwrap();
    let checkpoints = thread.checkpoints();
    writer.begin().put(b"key", &[7; 8192], 0);
    let pressure = writer.end_entry(LogPosition::new(1, 1)).unwrap();
    assert_eq!(pressure, Pressure::Full);

    // The checkpoint takes so long that an apply which does not wait for it returns before it.
    let (returned, apply) = mpsc::channel();
    let (sender, seen) = mpsc::channel();
    let slow: Hook = Box::new(move || {
        let apply_has_returned = apply.recv_timeout(Duration::from_millis(200)).is_ok();
        sender.send(apply_has_returned).unwrap();
    });
    *watch.hook.lock() = Some(slow);
    checkpoints.entry_ended(pressure, LogIndex(1)).unwrap();
    let _hook_has_gone = returned.send(());
    let seen = seen.recv_timeout(Duration::from_secs(60)).expect("a checkpoint is written");
    assert!(!seen, "apply continued while the store was full");
    thread.stop();
}
