//! The three slots of a store, and the replacement of a store by a received one.
//!
//!   HOME            the current store
//!   HOME.incoming   a store that is being received; it contains the file `received` when it is complete
//!   HOME.old        the replaced store, until it is removed
//!
//!   swap:  remove old ─▶ HOME → HOME.old ─▶ HOME.incoming → HOME ─▶ remove old      each step synced
//!
//! * After a crash at any step there is a complete store, the old one or the new one:
//!
//!   | HOME | incoming, complete | old | what happened | what to do |
//!   |---|---|---|---|---|
//!   | yes | no | – | nothing, or all of it | `discard` removes leftovers |
//!   | yes | yes | – | received, perhaps not needed | the caller decides: `swap` or `discard` |
//!   | no | yes | yes | stopped between the two renames | the same; `discard` restores the old one |
//!
//! * The old store is removed only after the new one has its name, durably.
//! * The log decides whether a received store is needed: it was restarted at its position or not.

use crate::cursor::{read_stamped, stamped};
use crate::error::{Error, Result};
use crate::types::LogPosition;

/// The three slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    Current,
    Incoming,
    Old,
}

/// The file operations that a swap needs. Removing an absent slot is no error.
pub(super) trait SlotStorage {
    /// Whether the slot has contents, complete or not.
    fn has(&self, slot: Slot) -> Result<bool>;
    /// Renames a slot. `to` is absent.
    fn rename(&self, from: Slot, to: Slot) -> Result<()>;
    /// Removes the contents. A crash may leave some of them; the next start removes the rest.
    fn remove(&self, slot: Slot) -> Result<()>;
    /// Makes earlier renames and removals durable.
    fn sync(&self) -> Result<()>;
    /// The contents of the slot's file `received`, if it exists.
    fn marker(&self, slot: Slot) -> Result<Option<Vec<u8>>>;
    /// The marker's name in errors.
    fn marker_name(&self, slot: Slot) -> String;
}

/// The first bytes of the marker.
const MAGIC: &[u8; 8] = b"mvccrecv";
const VERSION: u32 = 1;
/// The contents of `received`: the store was received completely up to this position, and synced.
pub(super) fn marker_bytes(applied: LogPosition) -> Vec<u8> {
    stamped(MAGIC, VERSION, &[applied.index.0, applied.term.0])
}

/// The position of the received store, if it is complete.
///
/// Errors: `Corrupt` for a damaged marker. The caller then discards what was received.
pub(super) fn staged(slots: &dyn SlotStorage) -> Result<Option<LogPosition>> {
    let Some(marker) = slots.marker(Slot::Incoming)? else { return Ok(None) };
    let damaged = || Error::Corrupt {
        file: slots.marker_name(Slot::Incoming),
        offset: 0,
        what: "the mark of a received store is not what was written",
    };
    let [index, term] = read_stamped(MAGIC, VERSION, &marker).ok_or_else(damaged)?;
    Ok(Some(LogPosition::new(index, term)))
}

/// Replaces the current store by the received one. Continues where a crash stopped it.
///
/// Errors: `Refused` if no completely received store exists; then nothing was changed.
pub(super) fn swap(slots: &dyn SlotStorage) -> Result<LogPosition> {
    let staged = staged(slots)?;
    let applied =
        staged.ok_or(Error::Refused { attempt: "install a store", reason: "none was received wholly" })?;
    if slots.has(Slot::Current)? {
        // The rest of an earlier swap. The current store exists, so it is not needed.
        slots.remove(Slot::Old)?;
        slots.sync()?;
        slots.rename(Slot::Current, Slot::Old)?;
        slots.sync()?;
    }
    assert!(!slots.has(Slot::Current)?, "a rename never meets a store that is there");
    slots.rename(Slot::Incoming, Slot::Current)?;
    // The old store is removed only after the new name is durable.
    slots.sync()?;
    slots.remove(Slot::Old)?;
    slots.sync()?;
    Ok(applied)
}

/// Keeps the current store and removes the other slots. Reverts the first half of a swap.
pub(super) fn discard(slots: &dyn SlotStorage) -> Result<()> {
    if !slots.has(Slot::Current)? && slots.has(Slot::Old)? {
        slots.rename(Slot::Old, Slot::Current)?;
        slots.sync()?;
    }
    slots.remove(Slot::Incoming)?;
    slots.remove(Slot::Old)?;
    slots.sync()
}

/// Whether a crash stopped a swap between its two renames. Opening the store then would create an empty one.
pub(super) fn is_interrupted(slots: &dyn SlotStorage) -> Result<bool> {
    Ok(!slots.has(Slot::Current)? && slots.has(Slot::Old)?)
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
