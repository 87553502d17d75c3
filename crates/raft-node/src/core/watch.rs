//! Ticks: when this member stands for election, and when it gives leadership up.
//!
//! ```text
//!   a job waits for the disk ──election timeout──▶ hand leadership over ──half of one more──▶ step down
//! ```
//!
//! * A leader whose disk stands still keeps its followers in line by its heartbeats, while nothing that clients wait for
//!   can be synced here. Another member serves them better; it is asked first, since a transfer costs no election.
//! * Whoever waits for its disk, or for its state, does not stand for election. It hears and votes as ever, and its
//!   trust in a silent leader ends as ever, or others could not win its vote.
//! * The oldest job counts, since jobs become durable in order: as long as it waits, so do all.
//! * Counted in ticks of a job's own waiting: a busy disk that finishes one job after another is no stalled disk.

use raft::{INVALID_ID, StateRole};

use super::Core;
use crate::Role;

/// How long the oldest job has been on its way to the disk.
///
/// Ticks and no clock: a member that was itself kept from running did not see its disk fail. The first tick only notes
/// which job is the oldest, so a job has waited for at least as many whole ticks as are counted.
#[derive(Default)]
pub(super) struct DiskWatch {
    job: Option<u64>,
    ticks: u32,
}

impl DiskWatch {
    /// A tick passed while `oldest` was the oldest job without a sync.
    fn tick(&mut self, oldest: Option<u64>) -> u32 {
        match oldest {
            Some(job) if self.job == Some(job) => self.ticks = self.ticks.saturating_add(1),
            _ => (self.job, self.ticks) = (oldest, 0),
        }
        self.ticks
    }
}

impl Core {
    /// One tick for raft-rs, for the disk, and for snapshots.
    pub(super) fn tick(&mut self) {
        let waited = self.disk.tick(self.unsynced.front().copied());
        self.tick_snapshots();
        if self.role() == Role::Leader {
            self.give_up_if_stalled(waited);
        }
        match self.role() {
            Role::Leader => drop(self.raw.tick()),
            Role::Follower | Role::Candidate if self.may_campaign() => drop(self.raw.tick()),
            Role::Follower | Role::Candidate => self.tick_quietly(),
        }
    }

    /// Whether this member could serve as leader now.
    pub(super) fn may_campaign(&self) -> bool {
        self.has_its_state() && self.disk.ticks < self.election_ticks
    }

    /// What a leader does whose disk has kept it waiting. Alone it has nobody to make room for.
    fn give_up_if_stalled(&mut self, waited: u32) {
        if self.voters().len() == 1 || waited < self.election_ticks {
            return;
        }
        if waited == self.election_ticks {
            let heir = self
                .most_caught_up()
                .filter(|heir| self.raw.raft.prs().get(*heir).is_some_and(|progress| progress.recent_active));
            tracing::warn!(waited_ticks = waited, ?heir, "the disk stands still: leadership is given up");
            if let Some(heir) = heir {
                self.raw.transfer_leader(heir);
            }
        }
        // A transfer that has not succeeded by now needs this disk, or its heir is gone.
        if waited >= self.election_ticks + self.election_ticks.div_ceil(2) {
            let term = self.term();
            self.raw.raft.become_follower(term, INVALID_ID);
        }
    }

    /// A follower's tick without the election at its end.
    ///
    /// raft-rs refuses its vote to others while it has heard its leader within an election timeout, and it measures that
    /// by ticks: a member whose ticks stopped would refuse for ever. So the time goes on, and when a follower that may
    /// stand would have stood for certain, this one just stops believing in its leader.
    fn tick_quietly(&mut self) {
        let raft = &mut self.raw.raft;
        raft.election_elapsed += 1;
        let trusted = raft.leader_id != INVALID_ID || raft.state != StateRole::Follower;
        if trusted && raft.election_elapsed >= 2 * self.election_ticks as usize {
            let term = raft.term;
            raft.become_follower(term, INVALID_ID);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_job_that_stays_the_oldest_is_waited_for() {
        let mut watch = DiskWatch::default();
        let waited: Vec<u32> = [None, Some(1), Some(1), Some(1), Some(2), Some(2), None, Some(2)]
            .into_iter()
            .map(|oldest| watch.tick(oldest))
            .collect();
        assert_eq!(waited, [0, 0, 1, 2, 0, 1, 0, 0]);
    }
}
