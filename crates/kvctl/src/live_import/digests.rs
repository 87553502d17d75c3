//! Digests of revisions: revisions with different changes have different digests.
//!
//! etcd does not identify histories, so two histories of a cluster are compared by content. A digest covers a
//! revision's changes in any order: watch events, records of a file and entries of the store have equal
//! digests. Revisions without changes have none.

use std::collections::BTreeMap;

use api::mvccpb::Event;
use api::mvccpb::event::EventType;
use mvcc::{Change, KeyValueRef, Revision};
use sha2::{Digest, Sha256};

use super::revisions::WholeRevision;

/// Maximum number of revisions compared where parts of a history meet. Histories that diverged earlier and
/// agree on all of these are considered equal.
pub const SEAM_REVISIONS: usize = 1024;
/// Maximum bytes read again for the comparison, in addition to the rest of one revision.
pub const SEAM_BYTES: usize = 16 << 20;
/// Assumed size of a revision of which only the digest is known.
const UNKNOWN_BYTES: usize = 1 << 20;

/// Digests by revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    by_revision: BTreeMap<i64, KnownDigests>,
}

/// Digest and size of a revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownDigests {
    pub digest: u64,
    pub bytes: usize,
}

impl KnownDigests {
    pub fn digest(digest: u64) -> KnownDigests {
        KnownDigests { digest, bytes: UNKNOWN_BYTES }
    }
}

impl Digests {
    /// Adds a change. Revisions must be in order.
    pub fn add(&mut self, change: &Change<'_>) {
        let known = self.by_revision.entry(change.revision().main).or_default();
        known.digest = known.digest.wrapping_add(of_change(change));
        known.bytes += bytes_of(change);
    }

    pub fn add_revision(&mut self, whole: &WholeRevision) {
        changes(whole).for_each(|change| self.add(&change));
    }

    pub fn insert(&mut self, revision: i64, known: KnownDigests) {
        self.by_revision.insert(revision, known);
    }

    pub fn get(&self, revision: i64) -> Option<u64> {
        self.by_revision.get(&revision).map(|known| known.digest)
    }

    pub fn first(&self) -> Option<(i64, u64)> {
        self.by_revision.first_key_value().map(|(revision, known)| (*revision, known.digest))
    }

    /// Returns the first of the latest revisions that are to be compared.
    pub fn first_compared(&self) -> Option<i64> {
        let mut bytes = 0;
        let newest = self.by_revision.iter().rev().take_while(|(_, known)| {
            let fits = bytes < SEAM_BYTES;
            bytes += known.bytes;
            fits
        });
        newest.last().map(|(revision, _)| *revision)
    }

    pub fn last(&self) -> Option<i64> {
        self.by_revision.last_key_value().map(|(revision, _)| *revision)
    }

    pub fn iter(&self) -> impl Iterator<Item = (i64, KnownDigests)> {
        self.by_revision.iter().map(|(revision, known)| (*revision, *known))
    }

    /// Retains the latest `count` revisions.
    pub fn keep_newest(&mut self, count: usize) {
        while self.by_revision.len() > count {
            self.by_revision.pop_first();
        }
    }

    /// Returns the first revision from `from` to `to` that is known here and differs or is missing in
    /// `other`.
    pub fn differs(&self, other: &Digests, from: i64, to: i64) -> Option<i64> {
        let mut known = self.by_revision.range(from..=to);
        known.find(|(revision, known)| other.get(**revision) != Some(known.digest)).map(|(at, _)| *at)
    }

    /// Drops revisions up to `revision`, inclusive.
    pub fn forget_up_to(&mut self, revision: i64) {
        self.by_revision.retain(|at, _| *at > revision);
    }

    /// Compares a revision with its digest, and drops that. Fails with the first revision that differs or was
    /// skipped.
    pub fn confirm(&mut self, whole: &WholeRevision) -> Result<(), i64> {
        while let Some((wanted, digest)) = self.first().filter(|(wanted, _)| *wanted <= whole.revision) {
            if wanted < whole.revision || digest != of_revision(whole) {
                return Err(wanted);
            }
            self.by_revision.pop_first();
        }
        Ok(())
    }
}

fn bytes_of(change: &Change<'_>) -> usize {
    match change {
        Change::Put { kv, .. } => kv.key.len() + kv.value.len(),
        Change::Delete { key, .. } => key.len(),
    }
}

fn of_revision(whole: &WholeRevision) -> u64 {
    changes(whole).fold(0, |digest, change| digest.wrapping_add(of_change(&change)))
}

fn changes(whole: &WholeRevision) -> impl Iterator<Item = Change<'_>> {
    let revision = Revision { main: whole.revision, sub: 0 };
    whole.events.iter().filter_map(move |event: &Event| {
        let kv = event.kv.as_ref()?;
        Some(match event.r#type() {
            EventType::Delete => Change::Delete { revision, key: &kv.key },
            EventType::Put => Change::Put {
                revision,
                kv: KeyValueRef {
                    key: &kv.key,
                    value: &kv.value,
                    create_revision: kv.create_revision,
                    mod_revision: kv.mod_revision,
                    version: kv.version,
                    lease: kv.lease,
                },
            },
        })
    })
}

/// Hashes a change. Archives contain the result, so the function must not change.
fn of_change(change: &Change<'_>) -> u64 {
    let mut hasher = Sha256::new();
    hasher.update((change.key().len() as u64).to_le_bytes());
    hasher.update(change.key());
    if let Change::Put { kv, .. } = change {
        for number in [kv.create_revision, kv.version, kv.lease] {
            hasher.update(number.to_le_bytes());
        }
        hasher.update(kv.value);
    }
    let hash: [u8; 32] = hasher.finalize().into();
    u64::from_le_bytes(*hash.first_chunk().expect("a hash has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use api::mvccpb::KeyValue;

    use super::*;

    /// Format: `put a 1`, `delete a`, separated by commas.
    fn whole(revision: i64, text: &str) -> WholeRevision {
        let event = |text: &str| {
            let words: Vec<&str> = text.split_whitespace().collect();
            let value = bytes::Bytes::copy_from_slice(words.get(2).unwrap_or(&"").as_bytes());
            let key = bytes::Bytes::copy_from_slice(words[1].as_bytes());
            let kv = KeyValue { key, value, mod_revision: revision, ..KeyValue::default() };
            let kind = if words[0] == "put" { EventType::Put } else { EventType::Delete };
            Event { r#type: kind.into(), kv: Some(kv), prev_kv: None }
        };
        WholeRevision { revision, events: text.split(',').map(event).collect() }
    }

    #[test]
    fn a_revision_with_other_changes_or_without_any_is_another_history() {
        let mut known = Digests::default();
        [whole(5, "put a 1, put b 2"), whole(6, "delete a")]
            .iter()
            .for_each(|whole| known.add_revision(whole));
        for (revisions, wanted) in [
            (vec![(5, "put a 1, put b 2"), (6, "delete a"), (7, "put c 1")], Ok(())),
            (vec![(5, "put b 2, put a 1")], Ok(())),
            (vec![(3, "put x 1"), (4, "put x 2")], Ok(())),
            (vec![(5, "put a 1")], Err(5)),
            (vec![(5, "put a 1, put b 3")], Err(5)),
            (vec![(5, "put a 1, put b 2"), (6, "put a ")], Err(6)),
            (vec![(5, "put a 1, put b 2"), (7, "put c 1")], Err(6)),
            (vec![(7, "put c 1")], Err(5)),
        ] {
            let mut known = known.clone();
            let confirmed = revisions.iter().try_for_each(|(at, text)| known.confirm(&whole(*at, text)));
            assert_eq!(confirmed, wanted, "{revisions:?}");
        }
    }

    #[test]
    fn the_newest_are_kept_and_a_digest_never_changes() {
        let mut digests = Digests::default();
        (1..=20).for_each(|revision| digests.add_revision(&whole(revision, "put a 1")));
        digests.keep_newest(3);
        assert_eq!((digests.first().map(|(first, _)| first), digests.last()), (Some(18), Some(20)));
        assert_eq!(digests.get(20), Some(0x8a2f_66fb_c4f7_1e7a));
    }
}
