//! New events for live watchers.
//!
//! Each revision is a separate response to each matching watcher, with the header of that revision,
//! as in etcd. If a revision has too many matches, range watchers read it as history.
//!
//! # A batch
//!
//! Matches and encodes events.
//!
//! * Each event is encoded at most twice: without and with the previous pair. If the previous pairs
//!   of a revision are too large, they are not encoded here, but in parts while the revision is
//!   sent.
//! * The events of a group are contiguous bytes. If they are adjacent in the batch, they are a
//!   slice of the batch's body. Otherwise they are copied, so that a small response does not retain
//!   a large body.
//! * Events are collected for one group at a time: clients choose the ranges, and thousands of them
//!   may each need a copy of the same large revision.

use mvcc::{Change, Error, KeyValue, Result};

use super::outbox::{BodySpan, Events};
use super::state::{Hub, WatcherState};
use crate::slab::Positions;
use crate::wire::put_event;

impl Hub {
    pub(super) fn deliver_new(&mut self) -> Result<()> {
        let revision = self.store.revision();
        if self.watchers.len() == 0 {
            (self.follower, self.position) = (None, revision);
            return Ok(());
        }
        // Promotions left over from an earlier turn.
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

    /// Starts to follow the store. Events are needed only from here on, as there was no watcher
    /// before.
    pub(super) fn follow(&mut self) {
        if self.follower.is_none() {
            let follower = self.store.follow();
            self.position = follower.next() - 1;
            self.follower = Some(follower);
        }
    }

    /// Advances the position after all events up to it were delivered.
    fn reach(&mut self, position: i64) -> Result<()> {
        self.position = position;
        self.follower.as_mut().expect("a hub with watchers follows").advance(position + 1);
        self.promote(position + 1, position);
        Ok(())
    }

    /// Makes watchers live if their first revision is at most these, a bounded number per turn.
    /// Returns false if some are left: they must be live before events at or after these revisions
    /// are delivered.
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

    /// Reports whether watchers have reached their first revision but are not live yet.
    pub(super) fn has_promotions(&self) -> bool {
        has_reached(&self.joining, self.position + 1) || has_reached(&self.future, self.position)
    }

    /// Delivers the events of a revision. Returns the number of responses.
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

    fn deliver_to(&mut self, group: u32, found: &GroupEvents, main: i64) -> usize {
        let (first, last) = (found.events.first(), found.events.last());
        let (start, end) = first.zip(last).map(|(first, last)| (first.start, last.end)).expect("matched");
        let span = BodySpan { body: found.body, start, end };
        let watchers = &self.interest.groups[group];
        let (live, may_fragment) = (watchers.live(), watchers.form().may_fragment());
        // Backwards: a watcher that stops being live is swapped with one that was already served.
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

    /// Returns the events that match groups with live watchers; `None` if there are too many
    /// matches.
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

    /// Returns the events that match single-key groups with live watchers: at most one group per
    /// form.
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

    /// Makes the live watchers of all ranges read from `next` on as history.
    fn postpone_ranges(&mut self, next: i64) {
        let groups: Vec<u32> = self.interest.groups.numbers().collect();
        for group in groups {
            if !self.interest.groups[group].is_one_key() {
                self.postpone(group, next);
            }
        }
    }

    /// Makes the live watchers of a group read from `next` on as history.
    fn postpone(&mut self, group: u32, next: i64) {
        while let Some(last) = self.interest.groups[group].live().checked_sub(1) {
            let watcher = self.interest.groups[group].members()[last];
            self.move_to(watcher, WatcherState::Lagging, next);
        }
    }

    /// Handles an installed store that has compacted the next events. Watchers that miss some are
    /// canceled.
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

/// Maximum number of previous pairs per load. Also limited so that the estimated size of a load is
/// half of the byte limit on previous pairs.
const PREVIOUS_PER_LOAD: usize = 256;
/// Assumed size of a pair until some sizes are known.
pub(super) const PAIR_BYTES: usize = 1 << 10;
/// Approximate overhead of an event besides key and value, in bytes.
const EVENT_BYTES: usize = 40;

/// Group and event number of a match.
pub(super) type Match = (u32, u32);

/// Events of a group, in revision order and contiguous in a body. The holder owns a reference to
/// the body.
pub(super) struct GroupEvents {
    pub body: u32,
    pub events: Vec<EventSpan>,
    pub copied: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copying {
    Allowed,
    Forbidden,
}

/// Result of a batch for a group.
pub(super) enum GroupBatch {
    Nothing,
    Events(GroupEvents),
    Large(LargeMatch),
    NeedsCopy,
}

/// Events for a group in a revision that is too large to encode with previous pairs.
pub(super) struct LargeMatch {
    pub main: i64,
    /// Sub revisions of the first and the last event.
    pub subs: (i64, i64),
    pub count: usize,
}

#[derive(Clone, Copy)]
enum BatchEnd {
    All,
    /// After this revision: including the next ones, previous pairs are too large.
    After(i64),
    /// Before this revision, which is the first one: its previous pairs are too large.
    Large(i64),
}

#[derive(Clone, Copy)]
pub(super) struct EventSpan {
    pub start: usize,
    pub end: usize,
    pub main: i64,
    /// Number of distinct main revisions before it.
    pub ordinal: usize,
}

struct Encoded {
    body: u32,
    /// Start and end of each event; empty for events that are not in this form.
    spans: Vec<(usize, usize)>,
}

/// Encoded matching events of a batch. Must be passed to `release`.
pub(super) struct EventBatch {
    matches: Vec<Match>,
    /// Events without and with previous pairs; `None` if no group uses that form.
    forms: [Option<Encoded>; 2],
    pub bytes: usize,
    /// Last encoded revision, if later ones were omitted because of the size of previous pairs.
    pub cut: Option<i64>,
    /// This revision, if its events with previous pairs are too large to encode.
    large: Option<i64>,
}

impl EventBatch {
    pub fn groups(&self) -> Vec<u32> {
        let mut groups: Vec<u32> = self.matches.iter().map(|matched| matched.0).collect();
        groups.dedup();
        groups
    }

    fn of(&self, group: u32) -> &[Match] {
        let start = self.matches.partition_point(|matched| matched.0 < group);
        let end = self.matches.partition_point(|matched| matched.0 <= group);
        &self.matches[start..end]
    }
}

impl Hub {
    /// Encodes the matching events. Omits later revisions if the previous pairs are too large.
    pub(super) fn encode_batch(
        &mut self,
        events: &[Change<'_>],
        mut matches: Vec<Match>,
    ) -> Result<EventBatch> {
        matches.sort_unstable();
        let with = self.encode(events, &matches, Previous::With)?;
        let (cut, large) = match with.as_ref().map_or(BatchEnd::All, |(_, end)| *end) {
            BatchEnd::All => (None, None),
            BatchEnd::After(last) => (Some(last), None),
            BatchEnd::Large(main) => (Some(main), Some(main)),
        };
        if let Some(last) = cut {
            matches.retain(|(_, event)| events[*event as usize].revision().main <= last);
        }
        let without = self.encode(events, &matches, Previous::Without)?;
        let forms = [without, with].map(|form| form.map(|(encoded, _)| encoded));
        let bytes = forms.iter().flatten().map(|encoded| self.bodies.bytes_of(encoded.body).len()).sum();
        Ok(EventBatch { matches, forms, bytes, cut, large })
    }

    /// Frees a batch, except bodies referenced by outboxes.
    pub(super) fn release(&mut self, batch: EventBatch) {
        for encoded in batch.forms.into_iter().flatten() {
            self.bodies.release(encoded.body);
        }
    }

    fn encode(
        &mut self,
        events: &[Change<'_>],
        matches: &[Match],
        previous: Previous,
    ) -> Result<Option<(Encoded, BatchEnd)>> {
        let mut wanted = vec![false; events.len()];
        for (group, event) in matches {
            let has_previous = self.interest.groups[*group].form().has_previous();
            wanted[*event as usize] |= has_previous == (previous != Previous::Without);
        }
        let wanted: Vec<usize> = (0..events.len()).filter(|event| wanted[*event]).collect();
        if wanted.is_empty() {
            return Ok(None);
        }
        let bytes: usize = event_bytes_of(events, &wanted);
        let bytes_max = match previous {
            Previous::Without => usize::MAX,
            Previous::With => self.limits.previous_bytes_max,
        };
        let mut out = Vec::with_capacity(bytes.min(bytes_max));
        let mut spans = vec![(0, 0); events.len()];
        let (mut rest, mut per_load, mut end) =
            (&wanted[..], self.limits.part_bytes / PAIR_BYTES, BatchEnd::All);
        while !rest.is_empty() {
            let numbers;
            (numbers, rest) = rest.split_at(per_load.clamp(1, rest.len()));
            let before = match previous {
                Previous::Without => Vec::new(),
                Previous::With => self.previous(events, numbers)?,
            };
            for (at, number) in numbers.iter().enumerate() {
                let start = out.len();
                put_event(&mut out, &events[*number], before.get(at).and_then(Option::as_ref));
                spans[*number] = (start, out.len());
            }
            let bytes: usize = before.iter().flatten().map(pair_bytes).sum();
            per_load =
                (numbers.len() * (self.limits.previous_bytes_max / 2) / bytes.max(1)).min(PREVIOUS_PER_LOAD);
            if out.len() >= bytes_max && !rest.is_empty() {
                end = end_before(events, &wanted[..wanted.len() - rest.len()], rest);
                break;
            }
        }
        if let BatchEnd::After(last) = end {
            // Omit the events of a later, incomplete revision.
            let kept = wanted.partition_point(|number| events[*number].revision().main <= last);
            let bytes = kept.checked_sub(1).map_or(0, |last| spans[wanted[last]].1);
            if bytes < out.len() {
                out.truncate(bytes);
                out.shrink_to_fit();
            }
        } else if let BatchEnd::Large(_) = end {
            out = Vec::new();
        }
        Ok(Some((Encoded { body: self.bodies.insert(out), spans }, end)))
    }

    pub(super) fn previous(&self, events: &[Change<'_>], numbers: &[usize]) -> Result<Vec<Option<KeyValue>>> {
        let asked = |number: &&usize| match &events[**number] {
            // Created by this event.
            Change::Put { kv, .. } => kv.version > 1,
            Change::Delete { .. } => true,
        };
        let keys: Vec<(&[u8], i64)> = numbers
            .iter()
            .filter(asked)
            .map(|number| (events[*number].key(), events[*number].revision().main))
            .collect();
        let mut found = self.store.previous(&keys)?.into_iter();
        Ok(numbers.iter().map(|number| if asked(&number) { found.next().flatten() } else { None }).collect())
    }

    /// Collects the events of a group, copying them unless they are contiguous.
    pub(super) fn collect(
        &mut self,
        group: u32,
        batch: &EventBatch,
        events: &[Change<'_>],
        copying: Copying,
    ) -> GroupBatch {
        let matches = batch.of(group);
        if matches.is_empty() {
            return GroupBatch::Nothing;
        }
        let has_previous = self.interest.groups[group].form().has_previous();
        if let Some(main) = batch.large.filter(|_| has_previous) {
            let sub = |matched: Option<&Match>| matched.map_or(0, |at| events[at.1 as usize].revision().sub);
            let subs = (sub(matches.first()), sub(matches.last()));
            return GroupBatch::Large(LargeMatch { main, subs, count: matches.len() });
        }
        let form = usize::from(has_previous);
        let encoded = batch.forms[form].as_ref().expect("encoded for this group");
        let span = |matched: &Match| encoded.spans[matched.1 as usize];
        let is_run = matches.windows(2).all(|pair| span(&pair[0]).1 == span(&pair[1]).0);
        if !is_run && copying == Copying::Forbidden {
            return GroupBatch::NeedsCopy;
        }
        let body = if is_run {
            self.bodies.add_reference(encoded.body);
            encoded.body
        } else {
            let bytes = self.bodies.bytes_of(encoded.body);
            let mut copy = Vec::with_capacity(matches.iter().map(|at| span(at).1 - span(at).0).sum());
            matches.iter().for_each(|at| copy.extend_from_slice(&bytes[span(at).0..span(at).1]));
            self.bodies.insert(copy)
        };
        let (mut at, mut ordinal, mut last) = (0, 0, None);
        let spans = matches.iter().map(|matched| {
            let (start, end) = span(matched);
            let start = if is_run { start } else { at };
            let end = start + (end - encoded.spans[matched.1 as usize].0);
            at = end;
            let main = events[matched.1 as usize].revision().main;
            ordinal += usize::from(last.is_some_and(|last| last != main));
            last = Some(main);
            EventSpan { start, end, main, ordinal }
        });
        GroupBatch::Events(GroupEvents { body, events: spans.collect(), copied: if is_run { 0 } else { at } })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Previous {
    Without,
    With,
}

/// Returns the end of the encoded events, in whole revisions, if `encoded` are encoded and `rest`
/// are not.
fn end_before(events: &[Change<'_>], encoded: &[usize], rest: &[usize]) -> BatchEnd {
    let main = |number: &usize| events[*number].revision().main;
    let next = rest.first().map_or(i64::MAX, main);
    let whole = encoded.partition_point(|number| main(number) < next);
    match whole.checked_sub(1) {
        Some(last) => BatchEnd::After(main(&encoded[last])),
        None => BatchEnd::Large(next),
    }
}

fn pair_bytes(pair: &KeyValue) -> usize {
    EVENT_BYTES + pair.key.len() + pair.value.len()
}

fn event_bytes_of(events: &[Change<'_>], numbers: &[usize]) -> usize {
    numbers.iter().map(|number| event_bytes(&events[*number])).sum()
}

fn event_bytes(change: &Change<'_>) -> usize {
    let value = match change {
        Change::Put { kv, .. } => kv.value.len(),
        Change::Delete { .. } => 0,
    };
    EVENT_BYTES + change.key().len() + value
}
