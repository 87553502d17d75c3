//! One member and what it runs on: a disk that survives it, and, while it is up, the real code.

use std::collections::VecDeque;
use std::path::Path;

use mvcc::{Maintainer, MemoryBackend, Store};
use raft_node::{
    Applier, ApplyJob, Done, Durable, Event, Fatal, Found, Node, NodeSetup, Outbound, PersistJob, Setup,
    StoreState, Turn, persist,
};
use state_machine::Outcome;
use wal::testing::{Crash, Fault, SimFs};
use wal::{LogIndex, Options, Reader, Wal};

use crate::chance::{Chance, mix};
use crate::clients::RequestId;
use crate::laws::Breach;
use crate::machine::{Machine, SharedTruth};
use crate::world::Flaw;

const LOG: &str = "/log";
/// Small, so that segments are cut often.
const OPTIONS: Options = Options { segment_bytes: 64 << 10 };
pub(crate) const ELECTION_TICKS: u32 = 10;

pub(crate) type Job = ApplyJob<RequestId, RequestId>;
pub(crate) type LocalTurn = Turn<RequestId, RequestId>;
pub(crate) type LocalDone = Done<RequestId, RequestId, Outcome>;

pub(crate) struct Site {
    pub id: u64,
    /// Counts starts; what belongs to an earlier run is ignored.
    pub boots: u64,
    pub up: Option<Up>,
    /// Until when the member stands still.
    pub paused_until: u64,
    disk: SimFs,
    backend: MemoryBackend,
    /// What is synced, also while the member is down.
    synced: Option<Reader<SimFs>>,
    flaw: Flaw,
    /// The disk before its newest sync, if it will forget that.
    forgetful: Option<SimFs>,
}

/// A running member.
pub(crate) struct Up {
    pub node: Node<RequestId, RequestId>,
    pub store: Store,
    /// Waiting for the disk.
    pub jobs: Vec<PersistJob>,
    /// Waiting for the machine.
    pub work: VecDeque<Job>,
    wal: Wal<SimFs>,
    applier: Applier<Machine, RequestId>,
    maintainer: Maintainer,
}

impl Site {
    pub fn new(id: u64, flaw: Flaw) -> Site {
        let (disk, backend) = (SimFs::new(), MemoryBackend::default());
        Site { id, boots: 0, up: None, paused_until: 0, disk, backend, synced: None, flaw, forgetful: None }
    }

    pub fn boot(&mut self, voters: &[u64], truth: &SharedTruth, chance: &mut Chance) -> Result<(), Breach> {
        assert!(self.up.is_none(), "member {} is up already", self.id);
        self.boots += 1;
        let (wal, found) = self.open_log()?;
        let (machine, store, maintainer) = Machine::open(self.backend.clone(), truth.clone())?;
        let applier = Applier::new(machine);
        let setup = self.setup(chance);
        let node =
            Node::open(&setup, voters, found, applier.applied()).map_err(|fatal| self.broke(&fatal))?;
        self.synced = Some(wal.reader());
        self.up = Some(Up { node, store, jobs: Vec::new(), work: VecDeque::new(), wal, applier, maintainer });
        Ok(())
    }

    fn open_log(&self) -> Result<(Wal<SimFs>, Found<SimFs>), Breach> {
        let failed = |error: wal::Error| Breach(format!("member {} cannot open its log: {error}", self.id));
        let (fs, dir) = (self.disk.clone(), Path::new(LOG));
        if !Wal::exists(&fs, dir).map_err(failed)? {
            let start = wal::Position::default();
            let wal = Wal::create(fs, dir, b"sim", start, OPTIONS).map_err(failed)?;
            let found = Found { reader: wal.reader(), state: None, start, last: start };
            return Ok((wal, found));
        }
        let (wal, recovery) = Wal::open(fs, dir, OPTIONS).map_err(failed)?;
        let found =
            Found { reader: wal.reader(), state: recovery.state, start: recovery.start, last: recovery.last };
        Ok((wal, found))
    }

    fn setup(&self, chance: &mut Chance) -> NodeSetup {
        // raft-rs draws from a source of its own; a range of one leaves it no choice.
        let timeout = chance.within(u64::from(ELECTION_TICKS), 2 * u64::from(ELECTION_TICKS)) as u32;
        NodeSetup {
            core: Setup {
                id: self.id,
                heartbeat_ticks: 1,
                election_ticks: ELECTION_TICKS,
                timeout_ticks: timeout..timeout + 1,
                apply_bytes_max: 8 << 10,
                entry_bytes_max: 64 << 10,
                catch_up_entries: 5_000,
                store: StoreState::Whole,
            },
            boot_nonce: mix(self.id << 32 | self.boots),
            batch_bytes_max: 16 << 10,
            cache_bytes_max: 32 << 10,
            request_timeout_ticks: 70,
            read_retry_ticks: 5,
        }
    }

    /// The process or the machine dies, perhaps in the middle of writing.
    pub fn crash(&mut self, chance: &mut Chance) {
        let Some(mut up) = self.up.take() else { return };
        if !up.jobs.is_empty() && chance.per_mille(500) {
            self.disk.fail_at(self.disk.calls() + chance.within(0, 4), Fault::Stop);
            // Whether it got through or not, nobody heard of it.
            let _ = persist(&mut up.wal, std::mem::take(&mut up.jobs));
        }
        if let Some(before) = self.forgetful.take() {
            self.disk = before;
            return;
        }
        let crash = *chance.pick(&Crash::ALL);
        self.disk = self.disk.crashed(crash, &mut || chance.per_mille(500));
    }

    /// Whether the entry is synced on this member's disk.
    pub fn holds(&self, index: u64, term: u64) -> bool {
        let found = self.synced.as_ref().and_then(|synced| synced.term(LogIndex(index)));
        found.is_some_and(|found| found.0 == term)
    }

    pub fn turn(&mut self) -> Result<LocalTurn, Breach> {
        let up = self.up.as_mut().expect("only a running member turns");
        up.node.turn().map_err(|fatal| self.broke(&fatal))
    }

    pub fn handle(&mut self, event: Event) -> Result<(), Breach> {
        let up = self.up.as_mut().expect("only a running member hears");
        up.node.handle(event).map_err(|fatal| self.broke(&fatal))
    }

    /// Everything that waits for the disk becomes durable.
    pub fn sync(&mut self) -> Result<(Durable, Vec<Outbound>), Breach> {
        let up = self.up.as_mut().expect("only a running member syncs");
        if self.flaw == Flaw::DisksForget {
            self.forgetful = Some(self.disk.crashed(Crash::Kill, &mut || true));
        }
        let jobs = std::mem::take(&mut up.jobs);
        let (receipt, _) =
            persist(&mut up.wal, jobs).map_err(|error| format!("a healthy disk failed: {error}"))?;
        Ok(receipt.redeem())
    }

    pub fn apply_next(&mut self) -> Result<Option<LocalDone>, Breach> {
        let up = self.up.as_mut().expect("only a running member applies");
        let Some(job) = up.work.pop_front() else { return Ok(None) };
        up.applier.apply(job).map(Some).map_err(|fatal| self.broke(&fatal))
    }

    pub fn checkpoint(&mut self) -> Result<(), Breach> {
        let up = self.up.as_mut().expect("only a running member persists its store");
        up.maintainer.persist().map(|_| ()).map_err(|error| format!("checkpoint: {error}").into())
    }

    pub fn applied(&self) -> u64 {
        self.up.as_ref().map_or(0, |up| up.applier.applied().index)
    }

    fn broke(&self, fatal: &Fatal) -> Breach {
        Breach(format!("member {}: {fatal}", self.id))
    }
}
