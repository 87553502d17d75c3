//! A store in a directory: block files, and sled for the catalogue.
//!
//!   DIR/catalogue/          sled: one tree, small values, one batch per checkpoint
//!   DIR/blocks/NNNNNN.blk   written once, synced before the catalogue refers to the contents
//!   DIR/witness             sequence number of the latest durable update of the catalogue
//!
//! Directories have mode 0700 and block files 0600.
//!
//! Workarounds for sled 0.34:
//! * Its `flush` does not survive a power failure. The file is synced here through another handle.
//! * A `snap.*.generating` file left by a crash makes the next open fail. It is deleted first.
//! * Its cache exceeds its setting, so the setting is small. The catalogue is read once, at start.
//! * A tree node above 128 KiB becomes a file that sled never syncs. Large values are therefore split
//!   (`value_parts`).
//! * It rejects corrupt files or, rarely, panics. Both become `Corrupt`, which requires another copy of
//!   the store, unlike an I/O error, which requires space or repair.
//! * Corruption at the end of its log looks like an update that never happened. Updates are therefore
//!   numbered, and `sequence` stores the number outside of sled.
//! * A failed write on one of its threads may leave a flush waiting. `flush` wakes it.
//! * This backend reserves keys that start with 0: the sequence number, the parts of values, and the
//!   key that `flush` writes.
//! * It reuses the segments of its file, which takes some 2 MiB after thousands of checkpoints.

mod flush; // waits for sled's writes
mod sequence; // sequence number of the latest durable update, outside of sled
mod store; // the backend
mod value_parts; // large values in parts

pub(crate) use sequence::SEQUENCE_FILE;
pub use store::SledBackend;

/// First byte of the keys reserved for this backend.
const OWN: u8 = 0;
