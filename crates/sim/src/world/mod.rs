//! Time, and what happens next.
//!
//! A queue of events, ordered by time and then by when they were planned. Each is carried out on one
//! member, which then turns; what that calls for is planned in its turn.
//!
//! ```text
//!   faults ──▶ in some seeds: a minority is missing, all else works ──▶ calm ──▶ verdict
//! ```
//!
//! In the second phase the majority must serve; in the third all must serve, and come to one state.
//!
//! * `steps` carries events out, `faults` makes things go wrong, `verdict` judges.
//! * A member whose disk fails stops and is started again later; a breach ends the run.

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
