//! The places of a store, and how a received store takes the place of the present one.
//!
//!   HOME            the store that is used
//!   HOME.incoming   one that is being received; the file `received` inside says that it is whole
//!   HOME.old        the one that was replaced, on its way out
//!
//!   swap:  remove old ─▶ HOME → HOME.old ─▶ HOME.incoming → HOME ─▶ remove old      names synced after each arrow
//!
//! * After a crash at any step there is a whole store, the old one or the new one, and it can be told which:
//!
//!   | HOME | incoming, whole | old | what happened | what to do |
//!   |---|---|---|---|---|
//!   | yes | no | – | nothing, or all of it | `discard`: removes leftovers |
//!   | yes | yes | – | received, perhaps not wanted | the caller knows: `swap` or `discard` |
//!   | no | yes | yes | stopped between the two renames | likewise: `discard` puts the old one back |
//!
//! * The old store is removed only after the new one has its name, durably.
//! * Whether a received store is wanted is decided elsewhere: by the log, which was restarted at it or not.
//!
//! Knows nothing of what a store contains.

use bytes::BufMut;

use crate::error::{Error, Result};
use crate::record::Cursor;
use crate::types::Applied;

/// The three places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Slot {
    Home,
    Incoming,
    Old,
}

/// What a swap needs of a file system. Removing what is not there is no error.
pub(crate) trait Shelf {
    /// Whether anything lies there, whole or not.
    fn has(&self, slot: Slot) -> Result<bool>;
    /// `to` is free.
    fn rename(&self, from: Slot, to: Slot) -> Result<()>;
    /// Removes whatever lies there. May be stopped halfway, and is then begun anew by the next start.
    fn remove(&self, slot: Slot) -> Result<()>;
    /// Makes every rename and removal so far durable.
    fn sync(&self) -> Result<()>;
    /// The file `received` of a place, if it is there.
    fn mark(&self, slot: Slot) -> Result<Option<Vec<u8>>>;
    /// How errors call the mark.
    fn mark_name(&self, slot: Slot) -> String;
}

/// What the mark begins with.
const MAGIC: &[u8; 8] = b"mvccrecv";
const VERSION: u32 = 1;
/// Magic, version, index, term, checksum.
const MARK_BYTES: usize = 32;

/// The content of `received`: a store up to here was received wholly, and synced.
pub(crate) fn mark_bytes(applied: Applied) -> Vec<u8> {
    let mut mark = Vec::with_capacity(MARK_BYTES);
    mark.put_slice(MAGIC);
    mark.put_u32_le(VERSION);
    mark.put_u64_le(applied.index);
    mark.put_u64_le(applied.term);
    mark.put_u32_le(crc32c::crc32c(&mark));
    assert_eq!(mark.len(), MARK_BYTES, "the mark's size is part of the format");
    mark
}

/// The mark's content; `None` if a single bit of it is not as written.
fn read_mark(bytes: &[u8]) -> Option<Applied> {
    let content = bytes.len().checked_sub(4).filter(|_| bytes.len() == MARK_BYTES)?;
    let mut cursor = Cursor::new(bytes);
    let is_ours = cursor.take(MAGIC.len())? == MAGIC && cursor.u32_le()? == VERSION;
    let applied = Applied { index: cursor.u64_le()?, term: cursor.u64_le()? };
    let is_intact = cursor.u32_le()? == crc32c::crc32c(&bytes[..content]);
    (is_ours && is_intact).then_some(applied)
}

/// How far the received store reaches, if there is a whole one.
///
/// Errors: `Corrupt` for a mark that is not what was written; the caller then discards what was received.
pub(crate) fn staged(shelf: &dyn Shelf) -> Result<Option<Applied>> {
    let Some(mark) = shelf.mark(Slot::Incoming)? else { return Ok(None) };
    let damaged = || Error::Corrupt {
        file: shelf.mark_name(Slot::Incoming),
        offset: 0,
        what: "the mark of a received store is not what was written",
    };
    read_mark(&mark).map(Some).ok_or_else(damaged)
}

/// The received store takes the place of the present one. Begins anew, or goes on where a crash stopped it.
///
/// Errors: `Refused` if no whole store was received; then nothing was touched.
pub(crate) fn swap(shelf: &dyn Shelf) -> Result<Applied> {
    let staged = staged(shelf)?;
    let applied =
        staged.ok_or(Error::Refused { attempt: "install a store", reason: "none was received wholly" })?;
    if shelf.has(Slot::Home)? {
        // A leftover of an earlier swap would be in the way. While there is a home it is nobody's only copy.
        shelf.remove(Slot::Old)?;
        shelf.sync()?;
        shelf.rename(Slot::Home, Slot::Old)?;
        shelf.sync()?;
    }
    assert!(!shelf.has(Slot::Home)?, "a rename never meets a store that is there");
    shelf.rename(Slot::Incoming, Slot::Home)?;
    // Only when the new store's name is durable may the old one go.
    shelf.sync()?;
    shelf.remove(Slot::Old)?;
    shelf.sync()?;
    Ok(applied)
}

/// Keeps the present store and removes whatever else is there; undoes the first half of a swap.
pub(crate) fn discard(shelf: &dyn Shelf) -> Result<()> {
    if !shelf.has(Slot::Home)? && shelf.has(Slot::Old)? {
        shelf.rename(Slot::Old, Slot::Home)?;
        shelf.sync()?;
    }
    shelf.remove(Slot::Incoming)?;
    shelf.remove(Slot::Old)?;
    shelf.sync()
}

/// Whether a crash stopped a swap between its two renames: opening the home now would make an empty store there.
pub(crate) fn is_interrupted(shelf: &dyn Shelf) -> Result<bool> {
    Ok(!shelf.has(Slot::Home)? && shelf.has(Slot::Old)?)
}

#[cfg(test)]
#[path = "shelf_tests.rs"]
mod tests;
