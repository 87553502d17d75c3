//! How a member comes up from its disks, as the process does it: the log first, then the store that belongs to it.
//!
//! | the log begins | a store was received | |
//! |---|---|---|
//! | not behind the store | – | go on from the store; what was received is discarded |
//! | behind the store | wholly, and the log reaches it | a crash came before its install: it becomes the store |
//! | behind the store | no | the store is lost: Raft runs without a machine until a snapshot brings one |

use std::path::Path;

use mvcc::Store;
use raft_node::{Applier, Found, Node, NodeSetup, Setup, StoreState};
use wal::testing::SimFs;
use wal::{LogIndex, Wal};

use crate::chance::{Chance, mix};
use crate::count::Count;
use crate::machine::{Machine, SharedTruth, SharedVault};
use crate::site::{Site, Trouble, Up, watch};

const LOG: &str = "/log";
const ELECTION_TICKS: u32 = 10;

impl Site {
    /// Brings the member up from its disks. Returns what a start may bring to light.
    pub fn boot(
        &mut self,
        voters: u64,
        truth: &SharedTruth,
        chance: &mut Chance,
    ) -> Result<Vec<Count>, Trouble> {
        assert!(self.up.is_none(), "member {} is up already", self.id);
        self.boots += 1;
        self.seen = None;
        let mut counts = vec![Count::Restarts];
        let (wal, found) = self.open_log(&mut counts)?;
        self.synced = Some(wal.reader());
        let (machine, store, vault, state) = self.open_matching(&found, truth, &mut counts)?;
        // What the disk kept is a state that all members were in.
        truth.get().state(store.applied().index, &store)?;
        let applier = Applier::new(machine);
        let setup = self.setup(voters, state, chance);
        let ids: Vec<u64> = (1..=voters).collect();
        let applied = applier.applied();
        let node = watch(self.id, self.armed, || Node::open(&setup, &ids, found, applied))?;
        let (jobs, work) = (Vec::new(), std::collections::VecDeque::new());
        self.up = Some(Up { node, store, jobs, work, wal, applier, vault, staging: None });
        Ok(counts)
    }

    fn open_log(&self, counts: &mut Vec<Count>) -> Result<(Wal<SimFs>, Found<SimFs>), Trouble> {
        let failed = |error: wal::Error| self.log_trouble("open the log", &error);
        let (fs, dir) = (self.disk.clone(), Path::new(LOG));
        let options = wal::Options { segment_bytes: self.temper.segment_bytes };
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
            counts.push(Count::TornTails);
        }
        let found = Found::opened(&wal, recovery);
        Ok((wal, found))
    }

    /// Opens the store that the log goes on from: the one that is there, or the one that was received.
    fn open_matching(
        &mut self,
        found: &Found<SimFs>,
        truth: &SharedTruth,
        counts: &mut Vec<Count>,
    ) -> Result<(Machine, Store, SharedVault, StoreState), Trouble> {
        let start = found.start.index.0;
        let (machine, store, vault) = self.open_store(truth)?;
        if store.applied().index >= start {
            self.store_disk.discard_staged();
            self.wiped = false;
            return Ok((machine, store, vault, StoreState::Whole));
        }
        let staged = self.store_disk.staged().filter(|staged| {
            let term = found.reader.term(LogIndex(staged.index)).map(|term| term.0);
            staged.index >= start && staged.index <= found.last.index.0 && term == Some(staged.term)
        });
        if staged.is_some() {
            drop((machine, store, vault));
            self.store_disk.swap();
            self.wiped = false;
            counts.push(Count::StartsWithStaged);
            let (machine, store, vault) = self.open_store(truth)?;
            return Ok((machine, store, vault, StoreState::Whole));
        }
        if !self.wiped {
            let (id, applied) = (self.id, store.applied().index);
            return Err(
                format!("member {id} has a log from {start} on, and a store that ends at {applied}").into()
            );
        }
        self.store_disk.discard_staged();
        counts.push(Count::StartsWithoutStore);
        Ok((machine, store, vault, StoreState::Lost))
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
            },
            boot_nonce: mix(self.id << 32 | self.boots),
            batch_bytes_max: 16 << 10,
            cache_bytes_max: 16 << 10,
            request_timeout_ticks: 70,
            read_retry_ticks: 5,
        }
    }
}
