//! Process-level services: log, threads, signals, file descriptors.
//!
//! Independent of the member.

pub mod visible; // escapes text for terminals

pub mod files; // file creation in shared directories

pub mod log; // log output

pub mod command_line; // arguments, completion scripts, manual pages

pub mod notify; // systemd notifications

pub mod descriptors; // limits of open files and core files
pub mod runtime; // threads that serve sockets
pub mod shutdown; // shutdown on a signal or a fatal error

pub mod scratch; // temporary directories
