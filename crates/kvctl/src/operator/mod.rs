//! `kvctl member replace`: replaces a member by a new one, as a client of the cluster. `kvctl member
//! reseed`: a member named by an alarm CORRUPT takes over the leader's state.
//!
//! ```text
//!   list members ─▶ plan: the next step ─▶ take it ─▶ list members ─▶ …       add · wait for the start · promote · remove
//! ```
//!
//! * The member list determines the next step. So the command can be interrupted at any point and run
//!   again, also on a different machine, and a call with an unknown outcome is not repeated blindly.
//! * A reachable member is removed last: the cluster is never smaller than before. An unreachable one is
//!   removed first, after a grace period: the servers add no member while one is unreachable.
//! * A step that would leave less than a quorum of reachable members is not taken.
//!
//! Uses the gRPC services like any client, without access to a running member's files.

mod plan; // the next step of a replacement, from the list of members
mod reseed_plan; // the next step of a re-seeding

mod client; // calls of a cluster
mod flags; // how it is reached
mod progress; // the loop of both, and lines about progress

mod start_command; // how a new member is started

mod replace; // the steps of a replacement
mod reseed; // the steps of a re-seeding

mod command; // the command line

pub use client::OperatorClient;
pub use flags::{ClientFlags, ClientFlagsError, ClientTlsFlags};

pub use command::{COMMAND, described, run};
