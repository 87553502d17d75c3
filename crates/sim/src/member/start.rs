//! Start of a member from its disks, as in the process: the log first, then the store that
//! [`raft_node::choose_store`] selects for it.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use api::etcdserverpb::Member;
use mvcc::Store;
use raft_node::{
    Applier, ChangeCheck, CoreSetup, EmptyLog, Entrance, Fatal, FirstState, Inquiry, LogSpan, Membership,
    Node, NodeSetup, RecoveredLog, StoreChoice, StoreFound, StoreState, choose_store,
};
use state_machine::{EtcdMachine, Genesis};
use wal::testing::SimFs;
use wal::{LogIndex, Wal};

use super::leasing::{BootClock, Leasing};
use super::machine::{Machine, SharedStoreOwner, SharedTruth, membership_in};
use super::roster::{Roster, peer_url};
use super::site::{InquiryRound, LocalNode, MemberError, RunningMember, SimMember, StartKnowledge, run_step};
use super::watching::MemberHub;
use crate::chance::{Chance, mix};
use crate::count::Statistic;
use crate::plan::IDENTITY;

pub(super) const LOG: &str = "/log";
const ELECTION_TICKS: u32 = 10;

fn genesis(told: &Membership) -> Genesis {
    let entry = |id: &u64, is_learner| Member {
        id: *id,
        peer_ur_ls: vec![peer_url(*id, 0)],
        is_learner,
        ..Member::default()
    };
    let voters = told.voters.iter().map(|id| entry(id, false));
    Genesis { members: voters.chain(told.learners.iter().map(|id| entry(id, true))).collect() }
}

impl SimMember {
    /// Starts the member from its disks. Returns statistics about the start.
    pub fn boot(
        &mut self,
        running: Option<Membership>,
        truth: &SharedTruth,
        chance: &mut Chance,
        clock: BootClock,
        now: u64,
    ) -> Result<Vec<Statistic>, MemberError> {
        assert!(self.up.is_none(), "member {} is up already", self.id);
        self.boots += 1;
        self.seen = None;
        let mut counts = vec![Statistic::Restarts];
        let (wal, found) = self.open_log(&mut counts)?;
        if self.damaged {
            return Err(format!("member {} starts from a damaged log", self.id).into());
        }
        self.synced = Some(wal.reader());
        let (machine, store, store_owner, state) = self.open_matching(&found, truth, &mut counts)?;
        // The recovered state must be one that all members had.
        truth.get().state(store.applied().index, &store)?;
        let table = machine.leases().clone();
        let applier = Applier::new(machine);
        let lacks_others =
            state == StoreState::Lost && self.others_in_log(&found).is_some_and(|others| others > 0);
        let members = match state {
            StoreState::Whole => membership_in(&store).map_err(|fatal| self.fatal(&fatal))?,
            StoreState::Lost => running.unwrap_or_else(|| self.birth().clone()),
        };
        let setup = self.setup(&members, state, chance);
        let applied = applier.applied();
        let node = run_step(self.id, self.armed, || Node::open(&setup, &members.voters, found, applied))?;
        let inquiry = node.is_unconfirmed().then(|| self.inquiry(&node, &members));
        let (jobs, work) = (Vec::new(), VecDeque::new());
        let watching = MemberHub::new(store.clone());
        let leasing = Leasing::new(table, clock, now);
        self.up = Some(RunningMember {
            node,
            store,
            jobs,
            released: VecDeque::new(),
            work,
            wal,
            applier,
            store_owner,
            staging: None,
            inquiry,
            raising: None,
            watching,
            leasing,
            announced: BTreeMap::new(),
            roster: Roster::new(members, lacks_others),
            entrance: Entrance::new(&self.config.limits),
            permits: BTreeMap::new(),
            reseeded_at: None,
        });
        Ok(counts)
    }

    fn open_log(
        &self,
        counts: &mut Vec<Statistic>,
    ) -> Result<(Wal<SimFs>, RecoveredLog<SimFs>), MemberError> {
        let failed = |error: wal::Error| self.log_trouble("open the log", &error);
        let (fs, dir) = (self.disk.clone(), Path::new(LOG));
        let options = wal::WalOptions { segment_bytes: self.config.segment_bytes, salt: [self.id as u8; 16] };
        if !Wal::exists(&fs, dir).map_err(failed)? {
            if self.synced.is_some() {
                return Err("a log that was there is gone".into());
            }
            let start = wal::LogPosition::default();
            let wal = Wal::create(fs, dir, IDENTITY, start, options).map_err(failed)?;
            let found = RecoveredLog::created(&wal);
            return Ok((wal, found));
        }
        let (wal, recovery) = Wal::open(fs, dir, options).map_err(failed)?;
        if recovery.torn_bytes > 0 {
            if self.tail_is_whole {
                let bytes = recovery.torn_bytes;
                return Err(format!("{bytes} torn bytes after a kill between two writes").into());
            }
            counts.push(Statistic::TornTails);
        }
        let found = RecoveredLog::opened(&wal, recovery);
        Ok((wal, found))
    }

    /// Restarts the inquiry with a different list of members.
    pub fn begin_inquiry_anew(&mut self, members: Membership) {
        let up = self.up.as_ref().expect("a running member inquires");
        let number = up.inquiry.as_ref().map_or(0, |round| round.number);
        let inquiry = InquiryRound { number, ..self.inquiry(&up.node, &members) };
        let up = self.up.as_mut().expect("it was seen just now");
        up.inquiry = Some(inquiry);
        up.roster.replace(members);
    }

    fn inquiry(&self, node: &LocalNode, members: &Membership) -> InquiryRound {
        let first = FirstState::of(node.gauges().commit, 0);
        let inquiry = Inquiry::new(self.id, &self.asked_voters(members), first);
        InquiryRound { inquiry: inquiry.with_term(node.start().has_term), number: 0 }
    }

    /// Returns the voters that confirm this member. Includes the member itself unless it is a
    /// learner.
    fn asked_voters(&self, members: &Membership) -> Vec<u64> {
        let others = members.voters.iter().copied().filter(|id| *id != self.id);
        others.chain(Some(self.id).filter(|id| !members.learners.contains(id))).collect()
    }

    fn open_matching(
        &mut self,
        found: &RecoveredLog<SimFs>,
        truth: &SharedTruth,
        counts: &mut Vec<Statistic>,
    ) -> Result<(Machine, Store, SharedStoreOwner, StoreState), MemberError> {
        let term = |index| found.reader.term(index);
        let log = LogSpan { start: found.start.index, last: found.last.index, term: &term };
        let (machine, store, store_owner) = self.open_store(truth)?;
        let applied = store.applied();
        let received = self.store_disk.staged();
        let told = || (self.birth().voters.len() + self.birth().learners.len()).saturating_sub(1);
        let others = self.others_in_log(found).unwrap_or_else(told);
        let begins_elsewhere =
            matches!(self.origin, StartKnowledge::Joined(_)) && applied.index == LogIndex::ZERO;
        match choose_store(log, StoreFound::Whole(applied), received, others) {
            StoreChoice::Present => {
                self.store_disk.discard_staged();
                self.wiped = begins_elsewhere;
                let state = if begins_elsewhere { StoreState::Lost } else { StoreState::Whole };
                Ok((machine, store, store_owner, state))
            }
            StoreChoice::Received => {
                drop((machine, store, store_owner));
                self.store_disk.swap();
                self.wiped = false;
                counts.push(Statistic::StartsWithStaged);
                let (machine, store, store_owner) = self.open_store(truth)?;
                Ok((machine, store, store_owner, StoreState::Whole))
            }
            StoreChoice::FromLeader if self.wiped => {
                self.store_disk.discard_staged();
                counts.push(Statistic::StartsWithoutStore);
                Ok((machine, store, store_owner, StoreState::Lost))
            }
            choice @ (StoreChoice::FromLeader | StoreChoice::FromLog | StoreChoice::Refused) => {
                let (id, start) = (self.id, log.start);
                Err(format!("member {id}: log from {start} on, store up to {applied:?}: {choice:?}").into())
            }
        }
    }

    /// Returns the number of other members when Raft last wrote its state.
    fn others_in_log(&self, found: &RecoveredLog<SimFs>) -> Option<usize> {
        let state = raft_node::inspect::read_state(found.state.as_deref()?).ok()?;
        Some(state.voters.iter().chain(&state.learners).filter(|id| **id != self.id).count())
    }

    pub fn birth(&self) -> &Membership {
        match &self.origin {
            StartKnowledge::Founder(members) | StartKnowledge::Joined(Some(members)) => members,
            StartKnowledge::Joined(None) => panic!("member {} starts without a cluster to join", self.id),
        }
    }

    fn open_store(&self, truth: &SharedTruth) -> Result<(Machine, Store, SharedStoreOwner), MemberError> {
        let disk = Box::new(self.store_disk.clone());
        let opened = mvcc::open(disk, self.store_options());
        let (writer, store, maintainer) =
            opened.map_err(|error| self.store_trouble("open the store", &error))?;
        let machine = EtcdMachine::of_level(writer, &genesis(self.birth()), self.level)
            .map_err(|error| self.fatal(&Fatal::of(error)))?;
        let (machine, store_owner) = Machine::new(machine, maintainer, truth.clone(), self.level);
        Ok((machine, store, store_owner))
    }

    pub fn store_options(&self) -> mvcc::StoreOptions {
        mvcc::StoreOptions {
            block_bytes: self.config.block_bytes,
            block_file_bytes: 16 << 10,
            cache_bytes: 16 << 10,
            checkpoint_due_bytes: self.config.checkpoint_due_bytes,
            checkpoint_full_bytes: 4 * self.config.checkpoint_due_bytes,
            dropped_max: 50,
            ..mvcc::StoreOptions::default()
        }
    }

    fn setup(&self, members: &Membership, store: StoreState, chance: &mut Chance) -> NodeSetup {
        // raft-rs uses its own source of randomness; a range with a single value leaves it no
        // choice. As in production, each member draws from a separate part of the range.
        let below = members.voters.iter().filter(|id| **id < self.id).count() as u64;
        let (ticks, voters, rank) = (u64::from(ELECTION_TICKS), members.voters.len() as u64, below);
        let timeout = ticks + chance.within(ticks * rank / voters, ticks * (rank + 1) / voters);
        let timeout = timeout as u32;
        NodeSetup {
            core: CoreSetup {
                id: self.id,
                heartbeat_ticks: 1,
                election_ticks: ELECTION_TICKS,
                timeout_ticks: timeout..timeout + 1,
                apply_bytes_max: 8 << 10,
                entry_bytes_max: 64 << 10,
                catch_up_entries: self.config.catch_up_entries,
                store,
                empty_log: EmptyLog::Unconfirmed,
                membership: Some(members.clone()),
                removed_by: state_machine::removed_by,
                keeps_voters: state_machine::keeps_voters,
                change_check: ChangeCheck::default(),
            },
            boot_nonce: mix(self.id << 32 | self.boots),
            batch_bytes_max: 16 << 10,
            cache_bytes_max: 16 << 10,
            request_timeout_ticks: 70,
            read_retry_ticks: 5,
        }
    }
}
