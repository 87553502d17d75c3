//! What the process itself needs: its log, threads, signals, file descriptors and versions.
//!
//! Nothing here knows what a member is.

pub(crate) mod visible; // texts on a terminal

pub(crate) mod files; // made where others may write

pub(crate) mod arguments; // of a command
pub(crate) mod log; // log lines on stderr
pub(crate) mod version; // the program's version and etcd's

pub(crate) mod notify; // messages to systemd

pub(crate) mod core_file; // none
pub(crate) mod descriptors; // how many files and connections
pub(crate) mod runtime; // the threads that serve sockets
pub(crate) mod shutdown; // the end, on a signal or after a fatal error

pub(crate) mod scratch; // directories for copies
