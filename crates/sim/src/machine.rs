//! The replicated store of one member, watched: what it applied must be what every other member applied.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use mvcc::{Applied, Maintainer, MemoryBackend, Options, Store};
use raft_node::{Answer, Fatal, Position};
use state_machine::{Genesis, Outcome};

use crate::chance::fold;
use crate::laws::Truth;

pub(crate) type SharedTruth = Arc<Mutex<Truth>>;

pub(crate) struct Machine {
    machine: state_machine::StateMachine,
    truth: SharedTruth,
    /// Digest of the commands of the entry being applied.
    digest: u64,
}

impl Machine {
    /// Opens the store as its last checkpoint left it.
    pub fn open(backend: MemoryBackend, truth: SharedTruth) -> Result<(Machine, Store, Maintainer), String> {
        let opened = mvcc::open(Box::new(backend), Options::default()).map_err(|error| error.to_string())?;
        let (writer, store, maintainer) = opened;
        let machine = state_machine::StateMachine::new(writer, &Genesis::default())
            .map_err(|error| error.to_string())?;
        Ok((Machine { machine, truth, digest: 0 }, store, maintainer))
    }
}

fn applied(at: Position) -> Applied {
    Applied { index: at.index, term: at.term }
}

impl raft_node::StateMachine for Machine {
    type Outcome = Outcome;

    fn applied(&self) -> Position {
        let Applied { index, term } = self.machine.applied();
        Position { index, term }
    }

    fn apply(&mut self, at: Position, command: &Bytes, answer: Answer) -> Result<Option<Outcome>, Fatal> {
        self.digest = fold(self.digest, command);
        let wanted = match answer {
            Answer::Wanted => state_machine::Answer::Wanted,
            Answer::Unwanted => state_machine::Answer::Unwanted,
        };
        let before = self.machine.store().revision();
        let outcome =
            self.machine.apply(applied(at), command, wanted).map_err(|e| Fatal::new(e.to_string()))?;
        let after = self.machine.store().revision();
        let mut truth = self.truth.lock().unwrap_or_else(PoisonError::into_inner);
        truth.command(command, before, after).map_err(Fatal::new)?;
        Ok(outcome)
    }

    fn end_entry(&mut self, at: Position) -> Result<(), Fatal> {
        self.machine.end_entry(applied(at)).map_err(|error| Fatal::new(error.to_string()))?;
        let digest = std::mem::take(&mut self.digest);
        let revision = self.machine.store().revision();
        let mut truth = self.truth.lock().unwrap_or_else(PoisonError::into_inner);
        truth.entry(at, digest, revision).map_err(Fatal::new)
    }

    fn install(&mut self, at: Position) -> Result<(), Fatal> {
        Err(Fatal::new(format!("install snapshot {}: nothing is staged here", at.index)))
    }
}
