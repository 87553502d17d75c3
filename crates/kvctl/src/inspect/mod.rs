//! `kvctl inspect`: shows and verifies the contents of a data directory, read-only.
//!
//! ```text
//!   inspect wal       segments, every entry with its requests, hard states; every frame's checksum
//!   inspect snapshot  position of each store in the directory: current, being received, set aside
//!   inspect store     marks, items, files and blocks of the current store; every block's checksum
//!                     with --records, the history as well
//! ```
//!
//! * Does not write, lock or repair. The directory of a running member may be inspected, although its last
//!   group may appear torn.
//! * All readable data is shown, even after corrupt data. Corruption is reported, and the exit status is 1.
//! * With `--json` each line is an object with a `kind`; without, it has the same fields as `name=value`.

mod report; // output

mod requests; // decoding of commands

mod store; // checkpoints
mod wal; // the log

mod command; // the command line

pub use command::{COMMAND, described, run};
