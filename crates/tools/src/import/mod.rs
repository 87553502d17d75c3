//! `kv-server import` and `restore` of a snapshot file: a data directory with its keys and history.

mod file; // a store becomes a data directory

mod member_flags; // of which member

mod command; // the command line

pub use command::{COMMANDS, described, run};
pub use file::{CheckedFile, HashCheck, ImportError, check_empty};
pub use member_flags::{MemberFlags, MemberFlagsError};
