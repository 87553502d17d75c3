//! What may come in, and what is refused because too much waits already.
//!
//! Everything that a member holds for callers and peers passes here first. The simulator lets its clients and
//! messages in by the same code.
//!
//! * Bounds are checked before anything is queued: a refusal costs others nothing.
//! * A permit is given back when it is dropped, so what waits is counted exactly, through every way that a
//!   wait can end.
//!
//! Knows neither queues nor threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::wire::is_snapshot;
use crate::{Limits, ProposeError, ReadError};

/// Peers' messages up to this size are still let in when the inbox is over its bound, up to twice the bound:
/// heartbeats must not be lost because of appended entries.
const SMALL_MESSAGE_BYTES: usize = 1024;

/// Of one member.
#[derive(Debug)]
pub struct Entrance {
    limits: Limits,
    /// Proposals and their bytes between entrance and answer.
    proposals: Arc<Occupancy>,
    /// Readers between entrance and answer.
    reads: Arc<Occupancy>,
    /// Of peers' messages in the inbox.
    inbox_bytes: AtomicUsize,
}

impl Entrance {
    #[must_use]
    pub fn new(limits: Limits) -> Entrance {
        Entrance {
            limits,
            proposals: Arc::default(),
            reads: Arc::default(),
            inbox_bytes: AtomicUsize::new(0),
        }
    }

    /// A command of this size may be proposed; so many committed entries are not applied yet. The permit is to
    /// be held until the proposer is answered.
    pub fn propose(&self, command_bytes: usize, unapplied_entries: u64) -> Result<Permit, ProposeError> {
        let limits = &self.limits;
        if command_bytes > limits.command_bytes_max {
            return Err(ProposeError::TooLarge { bytes: command_bytes, bytes_max: limits.command_bytes_max });
        }
        if unapplied_entries > limits.unapplied_entries_max {
            return Err(ProposeError::TooManyRequests);
        }
        self.proposals
            .admit(command_bytes, limits.proposals_max, limits.proposal_bytes_max)
            .ok_or(ProposeError::TooManyRequests)
    }

    /// A read point may be asked for. The permit is to be held until the reader is answered.
    pub fn read(&self) -> Result<Permit, ReadError> {
        self.reads.admit(0, self.limits.reads_max, 0).ok_or(ReadError::TooManyRequests)
    }

    /// Whether a peer's message may wait in the inbox. If so, [`Entrance::took`] is owed.
    pub fn receive(&self, message: &[u8]) -> bool {
        let bytes = inbox_cost(message);
        let bytes_max = match bytes {
            0..=SMALL_MESSAGE_BYTES => 2 * self.limits.inbox_bytes_max,
            _ => self.limits.inbox_bytes_max,
        };
        // Its stream is over: it would not be sent again, and what was staged for it would lie there for
        // ever.
        let must = is_snapshot(message);
        if self.inbox_bytes.fetch_add(bytes, Ordering::Relaxed) > bytes_max && !must {
            self.inbox_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// A message that waited in the inbox was taken out of it.
    pub fn took(&self, message: &[u8]) {
        self.inbox_bytes.fetch_sub(inbox_cost(message), Ordering::Relaxed);
    }

    /// Proposals that have no answer yet.
    pub fn proposals_pending(&self) -> usize {
        self.proposals.count()
    }
}

/// What a peer's message takes in the inbox: its bytes, and its place in the queue. Without the latter,
/// messages of no bytes would come in without number.
fn inbox_cost(message: &[u8]) -> usize {
    const PLACE_BYTES: usize = 128;
    message.len() + PLACE_BYTES
}

/// How many wait, and with how many bytes; shared by the entrance and all permits.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    /// Permits out.
    count: AtomicUsize,
    /// Their bytes.
    bytes: AtomicUsize,
}

impl Occupancy {
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Admits one with `bytes`, unless that would exceed a bound. One alone is always within the bound on
    /// bytes.
    pub fn admit(self: &Arc<Self>, bytes: usize, count_max: usize, bytes_max: usize) -> Option<Permit> {
        let count_before = self.count.fetch_add(1, Ordering::Relaxed);
        let bytes_before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        // Made first, so that a refusal gives back what was just taken.
        let permit = Permit { bytes, of: self.clone() };
        let fits = count_before < count_max && (bytes_before == 0 || bytes_before + bytes <= bytes_max);
        fits.then_some(permit)
    }
}

/// The right to wait; dropping it makes room.
#[derive(Debug)]
pub struct Permit {
    bytes: usize,
    of: Arc<Occupancy>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let count = self.of.count.fetch_sub(1, Ordering::Relaxed);
        let bytes = self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        debug_assert!(count > 0 && bytes >= self.bytes, "more permits given back than were taken");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_inbox_refuses_and_returns_the_command() {
        let occupancy = Arc::new(Occupancy::default());
        let big = occupancy.admit(5_000, 2, 100).expect("one alone is always admitted");
        assert!(occupancy.admit(1, 2, 100).is_none(), "too many bytes");
        drop(big);
        let kept: Vec<_> = (0..2).map(|_| occupancy.admit(1, 2, 100).unwrap()).collect();
        assert!(occupancy.admit(1, 2, 100).is_none(), "too many");
        assert_eq!(occupancy.count(), 2);
        drop(kept);
        assert_eq!((occupancy.count(), occupancy.bytes.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn small_messages_pass_a_full_inbox_up_to_twice_its_bound_and_those_of_snapshots_always() {
        let entrance = Entrance::new(Limits { inbox_bytes_max: 4096, ..Limits::default() });
        let (large, small) = ([0; 3000], [0; 400]);
        assert!(entrance.receive(&large) && entrance.receive(&large), "the first one left room");
        assert!(!entrance.receive(&large));
        let passed = (0..100).take_while(|_| entrance.receive(&small)).count();
        assert!((1..=8).contains(&passed), "{passed} small ones");
        let snapshot = [1, 7];
        assert!(is_snapshot(&snapshot) && entrance.receive(&snapshot));
        (0..2).for_each(|_| entrance.took(&large));
        (0..passed).for_each(|_| entrance.took(&small));
        entrance.took(&snapshot);
        assert_eq!(entrance.inbox_bytes.load(Ordering::Relaxed), 0);
    }
}
