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
mod forge; // what an adversary writes into a value
mod sim_fs; // the file system and its files

pub use disk::Fault;
pub use forge::forged;
pub use sim_fs::{Crash, SimFile, SimFs};
