//! The state of one caller: free, waiting for its moment or for a link, or in a call.

use crate::client::call::SentCall;
use crate::run::schedule::SendSlot;
use std::time::Instant;

pub enum CallerState {
    /// Wants a turn.
    Free,
    /// Its turn is not due yet.
    Early(SendSlot),
    /// No link of its connection object is up.
    Stranded {
        turn: SendSlot,
        since: Instant,
    },
    /// Its link has as many calls open as the server allows.
    Queued {
        turn: SendSlot,
        since: Instant,
        link: u32,
    },
    Calling(SentCall),
    /// No turns are left.
    Done,
}

impl CallerState {
    /// The position of a request that was due and has no reply, and since when it waits.
    pub fn waits(&self, now: Instant) -> Option<(u64, Instant)> {
        Some(match self {
            CallerState::Calling(call) => (call.position, call.clock_from),
            CallerState::Queued { turn, since, .. } | CallerState::Stranded { turn, since } => {
                (turn.position, turn.counts_from(*since))
            }
            CallerState::Early(turn) => (turn.position, turn.due.filter(|due| *due <= now)?),
            CallerState::Free | CallerState::Done => return None,
        })
    }

    /// The link that carries its request, or is to carry it.
    pub fn link(&self) -> Option<u32> {
        match self {
            CallerState::Calling(call) => Some(call.link),
            CallerState::Queued { link, .. } => Some(*link),
            CallerState::Stranded { .. } | CallerState::Early(_) | CallerState::Free | CallerState::Done => {
                None
            }
        }
    }
}
