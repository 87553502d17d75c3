//! Review of an archive: which revisions and times can be restored, and whether each object is intact.
//!
//! * Every object is read. A base is checked as a restore checks it, without making a store of it. A segment
//!   must have each of its revisions.
//! * Objects must share one history: revisions that several objects have are compared, and so are lineages.
//! * An object that an archiver removes during the review is not reported.
//! * Memory usage: one segment, and the digests of at most [`COMPARED_MAX`] revisions.

use super::base::{self, BaseError};
use super::documents::{self, DocumentError};
use super::inventory::{Base, IDENTITY, Inventory, Segment, shown};
use super::place::{ArchivePlace, PlaceError};
use super::seam::{self, COMPARED_MAX};
use super::segment::{self, SegmentError};
use crate::live_import::Digests;
use process::log::causes;
use process::visible::visible;
use state_machine::Lineage;

/// Failure to review an archive.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    #[error("not an archive: {IDENTITY} is missing")]
    NoArchive,
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("{faults} of {objects} objects are corrupt, incomplete or of another history")]
    Faults { faults: usize, objects: usize },
}

/// Fault of an object.
#[derive(Debug, thiserror::Error)]
enum ObjectFault {
    #[error(transparent)]
    Base(#[from] BaseError),
    #[error(transparent)]
    Segment(#[from] SegmentError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("it is missing")]
    Missing,
    #[error("it is at revision {0}")]
    OtherRevision(i64),
    #[error("it has no revision {0}")]
    NoRevision(i64),
    #[error("at revision {0} it has another history than the objects before it")]
    OtherHistory(i64),
}

/// A base or a segment.
enum Object<'a> {
    Base(&'a Base),
    Segment(&'a Segment),
}

impl Object<'_> {
    fn name(&self) -> String {
        match self {
            Object::Base(base) => base.name(),
            Object::Segment(segment) => segment.name(),
        }
    }

    fn first(&self) -> i64 {
        match self {
            Object::Base(base) => base.revision,
            Object::Segment(segment) => segment.first,
        }
    }

    fn last(&self) -> i64 {
        match self {
            Object::Base(base) => base.revision,
            Object::Segment(segment) => segment.last,
        }
    }
}

/// Returns a table of the revisions that can be restored, with their times.
pub fn list(place: &ArchivePlace) -> Result<String, ReviewError> {
    let identity = documents::identity(place)?.ok_or(ReviewError::NoArchive)?;
    let (reached, inventory) = (documents::reached(place)?, place.inventory()?);
    let complete = reached.map_or_else(
        || "nothing is archived yet".to_owned(),
        |reached| format!("complete up to revision {}, {}", reached.revision, shown(reached.time_ms)),
    );
    let mut rows = vec![["FIRST", "LAST", "FROM", "TO", "BASES", "SEGMENTS"].map(str::to_owned)];
    for (first, last) in inventory.ranges() {
        let bases = inventory.bases.iter().filter(|base| (first..=last).contains(&base.revision));
        let segments =
            inventory.segments.iter().filter(|segment| segment.last >= first && segment.last <= last);
        let from = bases.clone().map(|base| base.time_ms).min();
        // Up to this time, the archiver received no later revision.
        let reached = reached.filter(|reached| (first..=last).contains(&reached.revision));
        let times = bases.clone().map(|base| base.time_ms).chain(segments.clone().map(|it| it.time_ms));
        let times = times.chain(reached.map(|reached| reached.time_ms));
        let time = |time_ms: Option<i64>| time_ms.map_or_else(String::new, shown);
        rows.push([
            first.to_string(),
            last.to_string(),
            time(from),
            time(times.max()),
            bases.count().to_string(),
            segments.count().to_string(),
        ]);
    }
    let cluster = visible(&identity.cluster_id).to_string();
    let head = format!("cluster {cluster}, {complete}\n");
    Ok(if rows.len() == 1 { head } else { head + "\n" + &table(&rows) })
}

/// Pads the cells of each column.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Reads all objects, and passes a line about each fault to `report`. Returns a summary.
pub fn verify(place: &ArchivePlace, mut report: impl FnMut(&str)) -> Result<String, ReviewError> {
    documents::identity(place)?.ok_or(ReviewError::NoArchive)?;
    let inventory = place.inventory()?;
    let mut objects: Vec<Object<'_>> = inventory.bases.iter().map(Object::Base).collect();
    objects.extend(inventory.segments.iter().map(Object::Segment));
    objects.sort_by_key(|object| (object.first(), object.last()));
    let (mut history, mut faults) = (History::default(), Vec::new());
    for object in &objects {
        match history.add(place, object) {
            Ok(()) => {}
            // No other object could be read either.
            Err(ObjectFault::Place(error) | ObjectFault::Base(BaseError::Place(error)))
                if !matches!(error, PlaceError::Io { .. } | PlaceError::TooLarge { .. }) =>
            {
                return Err(error.into());
            }
            Err(fault) => faults.push((object.name(), fault)),
        }
    }
    if !faults.is_empty() {
        let left = place.inventory()?;
        let names = left.bases.iter().map(Base::name).chain(left.segments.iter().map(Segment::name));
        let names: Vec<String> = names.collect();
        faults.retain(|(name, _)| names.contains(name));
    }
    for (name, fault) in &faults {
        report(&visible(&format!("{name}: {}", causes(fault))).to_string());
    }
    match faults.len() {
        0 => Ok(summary(&inventory)),
        faults => Err(ReviewError::Faults { faults, objects: objects.len() }),
    }
}

fn summary(inventory: &Inventory) -> String {
    let ranges = inventory.ranges();
    let ranges: Vec<String> = ranges.iter().map(|(first, last)| format!("{first} to {last}")).collect();
    let ranges = match ranges.is_empty() {
        true => "none yet".to_owned(),
        false => ranges.join(", "),
    };
    let objects = inventory.bases.len() + inventory.segments.len();
    let noun = if objects == 1 { "object" } else { "objects" };
    format!("{objects} {noun} verified, all intact; restorable revisions: {ranges}")
}

/// History of the objects that were read, in the order of their revisions.
#[derive(Default)]
struct History {
    known: Digests,
    lineage: Lineage,
    reached: i64,
}

impl History {
    fn add(&mut self, place: &ArchivePlace, object: &Object<'_>) -> Result<(), ObjectFault> {
        let (digests, lineage) = match object {
            Object::Base(base) => {
                let (found, digests, lineage) = base::contents(place, base)?;
                if found != base.revision {
                    return Err(ObjectFault::OtherRevision(found));
                }
                (digests, lineage)
            }
            Object::Segment(segment) => segment_contents(place, segment)?,
        };
        let is_other = |(revision, digest): (i64, u64)| {
            self.known.get(revision).is_some_and(|known| known != digest).then_some(revision)
        };
        if let Some(revision) = digests.iter().map(|(at, known)| (at, known.digest)).find_map(is_other) {
            return Err(ObjectFault::OtherHistory(revision));
        }
        let common = self.reached.min(object.last());
        if !lineage.continues(&self.lineage, common) && !self.lineage.continues(&lineage, common) {
            return Err(ObjectFault::OtherHistory(common));
        }
        digests.iter().for_each(|(revision, known)| self.known.insert(revision, known));
        self.known.keep_newest(COMPARED_MAX);
        if object.last() >= self.reached {
            self.reached = object.last();
            if lineage.is_known() {
                self.lineage = lineage;
            }
        }
        Ok(())
    }
}

/// Returns the digests of a segment's revisions, which must be complete, and its lineage.
fn segment_contents(place: &ArchivePlace, segment: &Segment) -> Result<(Digests, Lineage), ObjectFault> {
    let bytes = place.get(&segment.name())?.ok_or(ObjectFault::Missing)?;
    let (mut digests, mut lineage, mut next) = (Digests::default(), Lineage::default(), segment.first);
    segment::read(&bytes, |record| {
        seam::add_lineage(&mut lineage, &record);
        seam::add_record(&mut digests, segment, &record);
        if record.revision > 0 {
            if record.revision != next {
                return Err(ObjectFault::NoRevision(next));
            }
            next += 1;
        }
        Ok(true)
    })?;
    match next > segment.last {
        true => Ok((digests, lineage)),
        false => Err(ObjectFault::NoRevision(next)),
    }
}

#[cfg(test)]
mod tests {
    use api::mvccpb::{Event, KeyValue};
    use tokio::runtime::Handle;

    use super::super::documents::{FORMAT, Identity, ReachedRevision};
    use super::super::inventory::HEAD;
    use super::super::segment::{Record, SegmentWriter};
    use super::*;

    fn record(revision: i64, value: &str) -> Record {
        let kv = KeyValue {
            key: "k".into(),
            value: value.to_owned().into(),
            mod_revision: revision,
            ..KeyValue::default()
        };
        Record {
            revision,
            time_ms: revision * 1000,
            events: vec![Event { kv: Some(kv), ..Event::default() }],
            ..Record::default()
        }
    }

    fn put(place: &ArchivePlace, first: i64, last: i64, records: &[Record]) {
        let mut writer = SegmentWriter::new();
        records.iter().for_each(|record| writer.push(record));
        place.put(&Segment { first, last, time_ms: last * 1000 }.name(), &writer.finish()).unwrap();
    }

    fn archive(directory: &std::path::Path) -> ArchivePlace {
        let place = ArchivePlace::take(directory.to_str().unwrap(), &Handle::current()).unwrap();
        let identity = Identity { format: FORMAT, cluster_id: "abc".to_owned() };
        place.put(IDENTITY, &serde_json::to_vec(&identity).unwrap()).unwrap();
        place
    }

    fn faults(place: &ArchivePlace) -> (Vec<String>, String) {
        let mut lines = Vec::new();
        let ended = verify(place, |line| lines.push(line.to_owned()));
        (lines, ended.unwrap_or_else(|error| error.to_string()))
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn each_segment_has_its_revisions_and_one_history() {
        let directory = tempfile::tempdir().unwrap();
        let place = archive(directory.path());
        put(&place, 2, 3, &[record(2, "a"), record(3, "b")]);
        put(&place, 3, 4, &[record(3, "b"), record(4, "c")]);
        let whole = "2 objects verified, all intact; restorable revisions: none yet";
        assert_eq!(faults(&place), (Vec::new(), whole.to_owned()));
        put(&place, 5, 7, &[record(5, "d"), record(7, "e")]);
        put(&place, 6, 8, &[record(6, "d"), record(7, "e")]);
        put(&place, 4, 4, &[record(4, "other")]);
        let (lines, ended) = faults(&place);
        let wanted = [
            ("-00000000000000000004-", "at revision 4 it has another history"),
            ("-00000000000000000007-", "it has no revision 6"),
            ("-00000000000000000008-", "it has no revision 8"),
        ];
        assert_eq!(lines.len(), wanted.len(), "{lines:?}");
        for ((name, reason), line) in wanted.into_iter().zip(&lines) {
            assert!(line.contains(name) && line.contains(reason), "{line}");
        }
        assert_eq!(ended, "3 of 5 objects are corrupt, incomplete or of another history");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_list_has_revisions_and_times_of_each_range() {
        let directory = tempfile::tempdir().unwrap();
        let place = archive(directory.path());
        assert_eq!(list(&place).unwrap(), "cluster abc, nothing is archived yet\n");
        let base = |revision, time_ms| Base { revision, time_ms, is_taken: true };
        for base in [base(10, 10_000), base(20, 21_000), base(40, 41_500)] {
            place.put(&base.name(), b"").unwrap();
        }
        for (first, last) in [(11, 20), (21, 30)] {
            place.put(&Segment { first, last, time_ms: last * 1000 }.name(), b"").unwrap();
        }
        let head = ReachedRevision { revision: 40, time_ms: 60_000, auth_revision: 1 };
        place.put(HEAD, &serde_json::to_vec(&head).unwrap()).unwrap();
        let wanted = "\
cluster abc, complete up to revision 40, 1970-01-01T00:01:00.000Z

FIRST  LAST  FROM                      TO                        BASES  SEGMENTS
10     30    1970-01-01T00:00:10.000Z  1970-01-01T00:00:30.000Z  2      2
40     40    1970-01-01T00:00:41.500Z  1970-01-01T00:01:00.000Z  1      0
";
        assert_eq!(list(&place).unwrap(), wanted);
        let nothing = tempfile::tempdir().unwrap();
        let nothing = ArchivePlace::at(nothing.path().to_str().unwrap(), &Handle::current()).unwrap();
        assert!(matches!(list(&nothing), Err(ReviewError::NoArchive)));
        assert!(matches!(verify(&nothing, |_| ()), Err(ReviewError::NoArchive)));
    }
}
