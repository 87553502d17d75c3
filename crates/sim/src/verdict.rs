//! The end of a story: once everything has healed, the cluster must serve soon, answer promptly, and come to one state.
//!
//! Progress is a promise as well: a lost answer that only a retry repairs, or an election that never ends, would break no
//! other law, and nobody would ever find it.

use raft_node::Position;

use crate::chance::fold;
use crate::clients::RequestId;
use crate::count::{Count, Report};
use crate::laws::Breach;
use crate::plan::{MILLISECOND, SECOND};
use crate::world::World;

/// Calm time after which everybody has found a leader again.
const SETTLING: u64 = 8 * SECOND;
/// When at the latest a write is acknowledged again. All clients may be waiting for requests that were lost before the healing: each is
/// given up after 70 ticks, of which the first may be one of four seconds that a slow clock has begun.
const SERVING: u64 = 12 * SECOND;
/// Longer than messages, syncs and batches take in calm weather; shorter than any retry.
const PROMPT: u64 = 300 * MILLISECOND;

impl World {
    /// Once everything has healed and settled, nobody waits for long.
    pub fn check_prompt(&self, request: RequestId) -> Result<(), Breach> {
        let calm_since = self.plan.seconds * SECOND + SETTLING;
        match self.clients.asked_at(request) {
            Some(asked) if asked > calm_since && self.now - asked > PROMPT => {
                Err(format!("a request took {} ms in calm weather", (self.now - asked) / MILLISECOND).into())
            }
            _ => Ok(()),
        }
    }

    /// What is acknowledged is on the disks of a quorum.
    pub fn check_durable(&self, at: Position) -> Result<(), Breach> {
        let holders = self.sites.iter().filter(|site| site.holds(at.index, at.term)).count();
        if 2 * holders <= self.sites.len() {
            return Err(
                format!("entry {at:?} was acknowledged, but only {holders} members have it synced").into()
            );
        }
        Ok(())
    }

    /// Everything healed and came to rest: the cluster must have served, and all members must be equal.
    pub fn finish(mut self) -> Result<Report, Breach> {
        let healed = self.plan.seconds * SECOND;
        match self.served_again {
            Some(served) if served - healed <= SERVING => {}
            Some(served) => {
                return Err(format!(
                    "the first write after healing took {} ms",
                    (served - healed) / MILLISECOND
                )
                .into());
            }
            None => return Err("no write was acknowledged after everything had healed".into()),
        }
        let truth = self.truth.clone();
        let mut truth = truth.get();
        let last = truth.last().index;
        for site in &self.sites {
            let up = site.up.as_ref().ok_or_else(|| format!("member {} is down in the end", site.id))?;
            if site.applied() != last {
                let (id, applied) = (site.id, site.applied());
                return Err(format!("member {id} applied {applied} of {last} entries in the end").into());
            }
            truth.state(last, &up.store)?;
        }
        let end = (last, truth.model.revision, truth.model.compact_revision);
        self.report.trace = fold(self.report.trace, format!("{end:?}").as_bytes());
        self.report.add(Count::Hashes, truth.hashes);
        self.report.add(Count::Compactions, truth.compactions);
        debug_assert_eq!(
            self.report.get(Count::Elections) as usize,
            self.elections.count(),
            "each term counts once"
        );
        Ok(self.report)
    }
}
