//! A file system in memory that loses what real ones may lose: for tests of the log and of what stands on it.
//!
//! ```text
//!   write_at ─▶ cached image ──sync_data──▶ synced image        a power cut keeps the synced image
//!   create, rename, remove ─▶ names ──sync_dir──▶ synced names  and what chance keeps of the rest
//! ```
//!
//! * A disk after a crash is a new [`SimFs`]: handles of the crashed process go on writing to the old one, in
//!   vain.
//! * A failed sync loses the writes it should have kept, although reads still show them and later syncs
//!   succeed: that is what kernels do.
//! * Nothing here is random: chance is a function that the caller passes in.
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
//! How a crash test goes: play a history once to count its calls; then once per call, stopped there; crash
//! the disk in every way; open what is left, and compare with what was promised by then. `tests/crash.rs`
//! does that for the log, and the simulator for whole members.
//!
//! What is not modelled: permissions, links, directories that are removed or renamed, a disk that reorders
//! the syncs themselves. A failed sync of a directory leaves its names as they were, to be synced by the next
//! one.
//!
//! All but [`forged`] knows nothing of the log.

mod disk; // what is seen, and what a power cut leaves
mod sim_fs; // the file system and its files

pub use disk::Fault;
pub use sim_fs::{Crash, SimFile, SimFs};

use crate::LogPosition;
use crate::format::frame::{self, Header, Type};
use crate::format::segment;

/// Bytes that a client chooses in order to stop a member: they look like a frame of the log.
///
/// A frame without a payload for segment `sequence` of a log with this identity, as an attacker who knows all
/// but the salt of that log can make it. It claims that everything before `group` was synced. `noise` fills
/// what an adversary is free to choose, so that packing does not change the bytes.
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
