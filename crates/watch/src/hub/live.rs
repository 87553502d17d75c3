//! New events for live watchers.
//!
//! Each revision is one response to each watcher that it matches, with the header of that revision, as in
//! etcd. A revision with very many matches is read by the watchers of ranges as history.
//!
//! # A batch
//!
//! Events are matched and encoded.
//!
//! * Each event is encoded at most twice: without and with the previous pair. A revision whose previous pairs
//!   are too large is not encoded with them here, but in parts when it is sent.
//! * The events of a group are one run of bytes. If they are neighbours in the batch, it is a part of the
//!   batch's body. Otherwise they are copied together, so that a small response does not keep a large body.
//! * The events of one group are collected at a time: clients choose the ranges, and thousands of them may
//!   each need a copy of the same large revision.

use mvcc::{Change, Error, KeyValue, Result};

use super::outbox::{BodySpan, Events};
use super::state::{Hub, WatcherState};
use crate::slab::Positions;
use crate::wire::put_event;

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

/// Previous pairs that are loaded at a time, at most. About half of the bound on their bytes is.
const PREVIOUS_PER_LOAD: usize = 256;
/// What a pair is taken for before the size of some is known.
pub(super) const PAIR_BYTES: usize = 1 << 10;
/// Bytes of an event besides key and value, about.
const EVENT_BYTES: usize = 40;

/// An event that matches a group, by number.
pub(super) type Match = (u32, u32);

/// The events of one group, in revision order and one after the other in a body. The holder has one reference
/// to the body.
pub(super) struct GroupEvents {
    pub body: u32,
    pub events: Vec<EventSpan>,
    /// Bytes that were copied for this group.
    pub copied: usize,
}

/// Whether a group's events may be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copying {
    Allowed,
    Forbidden,
}

/// What a group gets of a batch.
pub(super) enum GroupBatch {
    Nothing,
    Events(GroupEvents),
    Large(LargeMatch),
    NeedsCopy,
}

/// The events of one revision that is too large to be encoded with previous pairs, for a group.
pub(super) struct LargeMatch {
    pub main: i64,
    /// Sub revisions of the first and the last event.
    pub subs: (i64, i64),
    pub count: usize,
}

/// Where the encoding ends.
#[derive(Clone, Copy)]
enum BatchEnd {
    All,
    /// After this revision: with the next ones, previous pairs are too large.
    After(i64),
    /// Before this revision, which is the first one: its previous pairs are too large.
    Large(i64),
}

/// One event in a body.
#[derive(Clone, Copy)]
pub(super) struct EventSpan {
    pub start: usize,
    pub end: usize,
    /// Its main revision.
    pub main: i64,
    /// Number of distinct main revisions before it.
    pub ordinal: usize,
}

/// Encoded events in one form.
struct Encoded {
    body: u32,
    /// Start and end of each event; empty for those that are not in this form.
    spans: Vec<(usize, usize)>,
}

/// The events of a batch that match, encoded. To be given to `release`.
pub(super) struct Batch {
    /// By group, then by event.
    matches: Vec<Match>,
    /// Without and with previous pairs; `None` if no group takes that form.
    forms: [Option<Encoded>; 2],
    /// Bytes of both forms.
    pub bytes: usize,
    /// The last revision that is encoded, if previous pairs were so large that some are left out.
    pub cut: Option<i64>,
    /// It is this revision, whose events with previous pairs are too large: they are not encoded.
    large: Option<i64>,
}

impl Batch {
    /// The groups that match.
    pub fn groups(&self) -> Vec<u32> {
        let mut groups: Vec<u32> = self.matches.iter().map(|matched| matched.0).collect();
        groups.dedup();
        groups
    }

    /// The events of a group.
    fn of(&self, group: u32) -> &[Match] {
        let start = self.matches.partition_point(|matched| matched.0 < group);
        let end = self.matches.partition_point(|matched| matched.0 <= group);
        &self.matches[start..end]
    }
}

impl Hub {
    /// Encodes the events that match. With too many bytes of previous pairs, later revisions are left out.
    pub(super) fn encode_batch(&mut self, events: &[Change<'_>], mut matches: Vec<Match>) -> Result<Batch> {
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
        Ok(Batch { matches, forms, bytes, cut, large })
    }

    /// Frees a batch. What outboxes refer to stays.
    pub(super) fn release(&mut self, batch: Batch) {
        for encoded in batch.forms.into_iter().flatten() {
            self.bodies.release(encoded.body);
        }
    }

    /// Encodes the events in one form; `None` if no group takes it.
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
            // Events of a later revision that was begun are left out.
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

    /// The pairs before these events.
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

    /// The events of one group, in a copy if they are no run of bytes.
    pub(super) fn collect(
        &mut self,
        group: u32,
        batch: &Batch,
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

/// The end of what is encoded, in whole revisions, if `encoded` are and `rest` are not.
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

/// About the bytes of an encoded event.
fn event_bytes(change: &Change<'_>) -> usize {
    let value = match change {
        Change::Put { kv, .. } => kv.value.len(),
        Change::Delete { .. } => 0,
    };
    EVENT_BYTES + change.key().len() + value
}
