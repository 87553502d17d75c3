//! A log on a simulated disk, histories of operations, and a reference model.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::{Path, PathBuf};

use wal::testing::{Crash, SimFs};
use wal::{Entry, Error, Fs, LogIndex, LogPosition, OwnedEntry, Recovery, Result, Term, Wal, WalOptions};

pub const DIR: &str = "/wal";
pub const IDENTITY: &[u8] = b"member 7";
/// Small segments, so that cuts, spares and releases happen within a few operations.
pub const OPTIONS: WalOptions = WalOptions { segment_bytes: 8192, salt: [7; 16] };

pub fn dir() -> &'static Path {
    Path::new(DIR)
}

pub fn segment(sequence: u64) -> PathBuf {
    dir().join(format!("{sequence:016x}.wal"))
}

pub fn at(index: u64, term: u64) -> LogPosition {
    LogPosition::new(index, term)
}

/// Generates a payload from index, term and length.
pub fn payload(index: u64, term: u64, bytes: usize) -> Vec<u8> {
    let seed = index.wrapping_mul(31).wrapping_add(term.wrapping_mul(7));
    (0..bytes as u64).map(|at| (seed.wrapping_add(at) % 251 + 1) as u8).collect()
}

pub fn append<F: Fs>(wal: &mut Wal<F>, index: u64, term: u64, payload: &[u8]) {
    wal.append(Entry { index: LogIndex(index), term: Term(term), kind: kind(index), payload });
}

pub fn kind(index: u64) -> u8 {
    (index % 3) as u8
}

pub fn create(fs: &SimFs) -> Wal<SimFs> {
    Wal::create(fs.clone(), dir(), IDENTITY, LogPosition::default(), OPTIONS).unwrap()
}

pub fn open(fs: &SimFs) -> Result<(Wal<SimFs>, Recovery)> {
    Wal::open(fs.clone(), dir(), OPTIONS)
}

/// Returns all retained entries, read in small portions.
pub fn entries<F: Fs>(wal: &Wal<F>) -> Result<Vec<OwnedEntry>> {
    let reader = wal.reader();
    let mut entries: Vec<OwnedEntry> = Vec::new();
    let mut next = reader.start().index.next();
    loop {
        let portion = reader.read(next, 1500)?;
        let Some(last) = portion.last() else { return Ok(entries) };
        next = last.index.next();
        entries.extend(portion);
    }
}

/// Recovery result and entries of an opened log.
pub type Contents = (Recovery, Vec<OwnedEntry>);

pub fn contents(fs: &SimFs, options: WalOptions) -> Result<Contents> {
    let (wal, recovery) = Wal::open(fs.clone(), dir(), options)?;
    let entries = entries(&wal)?;
    Ok((recovery, entries))
}

/// Copies the disk for a test to corrupt.
pub fn copy(fs: &SimFs) -> SimFs {
    fs.crashed(Crash::Kill, &mut || false)
}

/// splitmix64, a random generator small enough to read.
#[derive(Clone, Debug)]
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Append { index: u64, term: u64, bytes: usize },
    State(Vec<u8>),
    Sync,
    Release(u64),
    Restart { index: u64, term: u64, state: Vec<u8> },
    Close,
    Reopen,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    pub base: LogPosition,
    pub entries: Vec<OwnedEntry>,
    pub state: Option<Vec<u8>>,
}

impl Model {
    pub fn last(&self) -> LogPosition {
        self.entries.last().map_or(self.base, |entry| LogPosition { index: entry.index, term: entry.term })
    }

    pub fn truncate_to(&mut self, index: u64) {
        self.entries.retain(|entry| entry.index.0 <= index);
    }

    /// Applies one step, which is atomic in the log.
    pub fn take(&mut self, step: &Step) {
        match step {
            Step::Append { index, term, bytes } => {
                self.truncate_to(index - 1);
                assert_eq!(self.last().index.0 + 1, *index);
                let payload = payload(*index, *term, *bytes);
                let (index, term) = (LogIndex(*index), Term(*term));
                self.entries.push(OwnedEntry { index, term, kind: kind(index.0), payload });
            }
            Step::State(state) => self.state = Some(state.clone()),
            Step::Restart { index, term, state } => {
                *self = Model { base: at(*index, *term), entries: Vec::new(), state: Some(state.clone()) };
            }
            Step::Sync | Step::Release(_) | Step::Close | Step::Reopen => {}
        }
    }

    /// Reports whether a log with this start and contents matches the model, ignoring entries up to
    /// `start`.
    pub fn agrees(&self, start: LogPosition, entries: &[OwnedEntry], state: Option<&Vec<u8>>) -> bool {
        let start_known = start == self.base
            || self.entries.iter().any(|entry| (entry.index, entry.term) == (start.index, start.term));
        let kept = self.entries.iter().filter(|entry| entry.index > start.index);
        start_known && kept.eq(entries) && self.state.as_ref() == state
    }
}

/// Generates a random valid history. Payloads are long enough that 30 steps span several segments.
pub fn history(seed: u64, steps: usize) -> Vec<Step> {
    continue_history(&mut Chance(seed), &Model::default(), 0, steps)
}

/// Generates the continuation of a log that holds `model`, released up to `released`.
pub fn continue_history(chance: &mut Chance, model: &Model, mut released: u64, steps: usize) -> Vec<Step> {
    let (mut model, mut history) = (model.clone(), Vec::new());
    let (mut term, mut synced) = (model.last().term.0.max(1), model.last().index.0);
    while history.len() < steps {
        let last = model.last();
        let step = match chance.below(100) {
            0..50 => Step::Append { index: last.index.0 + 1, term, bytes: length(chance) },
            50..58 => {
                // A conflict: a new leader replaces part of the tail.
                term += 1;
                let lowest = released.max(model.base.index.0);
                let back = chance.below((last.index.0 - lowest).min(6) + 1);
                Step::Append { index: last.index.0 + 1 - back, term, bytes: length(chance) }
            }
            58..66 => Step::State(chance.next().to_le_bytes().to_vec()),
            66..88 => Step::Sync,
            88..93 => {
                released = released.max(model.base.index.0).max(last.index.0.min(synced).saturating_sub(3));
                Step::Release(released + 1)
            }
            93..95 => {
                term += 1;
                let index = last.index.0 + chance.below(5);
                Step::Restart { index, term, state: chance.next().to_le_bytes().to_vec() }
            }
            95..97 => Step::Close,
            _ => Step::Reopen,
        };
        match &step {
            Step::Sync | Step::Close => synced = last.index.0,
            Step::Append { index, .. } => synced = synced.min(index - 1),
            Step::Restart { index, .. } => (synced, released) = (*index, *index),
            Step::Reopen => {
                // Only synced data is certain to be recovered.
                history.push(Step::Sync);
                synced = last.index.0;
            }
            Step::State(_) | Step::Release(_) => {}
        }
        model.take(&step);
        history.push(step);
    }
    history
}

fn length(chance: &mut Chance) -> usize {
    match chance.below(10) {
        0 => 0,
        1 => 9000,
        2..5 => 2000,
        _ => chance.below(300) as usize,
    }
}

/// Runs one step; `Close` and `Reopen` consume and reopen the log.
pub fn run(fs: &SimFs, mut wal: Wal<SimFs>, step: &Step) -> Result<Wal<SimFs>> {
    match step {
        Step::Append { .. } | Step::State(_) | Step::Sync | Step::Release(_) | Step::Restart { .. } => {
            run_in_place(&mut wal, step)?;
            return Ok(wal);
        }
        Step::Close => wal.close()?,
        Step::Reopen => drop(wal),
    }
    open(fs).map(|(wal, _)| wal)
}

/// Runs a step without consuming the log; `Close` and `Reopen` only sync.
pub fn run_in_place(wal: &mut Wal<SimFs>, step: &Step) -> Result<()> {
    match step {
        Step::Append { index, term, bytes } => append(wal, *index, *term, &payload(*index, *term, *bytes)),
        Step::State(state) => wal.put_state(state),
        Step::Sync | Step::Close | Step::Reopen => drop(wal.sync()?),
        Step::Release(index) => drop(wal.release_before(LogIndex(*index))?),
        Step::Restart { index, term, state } => wal.restart_at(at(*index, *term), state)?,
    }
    Ok(())
}

pub fn is_io(error: &Error) -> bool {
    matches!(error, Error::Io { .. } | Error::Poisoned)
}
