//! Liveness: a connected majority serves soon and responds promptly; after recovery, all members
//! do, and their states converge.
//!
//! Liveness needs separate checks: a lost response that is repaired only by a retry, or an endless
//! election, breaks no other law.

use bytes::Bytes;
use mvcc::{Flip, KeyRange, RangeOptions, RecountAnswer, RecountBounds, Store};
use raft_node::LogPosition;

use super::event::FaultPhase;
use super::state::World;
use crate::chance::fold;
use crate::count::{RunReport, Statistic};
use crate::member::{MemberError, is_in};
use crate::oracle::{Breach, Truth};
use crate::plan::{KnownBug, MILLISECOND, SECOND};
use crate::requests::RequestId;

/// Calm time after which all members must have found a leader.
const SETTLING: u64 = 8 * SECOND;
/// Maximum time until a write is acknowledged again. All clients may be waiting for lost requests:
/// each times out after 70 ticks, of which the first may take four seconds on a slow clock.
const SERVING: u64 = 12 * SECOND;
/// Maximum latency on a calm network: longer than messages, syncs and batches take, but shorter
/// than any retry.
const PROMPT: u64 = 300 * MILLISECOND;

/// Limits of a recount. Blocks have some kilobytes in a run.
const RECOUNT: RecountBounds = RecountBounds { records: 100, raw_bytes: 16 << 10 };

impl World {
    /// Checks that a request was served promptly, if a majority has been connected and stable since
    /// before it.
    pub fn check_prompt(&self, request: RequestId) -> Result<(), Breach> {
        let calm_since = self.phase_began + SETTLING;
        match self.clients.asked_at(request) {
            Some(asked)
                if self.phase != FaultPhase::Faults && asked > calm_since && self.now - asked > PROMPT =>
            {
                Err(format!("a request took {} ms on a calm network", (self.now - asked) / MILLISECOND)
                    .into())
            }
            _ => Ok(()),
        }
    }

    /// Checks that an acknowledged entry is on the disks of a quorum.
    pub fn check_durable(&self, at: LogPosition, truth: &Truth) -> Result<(), Breach> {
        // A leader may have committed it before it applied the last membership change before it.
        let (newest, before) = truth.members_at(at.index);
        if self.is_held_by_majority(newest, at) || self.is_held_by_majority(before, at) {
            return Ok(());
        }
        Err(format!("entry {at:?} was acknowledged, but no majority of {newest:?} has it synced").into())
    }

    /// Checks, at the end of a phase, that a write was acknowledged soon after its start.
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

    /// Recounts a part of a member's state on all members, as in the process, and checks that the
    /// results agree.
    pub fn recount(&mut self) -> Result<(), MemberError> {
        let turn = self.report.events as usize;
        if self.plan.known_bug == KnownBug::BitsFlip {
            self.flip_a_bit(turn);
        }
        let up: Vec<(u64, &Store)> =
            self.sites.iter().filter_map(|site| Some((site.id, &site.up.as_ref()?.store))).collect();
        let Some((asking, store)) = up.get(turn % up.len().max(1)).copied() else { return Ok(()) };
        let pass = self.recount.get_or_insert_with(|| store.recount_pass());
        let Some(span) = store.next_span(pass, RECOUNT) else {
            self.recount = None;
            return Ok(());
        };
        // I/O errors are possible, and yield no digest. But store disks never lose or change data.
        let digest = |id: u64, store: &Store| match store.recount(&span, &()) {
            Ok(RecountAnswer::Digest(digest)) => Ok(Some(digest)),
            Ok(RecountAnswer::Damaged) => Err(format!("member {id}: the recount of {span:?} finds damage")),
            Ok(RecountAnswer::NotYet | RecountAnswer::Compacted) | Err(_) => Ok(None),
        };
        let mut compared = 0;
        if let Some(wanted) = digest(asking, store)? {
            for (id, store) in up {
                let Some(found) = digest(id, store)? else { continue };
                compared += u64::from(id != asking);
                if found != wanted {
                    let what = format!(
                        "recounts of {span:?} differ: member {asking} has {wanted:016x}, {id} {found:016x}"
                    );
                    return Err(what.into());
                }
            }
        }
        self.report.add(Statistic::Recounts, compared);
        Ok(())
    }

    fn flip_a_bit(&self, turn: usize) {
        let Some(up) = self.sites[turn / 7 % self.sites.len()].up.as_ref() else { return };
        let all = KeyRange::new(Bytes::from_static(b"\0"), Bytes::from_static(b"\0"));
        let Ok(range) = up.store.range(&all, 0, &RangeOptions::default()) else { return };
        if let Some(kv) = range.kvs.get(turn % range.kvs.len().max(1)) {
            up.store.flip(&kv.key, Flip::Value);
        }
    }

    /// Checks the final state after recovery: the cluster must have served, and all members must be
    /// equal.
    pub fn finish(mut self) -> Result<RunReport, Breach> {
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
        self.report.add(Statistic::Hashes, truth.hashes);
        self.report.add(Statistic::Digests, truth.digests);
        self.report.add(Statistic::Compactions, truth.compactions);
        debug_assert_eq!(
            self.report.get(Statistic::Elections) as usize,
            self.elections.count(),
            "each term counts once"
        );
        Ok(self.report)
    }
}
