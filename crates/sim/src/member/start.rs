//! How a member comes up from its disks, as the process does it: the log first, then the store that
//! [`raft_node::choose_store`] finds for it.

use std::collections::VecDeque;
use std::path::Path;

use mvcc::Store;
use raft_node::{
    Applier, EmptyLog, Found, Inquiry, LogSpan, Node, NodeSetup, Position, Setup, StoreChoice, StoreFound,
    StoreState, choose_store,
};
use wal::testing::SimFs;
use wal::{LogIndex, Wal};

use super::leasing::{BootClock, Leasing};
use super::machine::{Machine, SharedTruth, SharedVault};
use super::site::{Site, Trouble, Up, run_step};
use super::watching::Watching;
use crate::chance::{Chance, mix};
use crate::count::Count;

const LOG: &str = "/log";
const ELECTION_TICKS: u32 = 10;

impl Site {
    /// Brings the member up from its disks. Returns what a start may bring to light.
    pub fn boot(
        &mut self,
        voters: u64,
        truth: &SharedTruth,
        chance: &mut Chance,
        (clock, now): (BootClock, u64),
    ) -> Result<Vec<Count>, Trouble> {
        assert!(self.up.is_none(), "member {} is up already", self.id);
        self.boots += 1;
        self.seen = None;
        let mut counts = vec![Count::Restarts];
        let (wal, found) = self.open_log(&mut counts)?;
        self.synced = Some(wal.reader());
        let (machine, store, vault, state) = self.open_matching(voters, &found, truth, &mut counts)?;
        // What the disk kept is a state that all members were in.
        truth.get().state(store.applied().index, &store)?;
        let table = machine.leases().clone();
        let applier = Applier::new(machine);
        let setup = self.setup(voters, state, chance);
        let ids: Vec<u64> = (1..=voters).collect();
        let applied = applier.applied();
        let node = run_step(self.id, self.armed, || Node::open(&setup, &ids, found, applied))?;
        let inquiry = node.is_unconfirmed().then(|| Inquiry::new(self.id, &ids));
        let (jobs, work) = (Vec::new(), VecDeque::new());
        let watching = Watching::new(store.clone());
        let leasing = Leasing::new(table, clock, now);
        self.up = Some(Up {
            node,
            store,
            jobs,
            released: VecDeque::new(),
            work,
            wal,
            applier,
            vault,
            staging: None,
            inquiry,
            watching,
            leasing,
        });
        Ok(counts)
    }

    fn open_log(&self, counts: &mut Vec<Count>) -> Result<(Wal<SimFs>, Found<SimFs>), Trouble> {
        let failed = |error: wal::Error| self.log_trouble("open the log", &error);
        let (fs, dir) = (self.disk.clone(), Path::new(LOG));
        let options = wal::Options { segment_bytes: self.temper.segment_bytes, salt: [self.id as u8; 16] };
        if !Wal::exists(&fs, dir).map_err(failed)? {
            if self.synced.is_some() {
                return Err("a log that was there is gone".into());
            }
            let start = wal::Position::default();
            let wal = Wal::create(fs, dir, b"sim", start, options).map_err(failed)?;
            let found = Found::created(&wal);
            return Ok((wal, found));
        }
        let (wal, recovery) = Wal::open(fs, dir, options).map_err(failed)?;
        if recovery.torn_bytes > 0 {
            if self.tail_is_whole {
                let bytes = recovery.torn_bytes;
                return Err(format!("{bytes} torn bytes after a kill between two writes").into());
            }
            counts.push(Count::TornTails);
        }
        let found = Found::opened(&wal, recovery);
        Ok((wal, found))
    }

    /// Opens the store that the log goes on from: the one that is there, or the one that was received.
    fn open_matching(
        &mut self,
        voters: u64,
        found: &Found<SimFs>,
        truth: &SharedTruth,
        counts: &mut Vec<Count>,
    ) -> Result<(Machine, Store, SharedVault, StoreState), Trouble> {
        let term = |index| found.reader.term(LogIndex(index)).map(|term| term.0);
        let log = LogSpan { start: found.start.index.0, last: found.last.index.0, term: &term };
        let position = |at: mvcc::Applied| Position { index: at.index, term: at.term };
        let (machine, store, vault) = self.open_store(truth)?;
        let applied = position(store.applied());
        let received = self.store_disk.staged().map(position);
        let others = voters as usize - 1;
        match choose_store(log, StoreFound::Whole(applied), received, others) {
            StoreChoice::Present => {
                self.store_disk.discard_staged();
                self.wiped = false;
                Ok((machine, store, vault, StoreState::Whole))
            }
            StoreChoice::Received => {
                drop((machine, store, vault));
                self.store_disk.swap();
                self.wiped = false;
                counts.push(Count::StartsWithStaged);
                let (machine, store, vault) = self.open_store(truth)?;
                Ok((machine, store, vault, StoreState::Whole))
            }
            StoreChoice::FromLeader if self.wiped => {
                self.store_disk.discard_staged();
                counts.push(Count::StartsWithoutStore);
                Ok((machine, store, vault, StoreState::Lost))
            }
            choice @ (StoreChoice::FromLeader | StoreChoice::FromLog | StoreChoice::Refused) => {
                let (id, start) = (self.id, log.start);
                Err(format!("member {id}: log from {start} on, store up to {applied:?}: {choice:?}").into())
            }
        }
    }

    fn open_store(&self, truth: &SharedTruth) -> Result<(Machine, Store, SharedVault), Trouble> {
        Machine::open(Box::new(self.store_disk.clone()), self.store_options(), truth.clone())
            .map_err(|error| self.store_trouble("open the store", &error))
    }

    pub fn store_options(&self) -> mvcc::Options {
        mvcc::Options {
            block_bytes: self.temper.block_bytes,
            block_file_bytes: 16 << 10,
            cache_bytes: 16 << 10,
            checkpoint_due_bytes: self.temper.checkpoint_due_bytes,
            checkpoint_full_bytes: 4 * self.temper.checkpoint_due_bytes,
            dropped_max: 50,
            ..mvcc::Options::default()
        }
    }

    fn setup(&self, voters: u64, store: StoreState, chance: &mut Chance) -> NodeSetup {
        // raft-rs draws from a source of its own; a range of one leaves it no choice. As in production, each member
        // draws from a share that no other one draws from.
        let (ticks, rank) = (u64::from(ELECTION_TICKS), self.id - 1);
        let timeout = ticks + chance.within(ticks * rank / voters, ticks * (rank + 1) / voters);
        let timeout = timeout as u32;
        NodeSetup {
            core: Setup {
                id: self.id,
                heartbeat_ticks: 1,
                election_ticks: ELECTION_TICKS,
                timeout_ticks: timeout..timeout + 1,
                apply_bytes_max: 8 << 10,
                entry_bytes_max: 64 << 10,
                catch_up_entries: self.temper.catch_up_entries,
                store,
                empty_log: EmptyLog::Unconfirmed,
                membership: None,
            },
            boot_nonce: mix(self.id << 32 | self.boots),
            batch_bytes_max: 16 << 10,
            cache_bytes_max: 16 << 10,
            request_timeout_ticks: 70,
            read_retry_ticks: 5,
        }
    }
}
