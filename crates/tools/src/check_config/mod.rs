//! `kv-server check-config`: what a set of flags will do, what has no effect, and what is risky about it.
//!
//! Takes the flags, the environment and the configuration file that a start would take. Reads files, and asks
//! the kernel about file systems. Changes nothing on disk, and binds nothing.

mod report; // what is printed
mod risks; // what is risky about settings

mod command; // the command line

pub use command::{COMMAND, described, run};
