//! New events for live watchers.
//!
//! Each revision is one response to each watcher that it matches, with the header of that revision, as in
//! etcd. A revision with very many matches is read by the watchers of ranges as history.

use mvcc::{Change, Error, Result};

use super::batch::{GroupBatch, GroupEvents, Match};
use super::outbox::{BodySpan, Events};
use super::state::{Hub, WatcherState};
use crate::slab::Positions;

impl Hub {
    /// Reads the next events after the hub's position and delivers them.
    pub(super) fn deliver_new(&mut self) -> Result<()> {
        let revision = self.store.revision();
        if self.watchers.len() == 0 {
            (self.follower, self.position) = (None, revision);
            return Ok(());
        }
        // Those that an earlier turn has left.
        if !self.promote(self.position + 1, self.position) || self.position >= revision {
            return Ok(());
        }
        if self.live + self.joining.len() + self.future.len() == 0 {
            return self.reach(revision);
        }
        let follower = self.follower.as_mut().expect("a hub with watchers follows");
        let changes = match follower.changes(self.limits.step_bytes) {
            Ok(changes) => changes,
            Err(Error::Compacted { compacted, .. }) => return self.lose(compacted),
            Err(error) => return Err(error),
        };
        let (mut events, mut sent) = (Vec::new(), 0);
        let mut rest = changes.iter().peekable();
        while let Some(first) = rest.next() {
            let main = first.revision().main;
            events.clear();
            events.push(first);
            while let Some(next) = rest.next_if(|next| next.revision().main == main) {
                events.push(next);
            }
            if !self.promote(main, main) {
                return self.reach(main - 1);
            }
            sent += self.deliver(main, &events)?;
            self.position = main;
            if sent >= self.limits.step_watchers {
                return self.reach(main);
            }
        }
        self.reach(changes.through())
    }

    /// Reads all events from here on. Without watchers before, nothing was missed.
    pub(super) fn follow(&mut self) {
        if self.follower.is_none() {
            let follower = self.store.follow();
            self.position = follower.next() - 1;
            self.follower = Some(follower);
        }
    }

    /// All events up to `position` are delivered.
    fn reach(&mut self, position: i64) -> Result<()> {
        self.position = position;
        self.follower.as_mut().expect("a hub with watchers follows").advance(position + 1);
        self.promote(position + 1, position);
        Ok(())
    }

    /// Makes watchers live whose first revision is at most these, a bounded number in a turn. False if some
    /// are left: no event at or after these revisions is delivered before they are live.
    fn promote(&mut self, joining: i64, future: i64) -> bool {
        for (is_joining, next) in [(true, joining), (false, future)] {
            let waiting = if is_joining { &self.joining } else { &self.future };
            let reached = waiting.between(i64::MIN, next, self.promotions_left);
            self.promotions_left -= reached.len();
            for watcher in reached {
                self.leave(watcher);
                self.make_live(watcher);
            }
        }
        !has_reached(&self.joining, joining) && !has_reached(&self.future, future)
    }

    /// Whether watchers wait to be live whose first revision is reached.
    pub(super) fn has_promotions(&self) -> bool {
        has_reached(&self.joining, self.position + 1) || has_reached(&self.future, self.position)
    }

    /// Delivers the events of one revision. Returns the number of responses.
    fn deliver(&mut self, main: i64, events: &[Change<'_>]) -> Result<usize> {
        let matches = match self.match_live(events) {
            Some(matches) => matches,
            None => {
                self.postpone_ranges(main);
                self.match_exact(events)
            }
        };
        if matches.is_empty() {
            return Ok(0);
        }
        let batch = self.encode_batch(events, matches)?;
        let (mut sent, mut copied) = (0, 0);
        for group in batch.groups() {
            let found = match self.collect(group, &batch, events, self.copying(copied)) {
                GroupBatch::Events(found) => found,
                GroupBatch::Nothing => continue,
                GroupBatch::NeedsCopy | GroupBatch::Large(_) => {
                    self.postpone(group, main);
                    continue;
                }
            };
            sent += self.deliver_to(group, &found, main);
            copied += found.copied;
            self.bodies.release(found.body);
            self.evict(batch.bytes);
        }
        self.release(batch);
        Ok(sent)
    }

    /// Delivers the events of one revision to the live watchers of a group.
    fn deliver_to(&mut self, group: u32, found: &GroupEvents, main: i64) -> usize {
        let (first, last) = (found.events.first(), found.events.last());
        let (start, end) = first.zip(last).map(|(first, last)| (first.start, last.end)).expect("matched");
        let span = BodySpan { body: found.body, start, end };
        let watchers = &self.interest.groups[group];
        let (live, may_fragment) = (watchers.live(), watchers.form().may_fragment());
        // Backwards: a watcher that leaves the live ones changes places with one that was served.
        for place in (0..live).rev() {
            let watcher = self.interest.groups[group].members()[place];
            let (revision, watch_ids) = (main, Vec::new());
            let response = Events { span, first: main, revision, may_fragment, watch_ids };
            if !self.push_events(watcher, response, found.events.len(), self.limits.outbox_bytes) {
                let is_mutant = base::mutant("repeated-at-group-change");
                self.move_to(watcher, WatcherState::Parked, if is_mutant { main - 1 } else { main });
            }
        }
        live
    }

    /// The events that match groups with live watchers; `None` if there are too many matches.
    fn match_live(&self, events: &[Change<'_>]) -> Option<Vec<Match>> {
        let mut matches: Vec<Match> = Vec::new();
        for (number, change) in (0u32..).zip(events) {
            self.interest.visit(change.key(), |group, watchers| {
                if watchers.live() > 0 && watchers.form().accepts(change) {
                    matches.push((group, number));
                }
            });
            if matches.len() > self.limits.matches_max {
                return None;
            }
        }
        Some(matches)
    }

    /// As `match_live`, for the groups of one key: at most one for each form.
    fn match_exact(&self, events: &[Change<'_>]) -> Vec<Match> {
        let mut matches: Vec<Match> = Vec::new();
        for (number, change) in (0u32..).zip(events) {
            self.interest.visit_exact(change.key(), |group, watchers| {
                if watchers.live() > 0 && watchers.form().accepts(change) {
                    matches.push((group, number));
                }
            });
        }
        matches
    }

    /// Has the live watchers of all ranges read from `next` on as history.
    fn postpone_ranges(&mut self, next: i64) {
        let groups: Vec<u32> = self.interest.groups.numbers().collect();
        for group in groups {
            if !self.interest.groups[group].is_one_key() {
                self.postpone(group, next);
            }
        }
    }

    /// Has the live watchers of a group read from `next` on as history.
    fn postpone(&mut self, group: u32, next: i64) {
        while let Some(last) = self.interest.groups[group].live().checked_sub(1) {
            let watcher = self.interest.groups[group].members()[last];
            self.move_to(watcher, WatcherState::Lagging, next);
        }
    }

    /// An installed store has compacted the next events. Watchers that miss some are canceled.
    fn lose(&mut self, compacted: i64) -> Result<()> {
        let is_lost = |standing: WatcherState, next: i64| match standing {
            WatcherState::Live => !base::mutant("gap-at-install"),
            WatcherState::Joining | WatcherState::Future => next < compacted,
            WatcherState::Lagging | WatcherState::Parked | WatcherState::Compacted | WatcherState::Idle => {
                false
            }
        };
        let watchers = self.watchers.numbers().filter(|number| {
            let watcher = &self.watchers[*number];
            is_lost(watcher.state, watcher.next)
        });
        for watcher in watchers.collect::<Vec<_>>() {
            self.cancel_compacted(watcher, compacted);
        }
        self.reach(compacted - 1)
    }
}

fn has_reached(watchers: &Positions, next: i64) -> bool {
    watchers.first_from(i64::MIN).is_some_and(|first| first <= next)
}
