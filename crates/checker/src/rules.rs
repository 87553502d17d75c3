//! Checks operations and watch events against each other as they arrive.
//!
//! ```text
//!   clients ──began, ended──▶ Checker ──▶ the first contradiction
//!   watchers ──responses, progress──▶ │
//!                                  History
//! ```
//!
//! etcd assigns a revision to each change, so there is no need to search for an order:
//!
//! * An operation that starts after a client or watcher has seen a revision has the same or a later
//!   revision; a write has a later one. This is real-time linearizability, within a client and
//!   between clients.
//! * An acknowledged write accounts for every change at its revision. Two writes never share a
//!   revision.
//! * A read, serializable or not, returns the state at the revision in its response, or at the
//!   requested revision. The key count is the total, even if a limit truncates the result. A
//!   revision that was compacted before the read started is rejected.
//! * Watchers receive revisions in order, exactly once, each in a single response and with the same
//!   changes as every other watcher. After a progress report at a revision, no older event follows.
//!   The previous value of a key is its state at the preceding revision.
//! * A watcher that starts at an old revision receives the same events.
//! * Leases, hashes, holders and members: see their modules.
//!
//! An operation is compared with the history once a watcher has passed its revision. A failed call
//! has no outcome: if its write was executed, watchers report it exactly once.
//!
//! Invariant: a `Began` precedes the events of its write, and an `Ended` precedes the `Began` of
//! each operation that was sent after the response arrived.
//!
//! Must not depend on connections or clocks.

mod compare; // operations and events with the history

use crate::hashes::{Hash, Hashes};
use crate::history::History;
use crate::holders::Holders;
use crate::leases::LeaseRecords;
use crate::members::MemberLists;
use crate::operation::{CallOutcome, ClientOperation, KeyChange, KeyName, Request, Revision};
use crate::verdict::{CheckCounts, CheckResult, Input, Replay, broken_rule, violation};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Highest revision seen, and its source.
#[derive(Clone, Debug)]
struct NewestRevision {
    revision: Revision,
    by: String,
}

#[derive(Debug)]
struct InFlight {
    operation: ClientOperation,
    /// Highest revision seen before the operation started.
    seen: Arc<NewestRevision>,
    /// Oldest revision of the history that it may need.
    needs: Revision,
    /// Compacted revision when the operation started.
    compacted: Revision,
}

/// A deletion that no acknowledged operation accounts for yet.
#[derive(Debug)]
struct UnexplainedDelete {
    change: KeyChange,
    /// Operations with this or a higher number started after it.
    before: u64,
}

/// Checks a stream of [`Input`]s. See the module documentation.
#[derive(Debug)]
pub struct Checker {
    history: History,
    /// Revision up to which each watcher has received all events.
    watchers: Vec<Revision>,
    in_flight: BTreeMap<u64, InFlight>,
    next_number: u64,
    seen: Arc<NewestRevision>,
    /// Values that no watcher has reported yet, each with its operation.
    unseen: HashMap<u64, Arc<ClientOperation>>,
    /// Acknowledged writes by revision, as far back as history is retained.
    acknowledged: BTreeMap<Revision, Arc<ClientOperation>>,
    /// Operations with an outcome, by the revision that a watcher must reach before they can be
    /// checked.
    waiting: BTreeMap<Revision, Vec<Arc<ClientOperation>>>,
    /// Number of operations in `waiting`, and the keys and records they hold.
    waiting_len: usize,
    waiting_size: usize,
    unexplained: BTreeMap<Revision, UnexplainedDelete>,
    unknown_deletes: HashMap<u32, Vec<Arc<ClientOperation>>>,
    leases: LeaseRecords,
    hashes: Hashes,
    holders: Holders,
    members: MemberLists,
    compacted: Revision,
    pub checked: CheckCounts,
}

impl Checker {
    /// Creates a checker. At revision `start` none of the keys exist; the watchers start after it.
    pub fn new(start: Revision, watchers: usize) -> Self {
        Self {
            history: History::new(start),
            watchers: vec![start; watchers],
            in_flight: BTreeMap::new(),
            next_number: 0,
            seen: Arc::new(NewestRevision { revision: start, by: "the start of the run".into() }),
            unseen: HashMap::new(),
            acknowledged: BTreeMap::new(),
            waiting: BTreeMap::new(),
            waiting_len: 0,
            waiting_size: 0,
            unexplained: BTreeMap::new(),
            unknown_deletes: HashMap::new(),
            leases: LeaseRecords::default(),
            hashes: Hashes::default(),
            holders: Holders::default(),
            members: MemberLists::default(),
            compacted: 0,
            checked: CheckCounts::default(),
        }
    }

    /// Checks an input. After an error, the checker must not be used.
    pub fn take(&mut self, input: Input) -> CheckResult {
        match input {
            Input::Began(operation) => self.began(operation),
            Input::Ended(number, at, outcome) => self.ended(number, at, outcome)?,
            Input::Watched { watcher, at, changes, before } => {
                self.watched(watcher, at, &changes)?;
                self.compare_before(watcher, &changes, &before)?;
            }
            Input::Progress { watcher, revision } => self.progress(watcher, revision)?,
            Input::Lease(id, input) => {
                self.leases.take(id, input).or_else(broken_rule)?;
                self.count_leases();
            }
            Input::Hashed(hash) => self.hashed(hash)?,
            Input::Holder(name, input) => {
                self.holders.take(name, input).or_else(broken_rule)?;
                self.checked.holds = self.holders.count;
            }
            Input::Members(list) => {
                self.members.take(list).or_else(broken_rule)?;
                self.checked.member_lists = self.members.count;
            }
            Input::Replayed(replay) => self.replayed(&replay)?,
            Input::Compacted(revision) => self.compacted = self.compacted.max(revision),
        }
        self.settle()?;
        self.forget()
    }

    /// Finishes the run. Operations in flight have an unknown outcome; a change that is still
    /// unexplained is a violation.
    pub fn close(&mut self, at: Duration) -> CheckResult {
        let numbers: Vec<u64> = self.in_flight.keys().copied().collect();
        for number in numbers {
            self.ended(number, at, CallOutcome::Unknown("the run ended".into()))?;
        }
        self.forget()
    }

    /// Returns the number of operations that no watcher has caught up with.
    pub fn waiting_len(&self) -> usize {
        self.waiting_len
    }

    /// Returns the number of operations that no watcher has caught up with, plus the keys and
    /// records they hold, as a measure of memory use.
    pub fn waiting_size(&self) -> usize {
        self.waiting_size
    }

    /// Returns the number of writes with an unknown outcome and no reported event.
    pub fn unresolved_len(&self) -> usize {
        self.unseen.len() + self.unknown_deletes.values().map(Vec::len).sum::<usize>() + self.leases.count()
    }

    /// Returns the revision up to which every watcher has received all events.
    pub fn received_by_all(&self) -> Revision {
        self.watchers.iter().copied().min().unwrap_or(0)
    }

    /// Returns the highest revision seen in a response or an event.
    pub fn newest(&self) -> Revision {
        self.seen.revision
    }

    /// Returns the watchers that have not received all events up to a revision.
    pub fn late_watchers(&self, revision: Revision) -> Vec<usize> {
        (0..self.watchers.len()).filter(|&watcher| self.watchers[watcher] < revision).collect()
    }

    fn began(&mut self, operation: ClientOperation) {
        self.next_number = self.next_number.max(operation.number + 1);
        if !operation.request.writes().is_empty() {
            let shared = Arc::new(operation.clone());
            for write in operation.request.writes() {
                self.unseen.insert(write.value, shared.clone());
            }
        }
        let needs = self.watchers.iter().copied().min().unwrap_or(0).min(self.seen.revision);
        let (seen, compacted) = (self.seen.clone(), self.compacted);
        self.in_flight.insert(operation.number, InFlight { operation, seen, needs, compacted });
    }

    fn ended(&mut self, number: u64, at: Duration, outcome: CallOutcome) -> CheckResult {
        let Some(InFlight { mut operation, seen, compacted, .. }) = self.in_flight.remove(&number) else {
            return Ok(());
        };
        operation.ended = Some(at);
        operation.outcome = Some(outcome.clone());
        let operation = Arc::new(operation);
        let revision = match outcome {
            CallOutcome::Unknown(_) => {
                self.checked.unknown += 1;
                if let Request::Delete(key) = operation.request {
                    self.unknown_deletes.entry(key).or_default().push(operation);
                }
                return Ok(());
            }
            CallOutcome::Compacted => {
                self.checked.compacted += 1;
                return Ok(());
            }
            CallOutcome::Written { revision, .. }
            | CallOutcome::Found { revision, .. }
            | CallOutcome::Page { revision, .. }
                if revision < 1 =>
            {
                return violation("an answer has no revision", vec![operation.to_string()]);
            }
            CallOutcome::Written { revision, .. } => {
                if revision <= seen.revision {
                    return violation(
                        "a write has a revision that was seen before it began",
                        vec![seen.to_string(), operation.to_string()],
                    );
                }
                if let Some(other) = self.acknowledged.insert(revision, operation.clone()) {
                    return violation(
                        "two writes were acknowledged at one revision",
                        vec![other.to_string(), operation.to_string()],
                    );
                }
                if self.unexplained.get(&revision).is_some_and(|it| operation.request.makes(&[it.change])) {
                    self.unexplained.remove(&revision);
                }
                revision
            }
            CallOutcome::Found { revision, .. } | CallOutcome::Page { revision, .. } => {
                if let Request::Page { revision: Some(asked), .. } = operation.request
                    && asked < compacted
                {
                    return violation(
                        "a revision was read that had been compacted before",
                        vec![format!("history was compacted at revision {compacted}"), operation.to_string()],
                    );
                }
                // A read without effect does not produce an event.
                operation.request.writes().iter().for_each(|write| drop(self.unseen.remove(&write.value)));
                if !operation.request.is_serializable() && revision < seen.revision {
                    return violation(
                        "a linearizable operation answers from before what was seen before it began",
                        vec![seen.to_string(), operation.to_string()],
                    );
                }
                revision
            }
        };
        self.see(revision, || operation.to_string());
        self.waiting_len += 1;
        self.waiting_size += operation.size();
        self.waiting.entry(revision).or_default().push(operation);
        Ok(())
    }

    fn see(&mut self, revision: Revision, by: impl FnOnce() -> String) {
        if revision > self.seen.revision {
            self.seen = Arc::new(NewestRevision { revision, by: by() });
        }
    }

    fn watched(&mut self, watcher: usize, at: Duration, changes: &[KeyChange]) -> CheckResult {
        for changes in changes.chunk_by(|one, next| one.revision == next.revision) {
            let (first, received) = (&changes[0], self.watchers[watcher]);
            let event = || format!("watcher {watcher}, {:.6} s: {first}", at.as_secs_f64());
            if first.revision <= received {
                let known = self.history.at(first.revision).unwrap_or_default();
                let rule = if first.revision == received && !known.contains(first) {
                    "a watcher received a revision in two parts"
                } else if known.contains(first) {
                    "a watcher received an event twice, or after a newer one"
                } else {
                    "a watcher received an event after it had received everything up to a later revision"
                };
                let before = format!("watcher {watcher} had received everything up to revision {received}");
                return violation(rule, vec![before, event()]);
            }
            self.compare_gap(watcher, first.revision - 1)?;
            if first.revision > self.history.covered() {
                self.attribute(changes, at, &event())?;
                if let Err(contradiction) = self.history.append(first.revision, changes) {
                    let (change, before) = *contradiction;
                    let before =
                        before.map_or(format!("{} did not exist", KeyName(change.key)), |it| it.to_string());
                    return violation(
                        "a change does not follow on the state before it",
                        vec![before, change.to_string(), event()],
                    );
                }
                self.see(first.revision, event);
            } else if first.revision > self.history.forgotten() {
                let known = self.history.at(first.revision).unwrap_or_default();
                if known != changes {
                    let of =
                        |changes: &[KeyChange]| changes.iter().map(ToString::to_string).collect::<Vec<_>>();
                    let evidence = [of(known), vec![event()], of(changes)].concat();
                    return violation("two watchers received different changes of one revision", evidence);
                }
            }
            self.checked.events += changes.len() as u64;
            self.watchers[watcher] = first.revision;
        }
        Ok(())
    }

    fn progress(&mut self, watcher: usize, revision: Revision) -> CheckResult {
        self.compare_gap(watcher, revision)?;
        self.watchers[watcher] = self.watchers[watcher].max(revision);
        self.history.cover(revision);
        self.see(revision, || format!("progress of watcher {watcher} up to revision {revision}"));
        Ok(())
    }

    fn replayed(&mut self, replay: &Replay) -> CheckResult {
        let Replay { member, at, from, to, changes } = replay;
        let after = self.history.forgotten().max(from - 1);
        let mut known = self.history.between(after, *to);
        let mut shown = changes.iter().filter(|change| change.revision > after && change.revision <= *to);
        loop {
            let (known, shown) = (known.next(), shown.next());
            if known != shown {
                let text =
                    |change: Option<&KeyChange>| change.map_or("nothing more".into(), ToString::to_string);
                let watch = format!("member {member}, {:.6} s: from {from} to {to}", at.as_secs_f64());
                let known = format!("watchers received {} when it happened", text(known));
                let evidence = vec![watch, known, format!("this one received {}", text(shown))];
                return violation("a watcher from an old revision received another history", evidence);
            }
            if known.is_none() {
                return Ok(());
            }
            self.checked.replayed += 1;
        }
    }

    /// Checks that the watcher has not missed an event up to a revision.
    fn compare_gap(&self, watcher: usize, to: Revision) -> CheckResult {
        let received = self.watchers[watcher];
        let Some(missed) = self.history.first_between(received, to) else { return Ok(()) };
        violation(
            "a watcher did not receive an event",
            vec![
                format!("watcher {watcher} went from revision {received} to after revision {to}"),
                format!("another watcher received {missed}"),
            ],
        )
    }

    /// Finds the operation that caused a revision.
    fn attribute(&mut self, changes: &[KeyChange], at: Duration, event: &str) -> CheckResult {
        let Some(record) = changes.iter().find_map(|change| change.record) else {
            if changes.iter().any(|change| self.leases.hold(change.key)) {
                return self.lease_ended(changes, at, event);
            }
            let [change] = changes else {
                return violation("several keys were deleted at one revision", vec![event.to_owned()]);
            };
            let explained = self.acknowledged.get(&change.revision);
            if explained.is_none_or(|operation| !operation.request.makes(changes)) {
                let unexplained = UnexplainedDelete { change: *change, before: self.next_number };
                self.unexplained.insert(change.revision, unexplained);
            }
            return Ok(());
        };
        let Some(operation) = self.unseen.get(&record.value).cloned() else {
            return violation(
                "a watcher received a value that no client writes, or that was written before",
                vec![event.to_owned()],
            );
        };
        if !operation.request.makes(changes) {
            let changes = changes.iter().map(ToString::to_string);
            let evidence = [operation.to_string(), event.to_owned()].into_iter().chain(changes).collect();
            return violation("the changes of a revision are not those of its write", evidence);
        }
        for write in operation.request.writes() {
            self.unseen.remove(&write.value);
        }
        Ok(())
    }

    fn lease_ended(&mut self, changes: &[KeyChange], at: Duration, event: &str) -> CheckResult {
        self.leases.deleted(changes, at, event).or_else(broken_rule)?;
        self.count_leases();
        Ok(())
    }

    fn count_leases(&mut self) {
        self.checked.leases_expired = self.leases.ended.expired;
        self.checked.leases_revoked = self.leases.ended.revoked;
        self.checked.lifetimes = self.leases.ended.lifetimes;
        self.checked.lease_latest_ms =
            u64::try_from(self.leases.ended.latest.as_millis()).unwrap_or(u64::MAX);
    }

    fn hashed(&mut self, hash: Hash) -> CheckResult {
        if let Err(both) = self.hashes.take(hash) {
            let evidence = both.iter().map(ToString::to_string).collect();
            return violation("members have different hashes at one revision", evidence);
        }
        self.checked.hashes = self.hashes.equal;
        Ok(())
    }

    /// Compares operations with history, as far as a watcher has reached them.
    fn settle(&mut self) -> CheckResult {
        while let Some(entry) = self.waiting.first_entry() {
            if *entry.key() > self.history.covered() {
                break;
            }
            for operation in entry.remove() {
                self.waiting_len -= 1;
                self.waiting_size -= operation.size();
                self.compare(&operation)?;
            }
        }
        Ok(())
    }

    fn forget(&mut self) -> CheckResult {
        let oldest = self.in_flight.first_key_value();
        let (number, needs) = oldest
            .map_or((self.next_number, self.history.covered()), |(number, oldest)| (*number, oldest.needs));
        while let Some(entry) = self.unexplained.first_entry() {
            if entry.get().before > number {
                break;
            }
            let change = entry.remove().change;
            let unknown = self.unknown_deletes.get_mut(&change.key);
            if unknown.and_then(Vec::pop).is_none() {
                return violation("a key was deleted, and no client deleted it", vec![change.to_string()]);
            }
        }
        let slowest = self.watchers.iter().copied().min().unwrap_or(needs);
        let waiting = self.waiting.first_key_value().map_or(needs, |(&revision, _)| revision - 1);
        self.history.forget(needs.min(slowest).min(waiting));
        let forgotten = self.history.forgotten();
        while self.acknowledged.first_key_value().is_some_and(|(&revision, _)| revision <= forgotten) {
            self.acknowledged.pop_first();
        }
        Ok(())
    }
}

impl fmt::Display for NewestRevision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "revision {} was seen before: {}", self.revision, self.by)
    }
}

#[cfg(test)]
mod tests;
