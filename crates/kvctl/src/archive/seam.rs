//! Verifies that the source has the history of the archive.
//!
//! ```text
//!   archive   … 99 100 101                 digests of its latest revisions
//!   source    … 99 100 101 102 …           the watch starts before the end of the archive
//! ```
//!
//! * A restored source retains its cluster ID, and may have more revisions than the archive. Each connection
//!   therefore reads the latest archived revisions again. Archiving resumes after all of them have arrived
//!   and are equal.
//! * If the source reports its lineage, that is compared first.
//! * Bases are compared as well: the ones beyond the segments, and each new one.
//! * If the source has compacted those revisions, the latest pairs of the keys are compared. If that is
//!   impossible too, the archive is not continued: a new base starts after a gap.
//! * Each segment contains digests of the revisions before it, which are verified by a restore.

use std::collections::BTreeMap;

use api::mvccpb::event::EventType;
use api::mvccpb::{Event, KeyValue};
use bytes::Bytes;
use tonic::Status;

use super::base::{self, BaseError};
use super::inventory::{Base, Inventory, Segment};
use super::place::{ArchivePlace, PlaceError};
use super::segment::{self, Record, SegmentError};
use crate::live_import::{Digests, EVENT_BYTES, KnownDigests, SEAM_REVISIONS, Session, WholeRevision};
use state_machine::Lineage;

/// Maximum digests of previous revisions in a segment: 512 bytes.
const BEFORE_MAX: usize = 64;
/// Maximum number of keys whose latest pairs are compared.
const PAIRS_MAX: usize = 64;
/// Maximum revisions of a segment that are compared. Segments of an archiver have fewer.
pub const COMPARED_MAX: usize = 1 << 20;
/// Memory limit of a segment's latest pairs. Pairs beyond it are not compared.
const NEWEST_BYTES_MAX: usize = 64 << 20;

/// The end of the archive is unreadable, or differs from the source.
#[derive(Debug, thiserror::Error)]
pub enum SeamError {
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("{name}")]
    Segment { name: String, source: SegmentError },
    #[error("{name}")]
    Base { name: String, source: Box<BaseError> },
    #[error(
        "at revision {0} the cluster has another history than the archive: it went back to an earlier state. \
         Archive it to another place"
    )]
    OtherHistory(i64),
    #[error(
        "the cluster has another history than the archive: {found} (the newest first, each with its last \
         revision), and not {wanted} up to revision {revision}. It was restored or forced without the end of \
         the archive. Archive it to another place"
    )]
    OtherLineage { found: Lineage, wanted: Lineage, revision: i64 },
}

/// Digests of archived revisions, and those still expected from the source.
#[derive(Debug, Default)]
pub struct Seam {
    seen: Digests,
    awaited: Digests,
    /// Lineage at the end of the archive.
    pub lineage: Lineage,
}

impl Seam {
    /// Loads the digests of the archive's end at revision `last`, and of bases after it. `last` is 0 if a
    /// base is needed first.
    pub fn load(place: &ArchivePlace, inventory: &Inventory, last: i64) -> Result<Seam, SeamError> {
        let mut seam = Seam::default();
        if last == 0 {
            return Ok(seam);
        }
        if let Some(segment) = ending_at(inventory, last) {
            each(place, segment, |record| {
                add_record(&mut seam.seen, segment, &record);
                add_lineage(&mut seam.lineage, &record);
            })?;
        }
        for base in inventory.bases.iter().filter(|base| base.revision >= last) {
            if base.revision > last || seam.seen.last().is_none() {
                let (known, lineage) = base::digests(place, base).map_err(of_base(base))?;
                seam.expect(&known, last)?;
                if !seam.lineage.is_known() {
                    seam.lineage = lineage;
                }
            }
        }
        seam.seen.keep_newest(SEAM_REVISIONS);
        Ok(seam)
    }

    /// Compares the source's lineage with that of the archive, which ends at `revision`.
    pub fn check(&self, found: &Lineage, revision: i64) -> Result<(), SeamError> {
        match found.continues(&self.lineage, revision) {
            true => Ok(()),
            false => {
                let (found, wanted) = (found.clone(), self.lineage.clone());
                Err(SeamError::OtherLineage { found, wanted, revision })
            }
        }
    }

    /// Compares the digests of a base with known ones, and expects the rest from the source.
    pub fn expect(&mut self, base: &Digests, last: i64) -> Result<(), SeamError> {
        let is_unknown = self.seen.last().is_none();
        for (revision, known) in base.iter() {
            match self.seen.get(revision) {
                Some(digest) if digest != known.digest => return Err(SeamError::OtherHistory(revision)),
                None if revision > last => self.awaited.insert(revision, known),
                None if is_unknown => self.seen.insert(revision, known),
                Some(_) | None => {}
            }
        }
        Ok(())
    }

    /// Reports whether a non-empty archive has no digests to compare. An empty history is a prefix of any
    /// other.
    pub fn is_blank(&self, last: i64) -> bool {
        self.seen.last().is_none() && last > 1
    }

    /// Returns the revision to start a new watch at. The first revision of a watch may be incomplete, so it
    /// precedes those that are compared.
    pub fn begin(&mut self, last: i64) -> i64 {
        self.awaited.forget_up_to(last);
        let Some(first) = self.seen.first_compared() else { return last + 1 };
        let compared = self.seen.iter().filter(|(revision, _)| *revision >= first);
        compared.for_each(|(revision, known)| self.awaited.insert(revision, known));
        (first - 1).max(1)
    }

    /// Drops digests of revisions that the source has compacted.
    pub fn forget_up_to(&mut self, compacted: i64) {
        self.seen.forget_up_to(compacted);
    }

    /// Compares a revision from the source. `last` is the last archived one.
    pub fn take(&mut self, whole: &WholeRevision, last: i64) -> Result<(), SeamError> {
        self.awaited.confirm(whole).map_err(SeamError::OtherHistory)?;
        if whole.revision == last + 1 {
            self.seen.add_revision(whole);
            self.seen.keep_newest(SEAM_REVISIONS);
        }
        Ok(())
    }

    /// Reports whether all archived revisions were received and compared.
    pub fn is_confirmed(&self, last: i64) -> bool {
        self.awaited.first().is_none_or(|(first, _)| first > last)
    }

    /// Returns the digests for the first record of a segment after `last`.
    pub fn before(&self, last: i64) -> Vec<u64> {
        let from = last - i64::try_from(BEFORE_MAX).expect("a small number") + 1;
        let mut before: Vec<u64> = (from..=last).rev().map_while(|at| self.seen.get(at)).collect();
        before.reverse();
        before
    }
}

fn of_base(base: &Base) -> impl FnOnce(BaseError) -> SeamError {
    let name = base.name();
    move |error| match error {
        BaseError::Place(error) => error.into(),
        BaseError::Copy(_) | BaseError::File(_) => SeamError::Base { name, source: Box::new(error) },
    }
}

fn ending_at(inventory: &Inventory, last: i64) -> Option<&Segment> {
    inventory.segments.iter().rfind(|segment| segment.last == last)
}

/// Adds the digests that a record contains, including those of previous revisions.
pub fn add_record(digests: &mut Digests, segment: &Segment, record: &Record) {
    for (revision, digest) in (1..segment.first).rev().zip(record.before.iter().rev()).take(BEFORE_MAX) {
        digests.insert(revision, KnownDigests::digest(*digest));
    }
    if record.revision > 0 {
        let whole = WholeRevision { revision: record.revision, events: record.events.clone() };
        digests.add_revision(&whole);
    }
    digests.keep_newest(COMPARED_MAX);
}

/// Sets the lineage from a segment's first record.
pub fn add_lineage(lineage: &mut Lineage, record: &Record) {
    let found: Lineage = record.lineage.parse().expect("segments are read with no other text");
    if found.is_known() {
        *lineage = found;
    }
}

fn each(place: &ArchivePlace, segment: &Segment, mut take: impl FnMut(Record)) -> Result<(), SeamError> {
    let name = segment.name();
    let bytes = place.get(&name)?.unwrap_or_default();
    let read = segment::read(&bytes, |record| {
        take(record);
        Ok::<bool, SegmentError>(true)
    });
    read.map_err(|source| SeamError::Segment { name, source })
}

/// Result of comparing pairs.
pub enum Pairs {
    Equal,
    /// No pairs to compare, or the source has compacted them.
    Unknown,
}

/// Compares pairs at the last archived revision with the source: pairs of the segment or base at that
/// revision.
pub async fn compare_pairs(
    place: &ArchivePlace,
    inventory: &Inventory,
    last: i64,
    session: &Session,
) -> Result<Result<Pairs, SeamError>, Status> {
    let newest = match tokio::task::block_in_place(|| newest_pairs(place, inventory, last)) {
        Ok(newest) if newest.by_key.is_empty() => return Ok(Ok(Pairs::Unknown)),
        Ok(newest) => newest,
        Err(error) => return Ok(Err(error)),
    };
    for (key, pair) in newest.by_key.into_iter().take(PAIRS_MAX) {
        match session.pair(key, last).await {
            Ok(found) if found == pair.kv => {}
            Ok(_) => return Ok(Err(SeamError::OtherHistory(pair.revision))),
            Err(None) => return Ok(Ok(Pairs::Unknown)),
            Err(Some(status)) => return Err(status),
        }
    }
    Ok(Ok(Pairs::Equal))
}

fn newest_pairs(place: &ArchivePlace, inventory: &Inventory, last: i64) -> Result<Newest, SeamError> {
    let mut newest = Newest::default();
    if let Some(segment) = ending_at(inventory, last) {
        each(place, segment, |record| newest.add(record.events))?;
    } else if let Some(base) = inventory.bases.iter().rfind(|base| base.revision == last) {
        let pairs = base::pairs(place, base, PAIRS_MAX).map_err(of_base(base))?;
        let pair = |kv: KeyValue| (kv.key.clone(), NewestPair { revision: kv.mod_revision, kv: Some(kv) });
        newest.by_key.extend(pairs.into_iter().map(pair));
    }
    Ok(newest)
}

/// Latest pair of each key, None if deleted, and the revision of its change.
#[derive(Debug, Default)]
pub struct Newest {
    pub by_key: BTreeMap<Bytes, NewestPair>,
    bytes: usize,
}

#[derive(Debug)]
pub struct NewestPair {
    pub revision: i64,
    pub kv: Option<KeyValue>,
}

impl Newest {
    /// Adds the events of the next revision. Keys beyond the memory limit are skipped. Pairs are copied,
    /// because a slice would retain its whole block.
    pub fn add(&mut self, events: Vec<Event>) {
        for event in events {
            let is_put = event.r#type() == EventType::Put;
            let Some(kv) = event.kv else { continue };
            if let Some((key, older)) = self.by_key.remove_entry(&kv.key) {
                self.bytes -= bytes_of(&key, &older);
            }
            let (key, revision) = (Bytes::copy_from_slice(&kv.key), kv.mod_revision);
            let pair = NewestPair { revision, kv: is_put.then_some(kv) };
            let bytes = bytes_of(&key, &pair);
            if self.bytes + bytes > NEWEST_BYTES_MAX {
                continue;
            }
            let copied =
                |kv: KeyValue| KeyValue { key: key.clone(), value: Bytes::copy_from_slice(&kv.value), ..kv };
            let pair = NewestPair { kv: pair.kv.map(copied), ..pair };
            self.bytes += bytes;
            self.by_key.insert(key, pair);
        }
    }
}

fn bytes_of(key: &Bytes, pair: &NewestPair) -> usize {
    EVENT_BYTES + key.len() + pair.kv.as_ref().map_or(0, |kv| kv.value.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_compared_in_bounded_memory() {
        let segment = Segment { first: 1_000_000, last: 1_000_000, time_ms: 1 };
        let mut digests = Digests::default();
        add_record(&mut digests, &segment, &Record { before: vec![7; 100_000], ..Record::default() });
        assert_eq!((digests.first().map(|(first, _)| first), digests.last()), (Some(999_936), Some(999_999)));

        let put = |key: u32, revision, bytes| {
            let (key, value) = (Bytes::copy_from_slice(&key.to_be_bytes()), Bytes::from(vec![7; bytes]));
            let kv = KeyValue { key, value, mod_revision: revision, ..KeyValue::default() };
            vec![Event { kv: Some(kv), ..Event::default() }]
        };
        let mut newest = Newest::default();
        (0..100).for_each(|key| newest.add(put(key, 2, 1 << 20)));
        assert_eq!(newest.by_key.len(), 63);
        // A pair that became too large must not be compared in its previous version.
        newest.add(put(5, 3, 3 << 20));
        assert_eq!(newest.by_key.len(), 62);
        newest.add(put(6, 4, 10));
        newest.add(put(200, 5, 1 << 20));
        assert_eq!(newest.by_key.len(), 63);
        assert_eq!(newest.by_key[&6u32.to_be_bytes()[..]].revision, 4);
        newest.by_key.keys().cloned().collect::<Vec<_>>().into_iter().for_each(|key| {
            newest.add(put(u32::from_be_bytes(key[..].try_into().unwrap()), 6, 0));
        });
        assert_eq!(newest.bytes, 63 * (EVENT_BYTES + 4));
    }

    #[test]
    fn few_revisions_are_read_again_where_they_are_large() {
        let known = |bytes: Option<usize>| match bytes {
            Some(bytes) => KnownDigests { bytes, ..KnownDigests::digest(1) },
            None => KnownDigests::digest(1), // like digests of previous revisions in a segment
        };
        for (bytes, first) in [
            (Some(10), 1977),
            (Some(1 << 20), 2985),
            (Some(1_500_000), 2989),
            (Some(20 << 20), 3000),
            (None, 2985),
        ] {
            let mut seam = Seam::default();
            (1..=3000).for_each(|revision| seam.seen.insert(revision, known(bytes)));
            seam.seen.keep_newest(SEAM_REVISIONS);
            assert_eq!(seam.begin(3000), first - 1, "{bytes:?}");
            assert_eq!(seam.awaited.first().map(|(awaited, _)| awaited), Some(first));
            assert_eq!(seam.before(3000).len(), BEFORE_MAX, "more are known than are read again");
        }
    }
}
