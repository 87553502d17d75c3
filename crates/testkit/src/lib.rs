//! Helpers shared by tests.
//!
//! For tests and torture only; production code does not depend on it. Must not depend on other
//! crates of the project, its API or its flags.

pub mod golden; // scripts of commands and their output
pub mod ports; // for servers, taken by no other test
pub mod process; // started, awaited, signalled, killed
pub mod pty; // a program with a terminal

pub use ports::{port, ports};
pub use process::Process;
pub use pty::Terminal;
