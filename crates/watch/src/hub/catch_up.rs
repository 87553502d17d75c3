//! History for lagging watchers.
//!
//!   lagging: 17 ×3 │ 40 │ 41 ×900 │ … │ 990012      (next revision, number of watchers)
//!            └── one step reads from 17, and serves all watchers that it passes
//!
//! * A step reads a bounded part of history once, for all lagging watchers whose next revision is in it.
//! * Steps alternate between a pass over all history, from the oldest watcher to the newest, and the watcher
//!   that is closest to the present. So a short lag is not as long as the longest one.
//! * A response has at most 1000 distinct revisions, and the header of the store's revision when it was read,
//!   as in etcd.
//! * History is not kept for lagging watchers. If their next revision is compacted they are canceled.

use mvcc::{Change, Changes, Error, Result};

use super::batch::{GroupEvents, Match};
use super::bodies::Span;
use super::outbox::Events;
use super::state::{Hub, Standing};

impl Hub {
    /// One step.
    pub(super) fn catch_up(&mut self) -> Result<()> {
        let pass = self.lagging.first_from(self.cursor).or_else(|| self.lagging.first_from(i64::MIN));
        let (Some(oldest), Some(newest)) = (pass, self.lagging.last()) else { return Ok(()) };
        self.step = self.step.wrapping_add(1);
        let is_pass = self.step.is_multiple_of(2);
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
        let watchers = self.lagging.between(from, through, self.limits.step_watchers);
        if is_pass {
            // Those that are left out are served by the next step.
            let is_full = watchers.len() == self.limits.step_watchers;
            self.cursor = if is_full { from } else { through + 1 };
        }
        self.serve(&changes, through, &watchers)
    }

    /// Sends the changes up to `through` to these watchers, and moves them there.
    fn serve(&mut self, changes: &Changes, through: i64, watchers: &[u32]) -> Result<()> {
        for watcher in watchers {
            self.interest.groups[self.watchers[*watcher].group].step = self.step;
        }
        let (events, mut matches) = self.match_history(changes, through);
        let groups = self.encode_groups(&events, &mut matches)?;
        for watcher in watchers {
            let group = self.watchers[*watcher].group;
            let found = groups.binary_search_by_key(&group, |found| found.group).ok();
            let rest =
                found.and_then(|found| self.send_history(*watcher, &groups[found], changes.revision()));
            match rest {
                Some(next) => self.move_to(*watcher, Standing::Parked, next),
                None if through == self.position => {
                    self.leave(*watcher);
                    self.make_live(*watcher);
                }
                None => self.move_to(*watcher, Standing::Lagging, through + 1),
            }
        }
        groups.iter().for_each(|found| self.bodies.release(found.body));
        Ok(())
    }

    /// The changes that match a group of this step.
    fn match_history<'c>(&self, changes: &'c Changes, through: i64) -> (Vec<Change<'c>>, Vec<Match>) {
        let (mut events, mut matches) = (Vec::new(), Vec::new());
        for change in changes.iter().take_while(|change| change.revision().main <= through) {
            let (number, before) = (events.len() as u32, matches.len());
            self.interest.visit(change.key(), |group, watchers| {
                if watchers.step == self.step && watchers.form().accepts(&change) {
                    matches.push((group, number));
                }
            });
            if matches.len() > before {
                events.push(change);
            }
        }
        (events, matches)
    }

    /// Sends the events from the watcher's next revision on. Returns the first revision that found no room.
    fn send_history(&mut self, watcher: u32, found: &GroupEvents, revision: i64) -> Option<i64> {
        let next = self.watchers[watcher].next;
        let may_fragment = self.interest.groups[found.group].form().may_fragment();
        let mut rest = &found.events[found.events.partition_point(|event| event.main < next)..];
        while let Some(first) = rest.first() {
            let ordinals = first.ordinal + self.limits.response_revisions_max;
            let count = rest.partition_point(|event| event.ordinal < ordinals);
            let (response, after) = rest.split_at(count);
            let end = response.last().expect("at least the first event").end;
            let span = Span { body: found.body, start: first.start, end };
            let response = Events { span, first: first.main, revision, may_fragment, watch_ids: Vec::new() };
            if !self.push_events(watcher, response, count) {
                return Some(first.main);
            }
            rest = after;
        }
        None
    }

    /// Cancels lagging watchers whose next revision is compacted.
    fn cancel_lagging(&mut self, compacted: i64) {
        for watcher in self.lagging.between(i64::MIN, compacted - 1, self.limits.step_watchers) {
            if cfg!(feature = "mutant-catch-up-over-compaction") {
                self.move_to(watcher, Standing::Lagging, compacted);
            } else {
                self.cancel_compacted(watcher, compacted);
            }
        }
    }
}
