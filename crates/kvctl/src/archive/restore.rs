//! Creates a data directory from one revision of an archive.
//!
//! * Base and segments must share one history: overlapping or adjoining parts are compared by their common
//!   revisions, or by digests of them.
//! * Leases: every lease with keys at that revision, with its full TTL. A TTL that arrived too late for its
//!   segment is in a later one, or in the following base. The default is [`TTL_UNKNOWN`].
//! * Users, roles and the compact revision come from the base. The base precedes the given revision or
//!   time; without either, it is the latest. [`Inventory::plan`] lists the exceptions.
//! * The identity is written last, so that the directory of an interrupted restore does not start. A failed
//!   restore removes its files.

use std::collections::HashMap;

use super::documents::{self, DocumentError};
use super::inventory::{Base, IDENTITY, Inventory, Plan, Segment, shown};
use super::place::{ArchivePlace, PlaceError};
use super::seam::{self, Newest};
use super::segment::{self, Record, SegmentError};
use crate::import::{CheckedFile, HashCheck, ImportError, NewDirectory, check_empty};
use crate::live_import::{Digests, ImportTarget, TargetError, WholeRevision, say};
use config::Settings;
use data_dir::bootstrap::{self, BootstrapError};
use process::log::causes;
use snapshot_file::Revisions;
use state_machine::Lineage;

/// TTL in seconds of a lease that expired before its TTL could be requested.
const TTL_UNKNOWN: i64 = 60;

/// Reason a restore failed.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("not an archive: {IDENTITY} is missing")]
    NoArchive,
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("revision {revision} is not in the archive, which has {ranges}")]
    NoRevision { revision: i64, ranges: String },
    #[error("the archive is empty")]
    Empty,
    #[error("the archive has no data at or before {0}")]
    Before(String),
    #[error("latest archived time is {0}")]
    After(String),
    #[error("{name}")]
    Segment { name: String, source: SegmentError },
    #[error("{name} was removed after the archive was listed")]
    Gone { name: String },
    #[error("{name} is at revision {found}")]
    OtherBase { name: String, found: i64 },
    #[error("{name}")]
    Apply { name: String, source: TargetError },
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
}

/// Target of a restore.
#[derive(Clone, Copy, Debug)]
pub enum RestoreTarget {
    Newest,
    /// With the users of before it.
    Revision(i64),
    /// Latest revision received by then, in milliseconds since 1970.
    Time(i64),
    /// A revision that was found for that time.
    RevisionAndTime(i64, i64),
}

/// Result of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreResult {
    pub revision: i64,
    pub base: i64,
    pub leases: usize,
    /// Number of these leases without a TTL in the archive.
    pub without_ttl: usize,
}

/// Makes the data directory of `settings` from the archive.
pub fn restore(
    place: &ArchivePlace,
    wanted: RestoreTarget,
    settings: &Settings,
) -> Result<RestoreResult, RestoreError> {
    documents::identity(place)?.ok_or(RestoreError::NoArchive)?;
    let inventory = place.inventory()?;
    let (revision, time_ms) = match wanted {
        RestoreTarget::Newest => (inventory.newest().ok_or(RestoreError::Empty)?, i64::MAX),
        RestoreTarget::Revision(revision) => (revision, i64::MIN),
        RestoreTarget::Time(time_ms) => (revision_at(place, &inventory, time_ms)?, time_ms),
        RestoreTarget::RevisionAndTime(revision, time_ms) => (revision, time_ms),
    };
    let plan = inventory.plan(revision, time_ms).ok_or_else(|| {
        let range = |(first, last): &(i64, i64)| format!("{first} to {last}");
        let ranges = inventory.ranges().iter().map(range).collect::<Vec<_>>().join(", ");
        match ranges.is_empty() {
            true => RestoreError::Empty,
            false => RestoreError::NoRevision { revision, ranges },
        }
    })?;
    let identity = bootstrap::first_identity(settings)?;
    check_empty(settings)?;
    let base_name = plan.base.name();
    let base = place.file(&base_name, &settings.data_dir)?;
    let file = CheckedFile::open(&base.path, HashCheck::Required)?;
    drop(base); // It is read through the open file.
    let directory = NewDirectory::make(settings)?;
    let imported = file.into_store(&directory.store_dir(), Revisions::default(), &identity)?;
    if imported.revision != plan.base.revision {
        return Err(RestoreError::OtherBase { name: base_name, found: imported.revision });
    }
    let mut target = ImportTarget::open(&directory.store_dir())?;
    compare(place, &inventory, &plan.base, &target)?;
    let mut ttls = apply(place, &plan, revision, &mut target)?;
    let attached = target.attached_leases();
    let is_known = attached.iter().all(|id| ttls.contains_key(id));
    if !is_known && let Err(error) = find_late_ttls(place, &inventory, &plan, &attached, settings, &mut ttls)
    {
        say(&format!("skipped the search for late TTLs: {}", causes(&error)));
    }
    let leases: Vec<(i64, i64)> =
        attached.into_iter().map(|id| (id, ttls.get(&id).copied().unwrap_or(TTL_UNKNOWN))).collect();
    let without_ttl = leases.iter().filter(|(id, _)| !ttls.contains_key(id)).count();
    if let Err(lease) = target.set_leases(&leases)? {
        unreachable!("lease {lease} has keys, and was among those that have");
    }
    target.persist()?;
    drop(target);
    directory.finish(&identity)?;
    Ok(RestoreResult { revision, base: plan.base.revision, leases: leases.len(), without_ttl })
}

/// Compares the base with the segments that have its revision.
fn compare(
    place: &ArchivePlace,
    inventory: &Inventory,
    base: &Base,
    target: &ImportTarget,
) -> Result<(), RestoreError> {
    for segment in inventory.segments_of(base) {
        let (mut known, mut newest) = (Digests::default(), Newest::default());
        let mut lineage = Lineage::default();
        let read = each(place, segment, |record| {
            seam::add_lineage(&mut lineage, &record);
            if record.revision <= base.revision {
                seam::add_record(&mut known, segment, &record);
                newest.add(record.events);
            }
            Ok(true)
        });
        match read {
            // The restore may not need it.
            Err(error @ (RestoreError::Gone { .. } | RestoreError::Segment { .. })) => {
                say(&format!("not compared with the base: {}", causes(&error)));
                continue;
            }
            read => read?,
        }
        let differs = |source| RestoreError::Apply { name: segment.name(), source };
        let (ours, at) = (target.lineage()?, base.revision);
        if !lineage.continues(&ours, at) && !ours.continues(&lineage, at) {
            return Err(differs(TargetError::OtherHistory(at)));
        }
        target.compare(&known).map_err(differs)?;
        for (key, pair) in &newest.by_key {
            target.compare_pair(pair.revision, key, pair.kv.as_ref()).map_err(differs)?;
        }
    }
    Ok(())
}

/// Brings the store from the base to the revision. Returns the TTLs of all leases that are known.
fn apply(
    place: &ArchivePlace,
    plan: &Plan,
    revision: i64,
    target: &mut ImportTarget,
) -> Result<HashMap<i64, i64>, RestoreError> {
    let mut ttls: HashMap<i64, i64> = target.leases()?.into_iter().collect();
    let mut lineage = target.lineage()?;
    for segment in &plan.segments {
        let name = segment.name();
        let (begun_at, mut known) = (target.revision(), Digests::default());
        each(place, segment, |record| {
            let before = lineage.clone();
            seam::add_lineage(&mut lineage, &record);
            if !lineage.continues(&before, begun_at) {
                let source = TargetError::OtherHistory(begun_at);
                return Err(RestoreError::Apply { name: name.clone(), source });
            }
            ttls.extend(record.leases.iter().map(|lease| (lease.id, lease.ttl)));
            if record.revision <= begun_at {
                seam::add_record(&mut known, segment, &record);
            }
            // Leases follow the revisions, including unwanted ones.
            if record.revision > 0 && record.revision <= revision {
                let whole = WholeRevision { revision: record.revision, events: record.events };
                let applied = target.apply(&whole);
                applied.map_err(|source| RestoreError::Apply { name: name.clone(), source })?;
            }
            Ok(true)
        })?;
        let compared = target.compare(&known);
        compared.map_err(|source| RestoreError::Apply { name, source })?;
    }
    // Members that are restored to the same revision must be equal: the leader chooses the new id.
    target.set_lineage(&lineage.ended_at(revision))?;
    match target.revision() == revision {
        true => Ok(ttls),
        false => Err(TargetError::Gap { last: target.revision(), found: revision }.into()),
    }
}

/// Adds TTLs of these leases that no object of the plan has, from the segments after it, up to and
/// including the following base.
fn find_late_ttls(
    place: &ArchivePlace,
    inventory: &Inventory,
    plan: &Plan,
    leases: &[i64],
    settings: &Settings,
    ttls: &mut HashMap<i64, i64>,
) -> Result<(), RestoreError> {
    let Some(end) = plan.segments.last().map(|segment| segment.last) else { return Ok(()) };
    let base = inventory.bases.iter().find(|base| base.revision >= end && **base != plan.base);
    let is_before = |segment: &&Segment| base.is_none_or(|base| segment.first <= base.revision);
    let later = inventory.segments.iter().filter(|segment| segment.last > end);
    let mut read = Ok(());
    for segment in later.take_while(is_before) {
        read = read.and(each(place, segment, |record| {
            for lease in record.leases {
                ttls.entry(lease.id).or_insert(lease.ttl);
            }
            Ok(true)
        }));
        if leases.iter().all(|id| ttls.contains_key(id)) {
            return Ok(());
        }
    }
    // The base has the data of a corrupt segment.
    let Some(base) = base else { return read };
    let file = place.file(&base.name(), &settings.data_dir)?;
    for (id, ttl) in CheckedFile::open(&file.path, HashCheck::Required)?.leases()? {
        ttls.entry(id).or_insert(ttl);
    }
    Ok(())
}

fn each(
    place: &ArchivePlace,
    segment: &Segment,
    mut take: impl FnMut(Record) -> Result<bool, RestoreError>,
) -> Result<(), RestoreError> {
    /// Errors of reading and of applying.
    enum RestoreEnd {
        Read(SegmentError),
        Taken(RestoreError),
    }
    impl From<SegmentError> for RestoreEnd {
        fn from(error: SegmentError) -> RestoreEnd {
            RestoreEnd::Read(error)
        }
    }
    let name = segment.name();
    let Some(bytes) = place.get(&name)? else { return Err(RestoreError::Gone { name }) };
    segment::read(&bytes, |record| take(record).map_err(RestoreEnd::Taken)).map_err(|ended| match ended {
        RestoreEnd::Read(source) => RestoreError::Segment { name, source },
        RestoreEnd::Taken(error) => error,
    })
}

/// Returns the latest revision received by then. A base counts if no segment has its revision.
fn revision_at(place: &ArchivePlace, inventory: &Inventory, time_ms: i64) -> Result<i64, RestoreError> {
    let up_to = documents::reached(place)?.ok_or(RestoreError::Empty)?.time_ms;
    if time_ms > up_to {
        return Err(RestoreError::After(shown(up_to)));
    }
    let base = inventory.base_at(time_ms);
    let before = inventory.segments.iter().filter(|segment| segment.time_ms <= time_ms);
    let mut found = before.map(|segment| segment.last).max().max(base);
    // Segments that end later may contain earlier revisions: the following segment does, and a second
    // archiver may have received in time what this one received late.
    let is_later = |segment: &&Segment| segment.time_ms > time_ms && Some(segment.last) > found;
    let later: Vec<&Segment> = inventory.segments.iter().filter(is_later).collect();
    let mut reached = found.max(later.first().map(|segment| segment.first - 1)).unwrap_or(0);
    for segment in later {
        // They are sorted.
        if segment.first > reached + 1 {
            break;
        }
        each(place, segment, |record| {
            if record.revision > 0 && record.time_ms <= time_ms {
                reached = reached.max(record.revision);
                found = found.max(Some(record.revision));
            }
            Ok(record.time_ms <= time_ms)
        })?;
    }
    found.ok_or_else(|| RestoreError::Before(shown(time_ms)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::runtime::Handle;

    use super::super::documents::ReachedRevision;
    use super::super::inventory::HEAD;
    use super::super::segment::SegmentWriter;
    use super::*;

    /// An archive with these segments: `5:3,9` has revision 5, received at 3, and revision 6, received at 9.
    fn archive(directory: &Path, segments: &str) -> ArchivePlace {
        let place = ArchivePlace::take(directory.to_str().unwrap(), &Handle::current()).unwrap();
        for segment in segments.split(' ') {
            let (first, times) = segment.split_once(':').unwrap();
            let mut writer = SegmentWriter::new();
            for (revision, time) in (first.parse().unwrap()..).zip(times.split(',')) {
                let time_ms = time.parse().unwrap();
                writer.push(&Record { revision, time_ms, ..Record::default() });
            }
            let (first, last, time_ms) = writer.span().unwrap();
            place.put(&Segment { first, last, time_ms }.name(), &writer.finish()).unwrap();
        }
        let head = ReachedRevision { revision: 1, time_ms: 100, auth_revision: 1 };
        place.put(HEAD, &serde_json::to_vec(&head).unwrap()).unwrap();
        place
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_time_gives_the_newest_revision_that_any_archiver_had_by_then() {
        for (segments, time, wanted) in [
            ("2:1,2 4:3,9 6:10", 2, Some(3)),
            ("2:1,2 4:3,9 6:10", 3, Some(4)),
            ("2:1,2 4:3,9 6:10", 9, Some(5)),
            ("2:1,2 4:3,9 6:10", 0, None),
            // The second archiver was suspended from 2 to 10.
            ("2:1,2,3 5:4,5,6,12 2:1,2 4:10,10,10,10", 6, Some(7)),
            ("2:1,2,3 5:4,5,6,12 2:1,2 4:10,10,10,10 8:10,13", 11, Some(8)),
            ("2:1,2,3,9 2:7,7,7,7,7", 3, Some(4)),
            // After a gap.
            ("2:1,2 10:5,6,20", 4, Some(3)),
            ("2:1,2 10:5,6,20", 6, Some(11)),
            ("2:1,2 10:19,19 10:5,6,20", 6, Some(11)),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let place = archive(directory.path(), segments);
            let found =
                tokio::task::block_in_place(|| revision_at(&place, &place.inventory().unwrap(), time));
            assert_eq!(found.ok(), wanted, "{time} of {segments}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_archive_without_a_revision_has_nothing_of_any_time() {
        let directory = tempfile::tempdir().unwrap();
        let place = ArchivePlace::take(directory.path().to_str().unwrap(), &Handle::current()).unwrap();
        assert!(matches!(revision_at(&place, &place.inventory().unwrap(), 3), Err(RestoreError::Empty)));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn segments_that_are_too_late_are_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let place = archive(directory.path(), "2:1,2 4:3,9");
        place.put(&Segment { first: 6, last: 9, time_ms: 12 }.name(), b"damaged").unwrap();
        assert!(matches!(revision_at(&place, &place.inventory().unwrap(), 3), Ok(4)));
    }
}
