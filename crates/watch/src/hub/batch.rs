//! Events are matched and encoded.
//!
//! * Each event is encoded at most twice: without and with the previous pair.
//! * The events of a group are one run of bytes. If they are neighbours in the batch, it is a part of the
//!   batch's body. Otherwise they are copied together, so that a small response does not keep a large body.

use mvcc::{Change, KeyValue, Result};

use super::state::Hub;
use crate::wire::put_event;

/// Previous pairs that are loaded at a time.
const PREVIOUS_PER_LOAD: usize = 256;
/// Bytes of a batch from which no further previous pairs are added. Only a revision that deletes a large part
/// of the store reaches it; no gRPC client takes a message of that size.
const PREVIOUS_BYTES_MAX: usize = 1 << 30;
/// Bytes of an event besides key and value, about.
const EVENT_BYTES: usize = 40;

/// An event that matches a group, by number.
pub(super) type Match = (u32, u32);

/// The events of one group, in revision order and one after the other in a body. The holder has one reference
/// to the body.
pub(super) struct GroupEvents {
    pub group: u32,
    pub body: u32,
    pub events: Vec<EventSpan>,
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

impl Hub {
    /// Encodes the events that match, and returns them by group.
    pub(super) fn encode_groups(
        &mut self,
        events: &[Change<'_>],
        matches: &mut [Match],
    ) -> Result<Vec<GroupEvents>> {
        matches.sort_unstable();
        let forms =
            [self.encode(events, matches, Previous::Without)?, self.encode(events, matches, Previous::With)?];
        let mut groups = Vec::new();
        for matches in matches.chunk_by(|left, right| left.0 == right.0) {
            let group = matches[0].0;
            let form = usize::from(self.interest.groups[group].form().has_previous());
            let encoded = forms[form].as_ref().expect("encoded for this group");
            groups.push(self.collect(group, matches, encoded, events));
        }
        for encoded in forms.into_iter().flatten() {
            self.bodies.release(encoded.body);
        }
        Ok(groups)
    }

    /// Encodes the events that groups of one form need; `None` if there are none.
    fn encode(
        &mut self,
        events: &[Change<'_>],
        matches: &[Match],
        previous: Previous,
    ) -> Result<Option<Encoded>> {
        let mut wanted = vec![false; events.len()];
        for (group, event) in matches {
            let has_previous = self.interest.groups[*group].form().has_previous();
            wanted[*event as usize] |= has_previous == (previous == Previous::With);
        }
        let wanted: Vec<usize> = (0..events.len()).filter(|event| wanted[*event]).collect();
        if wanted.is_empty() {
            return Ok(None);
        }
        let mut out = Vec::with_capacity(wanted.iter().map(|event| event_bytes(&events[*event])).sum());
        let mut spans = vec![(0, 0); events.len()];
        for numbers in wanted.chunks(PREVIOUS_PER_LOAD) {
            let before = match previous {
                Previous::Without => Vec::new(),
                Previous::With => self.previous(events, numbers)?,
            };
            for (at, number) in numbers.iter().enumerate() {
                let start = out.len();
                let before = before.get(at).and_then(Option::as_ref);
                put_event(&mut out, &events[*number], before.filter(|_| start < PREVIOUS_BYTES_MAX));
                spans[*number] = (start, out.len());
            }
        }
        Ok(Some(Encoded { body: self.bodies.insert(out), spans }))
    }

    /// The pairs before these events.
    fn previous(&self, events: &[Change<'_>], numbers: &[usize]) -> Result<Vec<Option<KeyValue>>> {
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

    /// The events of one group.
    fn collect(
        &mut self,
        group: u32,
        matches: &[Match],
        encoded: &Encoded,
        events: &[Change<'_>],
    ) -> GroupEvents {
        let span = |matched: &Match| encoded.spans[matched.1 as usize];
        let is_run = matches.windows(2).all(|pair| span(&pair[0]).1 == span(&pair[1]).0);
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
        GroupEvents { group, body, events: spans.collect() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Previous {
    Without,
    With,
}

/// About the bytes of an encoded event.
fn event_bytes(change: &Change<'_>) -> usize {
    let value = match change {
        Change::Put { kv, .. } => kv.value.len(),
        Change::Delete { .. } => 0,
    };
    EVENT_BYTES + change.key().len() + value
}
