//! What tests share.
//!
//! For tests and torture: nothing that ships uses it. It knows no API, no flag and no other crate of ours.

pub mod exposition; // what Prometheus reads and computes
pub mod golden; // scripts of commands and their output
pub mod ports; // for servers, taken by no other test
pub mod process; // started, awaited, signalled, killed
pub mod pty; // a program with a terminal

pub use ports::{port, ports};
pub use process::Process;
pub use pty::Terminal;
