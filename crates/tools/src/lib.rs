//! The subcommands of `kv-server`: clients of a cluster, and what reads or makes a data directory offline.
//!
//! None of them runs a member. A module uses only modules above it in the list below.

pub mod check_config; // what a set of flags will do
pub mod inspect; // shows a data directory

pub mod import; // a data directory from a snapshot file

pub mod operator; // changes of a running cluster, as its client

pub mod archive; // every revision of a cluster, to go back to
pub mod live_import; // a data directory from a running cluster

pub mod top; // figures of a running cluster, in a terminal

pub mod command_line; // completion scripts, manual pages
