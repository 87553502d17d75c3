//! `kvctl import` and `restore` of a snapshot file: a data directory with its keys and history.

mod file; // import of a database file

mod command; // the command line

#[cfg(test)]
mod tests;

pub use command::{MemberFlags, MemberFlagsError, described, run};
pub use file::{CheckedFile, HashCheck, ImportError, NewDirectory, check_empty};
