//! State machine of a member, instrumented: compares every applied command with the other members
//! and the oracle.

use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use mvcc::{Maintainer, Pressure, StagedStore, Store};
use raft_node::{Answer, Cost, Fatal, LogPosition, Membership, ReceiveSlot};
use state_machine::{AuthTable, ClusterLevel, CommandLevel, LeaseTable, Lineage, Outcome};

use crate::oracle::Truth;
use crate::panics::lock;

#[derive(Clone, Default)]
pub(crate) struct SharedTruth(Arc<Mutex<Truth>>);

impl SharedTruth {
    pub fn get(&self) -> MutexGuard<'_, Truth> {
        lock(&self.0)
    }
}

/// State owned by the store thread in a real member.
pub(crate) struct StoreOwner {
    pub maintainer: Maintainer,
    /// Store that is being received, or waits for its install. The bytes of a partial one are in
    /// the member.
    pub slot: ReceiveSlot<(), StagedStore>,
}

pub(crate) type SharedStoreOwner = Arc<Mutex<StoreOwner>>;

pub(crate) struct Machine {
    machine: state_machine::EtcdMachine,
    known: CommandLevel,
    store_owner: SharedStoreOwner,
    truth: SharedTruth,
    commands: usize,
    pub installs: u64,
    pub pressure: Pressure,
}

impl Machine {
    /// Creates a machine of a version with this command level.
    pub fn new(
        machine: state_machine::EtcdMachine,
        maintainer: Maintainer,
        truth: SharedTruth,
        known: CommandLevel,
    ) -> (Machine, SharedStoreOwner) {
        let store_owner = Arc::new(Mutex::new(StoreOwner { maintainer, slot: ReceiveSlot::default() }));
        let pressure = Pressure::Calm;
        (
            Machine {
                machine,
                known,
                store_owner: store_owner.clone(),
                truth,
                commands: 0,
                installs: 0,
                pressure,
            },
            store_owner,
        )
    }
}

impl Machine {
    pub fn leases(&self) -> &LeaseTable {
        self.machine.leases()
    }

    pub fn level(&self) -> &ClusterLevel {
        self.machine.level()
    }

    fn check_level(&self, at: LogPosition) -> Result<(), Fatal> {
        let found = self.machine.level().get();
        let levels = &self.truth.get().model.levels;
        levels.check(at.index, found, self.known).map_err(Fatal::new)?;
        let lineage = Lineage::of(self.machine.store()).map_err(|error| Fatal::new(error.to_string()))?;
        levels.check_history(at.index, lineage.id).map_err(Fatal::new)
    }

    pub fn users(&self) -> &AuthTable {
        self.machine.auth()
    }

    /// Compares the effect of a command with that on other members.
    fn note_command(&mut self, at: LogPosition, command: &Bytes) -> Result<(), Fatal> {
        let store = self.machine.store();
        let after = (store.revision(), store.compact_revision());
        self.truth.get().command(at, self.commands, command, after).map_err(Fatal::new)?;
        self.commands += 1;
        Ok(())
    }
}

pub(crate) fn membership_in(store: &Store) -> Result<Membership, Fatal> {
    let members = state_machine::members(store).map_err(Fatal::of)?;
    let ids = |is_learner| {
        let of_kind = members.iter().filter(move |member| member.is_learner == is_learner);
        of_kind.map(|member| member.id).collect()
    };
    Ok(Membership { voters: ids(false), learners: ids(true) })
}

impl raft_node::StateMachine for Machine {
    type Outcome = Outcome;

    fn applied(&self) -> LogPosition {
        self.machine.applied()
    }

    fn apply(&mut self, at: LogPosition, command: &Bytes, answer: Answer) -> Result<Option<Outcome>, Fatal> {
        let outcome = self.machine.apply(at, command, answer).map_err(Fatal::of)?;
        self.note_command(at, command)?;
        Ok(outcome)
    }

    fn apply_change(
        &mut self,
        at: LogPosition,
        command: &Bytes,
        answer: Answer,
    ) -> Result<Option<Outcome>, Fatal> {
        let outcome = self.machine.apply_change(at, command, answer);
        self.note_command(at, command)?;
        outcome.map_err(Fatal::of)
    }

    fn membership(&self) -> Option<Membership> {
        membership_in(self.machine.store()).ok()
    }

    fn end_entry(&mut self, at: LogPosition) -> Result<(), Fatal> {
        self.pressure = self.machine.end_entry(at).map_err(Fatal::of)?;
        self.check_level(at)?;
        let commands = std::mem::take(&mut self.commands);
        let (store, leases) = (self.machine.store(), self.machine.leases());
        self.truth.get().entry(at, commands, store, leases, self.machine.auth()).map_err(Fatal::new)
    }

    fn cost(&mut self, command: &Bytes) -> Option<Cost> {
        self.machine.cost(command)
    }

    /// Stores and entries of the simulator are smaller than in production.
    fn has_room(&self, bytes: usize) -> bool {
        self.machine.store().has_room(bytes * 3 / 8)
    }

    fn values_are_near(&self) -> bool {
        self.machine.store().fits_in_cache()
    }

    fn install(&mut self, at: LogPosition) -> Result<(), Fatal> {
        let mut store_owner = lock(&self.store_owner);
        let staged = store_owner
            .slot
            .take(at)
            .ok_or_else(|| Fatal::new(format!("install {at:?}: no such store is staged")))?;
        store_owner.maintainer.install(staged).map_err(Fatal::of)?;
        drop(store_owner);
        self.machine.installed().map_err(Fatal::of)?;
        self.check_level(at)?;
        (self.pressure, self.installs) = (Pressure::Calm, self.installs + 1);
        let mut truth = self.truth.get();
        truth.check_users(at.index, &self.machine.auth().state()).map_err(Fatal::new)?;
        truth.state(at.index, self.machine.store()).map_err(Fatal::new)
    }
}
