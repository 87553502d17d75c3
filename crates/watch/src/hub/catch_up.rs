//! History for lagging watchers.
//!
//! ```text
//!   lagging: 17 ×3 │ 40 │ 41 ×900 │ … │ 990012      (next revision, number of watchers)
//!            └── one step reads from 17, and serves all watchers that it passes
//! ```
//!
//! * A step reads a bounded part of history once, for all lagging watchers with their next revision
//!   in it.
//! * Steps alternate between a pass over all history, from the furthest to the least lagging
//!   watcher, and the watcher that is closest to the present. So a short lag is not held up by the
//!   longest one. A step whose watchers have no outbox capacity does not count; otherwise those of
//!   a slow stream could miss every step.
//! * A response has at most 1000 distinct revisions, and its header has the store's revision at the
//!   time of the read, as in etcd.
//! * History is not retained for lagging watchers. If their next revision is compacted they are
//!   canceled.
//! * The matches and copied bytes of a step are bounded, for any ranges of clients. A step that
//!   reaches a bound serves some of its watchers. The rest stay at their position for the next
//!   step.

use std::collections::{HashMap, HashSet};

use mvcc::{Change, Changes, Error, Result};

use super::live::{Copying, EventSpan, GroupBatch, GroupEvents, Match};
use super::outbox::{BodySpan, Events};
use super::state::{Hub, WatcherState};

impl Hub {
    pub(super) fn catch_up(&mut self) -> Result<()> {
        let pass = self.lagging.first_from(self.cursor).or_else(|| self.lagging.first_from(i64::MIN));
        let (Some(oldest), Some(newest)) = (pass, self.lagging.last()) else { return Ok(()) };
        self.step = self.step.wrapping_add(1);
        let is_pass = self.is_pass_next;
        let from = if is_pass { oldest } else { newest };
        let changes = match self.store.changes(from, self.limits.step_bytes) {
            Ok(changes) => changes,
            Err(Error::Compacted { compacted, .. }) => {
                self.cancel_lagging(compacted);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let through = changes.through().min(self.position);
        let found = self.lagging.between(from, through, self.limits.step_watchers);
        let (is_full, is_empty) = (found.len() == self.limits.step_watchers, found.is_empty());
        let watchers = self.park_without_room(found);
        if watchers.is_empty() && !is_empty {
            // Without outbox capacity the step does not count. The next step has the same kind, and
            // the pass does not start after the oldest watcher that was skipped.
            if is_pass {
                self.cursor = self.cursor.min(from);
            }
            return Ok(());
        }
        self.is_pass_next = !is_pass;
        let is_served = self.serve(&changes, through, watchers)?;
        if is_pass {
            // Skipped watchers are served by the next step.
            self.cursor = if is_full || !is_served { from } else { through + 1 };
        }
        Ok(())
    }

    /// Parks the watchers with a full outbox. Returns the remaining ones.
    fn park_without_room(&mut self, mut watchers: Vec<u32>) -> Vec<u32> {
        let bytes_max = self.history_bytes_max();
        watchers.retain(|watcher| {
            let has_room = self.has_room(*watcher, bytes_max);
            if !has_room {
                self.move_to(*watcher, WatcherState::Parked, self.watchers[*watcher].next);
            }
            has_room
        });
        watchers
    }

    /// Sends the changes up to `through` to these watchers, and advances them. Returns whether it
    /// served all of them that far.
    fn serve(&mut self, changes: &Changes, through: i64, mut watchers: Vec<u32>) -> Result<bool> {
        let found = self.match_history(changes, through, &watchers);
        let mut is_served = found.is_some();
        let (events, matches) = match found {
            Some(found) => found,
            None => {
                let groups = self.first_groups(changes, through, &watchers);
                watchers.retain(|watcher| groups.contains(&self.watchers[*watcher].group));
                self.match_groups(changes, through, &groups)
            }
        };
        let batch = self.encode_batch(&events, matches)?;
        let through = batch.cut.unwrap_or(through);
        is_served &= batch.cut.is_none();
        watchers.retain(|watcher| self.watchers[*watcher].next <= through);
        watchers.sort_by_key(|watcher| self.group_of(*watcher));
        let (mut copied, mut rest) = (0, &watchers[..]);
        while let Some(first) = rest.first() {
            let group = self.group_of(*first);
            let of_group;
            (of_group, rest) =
                rest.split_at(rest.partition_point(|watcher| self.group_of(*watcher) <= group));
            let found = match self.collect(group, &batch, &events, self.copying(copied)) {
                GroupBatch::NeedsCopy => {
                    is_served = false;
                    continue;
                }
                found => found,
            };
            for watcher in of_group {
                self.advance(*watcher, &found, changes.revision(), through);
            }
            if let GroupBatch::Events(found) = found {
                copied += found.copied;
                self.bodies.release(found.body);
                self.evict(batch.bytes);
            }
        }
        self.release(batch);
        Ok(is_served)
    }

    /// Reports whether a step that has copied `copied` bytes may copy the events of another group.
    pub(super) fn copying(&self, copied: usize) -> Copying {
        if copied < self.limits.copied_bytes_max { Copying::Allowed } else { Copying::Forbidden }
    }

    fn group_of(&self, watcher: u32) -> u32 {
        self.watchers[watcher].group
    }

    /// Sends a lagging watcher the events of its group up to `through`, and advances it.
    fn advance(&mut self, watcher: u32, found: &GroupBatch, revision: i64, through: i64) {
        // Eviction may have moved it back.
        if self.watchers[watcher].state != WatcherState::Lagging {
            return;
        }
        let blocked = match found {
            GroupBatch::Events(found) => self.send_history(watcher, found, revision),
            GroupBatch::Large(found) => self.send_large(watcher, found, revision),
            GroupBatch::Nothing | GroupBatch::NeedsCopy => None,
        };
        match blocked {
            Some(next) => self.move_to(watcher, WatcherState::Parked, next),
            None if through == self.position => {
                self.leave(watcher);
                self.make_live(watcher);
            }
            None => self.move_to(watcher, WatcherState::Lagging, through + 1),
        }
    }

    /// Returns the changes that match a group of these watchers; `None` if there are too many
    /// matches.
    fn match_history<'c>(
        &mut self,
        changes: &'c Changes,
        through: i64,
        watchers: &[u32],
    ) -> Option<(Vec<Change<'c>>, Vec<Match>)> {
        for watcher in watchers {
            self.interest.groups[self.watchers[*watcher].group].step = self.step;
        }
        let (mut events, mut matches) = (Vec::new(), Vec::new());
        for change in up_to(changes, through) {
            let (number, before) = (events.len() as u32, matches.len());
            self.interest.visit(change.key(), |group, watchers| {
                if watchers.step == self.step && watchers.form().accepts(&change) {
                    matches.push((group, number));
                }
            });
            if matches.len() > self.limits.matches_max {
                return None;
            }
            if matches.len() > before {
                events.push(change);
            }
        }
        Some((events, matches))
    }

    /// Selects groups with matches within the limit, at least one. The order is: the group of the
    /// first watcher, which lags most, so that each step makes progress; then the groups of the
    /// first watcher of each stream; then the groups of the second watchers. A stream with many
    /// ranges therefore does not delay the rest.
    fn first_groups(&self, changes: &Changes, through: i64, watchers: &[u32]) -> HashSet<u32> {
        let mut of_stream: HashMap<u32, u32> = HashMap::new();
        let mut order: Vec<(u32, u32)> = Vec::with_capacity(watchers.len());
        for watcher in watchers {
            let count = of_stream.entry(self.watchers[*watcher].stream).or_default();
            order.push((*count, self.group_of(*watcher)));
            *count += 1;
        }
        order.sort_unstable();
        let groups_max = (self.limits.matches_max / up_to(changes, through).count().max(1)).max(1);
        let mut groups: HashSet<u32> =
            watchers.first().map(|watcher| self.group_of(*watcher)).into_iter().collect();
        for (_, group) in order {
            if groups.len() < groups_max {
                groups.insert(group);
            }
        }
        groups
    }

    fn match_groups<'c>(
        &self,
        changes: &'c Changes,
        through: i64,
        groups: &HashSet<u32>,
    ) -> (Vec<Change<'c>>, Vec<Match>) {
        let (mut events, mut matches) = (Vec::new(), Vec::new());
        for change in up_to(changes, through) {
            let (number, before) = (events.len() as u32, matches.len());
            for group in groups {
                let watchers = &self.interest.groups[*group];
                if watchers.contains(change.key()) && watchers.form().accepts(&change) {
                    matches.push((*group, number));
                }
            }
            if matches.len() > before {
                events.push(change);
            }
        }
        (events, matches)
    }

    /// Sends the events from the watcher's next revision on. Returns the first revision that did
    /// not fit.
    fn send_history(&mut self, watcher: u32, found: &GroupEvents, revision: i64) -> Option<i64> {
        let next = self.watchers[watcher].next;
        let may_fragment = self.interest.groups[self.group_of(watcher)].form().may_fragment();
        let bytes_max = self.history_bytes_max();
        let mut rest = &found.events[found.events.partition_point(|event| event.main < next)..];
        while let Some(first) = rest.first() {
            let ordinals = first.ordinal + self.limits.response_revisions_max;
            let count = rest.partition_point(|event| event.ordinal < ordinals);
            let count = whole_revisions(&rest[..count], self.history_response_bytes_max());
            let (response, after) = rest.split_at(count);
            let end = response.last().expect("at least the first event").end;
            let span = BodySpan { body: found.body, start: first.start, end };
            let response = Events { span, first: first.main, revision, may_fragment, watch_ids: Vec::new() };
            if !self.push_events(watcher, response, count, bytes_max) {
                return Some(first.main);
            }
            rest = after;
        }
        None
    }

    fn cancel_lagging(&mut self, compacted: i64) {
        for watcher in self.lagging.between(i64::MIN, compacted - 1, self.limits.step_watchers) {
            if base::mutant("catch-up-over-compaction") {
                self.move_to(watcher, WatcherState::Lagging, compacted);
            } else {
                self.cancel_compacted(watcher, compacted);
            }
        }
    }
}

/// Returns how many of these events fit, in whole revisions, but at least one revision.
fn whole_revisions(events: &[EventSpan], bytes_max: usize) -> usize {
    let Some(first) = events.first() else { return 0 };
    let fit = events.partition_point(|event| event.end - first.start <= bytes_max);
    let Some(next) = events.get(fit) else { return fit };
    let whole = events[..fit].partition_point(|event| event.main < next.main);
    if whole > 0 { whole } else { events.partition_point(|event| event.main == first.main) }
}

fn up_to(changes: &Changes, through: i64) -> impl Iterator<Item = Change<'_>> {
    changes.iter().take_while(move |change| change.revision().main <= through)
}
