//! The new store.
//!
//! * It is changed by whole revisions. A mismatching revision fails the import before it becomes durable: the
//!   state of the last checkpoint remains.
//! * Its log position does not change: the member's log starts after the import.

use std::collections::HashMap;
use std::path::Path;

use api::mvccpb::KeyValue;
use api::mvccpb::event::EventType;
use mvcc::{
    KeyRange, Maintainer, Pressure, Previous, REVISION_MAX, RevisionWriter, SledBackend, Store, Writer,
};

use super::digests::{Digests, SEAM_BYTES, SEAM_REVISIONS};
use super::revisions::WholeRevision;
use data_dir::bootstrap::IMPORTED_AT;
use state_machine::Lineage;

/// Failure of the store, or a mismatch with the source.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("the store")]
    Store(#[from] mvcc::Error),
    #[error("the state in the store")]
    State(#[from] state_machine::ApplyError),
    #[error("after revision {last} the source sent revision {found}: the revisions between them are lost")]
    Gap { last: i64, found: i64 },
    #[error("revision {revision}, key {key}: {what}. The copy and the source have different histories")]
    Differs { revision: i64, key: String, what: String },
    #[error("at revision {0} there is another history: the source went back to an earlier state")]
    OtherHistory(i64),
}

/// Size of the batches of changes to compare.
const CHANGES_BYTES: usize = 1 << 20;

pub struct ImportTarget {
    writer: Writer,
    store: Store,
    maintainer: Maintainer,
}

impl ImportTarget {
    /// Opens the store in `dir`, which was created by an import.
    pub fn open(dir: &Path) -> Result<ImportTarget, TargetError> {
        let backend = SledBackend::open(dir)?;
        let (writer, store, maintainer) = mvcc::open(Box::new(backend), mvcc::StoreOptions::default())?;
        Ok(ImportTarget { writer, store, maintainer })
    }

    pub fn revision(&self) -> i64 {
        self.store.revision()
    }

    pub fn compact_revision(&self) -> i64 {
        self.store.compact_revision()
    }

    /// Returns the revision after which the copy is compared with the source again, such that the changes
    /// after it are not large.
    pub fn compared_after(&self) -> Result<i64, TargetError> {
        let (last, mut count) = (self.revision(), SEAM_REVISIONS as i64);
        loop {
            let after = (last - count).max(self.compact_revision()).max(1);
            if count == 1 || after >= last || self.store.changes(after + 1, SEAM_BYTES)?.through() >= last {
                return Ok(after);
            }
            count /= 2;
        }
    }

    /// Applies a revision. Skips a revision that already exists.
    pub fn apply(&mut self, whole: &WholeRevision) -> Result<(), TargetError> {
        let last = self.revision();
        if whole.revision <= last {
            return Ok(());
        }
        if whole.revision != last + 1 || last == REVISION_MAX {
            return Err(TargetError::Gap { last, found: whole.revision });
        }
        let mut revision = self.writer.begin();
        for event in &whole.events {
            let Some(kv) = &event.kv else { continue };
            let fault = match event.r#type() {
                EventType::Put => put(&mut revision, kv)?,
                EventType::Delete => delete(&mut revision, &kv.key)?,
            };
            if let Some(what) = fault {
                let key = kv.key.escape_ascii().to_string();
                return Err(TargetError::Differs { revision: whole.revision, key, what });
            }
        }
        revision.finish();
        self.end()
    }

    /// Compares the changes of existing revisions that are not compacted.
    pub fn compare(&self, known: &Digests) -> Result<(), TargetError> {
        let Some((first, _)) = known.first() else { return Ok(()) };
        let mut from = first.max(self.compact_revision() + 1);
        let last = known.last().unwrap_or(0).min(self.revision());
        while from <= last {
            let changes = self.store.changes(from, CHANGES_BYTES)?;
            let mut ours = Digests::default();
            changes.iter().for_each(|change| ours.add(&change));
            if let Some(revision) = known.differs(&ours, from, changes.through().min(last)) {
                return Err(TargetError::OtherHistory(revision));
            }
            from = changes.through() + 1;
        }
        Ok(())
    }

    /// Compares the latest pair of a key; None means deleted.
    pub fn compare_pair(
        &self,
        revision: i64,
        key: &[u8],
        wanted: Option<&KeyValue>,
    ) -> Result<(), TargetError> {
        let found = self.store.get(key, 0)?.kv;
        let found = found.map(|kv| KeyValue {
            key: kv.key,
            value: kv.value,
            create_revision: kv.create_revision,
            mod_revision: kv.mod_revision,
            version: kv.version,
            lease: kv.lease,
        });
        if found.as_ref() == wanted { Ok(()) } else { Err(TargetError::OtherHistory(revision)) }
    }

    /// Finishes a change, and persists the store if enough changes are pending.
    fn end(&mut self) -> Result<(), TargetError> {
        match self.writer.end_entry(IMPORTED_AT)? {
            Pressure::Calm => Ok(()),
            Pressure::Due | Pressure::Full => self.persist(),
        }
    }

    /// Makes the current state durable.
    pub fn persist(&mut self) -> Result<(), TargetError> {
        Ok(self.maintainer.persist().map(drop)?)
    }

    /// Returns the leases attached to keys, in ascending order.
    pub fn attached_leases(&self) -> Vec<i64> {
        let (mut leases, mut next) = (Vec::new(), Some(i64::MIN));
        while let Some(lease) = next.and_then(|from| self.store.attached_lease_from(from)) {
            leases.push(lease);
            next = lease.checked_add(1);
        }
        leases
    }

    /// Returns all leases and their TTLs in seconds.
    pub fn leases(&self) -> Result<Vec<(i64, i64)>, TargetError> {
        let leases = state_machine::leases(self.store.items(b""))?;
        Ok(leases.into_iter().map(|(id, lease)| (id, lease.ttl)).collect())
    }

    /// Replaces the leases with the source's. Fails with a lease that is attached to keys and missing
    /// there: the source has revoked it since, and deletes its keys in a later revision.
    pub fn set_leases(&mut self, leases: &[(i64, i64)]) -> Result<Result<(), i64>, TargetError> {
        let is_known = |id: &i64| leases.binary_search_by_key(id, |(id, _)| *id).is_ok();
        if let Some(unknown) = self.attached_leases().into_iter().find(|id| !is_known(id)) {
            return Ok(Err(unknown));
        }
        let present: HashMap<i64, i64> = self.leases()?.into_iter().collect();
        let is_equal = |(id, ttl): &(i64, i64)| present.get(id) == Some(ttl);
        if present.len() != leases.len() || !leases.iter().all(is_equal) {
            state_machine::replace_leases(&mut self.writer, leases.iter().copied());
            self.end()?;
        }
        Ok(Ok(()))
    }

    /// Reports whether authentication is enabled, and the auth revision.
    pub fn auth(&self) -> Result<(bool, u64), TargetError> {
        let auth = state_machine::auth_in(&self.store.items(b""))?;
        Ok((auth.enabled, auth.revision))
    }

    /// Returns the lineage of the copy.
    pub fn lineage(&self) -> Result<Lineage, TargetError> {
        Ok(Lineage::of(&self.store)?)
    }

    /// Stores the lineage of the copy, if it is known.
    pub fn set_lineage(&mut self, lineage: &Lineage) -> Result<(), TargetError> {
        if lineage.is_known() && self.lineage()? != *lineage {
            lineage.store(&mut self.writer);
            self.end()?;
        }
        Ok(())
    }

    /// Returns the member IDs in ascending order.
    pub fn members(&self) -> Result<Vec<u64>, TargetError> {
        let members = state_machine::members(&self.store)?;
        let mut ids: Vec<u64> = members.iter().map(|member| member.id).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Compacts to the source's compact revision, if that is ahead.
    pub fn compact(&mut self, revision: i64) -> Result<(), TargetError> {
        if revision > self.compact_revision() && revision <= self.revision() {
            self.writer.compact(revision)?;
            self.end()?;
        }
        Ok(())
    }

    /// Returns HashKV at the latest revision, and the compact revision it reflects.
    pub fn hash(&self) -> Result<(u32, i64), TargetError> {
        let hash = self.store.hash_kv(self.revision())?;
        Ok((hash.hash, hash.compact_revision))
    }
}

/// Puts a pair. Returns a description of the mismatch if its versions do not follow from the history.
fn put(revision: &mut RevisionWriter<'_>, kv: &KeyValue) -> Result<Option<String>, mvcc::Error> {
    if kv.key.is_empty() {
        return Ok(Some("an empty key".to_owned()));
    }
    revision.put(&kv.key, &kv.value, kv.lease);
    let made = revision.get(&kv.key)?.expect("it was put");
    let (ours, theirs) = ((made.create_revision, made.version), (kv.create_revision, kv.version));
    let (create, version) = ours;
    Ok((ours != theirs).then(|| {
        format!(
            "the source has create revision {} and version {}, the copy {create} and {version}",
            kv.create_revision, kv.version
        )
    }))
}

fn delete(revision: &mut RevisionWriter<'_>, key: &[u8]) -> Result<Option<String>, mvcc::Error> {
    let key = bytes::Bytes::copy_from_slice(key);
    let deleted = revision.delete_range(&KeyRange::one(key), Previous::Skip)?;
    Ok((deleted.count != 1).then(|| "the source has deleted it, the copy did not have it".to_owned()))
}

#[cfg(test)]
mod tests {
    use api::mvccpb::Event;

    use super::*;

    /// Format: `put KEY CREATE VERSION LEASE` or `delete KEY`, separated by commas.
    fn whole(revision: i64, text: &str) -> WholeRevision {
        let event = |text: &str| {
            let words: Vec<&str> = text.split_whitespace().collect();
            let number = |at: usize| words.get(at).map_or(0, |word| word.parse().unwrap());
            let is_put = words[0] == "put";
            let kv = KeyValue {
                key: bytes::Bytes::copy_from_slice(words[1].as_bytes()),
                create_revision: number(2),
                mod_revision: revision,
                version: number(3),
                lease: number(4),
                ..KeyValue::default()
            };
            let kind = if is_put { EventType::Put } else { EventType::Delete };
            Event { r#type: kind.into(), kv: Some(kv), prev_kv: None }
        };
        WholeRevision { revision, events: text.split(',').map(event).collect() }
    }

    #[test]
    fn few_revisions_are_compared_again_where_they_are_large() {
        let dir = tempfile::tempdir().unwrap();
        let mut target = ImportTarget::open(dir.path()).unwrap();
        let mut put = |revisions: std::ops::RangeInclusive<i64>, value_bytes: usize| {
            for revision in revisions {
                let mut whole = whole(revision, &format!("put {revision} {revision} 1"));
                whole.events[0].kv.as_mut().unwrap().value = vec![b'v'; value_bytes].into();
                target.apply(&whole).unwrap();
            }
            target.compared_after().unwrap()
        };
        assert_eq!(put(2..=2000, 1), 2000 - 1024);
        let after = put(2001..=2032, 1 << 20);
        assert!((2032 - 16..2032).contains(&after), "{after}");
        let after = put(2033..=2035, 17 << 20);
        assert!((2033..2035).contains(&after), "{after}");
    }

    #[test]
    fn a_revision_that_does_not_follow_from_the_history_is_refused() {
        for (revisions, wanted) in [
            (vec![(2, "put a 2 1"), (3, "put a 2 2 7, put b 3 1"), (4, "delete a"), (5, "put a 5 1")], ""),
            (vec![(2, "put a 2 1"), (2, "put a 2 1"), (3, "delete a")], ""),
            (vec![(3, "put a 3 1")], "after revision 1 the source sent revision 3"),
            (vec![(2, "put a 2 2")], "the source has create revision 2 and version 2, the copy 2 and 1"),
            (vec![(2, "put a 2 1"), (3, "put a 3 1")], "create revision 3 and version 1, the copy 2 and 2"),
            (vec![(2, "delete a")], "the source has deleted it, the copy did not have it"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let mut target = ImportTarget::open(dir.path()).unwrap();
            let applied = revisions.iter().try_for_each(|(at, text)| target.apply(&whole(*at, text)));
            let found = applied.map_or_else(|error| error.to_string(), |()| String::new());
            assert!(
                found.contains(wanted) && found.is_empty() == wanted.is_empty(),
                "{revisions:?}: {found}"
            );
        }
    }

    #[test]
    fn leases_are_those_of_the_source_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut target = ImportTarget::open(dir.path()).unwrap();
        target.apply(&whole(2, "put a 2 1 7, put b 2 1 -9")).unwrap();
        for (leases, wanted) in [
            (vec![(7, 60)], Err(-9)),
            (vec![(-9, 10), (7, 60)], Ok(())),
            (vec![(-9, 10), (7, 61), (8, 5)], Ok(())),
            (vec![(-9, 10), (7, 61)], Ok(())),
            (vec![(-9, 10), (8, 5)], Err(7)),
        ] {
            assert_eq!(target.set_leases(&leases).unwrap(), wanted, "{leases:?}");
        }
        target.persist().unwrap();
        drop(target);
        let target = ImportTarget::open(dir.path()).unwrap();
        let leases = state_machine::leases(target.store.items(b"")).unwrap();
        let found: Vec<(i64, i64)> = leases.into_iter().map(|(id, lease)| (id, lease.ttl)).collect();
        assert_eq!((found, target.revision()), (vec![(-9, 10), (7, 61)], 2));
    }
}
