//! The state of a caller: free, waiting for its slot or for a link, or in a call.

use crate::client::call::SentCall;
use crate::run::schedule::SendSlot;
use std::time::Instant;

pub enum CallerState {
    /// Ready for a slot.
    Free,
    /// Its slot is in the future.
    Early(SendSlot),
    /// All links of its connection object are down.
    Stranded {
        turn: SendSlot,
        since: Instant,
    },
    /// Its link has reached the server's limit of concurrent calls.
    Queued {
        turn: SendSlot,
        since: Instant,
        link: u32,
    },
    Calling(SentCall),
    /// No slots are left.
    Done,
}

impl CallerState {
    /// Returns the position and start time of a due request without a reply.
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

    /// Returns the link of its current or queued request.
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
