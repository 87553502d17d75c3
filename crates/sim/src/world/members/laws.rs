//! Invariants of majorities, with respect to the voters in force.

use raft_node::{Gauges, LogPosition, Membership, Role, Term};

use super::super::state::World;
use crate::oracle::Breach;

/// Bytes of a leader's log to check for changes; usually enough for all unapplied entries.
const EXAMINED_BYTES_MAX: usize = 64 << 10;

impl World {
    /// Reports whether a majority of the voters has the entry on disk.
    pub(crate) fn is_held_by_majority(&self, members: &Membership, at: LogPosition) -> bool {
        let holders = members.voters.iter().filter(|id| self.see(**id).holds(at)).count();
        2 * holders > members.voters.len()
    }

    /// Checks the quorums of a member after its turn.
    pub(crate) fn check_majorities(
        &mut self,
        id: u64,
        before: Option<Gauges>,
        now: Gauges,
    ) -> Result<(), Breach> {
        let site = self.site(id);
        site.term_seen = site.term_seen.max(now.term);
        if site.wiped {
            return Ok(()); // It has no list.
        }
        let node = &self.see(id).up.as_ref().expect("it turned just now").node;
        let truth = self.truth.get();
        let members = truth.members_at(node.applied()).0;
        let mut counted = node.voters().to_vec();
        counted.sort_unstable();
        // A follower that restarts its log from a snapshot uses the sender's members until the
        // install.
        if now.role != Role::Follower && counted != members.voters {
            let applied = node.applied();
            return Err(
                format!("member {id} counts by {counted:?} at entry {applied}, not by {members:?}").into()
            );
        }
        let led_before = before.is_some_and(|before| before.role == Role::Leader && before.term == now.term);
        if now.role != Role::Leader {
            return Ok(());
        }
        if !led_before {
            return self.check_election(id, now.term, members);
        }
        let commit = LogPosition { index: now.commit, term: node.term_at(now.commit).unwrap_or_default() };
        let went_on = before.is_some_and(|before| before.commit < now.commit);
        if went_on && !self.is_held_by_majority(members, commit) {
            return Err(
                format!("leader {id} committed {commit:?}, which no majority of {members:?} has").into()
            );
        }
        Ok(())
    }

    /// Checks that a leader is a voter, and that a majority of the voters has seen its term.
    fn check_election(&self, id: u64, term: Term, members: &Membership) -> Result<(), Breach> {
        let voters = &members.voters;
        let heard = voters.iter().filter(|voter| self.see(**voter).term_seen >= term).count();
        if !voters.contains(&id) || 2 * heard <= voters.len() {
            return Err(format!("member {id} leads term {term} with {heard} of {members:?}").into());
        }
        Ok(())
    }

    /// Checks that voters have a state: a promoted learner, and a majority of the voters that
    /// remain after a removal. Otherwise the removed member, which is wiped when it is notified,
    /// may have had the last copy of acknowledged data.
    pub(super) fn check_states(&self, before: &Membership, after: &Membership) -> Result<(), Breach> {
        let has_state = |id: &u64| !self.see(*id).wiped;
        let holders = after.voters.iter().filter(|id| has_state(id)).count();
        // A member that has just lost its disks keeps its previous role.
        let is_without = |id: &u64| before.learners.contains(id) && !has_state(id) && self.see(*id).is_fresh;
        let has_lost_voters = before.voters.iter().any(|id| !after.voters.contains(id));
        if after.voters.iter().any(is_without) || (has_lost_voters && 2 * holders <= after.voters.len()) {
            return Err(format!("{holders} of {after:?} have a state; before, they were {before:?}").into());
        }
        Ok(())
    }

    /// Checks that a leader appends no change while an earlier one is not applied.
    pub(crate) fn check_one_at_a_time(&self, id: u64) -> Result<(), Breach> {
        let site = self.see(id);
        let Some((up, log)) = site.up.as_ref().zip(site.synced.as_ref()) else { return Ok(()) };
        let gauges = up.node.gauges();
        let next = up.node.applied().max(log.start().index) + 1;
        if gauges.role != Role::Leader || log.last().index < next {
            return Ok(());
        }
        let entries = log.read(next, EXAMINED_BYTES_MAX).unwrap_or_default();
        let changes: Vec<_> = entries.iter().filter(|entry| entry.kind == CHANGE).collect();
        match changes.last() {
            Some(last) if changes.len() > 1 && last.term == gauges.term => {
                let indexes: Vec<_> = changes.iter().map(|entry| entry.index).collect();
                Err(format!("leader {id} has the changes {indexes:?} in its log, and has applied none")
                    .into())
            }
            _ => Ok(()),
        }
    }
}

/// Kind of membership change entries; see [`raft_node::inspect::read_entry`].
const CHANGE: u8 = 1;
