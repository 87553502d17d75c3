//! Leases: ids with a time to live, to which keys are attached.
//!
//! ```text
//!   LeaseGrant ──▶ lease without a deadline ──LeaseRenew──▶ deadline = clock + TTL ──LeaseExpire──▶ removed
//!                                                  └──────── LeaseRenew ◀──────┘
//!   LeaseRevoke: removed, at any time
//! ```
//!
//! * The *lease clock* counts milliseconds. The leader's commands carry it; apply does not read a
//!   clock. A deadline is a time of this clock, so it is equal on all members, and a new leader
//!   continues with it.
//! * A command of the leader carries its term, and is rejected in an entry of a different term. So
//!   a deposed leader can neither record nor expire leases.
//! * A lease expires at least [`RENEWAL_GRACE_MS`] after its deadline: the leader may acknowledge a
//!   renewal without a record if it recorded one in the same term slightly less than that time ago.
//! * A lease without a deadline does not expire. The leader records one soon after the grant. A
//!   record that was proposed before the grant was applied is ignored: it belongs to an earlier
//!   lease with the same id.
//! * The keys of a lease are the ones that `mvcc` has indexed: live keys attached to it by their
//!   last put. They are deleted in byte order at a single revision.
//!
//! See docs/decisions/0040.

mod journal; // leases in the store
mod table; // leases in memory

use api::Error;
use base::{LogIndex, Term};
use mvcc::{KeyRange, Previous, Writer};

use self::journal::LeaseJournal;
pub use self::journal::{items, list, replace};
pub use self::table::{Lease, LeaseTable, RENEWAL_GRACE_MS};
use crate::command::{LeaseExpire, LeaseRenew};
use crate::failure::ApplyError;

/// Maximum TTL in seconds, as in etcd.
pub const TTL_MAX: i64 = 9_000_000_000;

/// Number of lease keys to collect per acquisition of the store's lock.
const KEYS_PER_STEP: usize = 256;

#[derive(Debug)]
pub(crate) struct Leases {
    table: LeaseTable,
    journal: LeaseJournal,
    /// Copy of the clock in `table`, readable without its lock.
    clock: i64,
}

impl Leases {
    pub fn load(writer: &mut Writer) -> Result<Self, ApplyError> {
        let (journal, leases, clock) = LeaseJournal::load(writer.store())?;
        let table = LeaseTable::default();
        table.replace(leases, clock);
        writer.set_caller_memory(table.memory_bytes());
        Ok(Leases { table, journal, clock })
    }

    /// Loads the leases of an installed store, keeping the same readers.
    pub fn reload(&mut self, writer: &mut Writer) -> Result<(), ApplyError> {
        let (journal, leases, clock) = LeaseJournal::load(writer.store())?;
        self.table.replace(leases, clock);
        (self.journal, self.clock) = (journal, clock);
        writer.set_caller_memory(self.table.memory_bytes());
        Ok(())
    }

    /// Returns the last recorded lease clock.
    pub fn clock(&self) -> i64 {
        self.clock
    }

    pub fn table(&self) -> &LeaseTable {
        &self.table
    }

    /// Rejects an id without a lease. 0 means "no lease" and is accepted.
    pub fn check(&self, id: i64) -> Result<(), Error> {
        if id == 0 { Ok(()) } else { self.find(id).map(drop) }
    }

    /// Returns a lease, or an error if the id does not exist.
    pub fn find(&self, id: i64) -> Result<Lease, Error> {
        self.table.get(id).ok_or(Error::LeaseNotFound)
    }

    /// Adds a lease granted by the entry at `index`, and returns its TTL.
    pub fn grant(&mut self, writer: &mut Writer, index: LogIndex, id: i64, ttl: i64) -> Result<i64, Error> {
        if id == 0 {
            return Err(Error::LeaseNotFound);
        }
        if ttl > TTL_MAX {
            return Err(Error::LeaseTTLTooLarge);
        }
        if self.table.get(id).is_some() {
            return Err(Error::LeaseExist);
        }
        let lease = Lease { ttl: ttl.max(1), deadline: None, granted: index };
        self.table.set(id, lease);
        self.journal.append(writer, id, Some(lease));
        self.finish(writer);
        Ok(lease.ttl)
    }

    /// Records the clock, and a deadline of `now` plus the TTL for each of the leases that exists.
    /// Skips a lease that was granted after the leases were chosen: the record's clock may be older
    /// than the grant.
    pub fn renew(&mut self, writer: &mut Writer, term: Term, request: &LeaseRenew) -> Result<(), Error> {
        check_term(term, Term(request.term))?;
        let now = self.advance(writer, request.now)?;
        for id in &request.ids {
            let Some(lease) = self.table.get(*id).filter(|lease| is_chosen(lease, request)) else { continue };
            let deadline = lease.deadline.unwrap_or(0).max(now + lease.ttl * 1000);
            let lease = Lease { deadline: Some(deadline), granted: LogIndex::ZERO, ..lease };
            self.table.set(*id, lease);
            self.journal.append(writer, *id, Some(lease));
        }
        self.finish(writer);
        Ok(())
    }

    /// Returns the requested leases that have expired.
    pub fn expired(&self, term: Term, request: &LeaseExpire) -> Result<Vec<i64>, Error> {
        check_term(term, Term(request.term))?;
        check_clock(request.now)?;
        let mut ids = request.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        let is_expired = |lease: Lease| lease.is_expired(request.now) || base::mutant("unchecked-expiry");
        ids.retain(|id| self.table.get(*id).is_some_and(is_expired));
        Ok(ids)
    }

    /// Removes leases, which must exist and have no keys.
    pub fn remove(&mut self, writer: &mut Writer, ids: &[i64]) {
        for id in ids {
            self.table.remove(*id);
            self.journal.append(writer, *id, None);
        }
        self.finish(writer);
    }

    fn advance(&mut self, writer: &mut Writer, now: i64) -> Result<i64, Error> {
        check_clock(now)?;
        let now = now.max(self.clock);
        self.clock = now;
        self.table.set_clock(now);
        journal::store_clock(writer, now);
        Ok(now)
    }

    fn finish(&mut self, writer: &mut Writer) {
        self.journal.flush(writer);
        self.journal.clean(writer, &self.table);
        writer.set_caller_memory(self.table.memory_bytes());
    }
}

/// Deletes the keys of a lease, in byte order, at a single revision.
pub(crate) fn delete_keys(writer: &mut Writer, id: i64) -> Result<(), mvcc::Error> {
    let mut revision = writer.begin();
    loop {
        let keys = revision.keys_of_lease(id, KEYS_PER_STEP);
        let is_last = keys.len() < KEYS_PER_STEP;
        for key in keys {
            if base::mutant("revoke-in-two-revisions") && revision.revision() > 0 {
                revision.finish();
                revision = writer.begin();
            }
            let deleted = revision.delete_range(&KeyRange::one(key), Previous::Skip)?;
            assert_eq!(deleted.count, 1, "an indexed key is live");
        }
        if is_last {
            revision.finish();
            return Ok(());
        }
    }
}

/// Reports whether a lease is the one that the leader chose, and not a later one with the same id.
fn is_chosen(lease: &Lease, request: &LeaseRenew) -> bool {
    request.granted.is_none_or(|granted| lease.granted <= LogIndex(granted))
        || base::mutant("record-of-a-later-grant")
}

/// Rejects a command that the leader of a different term proposed.
fn check_term(term: Term, proposed: Term) -> Result<(), Error> {
    let is_of_leader = term == proposed || base::mutant("deposed-leader-renews");
    if is_of_leader { Ok(()) } else { Err(Error::LeaderChanged) }
}

/// Rejects a clock value that is out of range: deadlines must not overflow.
fn check_clock(now: i64) -> Result<(), Error> {
    if (0..i64::MAX / 4).contains(&now) { Ok(()) } else { Err(Error::NotCapable) }
}
