//! Comparison of operations and events with the history that watchers have reported.

use super::Checker;
use crate::operation::{CallOutcome, ClientOperation, KeyChange, KeyName, KeyRecord, Request, Revision};
use crate::verdict::{CheckResult, violation};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

impl Checker {
    /// Compares an operation with the history.
    pub(super) fn compare(&mut self, operation: &Arc<ClientOperation>) -> CheckResult {
        let request = &operation.request;
        match &operation.outcome {
            Some(CallOutcome::Written { revision, previous }) => {
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
            Some(CallOutcome::Found { revision, records }) => {
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
            Some(CallOutcome::Page { revision, records, count, more }) => {
                let (limit, at) = match request {
                    Request::Page { limit, revision: asked, .. } => (*limit, asked.unwrap_or(*revision)),
                    _ => (0, *revision),
                };
                if at < self.history.forgotten() {
                    self.checked.too_old += 1;
                    return Ok(());
                }
                self.compare_page(operation, at, limit, records, (*count, *more))?;
                *match request {
                    Request::Page { .. } => &mut self.checked.pages,
                    _ if request.is_serializable() => &mut self.checked.serializable_reads,
                    _ => &mut self.checked.linearizable_reads,
                } += 1;
            }
            Some(CallOutcome::Unknown(_) | CallOutcome::Compacted) | None => {}
        }
        Ok(())
    }

    /// Compares a range response, including its key count, with the states of the keys at a
    /// revision.
    fn compare_page(
        &self,
        operation: &ClientOperation,
        at: Revision,
        limit: usize,
        records: &[KeyRecord],
        said: (i64, bool),
    ) -> CheckResult {
        let state = |key| self.history.state(key, at);
        let mut present: Vec<_> = operation.request.keys().into_iter().filter_map(state).collect();
        let shown = if limit == 0 { present.len() } else { limit };
        let number = (present.len() as i64, present.len() > shown);
        if limit == 0 {
            self.compare_states(operation, at, records)?;
        } else {
            // Keys are returned in byte order.
            present.sort_by_cached_key(|record| KeyName(record.key).to_string());
            present.truncate(limit);
            if present != records {
                let expected = present.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
                let expected = format!("as of revision {at}, watchers show {expected}");
                return violation(
                    "an answer is not the state at its revision",
                    vec![operation.to_string(), expected],
                );
            }
        }
        if said == number {
            return Ok(());
        }
        let (count, more) = number;
        let expected = format!("as of revision {at}, watchers show {count} keys, so that more: {more}");
        violation(
            "an answer says another number of keys than there are",
            vec![operation.to_string(), expected],
        )
    }

    /// Compares the previous values in an event with the retained states of the keys.
    pub(super) fn compare_before(
        &self,
        watcher: usize,
        changes: &[KeyChange],
        before: &[Option<KeyRecord>],
    ) -> CheckResult {
        for (change, said) in changes.iter().zip(before) {
            let earlier = change.revision - 1;
            let state = self.history.state(change.key, earlier);
            if earlier < self.history.forgotten() || *said == state {
                continue;
            }
            let shown = |record: &Option<KeyRecord>| record.map_or("nothing".into(), |it| it.to_string());
            let said = format!("watcher {watcher}, {change}: before it {}", shown(said));
            let known = format!("as of revision {earlier}, watchers show {}", shown(&state));
            return violation("an event has another previous state than its key", vec![said, known]);
        }
        Ok(())
    }

    fn compare_states(
        &self,
        operation: &ClientOperation,
        revision: Revision,
        records: &[KeyRecord],
    ) -> CheckResult {
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
                    state.map_or(format!("{} does not exist", KeyName(key)), |record| record.to_string());
                return violation(
                    "an answer is not the state at its revision",
                    vec![operation.to_string(), format!("as of revision {revision}, watchers show {state}")],
                );
            }
        }
        Ok(())
    }

    /// Reports whether a compare-and-swap took the correct branch, given the state at a revision.
    fn compare_condition(
        &self,
        operation: &ClientOperation,
        revision: Revision,
        written: bool,
    ) -> CheckResult {
        let Request::Swap(write, expected) = operation.request else { return Ok(()) };
        let modified = self.history.state(write.key, revision).map_or(0, |record| record.modified);
        if (modified == expected) == written {
            return Ok(());
        }
        let state =
            format!("as of revision {revision}, {} was last modified at {modified}", KeyName(write.key));
        violation("a transaction took the wrong branch", vec![operation.to_string(), state])
    }
}
