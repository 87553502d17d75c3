//! Progress: a majority that is up and connected serves soon and answers promptly; once everything has healed, all do, and come
//! to one state.
//!
//! Progress is a promise as well: a lost answer that only a retry repairs, or an election that never ends, would break no
//! other law, and no test would find it.

use raft_node::Position;

use super::happening::Phase;
use super::state::World;
use crate::chance::fold;
use crate::count::{Count, Report};
use crate::member::is_in;
use crate::oracle::{Breach, Truth};
use crate::plan::{MILLISECOND, SECOND};
use crate::requests::RequestId;

/// Calm time after which all members have found a leader again.
const SETTLING: u64 = 8 * SECOND;
/// When at the latest a write is acknowledged again. All clients may be waiting for requests that were lost before: each is
/// given up after 70 ticks, of which the first may be one of four seconds that a slow clock has begun.
const SERVING: u64 = 12 * SECOND;
/// Longer than messages, syncs and batches take in calm weather; shorter than any retry.
const PROMPT: u64 = 300 * MILLISECOND;

impl World {
    /// Once a majority is whole and has settled, no request of its members takes long.
    pub fn check_prompt(&self, request: RequestId) -> Result<(), Breach> {
        let calm_since = self.phase_began + SETTLING;
        match self.clients.asked_at(request) {
            Some(asked) if self.phase != Phase::Faults && asked > calm_since && self.now - asked > PROMPT => {
                Err(format!("a request took {} ms in calm weather", (self.now - asked) / MILLISECOND).into())
            }
            _ => Ok(()),
        }
    }

    /// What is acknowledged is on the disks of a quorum.
    pub fn check_durable(&self, at: Position, truth: &Truth) -> Result<(), Breach> {
        // A leader may have committed it before it had applied the newest change before it.
        let (newest, before) = truth.members_at(at.index);
        if self.is_held_by_majority(newest, at) || self.is_held_by_majority(before, at) {
            return Ok(());
        }
        Err(format!("entry {at:?} was acknowledged, but no majority of {newest:?} has it synced").into())
    }

    /// The phase ends: a write must have been acknowledged soon after it began.
    pub fn check_served(&self) -> Result<(), Breach> {
        let (phase, absent) = (self.phase, &self.absent);
        match self.served.map(|served| (served - self.phase_began) / MILLISECOND) {
            Some(took) if took * MILLISECOND <= SERVING => Ok(()),
            Some(took) => {
                Err(format!("{phase:?}, without {absent:?}: the first write took {took} ms").into())
            }
            None => Err(format!("{phase:?}, without {absent:?}: no write was acknowledged").into()),
        }
    }

    /// Everything healed and came to rest: the cluster must have served, and all members must be equal.
    pub fn finish(mut self) -> Result<Report, Breach> {
        self.check_served()?;
        self.check_watched()?;
        self.check_leases()?;
        self.check_removed()?;
        let truth = self.truth.clone();
        let mut truth = truth.get();
        self.clients.check_refused(&truth)?;
        let last = truth.last().index;
        let members = truth.model.members.membership();
        for site in self.sites.iter().filter(|site| is_in(&members, site.id)) {
            let up = site.up.as_ref().ok_or_else(|| format!("member {} is down in the end", site.id))?;
            if site.applied() != last {
                let (id, applied) = (site.id, site.applied());
                return Err(format!("member {id} applied {applied} of {last} entries in the end").into());
            }
            if !up.permits.is_empty() {
                let waiting = up.permits.keys();
                return Err(format!("member {}: {waiting:?} still wait in the end", site.id).into());
            }
            truth.state(last, &up.store)?;
        }
        let end = (last, truth.model.revision, truth.model.compact_revision);
        self.report.trace = fold(self.report.trace, format!("{end:?}").as_bytes());
        self.report.add(Count::Hashes, truth.hashes);
        self.report.add(Count::Digests, truth.digests);
        self.report.add(Count::Compactions, truth.compactions);
        debug_assert_eq!(
            self.report.get(Count::Elections) as usize,
            self.elections.count(),
            "each term counts once"
        );
        Ok(self.report)
    }
}
