//! Progress: a majority that is up and connected serves soon and answers promptly; once everything has healed, all do, and come
//! to one state.
//!
//! Progress is a promise as well: a lost answer that only a retry repairs, or an election that never ends, would break no
//! other law, and no test would find it.

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

/// Calm time after which all members have found a leader again.
const SETTLING: u64 = 8 * SECOND;
/// When at the latest a write is acknowledged again. All clients may be waiting for requests that were lost before: each is
/// given up after 70 ticks, of which the first may be one of four seconds that a slow clock has begun.
const SERVING: u64 = 12 * SECOND;
/// Longer than messages, syncs and batches take on a calm network; shorter than any retry.
const PROMPT: u64 = 300 * MILLISECOND;

/// Blocks hold some kilobytes in a run.
const RECOUNT: RecountBounds = RecountBounds { records: 100, raw_bytes: 16 << 10 };

impl World {
    /// Once a majority is whole and has settled, no request of its members takes long.
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

    /// What is acknowledged is on the disks of a quorum.
    pub fn check_durable(&self, at: LogPosition, truth: &Truth) -> Result<(), Breach> {
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

    /// A part of the state of one member is recounted on all members, as the process does it: none that can say differs.
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
        // A disk may refuse; then there is no digest. No disk of a store forgets or changes what it holds.
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

    /// A bit of one member's state.
    fn flip_a_bit(&self, turn: usize) {
        let Some(up) = self.sites[turn / 7 % self.sites.len()].up.as_ref() else { return };
        let all = KeyRange::new(Bytes::from_static(b"\0"), Bytes::from_static(b"\0"));
        let Ok(range) = up.store.range(&all, 0, &RangeOptions::default()) else { return };
        if let Some(kv) = range.kvs.get(turn % range.kvs.len().max(1)) {
            up.store.flip(&kv.key, Flip::Value);
        }
    }

    /// Everything healed and came to rest: the cluster must have served, and all members must be equal.
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
