//! `kv-server member replace`: puts a new member in the place of another one, as a client of the cluster.
//! `kv-server member reseed`: a member that an alarm CORRUPT names takes over the leader's state.
//!
//! ```text
//!   list members ─▶ plan: the next step ─▶ take it ─▶ list members ─▶ …       add · wait for the start · promote · remove
//! ```
//!
//! * The list of members says how far a replacement is. So the command can be ended anywhere and started
//!   again, also on another machine, and a call whose outcome is unknown is not repeated blindly.
//! * A member that answers is removed last: the cluster is never smaller than before. One that does not
//!   answer for a while is removed first: the servers admit no new member while another one is silent.
//! * No step is taken that would leave less than a quorum of members that answer.
//!
//! Uses the gRPC services as any client does, and nothing of a running member.

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
