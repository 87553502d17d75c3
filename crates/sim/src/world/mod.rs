//! Event loop of the simulation.
//!
//! A queue of events, ordered by time and then by number. Each event affects one member, which then
//! takes a turn; follow-up events are scheduled.
//!
//! ```text
//!   faults ──▶ in some seeds: a minority is missing, all else works ──▶ calm ──▶ verdict
//! ```
//!
//! In the second phase the majority must serve; in the third all members must serve, and converge.
//!
//! * `steps` executes events, `faults` injects faults, `verdict` checks the result.
//! * A member with a failing disk stops and is restarted later; a breach stops the run.

mod event; // what can happen, and when
mod state; // everything there is in a run

mod clients; // requests of clients
mod faults; // what goes wrong
mod inquiries; // of members whose log is empty
mod members; // who they are, and how that changes

mod levels; // versions of members

mod leases; // the leaders' turns, and questions of clients
mod steps; // what happens to a member
mod streams; // snapshots on their way
mod verdict; // how a run must end
mod watching; // watch clients and hubs

mod run; // plays a run

pub use run::{run, run_traced};
pub use state::Trace;
