//! A single-threaded cluster: real nodes, real logs on an in-memory disk, and a list of messages as the
//! network.
//!
//! A test controls everything: time, delivery of messages, syncs of disks, applying, arrival of snapshot
//! streams.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use raft_node::{
    Answer, Applier, ApplyJob, ChangeCheck, CoreSetup, EmptyLog, Event, Fatal, FirstState, Gauges, Inquiry,
    LogIndex, LogPosition, Node, NodeOutput, NodeSetup, Outbound, PersistJob, ProposeError, ReadError,
    RecoveredLog, Role, SnapshotOffer, SnapshotOutcome, StateMachine, StoreState, persist,
};
use wal::testing::{Crash, SimFs};
use wal::{Wal, WalOptions};

/// Applies a command by recording it.
#[derive(Clone, Default, Debug)]
pub struct Book {
    pub lines: Vec<String>,
    pub applied: LogPosition,
    /// Received snapshot until it is installed.
    pub staged: Staged,
    pub installs: u64,
}

/// The latest staged snapshot; survives a crash, like a directory.
pub type Staged = Arc<Mutex<Option<(LogPosition, Vec<String>)>>>;

impl StateMachine for Book {
    type Outcome = usize;

    fn applied(&self) -> LogPosition {
        self.applied
    }

    fn apply(&mut self, _at: LogPosition, command: &Bytes, answer: Answer) -> Result<Option<usize>, Fatal> {
        self.lines.push(String::from_utf8(command.to_vec()).unwrap());
        Ok((answer == Answer::Wanted).then_some(self.lines.len()))
    }

    fn end_entry(&mut self, at: LogPosition) -> Result<(), Fatal> {
        self.applied = at;
        Ok(())
    }

    fn install(&mut self, at: LogPosition) -> Result<(), Fatal> {
        match self.staged.lock().unwrap().take_if(|(staged, _)| *staged == at) {
            Some((_, lines)) => (self.lines, self.applied, self.installs) = (lines, at, self.installs + 1),
            None => return Err(Fatal::new(format!("install {}: it is not staged", at.index))),
        }
        Ok(())
    }
}

pub type Name = &'static str;

pub struct Member {
    pub id: u64,
    pub disk: SimFs,
    pub node: Node<Name, Name>,
    pub wal: Wal<SimFs>,
    pub applier: Applier<Book, Name>,
    pub jobs: Vec<PersistJob>,
    /// If false, jobs stay unsynced until the test syncs them.
    pub syncs: bool,
    /// False: the member gets no events at all.
    pub up: bool,
    pub answered: Vec<(Name, usize)>,
    pub readable: Vec<Name>,
    pub failed: Vec<(Name, ProposeError)>,
    pub unread: Vec<(Name, ReadError)>,
    /// If false, committed entries wait until the test applies them.
    pub applies: bool,
    pub work: VecDeque<ApplyJob<Name, Name>>,
    /// The machine's durable state.
    pub checkpoint: Book,
    pub ignored: Vec<LogPosition>,
    pub wanted: Vec<LogIndex>,
    boots: u64,
}

pub struct Cluster {
    pub members: BTreeMap<u64, Member>,
    pub wire: VecDeque<(u64, Outbound)>,
    /// Ordered pairs that cannot communicate.
    pub cut: BTreeSet<(u64, u64)>,
    /// Every sent message, for tests that inspect the traffic.
    pub sent: Vec<(u64, Outbound)>,
    /// Requested streams that have not arrived, with their senders.
    pub streams: VecDeque<(u64, SnapshotOffer)>,
    /// If false, they arrive when the test delivers them.
    pub streams_flow: bool,
    /// A member that receives input without being polled.
    pub asleep: Option<u64>,
    pub batch_bytes_max: usize,
    pub apply_bytes_max: usize,
    pub catch_up_entries: u64,
    /// Setting of members created later.
    pub empty_log: EmptyLog,
}

/// Small, so that a few commands fill a segment.
const OPTIONS: WalOptions = WalOptions { segment_bytes: 8 << 10, salt: [7; 16] };
pub const REQUEST_TIMEOUT_TICKS: u64 = 70;
const DIR: &str = "/log";

impl Cluster {
    pub fn new(count: u64) -> Cluster {
        Cluster::begin(count, EmptyLog::New)
    }

    pub fn begin(count: u64, empty_log: EmptyLog) -> Cluster {
        let mut cluster = Cluster {
            members: BTreeMap::new(),
            wire: VecDeque::new(),
            cut: BTreeSet::new(),
            sent: Vec::new(),
            streams: VecDeque::new(),
            streams_flow: true,
            catch_up_entries: 0,
            asleep: None,
            batch_bytes_max: 1 << 20,
            apply_bytes_max: 8 << 20,
            empty_log,
        };
        for id in 1..=count {
            let disk = SimFs::new();
            let start = wal::LogPosition::default();
            let wal = Wal::create(disk.clone(), Path::new(DIR), b"test", start, OPTIONS).unwrap();
            let found = RecoveredLog::created(&wal);
            let start = (Book::default(), StoreState::Whole, 0);
            let member = cluster.build(id, count, disk, wal, found, start);
            cluster.members.insert(id, member);
        }
        cluster
    }

    fn build(
        &self,
        id: u64,
        count: u64,
        disk: SimFs,
        wal: Wal<SimFs>,
        found: RecoveredLog<SimFs>,
        (book, store, boots): (Book, StoreState, u64),
    ) -> Member {
        let setup = NodeSetup {
            core: CoreSetup {
                id,
                heartbeat_ticks: 1,
                election_ticks: 10,
                // Different and fixed, for a deterministic first candidate.
                timeout_ticks: 10 + id as u32 * 2..11 + id as u32 * 2,
                apply_bytes_max: self.apply_bytes_max,
                entry_bytes_max: 1 << 20,
                catch_up_entries: self.catch_up_entries,
                store,
                empty_log: self.empty_log,
                membership: None,
                removed_by: |_| None,
                keeps_voters: |_, _| false,
                change_check: ChangeCheck::default(),
            },
            boot_nonce: 100 * id + boots,
            batch_bytes_max: self.batch_bytes_max,
            cache_bytes_max: 4 << 10,
            request_timeout_ticks: REQUEST_TIMEOUT_TICKS,
            read_retry_ticks: 5,
        };
        let voters: Vec<u64> = (1..=count).collect();
        let node = Node::open(&setup, &voters, found, book.applied).unwrap();
        let checkpoint = book.clone();
        let applier = Applier::new(book);
        Member {
            id,
            disk,
            node,
            wal,
            applier,
            jobs: Vec::new(),
            syncs: true,
            up: true,
            answered: Vec::new(),
            readable: Vec::new(),
            failed: Vec::new(),
            unread: Vec::new(),
            applies: true,
            work: VecDeque::new(),
            checkpoint,
            ignored: Vec::new(),
            wanted: Vec::new(),
            boots,
        }
    }

    /// Restarts a member after a power loss: unsynced data are lost; the state machine starts from `book`.
    pub fn restart(&mut self, id: u64, book: Book) {
        self.reopen(id, Crash::Synced, |_| (book, StoreState::Whole));
    }

    /// Restarts all members with the current settings and an empty machine.
    pub fn restart_all(&mut self) {
        for id in 1..=self.members.len() as u64 {
            self.restart(id, Book::default());
        }
    }

    /// Restarts a member after a power loss, without its store.
    pub fn restart_lost(&mut self, id: u64) {
        self.reopen(id, Crash::Synced, |_| (Book::default(), StoreState::Lost));
    }

    /// Restarts a member after a power loss like a process: with its checkpoint if it matches the log; else
    /// with the staged snapshot, if the log continues from there; else without state, to be sent by the
    /// leader.
    pub fn recover(&mut self, id: u64, crash: Crash) {
        let checkpoint = self.members[&id].checkpoint.clone();
        self.reopen(id, crash, |found| {
            let staged = checkpoint.staged.lock().unwrap().take();
            if found.start.index <= checkpoint.applied.index {
                return (checkpoint.clone(), StoreState::Whole);
            }
            let joins = |at: LogPosition| found.reader.term(at.index) == Some(at.term);
            match staged.filter(|(at, _)| joins(*at)) {
                Some((applied, lines)) => (Book { lines, applied, ..Book::default() }, StoreState::Whole),
                None => (Book::default(), StoreState::Lost),
            }
        });
    }

    /// Starts the member with empty disks. Messages of its old process are lost.
    pub fn wipe(&mut self, id: u64) {
        let disk = SimFs::new();
        let start = wal::LogPosition::default();
        let wal = Wal::create(disk.clone(), Path::new(DIR), b"test", start, OPTIONS).unwrap();
        let found = RecoveredLog::created(&wal);
        self.replace(id, disk, wal, found, Book::default());
    }

    /// Starts the member with a log and a store that were created together, from a copy of other content.
    pub fn import(&mut self, id: u64) {
        let (disk, at) = (SimFs::new(), LogPosition::new(1, 1));
        let mut wal = Wal::create(disk.clone(), Path::new(DIR), b"test", at, OPTIONS).unwrap();
        wal.put_state(&raft_node::state_after(at, &self.members.keys().copied().collect::<Vec<_>>()));
        wal.sync().unwrap();
        drop(wal);
        let (wal, recovery) = Wal::open(disk.clone(), Path::new(DIR), OPTIONS).unwrap();
        let found = RecoveredLog::opened(&wal, recovery);
        let book = Book { lines: vec!["imported".to_owned()], applied: at, ..Book::default() };
        self.replace(id, disk, wal, found, book);
    }

    fn replace(&mut self, id: u64, disk: SimFs, wal: Wal<SimFs>, found: RecoveredLog<SimFs>, book: Book) {
        let count = self.members.len() as u64;
        let old = self.members.remove(&id).unwrap();
        self.empty_log = EmptyLog::Unconfirmed;
        let begun = (book, StoreState::Whole, old.boots + 1);
        let member = self.build(id, count, disk, wal, found, begun);
        self.wire.retain(|(from, message)| message.to != id && *from != id);
        self.streams.retain(|(from, _)| *from != id);
        self.members.insert(id, member);
    }

    /// Sends the member's inquiry to all reachable members. Returns true if it is confirmed afterwards.
    pub fn inquire(&mut self, id: u64) -> bool {
        let voters: Vec<u64> = self.members.keys().copied().collect();
        let own = FirstState::of(self.gauges(id).last_index, 0);
        let mut inquiry = Inquiry::new(id, &voters, own);
        for (peer, member) in self.members.iter_mut().filter(|(peer, member)| **peer != id && member.up) {
            if !self.cut.contains(&(id, *peer)) && !self.cut.contains(&(*peer, id)) {
                let answer = member.node.answer_member(id);
                answer.into_iter().for_each(|answer| inquiry.note(*peer, answer, 0));
            }
        }
        if let Some(confirmation) = inquiry.confirmation() {
            self.member(id).node.handle(Event::Confirmed(confirmation)).unwrap();
            self.settle();
        }
        !self.members[&id].node.is_unconfirmed()
    }

    fn reopen(
        &mut self,
        id: u64,
        crash: Crash,
        store: impl FnOnce(&RecoveredLog<SimFs>) -> (Book, StoreState),
    ) {
        let count = self.members.len() as u64;
        let old = self.members.remove(&id).unwrap();
        let disk = old.disk.crashed(crash, &mut || false);
        let (wal, recovery) = Wal::open(disk.clone(), Path::new(DIR), OPTIONS).unwrap();
        let found = RecoveredLog::opened(&wal, recovery);
        let (book, store) = store(&found);
        let member = self.build(id, count, disk, wal, found, (book, store, old.boots + 1));
        self.wire.retain(|(_, message)| message.to != id);
        self.streams.retain(|(from, _)| *from != id);
        self.members.insert(id, member);
    }

    /// Makes the machine's state durable, so that its log may be truncated.
    pub fn checkpoint(&mut self, id: u64) -> LogPosition {
        let member = self.member(id);
        member.checkpoint = member.applier.machine().clone();
        self.checkpointed(id)
    }

    /// Reports the existing checkpoint to the member.
    pub fn checkpointed(&mut self, id: u64) -> LogPosition {
        let member = self.member(id);
        let at = member.checkpoint.applied;
        member.node.handle(Event::Checkpointed { at }).unwrap();
        self.settle();
        // One segment is removed per tick.
        loop {
            let before = start(self, id);
            self.pass(1);
            if start(self, id) == before {
                return at;
            }
        }
    }

    /// Delivers the oldest stream completely: stages its state, then delivers its message.
    pub fn stream(&mut self) -> LogPosition {
        let (from, offer) = self.streams.pop_front().unwrap();
        let (to, checkpoint) = (offer.to, &self.members[&from].checkpoint);
        let (at, lines) = (checkpoint.applied, checkpoint.lines.clone());
        let cut = self.cut.contains(&(from, to)) || !self.members[&to].up;
        let outcome = if cut { SnapshotOutcome::Failed } else { SnapshotOutcome::Sent };
        if !cut {
            let member = self.member(to);
            *member.applier.machine().staged.lock().unwrap() = Some((at, lines));
            let bytes = offer.message(at);
            member.node.handle(Event::Message { from, bytes }).unwrap();
        }
        self.member(from).node.handle(Event::SnapshotReported { peer: to, outcome }).unwrap();
        at
    }

    pub fn break_stream(&mut self) {
        let (from, offer) = self.streams.pop_front().unwrap();
        let broken = Event::SnapshotReported { peer: offer.to, outcome: SnapshotOutcome::Failed };
        self.member(from).node.handle(broken).unwrap();
    }

    /// Proposes commands until the log has this many more entries, each long enough that a few fill a
    /// segment.
    pub fn write(&mut self, id: u64, entries: u64) {
        for _ in 0..entries {
            let long = Bytes::from(vec![b'x'; 1000]);
            self.member(id).node.offer(long, "long");
            self.settle();
        }
    }

    /// Writes like `write` on member 1, then truncates its log and that of member 2 except for the latest
    /// entries.
    pub fn write_and_trim(&mut self, entries: u64) {
        self.write(1, entries);
        self.checkpoint(1);
        self.checkpoint(2);
    }

    pub fn member(&mut self, id: u64) -> &mut Member {
        self.members.get_mut(&id).unwrap()
    }

    pub fn gauges(&self, id: u64) -> Gauges {
        self.members[&id].node.gauges()
    }

    pub fn lines(&self, id: u64) -> Vec<String> {
        self.members[&id].applier.machine().lines.clone()
    }

    /// Separates `ids` from the other members.
    pub fn isolate(&mut self, ids: &[u64]) {
        let all: Vec<u64> = self.members.keys().copied().collect();
        for a in &all {
            for b in &all {
                if ids.contains(a) != ids.contains(b) {
                    self.cut.insert((*a, *b));
                }
            }
        }
    }

    pub fn heal(&mut self) {
        self.cut.clear();
    }

    pub fn offer(&mut self, id: u64, name: Name) {
        self.member(id).node.offer(Bytes::from_static(name.as_bytes()), name);
    }

    pub fn ask(&mut self, id: u64, name: Name) {
        self.member(id).node.ask(name);
    }

    /// Polls a member once, with all internal effects.
    pub fn turn(&mut self, id: u64) -> bool {
        let member = self.members.get_mut(&id).unwrap();
        if !member.up || self.asleep == Some(id) {
            return false;
        }
        let turn = member.node.turn().unwrap();
        let mut out = turn.effects.send.clone();
        let mut busy = turn.effects.more || !turn.apply.is_empty();
        self.streams.extend(turn.effects.snapshots.iter().map(|offer| (id, offer.clone())));
        member.perform(turn);
        if member.syncs {
            busy |= !member.jobs.is_empty();
            out.extend(member.sync());
        }
        busy |= !out.is_empty();
        self.sent.extend(out.iter().map(|message| (id, message.clone())));
        self.wire.extend(out.into_iter().map(|message| (id, message)));
        busy
    }

    /// Delivers messages and polls members until the cluster is idle.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut busy = false;
            while let Some((from, message)) = self.wire.pop_front() {
                busy = true;
                let cut = self.cut.contains(&(from, message.to));
                let to = self.members.get_mut(&message.to).unwrap();
                if !cut && to.up {
                    to.node.handle(Event::Message { from, bytes: message.bytes }).unwrap();
                } else if let Some(sender) = self.members.get_mut(&from) {
                    sender.node.handle(Event::Unreachable { peer: message.to }).unwrap();
                }
            }
            let ids: Vec<u64> = self.members.keys().copied().collect();
            for id in ids {
                busy |= self.turn(id);
            }
            while self.streams_flow && !self.streams.is_empty() {
                busy = true;
                self.stream();
            }
            if !busy {
                return;
            }
        }
        panic!("the cluster does not come to rest");
    }

    /// Delivers `ticks` to all members, with all messages and syncs in between.
    pub fn pass(&mut self, ticks: u64) {
        for _ in 0..ticks {
            for member in self.members.values_mut().filter(|member| member.up) {
                member.node.handle(Event::Tick).unwrap();
            }
            self.settle();
        }
    }

    /// Advances time until there is a leader that a majority follows.
    pub fn elect(&mut self) -> u64 {
        for _ in 0..300 {
            self.pass(1);
            let leader = self.members.values().find_map(|member| {
                let gauges = member.node.gauges();
                (member.up && gauges.role == Role::Leader).then_some((member.id, gauges.term))
            });
            if let Some((leader, term)) = leader {
                let follows = |m: &&Member| {
                    let gauges = m.node.gauges();
                    m.up && gauges.leader == Some(leader) && gauges.term == term
                };
                if 2 * self.members.values().filter(follows).count() > self.members.len() {
                    return leader;
                }
            }
        }
        panic!("no leader was elected");
    }
}

impl Member {
    fn perform(&mut self, turn: NodeOutput<Name, Name>) {
        self.jobs.extend(turn.effects.persist);
        self.failed.extend(turn.proposals_failed);
        self.unread.extend(turn.reads_failed);
        for at in &turn.effects.snapshots_ignored {
            self.applier.machine().staged.lock().unwrap().take_if(|(staged, _)| staged == at);
        }
        self.ignored.extend(turn.effects.snapshots_ignored);
        self.wanted.extend(turn.effects.checkpoint_wanted);
        self.readable.extend(turn.readable);
        self.work.extend(turn.apply);
        while self.applies {
            let Some(job) = self.work.pop_front() else { break };
            let installs = self.applier.machine().installs;
            let done = self.applier.apply(job).unwrap();
            if self.applier.machine().installs > installs {
                self.checkpoint = self.applier.machine().clone(); // It was durable before it was installed.
            }
            self.answered.extend(done.answered);
            self.readable.extend(done.readable);
            if let Some(at) = done.entry {
                self.node.handle(Event::Applied { index: at.index }).unwrap();
            }
        }
    }

    /// Syncs the waiting jobs, reports it to the node, and returns the released messages.
    pub fn sync(&mut self) -> Vec<Outbound> {
        if self.jobs.is_empty() {
            return Vec::new();
        }
        let (receipt, _) = persist(&mut self.wal, std::mem::take(&mut self.jobs)).unwrap();
        let (durable, promises) = receipt.redeem();
        self.node.handle(Event::Durable(durable)).unwrap();
        promises
    }
}

/// Asserts that all members have the same lines, and this many.
pub fn agree(cluster: &Cluster, count: usize) {
    for id in 1..=3 {
        assert_eq!(cluster.lines(id).len(), count, "member {id}");
        assert_eq!(cluster.lines(id), cluster.lines(1), "member {id}");
    }
}

pub fn start(cluster: &Cluster, id: u64) -> LogIndex {
    cluster.members[&id].wal.reader().start().index
}

pub fn installs(cluster: &Cluster, id: u64) -> u64 {
    cluster.members[&id].applier.machine().installs
}
