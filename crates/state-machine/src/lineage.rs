//! The identity of a history, and of those that it continues.
//!
//! ```text
//!   history a   … 50 51 52 53 … 101
//!   history b              └─ 53 … 162        b,a@52
//! ```
//!
//! * An import, a restore and a forced cluster begin a new history: the one before may have more.
//! * Its id is random. The leader chooses it with the level of commands, so it is equal on all members, which
//!   are restored one by one. Until then the new history is known by what it continues (`a@52`).
//! * A store without an identity, as of older versions and of etcd, says nothing of its history.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use bytes::Bytes;
use mvcc::{Store, Writer};

use crate::failure::ApplyError;

/// The item's value is the text of the lineage. It does not exist while nothing is known.
const ITEM: &[u8] = b"history";
/// The oldest are forgotten: a restored history whose archive was not moved on is refused then.
const ENDED_MAX: usize = 32;

/// Which revisions of which histories a store has. As text: `ID,ID@REVISION,…`, the newest first, ids in
/// hexadecimal. An id that is not chosen yet is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    /// The history that is written now; 0: not chosen yet, or not known.
    pub id: u64,
    ended: Vec<EndedHistory>,
}

/// A history that is continued by another one after this revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EndedHistory {
    id: u64,
    revision: i64,
}

impl Lineage {
    /// Metadata of the answer to Maintenance.Status that has the text.
    pub const METADATA: &str = "kv-history";

    /// The lineage in a store.
    pub fn of(store: &Store) -> Result<Lineage, ApplyError> {
        store.item(ITEM).map_or_else(|| Ok(Lineage::default()), |value| read(&value))
    }

    /// The lineage among the items of a store.
    pub fn of_items(items: &[(Bytes, Bytes)]) -> Result<Lineage, ApplyError> {
        let item = items.iter().find(|(item, _)| item == ITEM);
        item.map_or_else(|| Ok(Lineage::default()), |(_, value)| read(value))
    }

    /// The item of a store that is made outside apply; None if nothing is known.
    pub fn item(&self) -> Option<(&'static [u8], Vec<u8>)> {
        self.is_known().then(|| (ITEM, self.to_string().into_bytes()))
    }

    pub fn store(&self, writer: &mut Writer) {
        writer.set_item(ITEM, self.item().as_ref().map(|(_, value)| &value[..]));
    }

    pub fn is_known(&self) -> bool {
        self.id != 0 || !self.ended.is_empty()
    }

    /// That of a history which continues this one after a revision.
    pub fn ended_at(&self, revision: i64) -> Lineage {
        let newest = (self.id != 0).then_some(EndedHistory { id: self.id, revision });
        let clipped =
            |ended: &EndedHistory| EndedHistory { revision: ended.revision.min(revision), ..*ended };
        let ended = newest.into_iter().chain(self.ended.iter().map(clipped)).take(ENDED_MAX).collect();
        Lineage { id: 0, ended }
    }

    /// That of a copy which goes on with what `found` has after a revision.
    pub fn followed_by(&self, found: &Lineage, revision: i64) -> Lineage {
        if found.is_known() { found.clone() } else { self.ended_at(revision) }
    }

    /// Whether a history has all revisions up to `last` of `other`, as far as both are known.
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

/// The text is no lineage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it names no history")]
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
    text.parse().map_err(|LineageError| broken("no identity of a history"))
}

/// Gives a history without an id this one; 0 is none. The same is written again: see [`crate::level`].
pub(crate) fn name(writer: &mut Writer, id: u64) -> Result<(), ApplyError> {
    let lineage = Lineage::of(writer.store())?;
    if id != 0 && (lineage.id == 0 || lineage.id == id) {
        Lineage { id, ..lineage }.store(writer);
    }
    Ok(())
}

/// The cluster goes on without members that may have more.
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
            // An archive that began before the id was chosen.
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
