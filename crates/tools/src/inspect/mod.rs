//! `kv-server inspect`: what lies in a data directory, shown and checked, without touching it.
//!
//! ```text
//!   inspect wal       segments, every entry with its requests, hard states; every frame's checksum
//!   inspect snapshot  how far each store in the directory reaches: the present one, one being received, those set aside
//!   inspect store     marks, items, files and blocks of the present store; every block's checksum; with --records the history
//! ```
//!
//! * Nothing is written, locked or repaired. A running member's directory may be looked at, though its end
//!   may look torn.
//! * Everything that can be read is shown, also after damage. What is damaged is shown as that, and the exit
//!   status is 1.
//! * With `--json` each line is an object with a `kind`; without, the same fields as `name=value`.

mod report; // lines on stdout

mod requests; // commands in words

mod store; // checkpoints
mod wal; // the log

mod command; // the command line

pub use command::{COMMAND, described, run};
