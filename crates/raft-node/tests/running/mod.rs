//! Complete members: their threads, a log in a directory, an in-process transport and snapshot streams.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use raft_node::{
    Answer, ChangeCheck, Config, Cost, EmptyLog, Fatal, Handle, Host, Inbox, Lane, Log, LogIndex,
    LogPosition, LogSync, Membership, Observer, ProposeError, RaftLimits, Role, SnapshotOffer,
    SnapshotOutcome, StartedMember, StateMachine, StoreState, Threads, Transport, start,
};
use tempfile::TempDir;
use wal::{Fs, RealFs, Wal, WalOptions};

pub const OPTIONS: WalOptions = WalOptions { segment_bytes: 1 << 20, salt: [7; 16] };

pub type Lines = Arc<Mutex<Vec<String>>>;

/// Records commands for the test; fails at commands with the suffix "die", and treats those with the prefix
/// as brief.
pub struct Book {
    pub lines: Lines,
    pub applied: LogPosition,
    pub shelf: Shelf,
}

/// Lines, and the last entry included.
type State = (LogPosition, Vec<String>);

/// The machine's disk. Survives its member.
#[derive(Clone, Default)]
pub struct Shelf {
    /// The machine after its latest entry, for the next checkpoint.
    newest: Arc<Mutex<State>>,
    durable: Arc<Mutex<State>>,
    staged: Arc<Mutex<Option<State>>>,
    pub installs: Arc<AtomicU64>,
}

impl Shelf {
    pub fn checkpoint(&self) -> LogPosition {
        let newest = self.newest.lock().unwrap().clone();
        let at = newest.0;
        *self.durable.lock().unwrap() = newest;
        at
    }
}

impl StateMachine for Book {
    type Outcome = usize;

    fn applied(&self) -> LogPosition {
        self.applied
    }

    fn apply(&mut self, _at: LogPosition, command: &Bytes, answer: Answer) -> Result<Option<usize>, Fatal> {
        let command = String::from_utf8(command.to_vec()).unwrap();
        if command.ends_with("die") {
            return Err(Fatal::new("apply die"));
        }
        let mut lines = self.lines.lock().unwrap();
        lines.push(command);
        Ok((answer == Answer::Wanted).then_some(lines.len()))
    }

    fn end_entry(&mut self, at: LogPosition) -> Result<(), Fatal> {
        self.applied = at;
        *self.shelf.newest.lock().unwrap() = (at, self.lines.lock().unwrap().clone());
        Ok(())
    }

    fn cost(&mut self, command: &Bytes) -> Option<Cost> {
        command.starts_with(b"brief").then_some(Cost { keys: 1, reads_values: false })
    }

    fn install(&mut self, at: LogPosition) -> Result<(), Fatal> {
        let staged = self.shelf.staged.lock().unwrap().take_if(|(staged, _)| *staged == at);
        let Some(staged) = staged else {
            return Err(Fatal::new(format!("install {}: it is not staged", at.index)));
        };
        self.shelf.installs.fetch_add(1, Ordering::Relaxed); // Before the lines are visible.
        *self.lines.lock().unwrap() = staged.1.clone();
        self.applied = at;
        *self.shelf.newest.lock().unwrap() = staged.clone();
        *self.shelf.durable.lock().unwrap() = staged;
        Ok(())
    }
}

/// Delivers messages to the other members' handles, like the peers' streams.
#[derive(Clone, Default)]
pub struct Wires {
    pub handles: Arc<Mutex<BTreeMap<u64, Handle<usize>>>>,
    pub shelves: Arc<Mutex<BTreeMap<u64, Shelf>>>,
}

pub struct Wire {
    pub from: u64,
    pub wires: Wires,
}

impl Transport for Wire {
    fn send(&self, to: u64, _lane: Lane, message: Bytes) {
        let handle = self.wires.handles.lock().unwrap().get(&to).cloned();
        match handle {
            Some(handle) => handle.receive(self.from, message),
            None => {
                let own = self.wires.handles.lock().unwrap().get(&self.from).cloned();
                own.inspect(|own| own.report_unreachable(to));
            }
        }
    }

    /// A stream in one step: staged at the receiver, then announced to its Raft.
    fn send_snapshot(&self, offer: SnapshotOffer) {
        let handles = self.wires.handles.lock().unwrap();
        let shelves = self.wires.shelves.lock().unwrap();
        let outcome = match (handles.get(&offer.to), shelves.get(&offer.to)) {
            (Some(to), Some(shelf)) => {
                let checkpoint = shelves[&self.from].durable.lock().unwrap().clone();
                let at = checkpoint.0;
                *shelf.staged.lock().unwrap() = Some(checkpoint);
                to.receive(self.from, offer.message(at));
                SnapshotOutcome::Sent
            }
            _ => SnapshotOutcome::Failed,
        };
        handles.get(&self.from).inspect(|own| own.report_snapshot(offer.to, outcome));
    }
}

#[derive(Default)]
pub struct Counts {
    pub syncs: AtomicU64,
    pub batches: AtomicU64,
    pub commands: AtomicU64,
}

impl Observer for Counts {
    fn log_synced(&self, sync: LogSync) {
        assert!(sync.bytes > 0);
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    fn batch_proposed(&self, commands: usize, _bytes: usize) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.commands.fetch_add(commands as u64, Ordering::Relaxed);
    }
}

impl Host for Counts {
    fn checkpoint_wanted(&self, _index: LogIndex) {}

    fn snapshot_ignored(&self, _at: LogPosition) {}

    fn membership_applied(&self, _membership: &Membership) {}
}

pub struct Running {
    pub handle: Handle<usize>,
    pub threads: Threads,
    pub lines: Lines,
    pub fatal: Arc<OnceLock<Fatal>>,
    pub counts: Arc<Counts>,
    pub shelf: Shelf,
}

impl Running {
    /// Makes the machine's state durable, and notifies Raft.
    pub fn checkpoint(&self) -> LogPosition {
        let at = self.shelf.checkpoint();
        self.handle.checkpointed(at);
        at
    }

    pub fn stop(self) {
        self.handle.stop();
        self.threads.join();
    }
}

pub fn config(id: u64, count: u64) -> Config {
    static BOOTS: AtomicU64 = AtomicU64::new(1);
    Config {
        id,
        voters: (1..=count).collect(),
        membership: None,
        boot_nonce: BOOTS.fetch_add(1, Ordering::Relaxed),
        // Elections after 500 ms: a busy machine usually stalls for less than that.
        tick: Duration::from_millis(50),
        heartbeat_ticks: 1,
        election_ticks: 10,
        catch_up_entries: 5_000,
        store: StoreState::Whole,
        empty_log: EmptyLog::New,
        removed_by: |_| None,
        keeps_voters: |_, _| false,
        change_check: ChangeCheck::default(),
        limits: RaftLimits { request_timeout: Duration::from_secs(10), ..RaftLimits::default() },
    }
}

pub fn open<F: Fs>(fs: F, dir: &Path) -> Log<F> {
    if Wal::exists(&fs, dir).unwrap() {
        let (wal, recovery) = Wal::open(fs, dir, OPTIONS).unwrap();
        return Log::opened(wal, recovery);
    }
    Log::created(Wal::create(fs, dir, b"test", wal::LogPosition::default(), OPTIONS).unwrap())
}

pub fn boot<F: Fs>(config: Config, log: Log<F>, wires: &Wires) -> Running {
    let (lines, fatal, counts) = (Lines::default(), Arc::new(OnceLock::new()), Arc::new(Counts::default()));
    let shelf = wires.shelves.lock().unwrap().entry(config.id).or_default().clone();
    let (applied, before) = match config.store {
        StoreState::Whole => shelf.durable.lock().unwrap().clone(),
        StoreState::Lost => Default::default(),
    };
    *lines.lock().unwrap() = before;
    let book = Book { lines: lines.clone(), applied, shelf: shelf.clone() };
    let wire = Wire { from: config.id, wires: wires.clone() };
    let id = config.id;
    let reported = fatal.clone();
    let on_fatal = Box::new(move |fatal| reported.set(fatal).expect("reported once"));
    let StartedMember { handle, driver, pump, threads } =
        start(config, log, book, Arc::new(wire), on_fatal, counts.clone(), counts.clone())
            .expect("the member starts");
    tokio::spawn(pump.run());
    // Not on the test's runtime: a test may block its only thread.
    std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        runtime.expect("a runtime").block_on(driver.run());
    });
    wires.handles.lock().unwrap().insert(id, handle.clone());
    Running { handle, threads, lines, fatal, counts, shelf }
}

pub struct Home {
    pub dir: TempDir,
    pub wires: Wires,
}

impl Home {
    pub fn new() -> Home {
        Home { dir: tempfile::tempdir().unwrap(), wires: Wires::default() }
    }

    pub fn log_dir(&self, id: u64) -> PathBuf {
        self.dir.path().join(format!("m{id}"))
    }

    pub fn boot(&self, id: u64, count: u64) -> Running {
        boot(config(id, count), open(RealFs, &self.log_dir(id)), &self.wires)
    }

    /// Starts a member that retains no entries for lagging followers.
    pub fn boot_trimming(&self, id: u64, count: u64, store: StoreState) -> Running {
        let config = Config { catch_up_entries: 0, store, ..config(id, count) };
        boot(config, open(RealFs, &self.log_dir(id)), &self.wires)
    }

    pub fn stop(&self, id: u64, member: Running) {
        self.wires.handles.lock().unwrap().remove(&id);
        member.stop();
    }
}

/// Waits for a condition set by other threads.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let patience = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), patience)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}

pub async fn leader_of(members: &[&Running]) -> usize {
    let mut found = None;
    until("a leader that all follow", || {
        let status: Vec<_> = members.iter().map(|member| member.handle.status()).collect();
        found = status.iter().position(|s| s.role == Role::Leader);
        found.is_some_and(|at| status.iter().all(|s| s.leader == Some(status[at].id)))
    })
    .await;
    found.unwrap()
}

/// Proposes with retries after timeouts: on a busy machine a leader can be deposed, and proposals in flight
/// to it are lost.
pub async fn propose(member: &Running, command: &str) -> usize {
    let applied = async {
        loop {
            match member.handle.propose(Bytes::from(command.to_owned())).await {
                Ok(applied) => return applied,
                Err(
                    ProposeError::Timeout
                    | ProposeError::TimeoutLeaderFail
                    | ProposeError::TimeoutConnectionLost
                    | ProposeError::NoLeader,
                ) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(120), applied).await.expect("never applied")
}
