//! The three slots of a store, and the replacement of a store with a received one.
//!
//!   HOME            the current store
//!   HOME.incoming   a store that is being received; it contains the file `received` when it is complete
//!   HOME.old        the replaced store, until it is removed
//!
//!   swap:  remove old ─▶ HOME → HOME.old ─▶ HOME.incoming → HOME ─▶ remove old      each step synced
//!
//! * After a crash at any step there is a complete store, the old one or the new one:
//!
//!   | HOME | incoming, complete | old | state | recovery |
//!   |---|---|---|---|---|
//!   | yes | no | – | no swap, or a completed one | `discard` removes leftovers |
//!   | yes | yes | – | received, perhaps unneeded | the caller decides: `swap` or `discard` |
//!   | no | yes | yes | stopped between the two renames | the same; `discard` restores the old one |
//!
//! * The old store is removed only after the new one's name is durable.
//! * The log decides whether a received store is needed: whether it was restarted at the store's
//!   position.

use crate::cursor::{read_stamped, stamped};
use crate::error::{Error, Result};
use crate::types::LogPosition;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    Current,
    Incoming,
    Old,
}

/// File operations needed for a swap. Removing an absent slot is not an error.
pub(super) trait SlotStorage {
    /// Reports whether the slot has contents, complete or not.
    fn has(&self, slot: Slot) -> Result<bool>;
    /// Renames a slot. `to` must be absent.
    fn rename(&self, from: Slot, to: Slot) -> Result<()>;
    /// Removes the contents. A crash may leave some of them; the next start removes the rest.
    fn remove(&self, slot: Slot) -> Result<()>;
    /// Makes earlier renames and removals durable.
    fn sync(&self) -> Result<()>;
    /// Returns the contents of the slot's file `received`, if it exists.
    fn marker(&self, slot: Slot) -> Result<Option<Vec<u8>>>;
    fn marker_name(&self, slot: Slot) -> String;
}

const MAGIC: &[u8; 8] = b"mvccrecv";
const VERSION: u32 = 1;
/// Encodes the marker: the store is complete and synced up to this position.
pub(super) fn marker_bytes(applied: LogPosition) -> Vec<u8> {
    stamped(MAGIC, VERSION, &[applied.index.0, applied.term.0])
}

/// Returns the position of the received store, if it is complete.
///
/// Errors: `Corrupt` for a corrupt marker. The caller then discards the received store.
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

/// Replaces the current store with the received one. Resumes after a crash.
///
/// Errors: `Refused` if there is no completely received store; the slots are then unchanged.
pub(super) fn swap(slots: &dyn SlotStorage) -> Result<LogPosition> {
    let staged = staged(slots)?;
    let applied = staged
        .ok_or(Error::Refused { attempt: "install a store", reason: "no completely received store" })?;
    if slots.has(Slot::Current)? {
        // Remains of an earlier swap, not needed because the current store exists.
        slots.remove(Slot::Old)?;
        slots.sync()?;
        slots.rename(Slot::Current, Slot::Old)?;
        slots.sync()?;
    }
    assert!(!slots.has(Slot::Current)?, "a rename never meets a store that is there");
    slots.rename(Slot::Incoming, Slot::Current)?;
    // Remove the old store only after the new name is durable.
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

/// Reports whether a crash stopped a swap between its two renames. Opening would then create an empty
/// store.
pub(super) fn is_interrupted(slots: &dyn SlotStorage) -> Result<bool> {
    Ok(!slots.has(Slot::Current)? && slots.has(Slot::Old)?)
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
