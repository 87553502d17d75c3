//! `kv-server check-config`: reports the effect of a set of flags, flags without effect, and risks.
//!
//! Reads the flags, environment and configuration file like a start does. Reads files and file system
//! properties. Does not write to disk or open ports.

mod report;
mod risks;

mod command; // the command line

pub use command::{COMMAND, described, run};
