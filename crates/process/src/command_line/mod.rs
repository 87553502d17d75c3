//! Command lines of the two programs: arguments, exit statuses, completion scripts and manual pages.
//!
//! Scripts and pages are generated from a program's clap definition, so they match the accepted flags.

mod program; // name, version and commands

mod arguments; // parsing, and exit statuses

mod manual; // pages in roff
mod shells; // completion scripts

pub use arguments::{parse, run};
pub use manual::{MAN, man_command, run_man};
pub use program::{Program, quoted, version_text};
pub use shells::{COMPLETION, completion_command, run_completion};
