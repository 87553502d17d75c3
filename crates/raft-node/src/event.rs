//! What goes into the Raft core and what comes out of it: plain values, so that both can be written down and replayed.
//!
//! * An event says what happened outside; it never asks for an answer in place.
//! * Effects are collected per turn. Their order does not matter except where the types enforce it: what promises
//!   durability is not among [`Effects::send`] but inside a [`PersistJob`].

use bytes::Bytes;

use crate::Position;
use crate::message::Outbound;
use crate::persist::{Durable, PersistJob};

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// One tick of the clock passed.
    Tick,
    /// A peer's bytes arrived.
    Message { from: u64, bytes: Bytes },
    /// A sync covered everything up to this job.
    Durable(Durable),
    /// The state machine has applied everything up to this index.
    Applied { index: u64 },
    /// A message to this peer was lost, or the way to it.
    Unreachable { peer: u64 },
    /// Leadership should go to this voter.
    TransferLeader { to: u64 },
    /// A read round begins; `context` names it for ever.
    ReadIndex { context: Bytes },
}

/// A committed entry, in the order of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub at: Position,
    pub payload: Payload,
}

/// What a committed entry holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing: a new leader's first entry.
    Empty,
    /// The bytes of a batch of commands.
    Batch(Bytes),
}

/// What must be done, in any order but for what the types enforce.
#[derive(Debug, Default)]
pub struct Effects {
    pub send: Vec<Outbound>,
    pub persist: Vec<PersistJob>,
    pub committed: Vec<Committed>,
    /// Read rounds that a quorum confirmed, with the index that must be applied before the reads.
    pub confirmed: Vec<(Bytes, u64)>,
    /// More is waiting: turn again without waiting for events.
    pub more: bool,
}

/// How a core is set up. Everything that chance decides comes in here.
#[derive(Clone, Debug)]
pub struct Setup {
    pub id: u64,
    pub heartbeat_ticks: u32,
    /// A leader that hears no quorum for this long steps down; a follower trusts its leader for this long.
    pub election_ticks: u32,
    /// Where the election timeout is drawn from, not below `election_ticks`; a range of one leaves no chance.
    pub timeout_ticks: std::ops::Range<u32>,
    pub apply_bytes_max: usize,
}
