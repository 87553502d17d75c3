//! A store in a directory: block files, and sled as their catalogue.
//!
//!   DIR/catalogue/          sled: one tree, small values, one batch per checkpoint
//!   DIR/blocks/NNNNNN.blk   written once, synced before the catalogue refers to the contents
//!   DIR/witness             the sequence number of the newest durable update of the catalogue
//!
//! Directories have mode 0700 and block files 0600.
//!
//! How sled 0.34 is used, and why:
//! * Its `flush` alone does not survive a power cut. The file is synced here through another handle.
//! * A `snap.*.generating` file that a crash left makes the next open fail. It is deleted first.
//! * Its cache exceeds its setting, so the setting is small. The catalogue is read once, at start.
//! * A tree node above 128 KiB becomes a file that sled never syncs. So large values are split
//!   (`value_parts`).
//! * It refuses damaged files or, rarely, panics. Both become `Corrupt`, unlike an error of the disk: damage
//!   needs another copy of the store, a failing disk needs space or repair.
//! * Damage at the end of its log looks like an update that never happened. So updates are numbered, and
//!   `sequence` stores the number outside of sled.
//! * A write that fails on one of its threads may leave a flush waiting. `flush` wakes it.
//! * Keys that begin with 0 belong to this backend: the sequence number, the parts of values, and what
//!   `flush` writes.
//! * It reuses the segments of its file, which takes some 2 MiB after thousands of checkpoints.

mod flush; // waits for sled's writes
mod sequence; // the number of the newest durable update, outside of sled
mod store; // the backend
mod value_parts; // large values in parts

pub(crate) use sequence::SEQUENCE_FILE;
pub use store::SledBackend;

/// The first byte of this backend's own keys.
const OWN: u8 = 0;
