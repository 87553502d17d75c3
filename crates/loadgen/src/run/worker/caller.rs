//! The state of one caller: free, waiting for its moment or for a link, or in a call.

use crate::client::call::Call;
use crate::run::schedule::Turn;
use std::time::Instant;

pub enum Caller {
    /// Wants a turn.
    Free,
    /// Its turn is not due yet.
    Early(Turn),
    /// No link of its connection object is up.
    Stranded {
        turn: Turn,
        since: Instant,
    },
    /// Its link has as many calls open as the server allows.
    Queued {
        turn: Turn,
        since: Instant,
        link: u32,
    },
    Calling(Call),
    /// No turns are left.
    Done,
}

impl Caller {
    /// The position of a request that was due and has no reply, and since when it waits.
    pub fn waits(&self, now: Instant) -> Option<(u64, Instant)> {
        Some(match self {
            Caller::Calling(call) => (call.position, call.clock_from),
            Caller::Queued { turn, since, .. } | Caller::Stranded { turn, since } => {
                (turn.position, turn.counts_from(*since))
            }
            Caller::Early(turn) => (turn.position, turn.due.filter(|due| *due <= now)?),
            Caller::Free | Caller::Done => return None,
        })
    }
}
