//! Checks operations and watch events against each other while they arrive.
//!
//! ```text
//!   clients ──began, ended──▶ Checker ──▶ the first contradiction
//!   watchers ──responses, progress──▶ │
//!                                  History
//! ```
//!
//! etcd gives each change a revision. So no search for an order is needed:
//!
//! * An operation that begins after a revision was seen, by any client or watcher, has a revision that is not
//!   older; a write has a newer one. This is linearizability in real time, for one client and between all.
//! * An acknowledged write is all that changed at its revision. No two writes have one revision.
//! * What a read returns, serializable or not, is the state at the revision of its answer.
//! * Watchers receive revisions in order, each once, in one response and with the same changes as all others.
//!   After progress is reported up to a revision, nothing older follows.
//! * Leases and hashes: see their modules.
//!
//! An operation is compared with the history as soon as a watcher has passed its revision. A failed call has
//! no outcome: if its write was executed, the watchers show it, once.
//!
//! Invariant: inputs arrive in an order in which a `Began` precedes the events of its write, and an `Ended`
//! precedes the `Began` of each operation that was sent after the answer arrived.
//!
//! Must not depend on connections or clocks.

use super::hashes::{Hash, Hashes};
use super::history::History;
use super::leases::{Broken, LeaseInput, Leases};
use super::operation::{Change, Named, Operation, Outcome, Record, Request, Revision};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What happens, in the order of the module's head.
#[derive(Clone, Debug)]
pub enum Input {
    Began(Operation),
    /// The operation of this number has an outcome.
    Ended(u64, Duration, Outcome),
    /// One response of a watcher.
    Watched {
        watcher: usize,
        at: Duration,
        changes: Vec<Change>,
    },
    /// A watcher has received everything up to this revision.
    Progress {
        watcher: usize,
        revision: Revision,
    },
    /// What is done with the lease of this ID.
    Lease(i64, LeaseInput),
    Hashed(Hash),
}

/// Statements that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    pub rule: Cow<'static, str>,
    /// Operations, events and states, with times and revisions.
    pub evidence: Vec<String>,
}

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    pub writes: u64,
    pub linearizable_reads: u64,
    pub serializable_reads: u64,
    /// Calls that failed, of which some may have been executed.
    pub unknown: u64,
    pub events: u64,
    /// Serializable reads of states that were forgotten already.
    pub too_old: u64,
    /// Leases whose keys were deleted after their time.
    pub leases_expired: u64,
    pub leases_revoked: u64,
    /// From the earliest time at which a lease may expire to the arrival of the deletions, at most.
    pub lease_latest_ms: u64,
    /// Answers to HashKV that were equal to one of another member.
    pub hashes: u64,
}

/// The newest revision that was seen, and where.
#[derive(Clone, Debug)]
struct Seen {
    revision: Revision,
    by: String,
}

#[derive(Debug)]
struct InFlight {
    operation: Operation,
    /// Seen before it began.
    seen: Arc<Seen>,
    /// History that it may still need.
    needs: Revision,
}

/// A deletion that no acknowledged operation explains yet.
#[derive(Debug)]
struct Unexplained {
    change: Change,
    /// Operations from this number on began after it.
    before: u64,
}

/// See the module's head.
#[derive(Debug)]
pub struct Checker {
    history: History,
    /// Up to which revision each watcher has received everything.
    watchers: Vec<Revision>,
    in_flight: BTreeMap<u64, InFlight>,
    next_number: u64,
    seen: Arc<Seen>,
    /// Values whose put no watcher has shown, with the number of their operation.
    unseen: HashMap<u64, Arc<Operation>>,
    /// By revision, as far as history is kept.
    acknowledged: BTreeMap<Revision, Arc<Operation>>,
    /// Ended operations, by the revision that a watcher must reach first.
    waiting: BTreeMap<Revision, Vec<Arc<Operation>>>,
    /// Of these, and the keys and records that they hold.
    waiting_len: usize,
    waiting_size: usize,
    unexplained: BTreeMap<Revision, Unexplained>,
    unknown_deletes: HashMap<u32, Vec<Arc<Operation>>>,
    leases: Leases,
    hashes: Hashes,
    pub checked: Checked,
}

type Verdict = Result<(), Box<Violation>>;

impl Checker {
    /// Begins at a revision at which none of the keys exists; the watchers begin after it.
    pub fn new(start: Revision, watchers: usize) -> Self {
        Self {
            history: History::new(start),
            watchers: vec![start; watchers],
            in_flight: BTreeMap::new(),
            next_number: 0,
            seen: Arc::new(Seen { revision: start, by: "the start of the run".into() }),
            unseen: HashMap::new(),
            acknowledged: BTreeMap::new(),
            waiting: BTreeMap::new(),
            waiting_len: 0,
            waiting_size: 0,
            unexplained: BTreeMap::new(),
            unknown_deletes: HashMap::new(),
            leases: Leases::default(),
            hashes: Hashes::default(),
            checked: Checked::default(),
        }
    }

    /// Takes what happened. The error is a contradiction, after which nothing more is checked.
    pub fn take(&mut self, input: Input) -> Verdict {
        match input {
            Input::Began(operation) => self.began(operation),
            Input::Ended(number, at, outcome) => self.ended(number, at, outcome)?,
            Input::Watched { watcher, at, changes } => self.watched(watcher, at, &changes)?,
            Input::Progress { watcher, revision } => self.progress(watcher, revision)?,
            Input::Lease(id, input) => self.leases.take(id, input).or_else(broken_rule)?,
            Input::Hashed(hash) => self.hashed(hash)?,
        }
        self.settle()?;
        self.forget()
    }

    /// Ends the run: what is in flight has no outcome, and what no operation explains by now has no cause.
    pub fn close(&mut self, at: Duration) -> Verdict {
        let numbers: Vec<u64> = self.in_flight.keys().copied().collect();
        for number in numbers {
            self.ended(number, at, Outcome::Unknown("the run ended".into()))?;
        }
        self.forget()
    }

    /// Operations that no watcher has caught up with.
    pub fn waiting_len(&self) -> usize {
        self.waiting_len
    }

    /// The same, each with the keys and records that it holds: what they take in memory.
    pub fn waiting_size(&self) -> usize {
        self.waiting_size
    }

    /// Writes whose outcome is unknown, and of which no watcher has shown anything.
    pub fn unresolved_len(&self) -> usize {
        self.unseen.len() + self.unknown_deletes.values().map(Vec::len).sum::<usize>() + self.leases.len()
    }

    /// Every watcher has received everything up to this revision.
    pub fn received_by_all(&self) -> Revision {
        self.watchers.iter().copied().min().unwrap_or(0)
    }

    /// The newest revision that an operation or a watcher has shown.
    pub fn newest(&self) -> Revision {
        self.seen.revision
    }

    /// Watchers that have not received everything up to a revision.
    pub fn behind(&self, revision: Revision) -> Vec<usize> {
        (0..self.watchers.len()).filter(|&watcher| self.watchers[watcher] < revision).collect()
    }

    fn began(&mut self, operation: Operation) {
        self.next_number = self.next_number.max(operation.number + 1);
        if !operation.request.writes().is_empty() {
            let shared = Arc::new(operation.clone());
            for write in operation.request.writes() {
                self.unseen.insert(write.value, shared.clone());
            }
        }
        let needs = self.watchers.iter().copied().min().unwrap_or(0).min(self.seen.revision);
        self.in_flight.insert(operation.number, InFlight { operation, seen: self.seen.clone(), needs });
    }

    fn ended(&mut self, number: u64, at: Duration, outcome: Outcome) -> Verdict {
        let Some(InFlight { mut operation, seen, .. }) = self.in_flight.remove(&number) else {
            return Ok(());
        };
        operation.ended = Some(at);
        operation.outcome = Some(outcome.clone());
        let operation = Arc::new(operation);
        let revision = match outcome {
            Outcome::Unknown(_) => {
                self.checked.unknown += 1;
                if let Request::Delete(key) = operation.request {
                    self.unknown_deletes.entry(key).or_default().push(operation);
                }
                return Ok(());
            }
            Outcome::Written { revision, .. } | Outcome::Found { revision, .. } if revision < 1 => {
                return violation("an answer has no revision", vec![operation.to_string()]);
            }
            Outcome::Written { revision, .. } => {
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
            Outcome::Found { revision, .. } => {
                // A read without effect leaves nothing for watchers to show.
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
            self.seen = Arc::new(Seen { revision, by: by() });
        }
    }

    fn watched(&mut self, watcher: usize, at: Duration, changes: &[Change]) -> Verdict {
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
                if let Err((change, before)) = self.history.append(first.revision, changes) {
                    let before =
                        before.map_or(format!("{} did not exist", Named(change.key)), |it| it.to_string());
                    return violation(
                        "a change does not follow on the state before it",
                        vec![before, change.to_string(), event()],
                    );
                }
                self.see(first.revision, event);
            } else if first.revision > self.history.forgotten() {
                let known = self.history.at(first.revision).unwrap_or_default();
                if known != changes {
                    let of = |changes: &[Change]| changes.iter().map(ToString::to_string).collect::<Vec<_>>();
                    let evidence = [of(known), vec![event()], of(changes)].concat();
                    return violation("two watchers received different changes of one revision", evidence);
                }
            }
            self.checked.events += changes.len() as u64;
            self.watchers[watcher] = first.revision;
        }
        Ok(())
    }

    fn progress(&mut self, watcher: usize, revision: Revision) -> Verdict {
        self.compare_gap(watcher, revision)?;
        self.watchers[watcher] = self.watchers[watcher].max(revision);
        self.history.cover(revision);
        self.see(revision, || format!("progress of watcher {watcher} up to revision {revision}"));
        Ok(())
    }

    /// A watcher has nothing more to receive up to a revision.
    fn compare_gap(&self, watcher: usize, to: Revision) -> Verdict {
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

    /// Finds the operation that made the changes of a revision.
    fn attribute(&mut self, changes: &[Change], at: Duration, event: &str) -> Verdict {
        let Some(record) = changes.iter().find_map(|change| change.record) else {
            if changes.iter().any(|change| self.leases.hold(change.key)) {
                return self.lease_ended(changes, at, event);
            }
            let [change] = changes else {
                return violation("several keys were deleted at one revision", vec![event.to_owned()]);
            };
            let explained = self.acknowledged.get(&change.revision);
            if explained.is_none_or(|operation| !operation.request.makes(changes)) {
                let unexplained = Unexplained { change: *change, before: self.next_number };
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

    fn lease_ended(&mut self, changes: &[Change], at: Duration, event: &str) -> Verdict {
        self.leases.deleted(changes, at, event).or_else(broken_rule)?;
        self.checked.leases_expired = self.leases.ended.expired;
        self.checked.leases_revoked = self.leases.ended.revoked;
        self.checked.lease_latest_ms =
            u64::try_from(self.leases.ended.latest.as_millis()).unwrap_or(u64::MAX);
        Ok(())
    }

    fn hashed(&mut self, hash: Hash) -> Verdict {
        if let Err(both) = self.hashes.take(hash) {
            let evidence = both.iter().map(ToString::to_string).collect();
            return violation("members have different hashes at one revision", evidence);
        }
        self.checked.hashes = self.hashes.equal;
        Ok(())
    }

    /// Compares operations with history, as far as a watcher has reached them.
    fn settle(&mut self) -> Verdict {
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

    fn compare(&mut self, operation: &Arc<Operation>) -> Verdict {
        let request = &operation.request;
        match &operation.outcome {
            Some(Outcome::Written { revision, previous }) => {
                let made = self.history.at(*revision).unwrap_or_default();
                if !request.makes(made) {
                    let shown = made.iter().map(ToString::to_string);
                    let none =
                        made.is_empty().then(|| format!("watchers received nothing of revision {revision}"));
                    let evidence = [operation.to_string()].into_iter().chain(none).chain(shown).collect();
                    return violation("an acknowledged write is not what watchers received", evidence);
                }
                if let Some(previous) = previous {
                    self.compare_states(operation, revision - 1, previous)?;
                }
                self.compare_condition(operation, revision - 1, true)?;
                self.checked.writes += 1;
            }
            Some(Outcome::Found { revision, records }) => {
                if *revision < self.history.forgotten() {
                    self.checked.too_old += 1;
                    return Ok(());
                }
                self.compare_states(operation, *revision, records)?;
                self.compare_condition(operation, *revision, false)?;
                if request.is_serializable() {
                    self.checked.serializable_reads += 1;
                } else {
                    self.checked.linearizable_reads += 1;
                }
            }
            Some(Outcome::Unknown(_)) | None => {}
        }
        Ok(())
    }

    /// Compares what an operation says of its keys with their states at a revision.
    fn compare_states(&self, operation: &Operation, revision: Revision, records: &[Record]) -> Verdict {
        let keys: HashSet<u32> = operation.request.keys().into_iter().collect();
        let mut answered = HashMap::with_capacity(records.len());
        for record in records {
            let rule = match keys.contains(&record.key) {
                false => "an answer holds a key that was not asked for",
                true if answered.insert(record.key, record).is_some() => "an answer holds a key twice",
                true => continue,
            };
            return violation(rule, vec![operation.to_string(), record.to_string()]);
        }
        for key in operation.request.keys() {
            let state = self.history.state(key, revision);
            if state.as_ref() != answered.get(&key).copied() {
                let state =
                    state.map_or(format!("{} does not exist", Named(key)), |record| record.to_string());
                return violation(
                    "an answer is not the state at its revision",
                    vec![operation.to_string(), format!("as of revision {revision}, watchers show {state}")],
                );
            }
        }
        Ok(())
    }

    /// Whether a compare-and-swap decided as the state at a revision demands.
    fn compare_condition(&self, operation: &Operation, revision: Revision, written: bool) -> Verdict {
        let Request::Swap(write, expected) = operation.request else { return Ok(()) };
        let modified = self.history.state(write.key, revision).map_or(0, |record| record.modified);
        if (modified == expected) == written {
            return Ok(());
        }
        let state =
            format!("as of revision {revision}, {} was last modified at {modified}", Named(write.key));
        violation("a transaction took the wrong branch", vec![operation.to_string(), state])
    }

    /// Drops what no operation in flight can need.
    fn forget(&mut self) -> Verdict {
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

fn violation(rule: &'static str, evidence: Vec<String>) -> Verdict {
    Err(Box::new(Violation { rule: rule.into(), evidence }))
}

fn broken_rule((rule, evidence): Broken) -> Verdict {
    violation(rule, evidence)
}

impl fmt::Display for Seen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "revision {} was seen before: {}", self.revision, self.by)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Violation: {}.", self.rule)?;
        self.evidence.iter().try_for_each(|line| write!(formatter, "\n  {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Revision = 10;

    fn record(key: u32, value: u64, created: Revision, modified: Revision, version: i64) -> Record {
        Record { key, value, created, modified, version }
    }

    fn began(number: u64, request: Request) -> Input {
        let began = Duration::from_millis(number);
        let (client, member) = (0, 0);
        Input::Began(Operation { number, client, member, request, began, ended: None, outcome: None })
    }

    fn ended(number: u64, outcome: Outcome) -> Input {
        Input::Ended(number, Duration::from_millis(number + 1), outcome)
    }

    fn written(revision: Revision, previous: &[Record]) -> Outcome {
        Outcome::Written { revision, previous: Some(previous.to_vec()) }
    }

    fn found(revision: Revision, records: &[Record]) -> Outcome {
        Outcome::Found { revision, records: records.to_vec() }
    }

    fn put(writes: &[(u32, u64)]) -> Request {
        Request::Put(writes.iter().map(|&(key, value)| Write { key, value }).collect())
    }

    fn watched(watcher: usize, changes: &[Change]) -> Input {
        Input::Watched { watcher, at: Duration::from_millis(1), changes: changes.to_vec() }
    }

    fn changed(record: Record) -> Change {
        Change { revision: record.modified, key: record.key, record: Some(record) }
    }

    use super::super::operation::Write;

    /// Two watchers and every kind of operation, without a contradiction. Numbers are places in the list.
    fn healthy() -> Vec<Input> {
        let (first, second, third) =
            (record(1, 100, 11, 11, 1), record(1, 101, 11, 12, 2), record(2, 102, 12, 12, 1));
        let swapped = record(2, 103, 12, 13, 2);
        let late = record(3, 105, 15, 15, 1);
        let pair = [changed(second), changed(third)];
        let gone = Change { revision: 14, key: 1, record: None };
        vec![
            began(0, put(&[(1, 100)])),
            ended(0, written(11, &[])), // 1
            watched(0, &[changed(first)]),
            watched(1, &[changed(first)]), // 3
            began(1, put(&[(1, 101), (2, 102)])),
            watched(0, &pair), // 5: before the answer
            ended(1, Outcome::Written { revision: 12, previous: None }),
            watched(1, &pair), // 7
            began(2, Request::Read { keys: vec![1], serializable: false }),
            ended(2, found(12, &[second])), // 9
            began(3, Request::Read { keys: vec![1, 2], serializable: true }),
            ended(3, found(11, &[first])), // 11
            began(4, Request::Swap(Write { key: 2, value: 103 }, 12)),
            ended(4, written(13, &[third])), // 13
            watched(0, &[changed(swapped)]),
            watched(1, &[changed(swapped)]), // 15
            began(5, Request::Swap(Write { key: 2, value: 104 }, 12)),
            ended(5, found(13, &[swapped])), // 17
            began(6, Request::Delete(1)),
            watched(0, &[gone]), // 19
            ended(6, written(14, &[second])),
            watched(1, &[gone]), // 21
            began(7, Request::Delete(1)),
            ended(7, found(14, &[])), // 23
            began(8, put(&[(3, 105)])),
            ended(8, Outcome::Unknown("timeout".into())), // 25
            watched(0, &[changed(late)]),
            watched(1, &[changed(late)]), // 27
            Input::Progress { watcher: 0, revision: 20 },
            Input::Progress { watcher: 1, revision: 20 }, // 29
            began(9, Request::Read { keys: vec![1, 2, 3], serializable: false }),
            ended(9, found(20, &[swapped, late])), // 31
        ]
    }

    /// The rule that a list of inputs breaks.
    fn broken(inputs: Vec<Input>) -> Option<Cow<'static, str>> {
        let mut checker = Checker::new(START, 2);
        inputs.into_iter().find_map(|input| checker.take(input).err()).map(|violation| {
            assert!(!violation.evidence.is_empty(), "{violation}");
            violation.rule
        })
    }

    #[test]
    fn a_healthy_cluster_passes_and_everything_is_compared() {
        let mut checker = Checker::new(START, 2);
        for input in healthy() {
            checker.take(input).unwrap();
        }
        let expected = Checked {
            writes: 4,
            linearizable_reads: 4,
            serializable_reads: 1,
            unknown: 1,
            events: 12,
            ..Checked::default()
        };
        assert_eq!(checker.checked, expected);
        assert_eq!((checker.waiting_len(), checker.unresolved_len(), checker.behind(20)), (0, 0, vec![]));
        assert!(checker.unexplained.is_empty() && checker.in_flight.is_empty());
        assert_eq!(checker.waiting_size(), 0);
    }

    #[test]
    fn what_waits_is_counted_with_what_it_holds() {
        let mut checker = Checker::new(START, 1);
        let keys: Vec<u32> = (0..1000).collect();
        let records: Vec<_> = keys.iter().map(|&key| record(key, 1, 11, 11, 1)).collect();
        checker.take(began(0, Request::Read { keys, serializable: true })).unwrap();
        checker.take(ended(0, found(11, &records))).unwrap();
        assert_eq!((checker.waiting_len(), checker.waiting_size()), (1, 2001));
    }

    /// A name, what is changed in [`healthy`], and the rule that this breaks.
    type Lie = (&'static str, fn(&mut Vec<Input>), &'static str);

    const STATE: &str = "an answer is not the state at its revision";

    const LIES_OF_ANSWERS: &[Lie] = &[
        (
            "a linearizable read of an older state",
            |i| i[9] = ended(2, found(11, &[record(1, 100, 11, 11, 1)])),
            "a linearizable operation answers from before what was seen before it began",
        ),
        (
            "an older value under a new revision",
            |i| i[9] = ended(2, found(12, &[record(1, 100, 11, 11, 1)])),
            STATE,
        ),
        (
            "a key that is missing in an answer",
            |i| i[31] = ended(9, found(20, &[record(2, 103, 12, 13, 2)])),
            STATE,
        ),
        (
            "a serializable read that never was",
            |i| i[11] = ended(3, found(11, &[record(2, 102, 12, 12, 1)])),
            STATE,
        ),
        ("a wrong version", |i| i[9] = ended(2, found(12, &[record(1, 101, 11, 12, 3)])), STATE),
        ("a wrong previous value", |i| i[13] = ended(4, written(13, &[])), STATE),
        (
            "a key that was not asked for",
            |i| i[9] = ended(2, found(12, &[record(2, 102, 12, 12, 1)])),
            "an answer holds a key that was not asked for",
        ),
        (
            "a key that is answered twice, the second time with an older value",
            |i| i[9] = ended(2, found(12, &[record(1, 101, 11, 12, 2), record(1, 100, 11, 11, 1)])),
            "an answer holds a key twice",
        ),
        (
            "a serializable read without a revision",
            |i| i[11] = ended(3, found(0, &[record(9, 9, 9, 9, 9)])),
            "an answer has no revision",
        ),
        (
            "a revision that cannot be counted down from",
            |i| i[11] = ended(3, found(Revision::MIN, &[])),
            "an answer has no revision",
        ),
        (
            "one revision for two writes",
            |i| i[6] = ended(1, Outcome::Written { revision: 11, previous: None }),
            "a write has a revision that was seen before it began",
        ),
        (
            "a write that is executed twice",
            |i| i.extend([watched(0, &[changed(record(3, 105, 15, 21, 2))])]),
            "a watcher received a value that no client writes, or that was written before",
        ),
        (
            "a deletion of no client",
            |i| i.extend([watched(0, &[Change { revision: 21, key: 2, record: None }])]),
            "a key was deleted, and no client deleted it",
        ),
        (
            "a swap on a wrong condition",
            |i| i[12] = began(4, Request::Swap(Write { key: 2, value: 103 }, 11)),
            "a transaction took the wrong branch",
        ),
        (
            "a swap refused against its condition",
            |i| i[16] = began(5, Request::Swap(Write { key: 2, value: 104 }, 13)),
            "a transaction took the wrong branch",
        ),
    ];

    const LIES_OF_WATCHERS: &[Lie] = &[
        (
            "an event dropped by the second watcher",
            |i| drop(i.remove(15)),
            "a watcher did not receive an event",
        ),
        (
            "an event dropped by the first watcher",
            |i| drop(i.remove(14)),
            "a watcher did not receive an event",
        ),
        (
            "an event received twice",
            |i| i.insert(3, i[2].clone()),
            "a watcher received an event twice, or after a newer one",
        ),
        ("two events in the other order", |i| i.swap(3, 7), "a watcher did not receive an event"),
        (
            "an acknowledged write that is lost",
            |i| {
                i.drain(14..16);
            },
            "an acknowledged write is not what watchers received",
        ),
        (
            "a revision split by both watchers",
            |i| {
                let Input::Watched { changes, .. } = i[5].clone() else { panic!() };
                i.splice(5..6, [watched(0, &changes[..1]), watched(0, &changes[1..])]);
            },
            "the changes of a revision are not those of its write",
        ),
        (
            "a revision split by one watcher",
            |i| {
                let Input::Watched { changes, .. } = i[7].clone() else { panic!() };
                i.splice(7..8, [watched(1, &changes[..1]), watched(1, &changes[1..])]);
            },
            "two watchers received different changes of one revision",
        ),
        (
            "progress ahead of an event",
            |i| i.insert(14, Input::Progress { watcher: 0, revision: 13 }),
            "an acknowledged write is not what watchers received",
        ),
        (
            "an event after progress",
            |i| i.extend([began(10, put(&[(9, 109)])), watched(0, &[changed(record(9, 109, 18, 18, 1))])]),
            "a watcher received an event after it had received everything up to a later revision",
        ),
        (
            "two events in the other order at all watchers",
            |i| {
                let [older, newer] =
                    [(110, 21), (111, 22)].map(|(value, at)| record(value as u32, value, at, at, 1));
                i.extend([began(10, put(&[(110, 110)])), began(11, put(&[(111, 111)]))]);
                i.push(watched(0, &[changed(newer), changed(older)]));
            },
            "a watcher received an event after it had received everything up to a later revision",
        ),
    ];

    #[test]
    fn every_planted_lie_is_found() {
        for (lie, plant, rule) in LIES_OF_ANSWERS.iter().chain(LIES_OF_WATCHERS) {
            let mut inputs = healthy();
            plant(&mut inputs);
            assert_eq!(broken(inputs).as_deref(), Some(*rule), "{lie}");
        }
    }

    #[test]
    fn leases_that_end_early_and_hashes_that_differ_are_found() {
        use super::super::leases::Kept;
        let kept = Kept { member: 0, sent: Duration::ZERO, ttl: Duration::from_secs(2) };
        let leased = record(7, 100, 11, 11, 1);
        let gone = [Change { revision: 12, key: 7, record: None }];
        let inputs = |at| {
            vec![
                Input::Lease(3, LeaseInput::Granted { keys: vec![7], kept: kept.clone() }),
                began(0, put(&[(7, 100)])),
                ended(0, Outcome::Written { revision: 11, previous: None }),
                watched(0, &[changed(leased)]),
                Input::Watched { watcher: 0, at: Duration::from_millis(at), changes: gone.to_vec() },
            ]
        };
        assert_eq!(broken(inputs(2100)), None);
        let early = broken(inputs(1900));
        assert_eq!(early.as_deref(), Some("the keys of a lease were deleted before its time was over"));
        let hashed = |member, hash| {
            Input::Hashed(Hash { member, at: Duration::ZERO, revision: 11, compacted: 1, hash })
        };
        assert_eq!(broken(vec![hashed(0, 5), hashed(1, 5)]), None);
        let differ = broken(vec![hashed(0, 5), hashed(1, 6)]);
        assert_eq!(differ.as_deref(), Some("members have different hashes at one revision"));
    }

    #[test]
    fn two_concurrent_writes_may_not_share_a_revision() {
        let inputs = vec![
            began(0, put(&[(1, 100)])),
            began(1, put(&[(2, 101)])),
            ended(0, written(11, &[])),
            ended(1, written(11, &[])),
        ];
        assert_eq!(broken(inputs).as_deref(), Some("two writes were acknowledged at one revision"));
    }

    #[test]
    fn a_write_of_unknown_outcome_may_be_executed_later_or_never() {
        let gone = |revision| Change { revision, key: 1, record: None };
        let before = [began(0, put(&[(1, 100)])), ended(0, written(11, &[]))];
        let lost = [began(1, Request::Delete(1)), ended(1, Outcome::Unknown("timeout".into()))];
        let shown = [watched(0, &[changed(record(1, 100, 11, 11, 1))])];
        let never: Vec<_> = before.iter().chain(&lost).chain(&shown).cloned().collect();
        assert_eq!(broken(never.clone()), None);
        let later = [watched(0, &[gone(30)])];
        assert_eq!(broken(never.iter().chain(&later).cloned().collect()), None);
        let again = [
            began(2, put(&[(1, 101)])),
            watched(0, &[changed(record(1, 101, 31, 31, 1))]),
            ended(2, written(31, &[])),
            watched(0, &[gone(32)]),
        ];
        let twice = never.into_iter().chain(later).chain(again).collect();
        assert_eq!(broken(twice).as_deref(), Some("a key was deleted, and no client deleted it"));
    }

    #[test]
    fn a_deletion_of_no_client_at_the_end_of_the_run_is_found() {
        let mut checker = Checker::new(START, 1);
        let inputs = [
            began(0, put(&[(1, 100)])),
            watched(0, &[changed(record(1, 100, 11, 11, 1))]),
            ended(0, written(11, &[])),
            // It is aborted with its client.
            began(1, put(&[(2, 101)])),
            watched(0, &[Change { revision: 12, key: 1, record: None }]),
        ];
        inputs.into_iter().for_each(|input| checker.take(input).unwrap());
        let found = checker.close(Duration::from_secs(1)).unwrap_err();
        assert_eq!(found.rule, "a key was deleted, and no client deleted it");
    }

    #[test]
    fn a_deletion_in_flight_at_the_end_of_the_run_may_have_been_executed() {
        let mut checker = Checker::new(START, 1);
        let inputs = [
            began(0, put(&[(1, 100)])),
            watched(0, &[changed(record(1, 100, 11, 11, 1))]),
            ended(0, written(11, &[])),
            began(1, Request::Delete(1)),
            watched(0, &[Change { revision: 12, key: 1, record: None }]),
        ];
        inputs.into_iter().for_each(|input| checker.take(input).unwrap());
        checker.close(Duration::from_secs(1)).unwrap();
    }

    #[test]
    fn memory_is_bounded_while_operations_are_answered() {
        let mut checker = Checker::new(0, 1);
        for number in 0..25_000 {
            let revision = number as Revision + 1;
            let previous = checker.history.state(1, revision - 1);
            checker.take(began(number, put(&[(1, number)]))).unwrap();
            let previous: Vec<_> = previous.into_iter().collect();
            checker.take(ended(number, written(revision, &previous))).unwrap();
            let change = changed(record(1, number, 1, revision, revision));
            checker.take(watched(0, &[change])).unwrap();
        }
        assert_eq!(checker.checked.writes, 25_000);
        assert!(checker.acknowledged.len() <= 10_001, "{}", checker.acknowledged.len());
        assert!(checker.unseen.is_empty() && checker.waiting.is_empty() && checker.in_flight.is_empty());
    }
}
