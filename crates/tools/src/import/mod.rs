//! `kv-server import` and `restore` of a snapshot file: a data directory with its keys and history.

mod file; // a store becomes a data directory

mod command; // the command line

#[cfg(test)]
mod tests;

pub use command::{COMMANDS, MemberFlags, MemberFlagsError, described, run};
pub use file::{CheckedFile, HashCheck, ImportError, NewDirectory, check_empty};
