//! Whole members: their threads, a real log in a temporary directory, a transport inside the process.
#![expect(clippy::unwrap_used, reason = "a test that unwraps nothing fails where it stands")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use raft_node::{
    Answer, Config, Fatal, Handle, Lane, Limits, Log, LogSync, Observer, Position, ProposeError, ReadError,
    Role, SnapshotOffer, SnapshotOutcome, StartError, StateMachine, StoreState, Threads, TransferError,
    Transport, start,
};
use tempfile::TempDir;
use wal::testing::{Fault, SimFs};
use wal::{Fs, Options, RealFs, Wal};

const OPTIONS: Options = Options { segment_bytes: 1 << 20 };

type Lines = Arc<Mutex<Vec<String>>>;

/// Writes commands down where the test can see them; refuses to go on at the command "die".
struct Book {
    lines: Lines,
    applied: Position,
}

impl StateMachine for Book {
    type Outcome = usize;

    fn applied(&self) -> Position {
        self.applied
    }

    fn apply(&mut self, _at: Position, command: &Bytes, answer: Answer) -> Result<Option<usize>, Fatal> {
        let command = String::from_utf8(command.to_vec()).unwrap();
        if command == "die" {
            return Err(Fatal::new("apply die"));
        }
        let mut lines = self.lines.lock().unwrap();
        lines.push(command);
        Ok((answer == Answer::Wanted).then_some(lines.len()))
    }

    fn end_entry(&mut self, at: Position) -> Result<(), Fatal> {
        self.applied = at;
        Ok(())
    }

    fn install(&mut self, at: Position) -> Result<(), Fatal> {
        Err(Fatal::new(format!("install {}: nothing is staged", at.index)))
    }
}

/// Hands messages to the other members' handles, as the peers' streams would.
#[derive(Clone, Default)]
struct Wires {
    handles: Arc<Mutex<BTreeMap<u64, Handle<usize>>>>,
}

struct Wire {
    from: u64,
    wires: Wires,
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

    fn send_snapshot(&self, offer: SnapshotOffer) {
        let own = self.wires.handles.lock().unwrap().get(&self.from).cloned();
        own.inspect(|own| own.report_snapshot(offer.to, SnapshotOutcome::Failed));
    }
}

#[derive(Default)]
struct Counts {
    syncs: AtomicU64,
    batches: AtomicU64,
    commands: AtomicU64,
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

struct Running {
    handle: Handle<usize>,
    threads: Threads,
    lines: Lines,
    fatal: Arc<OnceLock<Fatal>>,
    counts: Arc<Counts>,
}

impl Running {
    fn stop(self) {
        self.handle.stop();
        self.threads.join();
    }
}

fn config(id: u64, count: u64) -> Config {
    static BOOTS: AtomicU64 = AtomicU64::new(1);
    Config {
        id,
        voters: (1..=count).collect(),
        boot_nonce: BOOTS.fetch_add(1, Ordering::Relaxed),
        tick: Duration::from_millis(10),
        heartbeat_ticks: 1,
        election_ticks: 10,
        catch_up_entries: 5_000,
        store: StoreState::Whole,
        limits: Limits { request_timeout: Duration::from_secs(5), ..Limits::default() },
    }
}

fn open<F: Fs>(fs: F, dir: &Path) -> Log<F> {
    if Wal::exists(&fs, dir).unwrap() {
        let (wal, recovery) = Wal::open(fs, dir, OPTIONS).unwrap();
        return Log::opened(wal, recovery);
    }
    Log::created(Wal::create(fs, dir, b"test", wal::Position::default(), OPTIONS).unwrap())
}

fn boot<F: Fs>(config: Config, log: Log<F>, wires: &Wires) -> Running {
    let (lines, fatal, counts) = (Lines::default(), Arc::new(OnceLock::new()), Arc::new(Counts::default()));
    let book = Book { lines: lines.clone(), applied: Position::default() };
    let wire = Wire { from: config.id, wires: wires.clone() };
    let id = config.id;
    let told = fatal.clone();
    let on_fatal = Box::new(move |fatal| told.set(fatal).expect("told once"));
    let (handle, pump, threads) =
        start(config, log, book, Arc::new(wire), on_fatal, counts.clone()).expect("the member starts");
    tokio::spawn(pump.run());
    wires.handles.lock().unwrap().insert(id, handle.clone());
    Running { handle, threads, lines, fatal, counts }
}

struct Home {
    dir: TempDir,
    wires: Wires,
}

impl Home {
    fn new() -> Home {
        Home { dir: tempfile::tempdir().unwrap(), wires: Wires::default() }
    }

    fn log_dir(&self, id: u64) -> PathBuf {
        self.dir.path().join(format!("m{id}"))
    }

    fn boot(&self, id: u64, count: u64) -> Running {
        boot(config(id, count), open(RealFs, &self.log_dir(id)), &self.wires)
    }

    fn stop(&self, id: u64, member: Running) {
        self.wires.handles.lock().unwrap().remove(&id);
        member.stop();
    }
}

/// Waits for a condition that other threads bring about.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let patience = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), patience).await.unwrap_or_else(|_| panic!("never: {what}"));
}

async fn leader_of(members: &[&Running]) -> usize {
    let mut found = None;
    until("a leader that all follow", || {
        let status: Vec<_> = members.iter().map(|member| member.handle.status()).collect();
        found = status.iter().position(|s| s.role == Role::Leader);
        found.is_some_and(|at| status.iter().all(|s| s.leader == Some(status[at].id)))
    })
    .await;
    found.unwrap()
}

async fn propose(member: &Running, command: &str) -> usize {
    member.handle.propose(Bytes::from(command.to_owned())).await.unwrap()
}

#[tokio::test]
async fn a_lone_member_answers_stops_and_remembers() {
    let home = Home::new();
    let member = home.boot(1, 1);
    for (at, command) in ["a", "b", "c"].into_iter().enumerate() {
        assert_eq!(propose(&member, command).await, at + 1);
    }
    let point = member.handle.read_point().await.unwrap();
    let status = member.handle.status();
    assert_eq!((status.role, status.leader, status.id), (Role::Leader, Some(1), 1));
    assert!(point <= status.applied && status.applied <= status.commit && status.commit <= status.last_index);
    home.stop(1, member);

    let member = home.boot(1, 1);
    assert_eq!(propose(&member, "d").await, 4);
    assert_eq!(*member.lines.lock().unwrap(), ["a", "b", "c", "d"]);
    home.stop(1, member);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_serve_from_anywhere_and_survive_a_full_stop() {
    let home = Home::new();
    let members: Vec<_> = (1..=3).map(|id| home.boot(id, 3)).collect();
    leader_of(&members.iter().collect::<Vec<_>>()).await;
    for round in 0..10 {
        for (id, member) in (1..).zip(&members) {
            propose(member, &format!("{round} from {id}")).await;
        }
    }
    for member in &members {
        member.handle.read_point().await.unwrap();
        assert_eq!(member.lines.lock().unwrap().len(), 30, "a read point covers every answered write");
    }
    let before = members[0].lines.lock().unwrap().clone();
    for (id, member) in (1..).zip(members) {
        home.stop(id, member);
    }
    let members: Vec<_> = (1..=3).map(|id| home.boot(id, 3)).collect();
    for member in &members {
        until("the log is replayed", || member.lines.lock().unwrap().len() == 30).await;
        assert_eq!(*member.lines.lock().unwrap(), before);
    }
    members.into_iter().for_each(Running::stop);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_share_entries_and_syncs() {
    let home = Home::new();
    let member = home.boot(1, 1);
    propose(&member, "first").await;
    let syncs = member.counts.syncs.load(Ordering::Relaxed);
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..500 {
        let handle = member.handle.clone();
        clients.spawn(async move { handle.propose(Bytes::from(format!("c{client}"))).await.unwrap() });
    }
    let mut outcomes: Vec<usize> = clients.join_all().await;
    outcomes.sort_unstable();
    assert_eq!(outcomes, (2..=501).collect::<Vec<_>>(), "each command has an outcome of its own");
    assert_eq!(member.counts.commands.load(Ordering::Relaxed), 501);
    let syncs = member.counts.syncs.load(Ordering::Relaxed) - syncs;
    assert!(syncs < 250, "{syncs} syncs for 500 commands that came together");
    assert_eq!(member.handle.status().proposals_pending, 0);
    home.stop(1, member);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_handed_over_before_a_stop() {
    let home = Home::new();
    let members: Vec<_> = (1..=3).map(|id| home.boot(id, 3)).collect();
    let leader = leader_of(&members.iter().collect::<Vec<_>>()).await;
    let follower = &members[(leader + 1) % 3];
    let id = members[leader].handle.status().id;
    assert_eq!(follower.handle.transfer_leadership(id).await, Err(TransferError::NotLeader));
    assert_eq!(follower.handle.hand_over().await, Ok(()), "who does not lead has nothing to hand over");
    assert_eq!(members[leader].handle.transfer_leadership(9).await, Err(TransferError::NoCandidate));
    members[leader].handle.hand_over().await.unwrap();
    assert_ne!(members[leader].handle.status().role, Role::Leader);
    let next = leader_of(&members.iter().collect::<Vec<_>>()).await;
    assert_ne!(next, leader);
    propose(&members[leader], "through the new leader").await;
    members.into_iter().for_each(Running::stop);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_three_go_on_and_the_third_catches_up() {
    let home = Home::new();
    let mut members: Vec<_> = (1..=3).map(|id| Some(home.boot(id, 3))).collect();
    let leader = leader_of(&members.iter().flatten().collect::<Vec<_>>()).await;
    propose(members[leader].as_ref().unwrap(), "before").await;
    home.stop(leader as u64 + 1, members[leader].take().unwrap());
    let rest: Vec<&Running> = members.iter().flatten().collect();
    leader_of(&rest).await;
    for (at, member) in rest.iter().enumerate() {
        propose(member, &format!("without it {at}")).await;
    }
    members[leader] = Some(home.boot(leader as u64 + 1, 3));
    let back = members[leader].as_ref().unwrap();
    until("it caught up", || back.lines.lock().unwrap().len() == 3).await;
    members.into_iter().flatten().for_each(Running::stop);
}

#[tokio::test]
async fn whoever_waits_is_told_when_the_member_stops() {
    let home = Home::new();
    let member = home.boot(1, 3); // Alone of three: no leader will ever be there.
    let (write, read) = (member.handle.clone(), member.handle.clone());
    let write = tokio::spawn(async move { write.propose(Bytes::from_static(b"never")).await });
    let read = tokio::spawn(async move { read.read_point().await });
    let handle = member.handle.clone();
    until("one waits", || handle.status().proposals_pending == 1).await;
    home.stop(1, member);
    assert_eq!(write.await.unwrap(), Err(ProposeError::Stopped));
    assert_eq!(read.await.unwrap(), Err(ReadError::Stopped));
    assert_eq!(handle.propose(Bytes::new()).await, Err(ProposeError::Stopped));
    assert_eq!(handle.read_point().await, Err(ReadError::Stopped));
    assert_eq!(handle.hand_over().await, Err(TransferError::Stopped));
}

#[tokio::test]
async fn what_does_not_fit_is_refused_at_the_entrance() {
    let home = Home::new();
    let mut config = config(1, 3); // Alone of three: everything stays waiting.
    config.limits =
        Limits { proposals_max: 2, command_bytes_max: 10, proposal_bytes_max: 15, ..config.limits };
    let member = boot(config, open(RealFs, &home.log_dir(1)), &home.wires);
    let long = Bytes::from_static(b"eleven bytes");
    assert_eq!(member.handle.propose(long).await, Err(ProposeError::TooLarge { bytes: 12, bytes_max: 10 }));
    let waiting = member.handle.clone();
    let waiting = tokio::spawn(async move { waiting.propose(Bytes::from_static(b"0123456789")).await });
    until("one waits", || member.handle.status().proposals_pending == 1).await;
    let second = member.handle.propose(Bytes::from_static(b"6 more")).await;
    assert_eq!(second, Err(ProposeError::TooManyRequests), "too many bytes together");
    home.stop(1, member);
    assert_eq!(waiting.await.unwrap(), Err(ProposeError::Stopped));
}

#[tokio::test]
async fn a_failed_sync_ends_the_member_and_acknowledges_nothing() {
    let disk = SimFs::new();
    let log = open(disk.clone(), Path::new("/log"));
    let member = boot(config(1, 1), log, &Wires::default());
    propose(&member, "durable").await;
    disk.fail_at(disk.calls(), Fault::InputOutput);
    assert_eq!(member.handle.propose(Bytes::from_static(b"lost")).await, Err(ProposeError::Stopped));
    until("the owner was told", || member.fatal.get().is_some()).await;
    assert!(member.fatal.get().unwrap().what.starts_with("persist Raft entries"), "{:?}", member.fatal);
    assert_eq!(*member.lines.lock().unwrap(), ["durable"]);
    member.threads.join();
}

#[tokio::test]
async fn a_machine_that_cannot_go_on_ends_the_member() {
    let home = Home::new();
    let member = home.boot(1, 1);
    assert_eq!(member.handle.propose(Bytes::from_static(b"die")).await, Err(ProposeError::Stopped));
    until("the owner was told", || member.fatal.get().is_some()).await;
    assert_eq!(member.fatal.get(), Some(&Fatal::new("apply die")));
    member.threads.join();
}

#[tokio::test]
async fn a_member_that_cannot_be_right_does_not_start() {
    let home = Home::new();
    let member = home.boot(1, 1);
    propose(&member, "a").await;
    home.stop(1, member);

    let attempt = |config: Config, applied: u64| {
        let book = Book { lines: Lines::default(), applied: Position { index: applied, term: 1 } };
        let wire = Arc::new(Wire { from: 1, wires: Wires::default() });
        let log = open(RealFs, &home.log_dir(1));
        start(config, log, book, wire, Box::new(|_| ()), Arc::new(())).map(|_| ()).unwrap_err()
    };
    assert!(matches!(attempt(config(1, 1), 99), StartError::AppliedBeyondLog { applied: 99, .. }));
    assert!(matches!(attempt(config(1, 3), 0), StartError::State { .. }), "another cluster's log");
    let bad: [fn(&mut Config); 5] = [
        |c| c.id = 0,
        |c| c.id = 7,
        |c| c.voters = vec![1, 1],
        |c| c.heartbeat_ticks = 0,
        |c| c.election_ticks = 1,
    ];
    for (at, spoil) in bad.into_iter().enumerate() {
        let mut config = config(1, 1);
        spoil(&mut config);
        assert!(matches!(attempt(config, 0), StartError::Config { .. }), "case {at}");
    }
}
