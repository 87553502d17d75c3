//! Identity of a history, and of the histories that it continues.
//!
//! ```text
//!   history a   … 50 51 52 53 … 101
//!   history b              └─ 53 … 162        b,a@52
//! ```
//!
//! * An import, a restore and a forced new cluster start a new history, because the previous one
//!   may have more revisions.
//! * Its id is random. The leader chooses it with the command level, so it is equal on all members,
//!   which are restored one by one. Until then the new history is identified by its predecessor
//!   (`a@52`).
//! * A store without an identity, written by an older version or by etcd, has an unknown history.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use bytes::Bytes;
use mvcc::{Store, Writer};

use crate::failure::ApplyError;

/// Item of the lineage, as text. Absent while the history is unknown.
const ITEM: &[u8] = b"history";
/// Maximum number of predecessors; the oldest ones are dropped. A restored history is then rejected
/// by an archive that was not moved on.
const ENDED_MAX: usize = 32;

/// Histories and revisions that a store contains. As text: `ID,ID@REVISION,…`, latest first, ids in
/// hexadecimal. An id that is not chosen yet is omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    /// Id of the current history; 0: not chosen yet, or unknown.
    pub id: u64,
    ended: Vec<EndedHistory>,
}

/// A history that was continued by another after this revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EndedHistory {
    id: u64,
    revision: i64,
}

impl Lineage {
    /// Metadata key of the text in Maintenance.Status responses.
    pub const METADATA: &str = "kv-history";

    pub fn of(store: &Store) -> Result<Lineage, ApplyError> {
        store.item(ITEM).map_or_else(|| Ok(Lineage::default()), |value| read(&value))
    }

    pub fn of_items(items: &[(Bytes, Bytes)]) -> Result<Lineage, ApplyError> {
        let item = items.iter().find(|(item, _)| item == ITEM);
        item.map_or_else(|| Ok(Lineage::default()), |(_, value)| read(value))
    }

    /// Returns the item for a store created outside apply; None if the history is unknown.
    pub fn item(&self) -> Option<(&'static [u8], Vec<u8>)> {
        self.is_known().then(|| (ITEM, self.to_string().into_bytes()))
    }

    pub fn store(&self, writer: &mut Writer) {
        writer.set_item(ITEM, self.item().as_ref().map(|(_, value)| &value[..]));
    }

    pub fn is_known(&self) -> bool {
        self.id != 0 || !self.ended.is_empty()
    }

    /// Returns the lineage of a history that continues this one after a revision.
    pub fn ended_at(&self, revision: i64) -> Lineage {
        let newest = (self.id != 0).then_some(EndedHistory { id: self.id, revision });
        let clipped =
            |ended: &EndedHistory| EndedHistory { revision: ended.revision.min(revision), ..*ended };
        let ended = newest.into_iter().chain(self.ended.iter().map(clipped)).take(ENDED_MAX).collect();
        Lineage { id: 0, ended }
    }

    /// Returns the lineage of a copy that continues with the contents of `found` after a revision.
    pub fn followed_by(&self, found: &Lineage, revision: i64) -> Lineage {
        if found.is_known() { found.clone() } else { self.ended_at(revision) }
    }

    /// Reports whether a history has all revisions up to `last` of `other`, as far as both are
    /// known.
    pub fn continues(&self, other: &Lineage, last: i64) -> bool {
        let (wanted, last) = match other.ended.first() {
            _ if other.id != 0 => (other.id, last),
            Some(newest) => (newest.id, last.min(newest.revision)),
            None => return true,
        };
        let ended = self.ended.iter().find(|ended| ended.id == wanted);
        let has_all = |ended: &EndedHistory| ended.revision >= last || base::mutant("joined-histories");
        !self.is_known() || self.id == wanted || ended.is_some_and(has_all)
    }
}

impl Display for Lineage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.id != 0 {
            write!(f, "{:x}", self.id)?;
        }
        self.ended.iter().try_for_each(|ended| write!(f, ",{:x}@{}", ended.id, ended.revision))
    }
}

/// The text is not a valid lineage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a history ID")]
pub struct LineageError;

impl FromStr for Lineage {
    type Err = LineageError;

    fn from_str(text: &str) -> Result<Lineage, LineageError> {
        let (id, ended) = text.split_once(',').map_or((text, None), |(id, ended)| (id, Some(ended)));
        let number = |digits: &str| u64::from_str_radix(digits, 16).map_err(|_| LineageError);
        let ended = ended.map(|ended| {
            ended.split(',').map(|one| {
                let (id, revision) = one.split_once('@').ok_or(LineageError)?;
                Ok(EndedHistory { id: number(id)?, revision: revision.parse().map_err(|_| LineageError)? })
            })
        });
        let ended = ended.into_iter().flatten().take(ENDED_MAX).collect::<Result<_, LineageError>>()?;
        Ok(Lineage { id: if id.is_empty() { 0 } else { number(id)? }, ended })
    }
}

fn read(value: &[u8]) -> Result<Lineage, ApplyError> {
    let broken = |reason| ApplyError::Item { item: ITEM.to_vec(), reason };
    let text = std::str::from_utf8(value).map_err(|_| broken("not text"))?;
    text.parse().map_err(|LineageError| broken("not a history ID"))
}

/// Assigns the id to a history without one; 0 means none. An unchanged id is written again: see
/// [`crate::level`].
pub(crate) fn name(writer: &mut Writer, id: u64) -> Result<(), ApplyError> {
    let lineage = Lineage::of(writer.store())?;
    if id != 0 && (lineage.id == 0 || lineage.id == id) {
        Lineage { id, ..lineage }.store(writer);
    }
    Ok(())
}

/// Ends the history of a cluster that continues without members that may have more revisions.
pub(crate) fn end(writer: &mut Writer) -> Result<(), ApplyError> {
    let lineage = Lineage::of(writer.store())?;
    if lineage.is_known() && !base::mutant("forced-history-goes-on") {
        lineage.ended_at(writer.store().revision()).store(writer);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lineage(text: &str) -> Lineage {
        let lineage: Lineage = text.parse().unwrap();
        assert_eq!(lineage.to_string(), text, "as it was written");
        lineage
    }

    #[test]
    fn a_history_continues_those_whose_last_revision_it_has() {
        for (source, other, last, wanted) in [
            ("", "", 9, true),
            ("a", "", 9, true), // An archive or a source of before: content decides.
            ("", "a", 9, true),
            ("a", "a", 9, true),
            ("b", "a", 9, false),
            ("b,a@52", "a", 101, false),
            ("b,a@52", "a", 53, false),
            ("b,a@52", "a", 52, true),
            (",a@52", "a", 101, false), // Restored, and its id is not chosen yet.
            (",a@52", "a", 52, true),
            ("c,b@70,a@52", "a", 52, true),
            ("c,b@70,a@52", "b", 71, false),
            ("b,a@101", "c,a@52", 60, false),
            // A finished copy, and a base: of history a up to 101.
            ("a", ",a@101", 101, true),
            ("b,a@101", ",a@101", 101, true),
            ("b,a@52", ",a@101", 101, false),
            // An archive started before the id was chosen.
            ("b,a@52", ",a@52", 60, true),
            ("c,a@40", ",a@52", 60, false),
        ] {
            assert_eq!(
                lineage(source).continues(&lineage(other), last),
                wanted,
                "{source:?} after {other:?} to {last}"
            );
        }
    }

    #[test]
    fn a_new_history_has_no_more_of_the_ones_before_than_was_restored() {
        for (before, revision, wanted) in [
            ("", 52, ""),
            ("a", 52, ",a@52"),
            ("b,a@52", 101, ",b@101,a@52"),
            ("b,a@52", 40, ",b@40,a@40"),
            (",a@52", 60, ",a@52"),
        ] {
            assert_eq!(lineage(before).ended_at(revision).to_string(), wanted, "{before:?} at {revision}");
        }
        let mut many = lineage("1");
        for id in 2..100 {
            many = Lineage { id, ..many.ended_at(7) };
        }
        assert_eq!(many.ended.len(), ENDED_MAX);
        assert_eq!(lineage(&many.to_string()), many);
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["x", "a,b", "a,b@", "a,b@x", "a,", "10000000000000000"] {
            assert_eq!(text.parse::<Lineage>(), Err(LineageError), "{text}");
        }
    }
}
