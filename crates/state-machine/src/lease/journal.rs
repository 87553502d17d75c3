//! Leases in the store: a segmented journal of their changes.
//!
//! ```text
//!   oldest segment │ … │ open segment ◀── append: id, TTL, deadline or grant     (no TTL: removed)
//!         └──clean: entries that are still current are appended again
//! ```
//!
//! * A segment is an item of the store. The last entry of an id is the current one.
//! * Segments are cleaned oldest first, so a removal entry is dropped only when no older entry of
//!   its id exists.
//! * After cleaning, the journal has at most twice as many entries as there are leases, plus
//!   [`ENTRIES_SPARE`].
//!
//! A change costs about 20 bytes in a segment, and one item per command or per 200 changes. An item
//! for each lease would cost 400 bytes of memory, and a million of them would be rewritten between
//! two checkpoints when a million clients renew their leases.

use std::collections::{BTreeMap, VecDeque};

use base::LogIndex;
use bytes::Bytes;
use mvcc::{Store, Writer};
use prost::encoding::{decode_varint, encode_varint};

use super::table::{Lease, LeaseTable};
use crate::failure::ApplyError;

/// Item prefix of segments, followed by the segment number as eight bytes, big endian.
const PREFIX: &[u8] = b"lease/";
/// Item of the clock: eight bytes, big endian.
const CLOCK: &[u8] = b"lease-clock";

/// Tag of a grant. A TTL is followed by the deadline plus one, by 0 for none, or by this tag and
/// the index of the grant. A deadline is never 0.
const GRANTED: u64 = 1;

/// Size at which a segment is closed. Each command copies the open segment once, and sled stores a
/// value of up to 4096 bytes in one part.
const SEGMENT_BYTES: usize = 4000;
/// Number of superseded entries that are always permitted: more than a segment holds.
const ENTRIES_SPARE: usize = 1024;
/// Number of segments to clean per closed segment, so that cleaning keeps up.
const CLEANED_PER_CLOSED: usize = 3;

/// The journal, without the contents of its closed segments.
#[derive(Debug, Default)]
pub(super) struct LeaseJournal {
    /// Number and entry count of each closed segment, oldest first.
    closed: VecDeque<(u64, usize)>,
    /// Number, contents and entry count of the open segment.
    open: (u64, Vec<u8>, usize),
    entries: usize,
    /// True if the open segment has changes that are not in the store.
    is_dirty: bool,
    /// Number of segments that the running command has still to clean; 0 between commands.
    to_clean: usize,
}

impl LeaseJournal {
    pub fn load(store: &Store) -> Result<(Self, BTreeMap<i64, Lease>, i64), ApplyError> {
        let (journal, leases) = Self::read(store.items(PREFIX))?;
        let clock = match store.item(CLOCK) {
            None => 0,
            Some(value) => i64::from_be_bytes(
                value
                    .as_ref()
                    .try_into()
                    .map_err(|_| ApplyError::Item { item: CLOCK.to_vec(), reason: "not a lease clock" })?,
            ),
        };
        Ok((journal, leases, clock))
    }

    fn read(
        segments: impl IntoIterator<Item = (Bytes, Bytes)>,
    ) -> Result<(Self, BTreeMap<i64, Lease>), ApplyError> {
        let mut journal = LeaseJournal::default();
        let mut newest = Vec::new();
        for (item, value) in segments {
            let broken = |reason| ApplyError::Item { item: item.to_vec(), reason };
            let number = item[PREFIX.len()..].try_into().map_err(|_| broken("not the name of a segment"))?;
            let entries = parse(&value).ok_or_else(|| broken("not a segment of leases"))?;
            if journal.entries > 0 {
                journal.closed.push_back((journal.open.0, journal.open.2));
            }
            journal.entries += entries.len();
            journal.open = (u64::from_be_bytes(number), value.to_vec(), entries.len());
            newest.extend(entries);
        }
        // The same state as after `append`: a restart must not change what members write.
        if journal.open.1.len() >= SEGMENT_BYTES {
            journal.close();
        }
        // The sort is stable, so the last entry of each id is the current one.
        newest.sort_by_key(|(id, _)| *id);
        let mut leases = Vec::with_capacity(newest.len());
        for (number, (id, lease)) in newest.iter().enumerate() {
            let is_newest = newest.get(number + 1).is_none_or(|(next, _)| next != id);
            leases.extend(lease.filter(|_| is_newest).map(|lease| (*id, lease)));
        }
        Ok((journal, leases.into_iter().collect()))
    }

    /// Appends an entry. `flush` writes it to the store.
    pub fn append(&mut self, writer: &mut Writer, id: i64, lease: Option<Lease>) {
        let (_, bytes, entries) = &mut self.open;
        put(bytes, id, lease);
        *entries += 1;
        self.entries += 1;
        self.is_dirty = true;
        if self.open.1.len() >= SEGMENT_BYTES {
            self.flush(writer);
            self.close();
            self.to_clean += CLEANED_PER_CLOSED;
        }
    }

    fn close(&mut self) {
        self.closed.push_back((self.open.0, self.open.2));
        self.open = (self.open.0 + 1, Vec::new(), 0);
    }

    pub fn flush(&mut self, writer: &mut Writer) {
        if std::mem::take(&mut self.is_dirty) {
            writer.set_layout_item(&name(self.open.0), Some(&self.open.1));
        }
    }

    /// Cleans the oldest segments while there are too many superseded entries. The work is
    /// proportional to the number of closed segments.
    pub fn clean(&mut self, writer: &mut Writer, table: &LeaseTable) {
        while self.to_clean > 0 {
            self.to_clean -= 1;
            if self.entries <= 2 * table.len() + ENTRIES_SPARE {
                self.to_clean = 0;
                break;
            }
            let (number, count) = self.closed.pop_front().expect("so many entries fill several segments");
            let item = writer.store().item(&name(number)).expect("a closed segment is in the store");
            let entries = parse(&item).expect("a segment was written by this module");
            assert_eq!(entries.len(), count, "a closed segment does not change");
            let to_clean = self.to_clean;
            for (id, lease) in entries {
                // An entry that equals the current state may be the only one of its lease.
                if lease.is_some() && table.get(id) == lease {
                    self.append(writer, id, lease);
                }
            }
            self.flush(writer);
            self.to_clean = to_clean; // What cleaning writes asks for no more cleaning.
            self.entries -= count;
            writer.set_layout_item(&name(number), None);
        }
    }
}

/// Returns the leases in the items of a store, by id. Expects the items in order and skips others.
pub fn list(items: impl IntoIterator<Item = (Bytes, Bytes)>) -> Result<Vec<(i64, Lease)>, ApplyError> {
    let segments = items.into_iter().filter(|(item, _)| item.starts_with(PREFIX));
    Ok(LeaseJournal::read(segments)?.1.into_iter().collect())
}

/// Returns the items of a new store with these leases, a segment at a time and ordered by name. The
/// leases have no deadline until the leader records one.
pub fn items(leases: impl IntoIterator<Item = (i64, i64)>) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let mut leases = leases.into_iter().peekable();
    let mut number = 0;
    std::iter::from_fn(move || {
        leases.peek()?;
        let mut segment = Vec::new();
        while segment.len() < SEGMENT_BYTES
            && let Some((id, ttl)) = leases.next()
        {
            put(&mut segment, id, Some(Lease { ttl, deadline: None, granted: LogIndex::ZERO }));
        }
        number += 1;
        Some((name(number - 1), segment))
    })
}

/// Replaces all leases of a store by these, given by id and TTL. Like after `items`, they have no
/// deadline.
pub fn replace(writer: &mut Writer, leases: impl IntoIterator<Item = (i64, i64)>) {
    let old = writer.store().items(PREFIX);
    for (item, _) in old {
        writer.set_item(&item, None);
    }
    for (item, value) in items(leases) {
        writer.set_item(&item, Some(&value));
    }
}

pub(super) fn store_clock(writer: &mut Writer, clock: i64) {
    writer.set_item(CLOCK, Some(&clock.to_be_bytes()));
}

fn put(segment: &mut Vec<u8>, id: i64, lease: Option<Lease>) {
    segment.extend_from_slice(&id.to_be_bytes());
    encode_varint(lease.map_or(0, |lease| lease.ttl as u64), segment);
    if let Some(lease) = lease {
        match (lease.deadline, lease.granted) {
            (Some(deadline), _) => encode_varint(deadline as u64 + 1, segment),
            (None, LogIndex::ZERO) => encode_varint(0, segment),
            (None, granted) => {
                encode_varint(GRANTED, segment);
                encode_varint(granted.0, segment);
            }
        }
    }
}

fn name(number: u64) -> Vec<u8> {
    [PREFIX, &number.to_be_bytes()].concat()
}

fn parse(segment: &Bytes) -> Option<Vec<(i64, Option<Lease>)>> {
    let (mut rest, mut entries) = (segment.as_ref(), Vec::new());
    while !rest.is_empty() {
        let (id, after) = rest.split_first_chunk::<8>()?;
        rest = after;
        let ttl = i64::try_from(decode_varint(&mut rest).ok()?).ok()?;
        let lease = match ttl {
            0 => None,
            ttl => {
                let (mut deadline, mut granted) = (None, LogIndex::ZERO);
                match decode_varint(&mut rest).ok()? {
                    0 => {}
                    GRANTED => granted = LogIndex(decode_varint(&mut rest).ok()?),
                    after => deadline = Some(i64::try_from(after - 1).ok()?),
                }
                Some(Lease { ttl, deadline, granted })
            }
        };
        entries.push((i64::from_be_bytes(*id), lease));
    }
    Some(entries)
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
