//! Administration of a cluster: backups, membership changes, metrics in a terminal, data directories.
//!
//! Clients of a cluster, and offline tools that read or create a data directory. No command runs a member. A
//! module uses only modules above it in the list below.

pub mod inspect; // shows a data directory

pub mod import; // a data directory from a snapshot file

pub mod operator; // changes a running cluster, as its client

pub mod archive; // stores every revision of a cluster
pub mod live_import; // a data directory from a running cluster

pub mod top; // metrics of a running cluster, in a terminal

mod command_line; // the commands

pub use command_line::run;
