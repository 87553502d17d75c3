//! Simulated file system that loses the data real ones may lose, for tests of the log and its users.
//!
//! ```text
//!   write_at ─▶ cached image ──sync_data──▶ synced image        a power failure preserves the synced image
//!   create, rename, remove ─▶ names ──sync_dir──▶ synced names  and, by chance, some of the rest
//! ```
//!
//! * The disk after a crash is a new [`SimFs`]. Handles of the crashed process continue to write to the
//!   old one, without effect.
//! * A failed sync loses its writes, although reads still show them and later syncs succeed, which is
//!   how kernels behave.
//! * It contains no randomness: the caller passes a function for chance.
//!
//! ```
//! use std::path::Path;
//! use wal::testing::{Crash, SimFs};
//! use wal::{File, Fs};
//!
//! # fn main() -> std::io::Result<()> {
//! let fs = SimFs::new();
//! let file = fs.create(Path::new("/journal"))?;
//! fs.sync_dir(Path::new("/"))?;
//! file.write_at(0, b"kept")?;
//! file.sync_data()?;
//! file.write_at(4, b" and lost")?;
//!
//! let after = fs.crashed(Crash::Synced, &mut || false);
//! assert_eq!(after.bytes(Path::new("/journal")), b"kept");
//! # Ok(())
//! # }
//! ```
//!
//! A crash test runs a history once to count its calls, then once per call, stopped at that call. It
//! crashes the disk in every way, opens the result, and compares it with the acknowledged state.
//! `tests/crash.rs` does that for the log, and the simulator for whole members.
//!
//! Not modeled: permissions, links, removal and renaming of directories, and reordering of syncs. A
//! failed sync of a directory leaves its names unsynced until the next one.
//!
//! Only [`forged`] depends on the log.

mod disk; // state of the disk, before and after a power failure
mod sim_fs; // the file system and its files

pub use disk::Fault;
pub use sim_fs::{Crash, SimFile, SimFs};

use crate::LogPosition;
use crate::format::frame::{self, Header, Type};
use crate::format::segment;

/// Returns client-chosen bytes intended to stop a member: they resemble a frame of the log.
///
/// The frame has no payload, and is for segment `sequence` of a log with this identity. An attacker can
/// build it without knowledge of the log's salt. It claims that everything before `group` was synced.
/// `noise` fills the arbitrary fields.
#[must_use]
pub fn forged(identity: &[u8], sequence: u64, group: u32, noise: &mut dyn FnMut() -> u64) -> Vec<u8> {
    let header = Header {
        type_: Type::Entry,
        kind: noise() as u8,
        length: 0,
        group,
        previous: noise() as u32,
        position: LogPosition::new(noise(), noise()),
    };
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, &segment::seed(identity, None, sequence), &header, &[]);
    bytes
}
