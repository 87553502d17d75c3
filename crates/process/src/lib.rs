//! What the process itself needs: its log, threads, signals, file descriptors.
//!
//! Nothing here knows what a member is.

pub mod visible; // texts on a terminal

pub mod files; // made where others may write

pub mod arguments; // of a command
pub mod log; // log lines on stderr

pub mod notify; // messages to systemd

pub mod descriptors; // how many files and connections, and no core file
pub mod runtime; // the threads that serve sockets
pub mod shutdown; // the end, on a signal or after a fatal error

pub mod scratch; // directories for copies
