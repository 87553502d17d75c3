//! A run: starts workers, waits for them, merges their results.
//!
//! ```text
//!   Plan ─start─▶ workers open all connections ─▶ the clock starts for all workers ─▶ Run ─finish─▶ Measurement
//! ```
//!
//! * Measurements exclude the time to open connections.
//! * Stopping early retains the results so far and marks them as partial.

pub mod recorder; // results of a worker
pub mod results; // results of a run
pub mod schedule; // send slots and pacing

mod plan; // definition of a run

mod leader; // tracks the leading endpoint

pub mod worker; // connections and callers of a thread

mod callers; // callers with a task each

pub mod gateway; // requests over HTTP/1.1 with JSON
pub mod watchers; // watch streams and their awaited events

mod running; // results so far, and the final ones
mod start; // connections and threads

pub use plan::{EndpointTarget, Error, Run};
pub(crate) use running::process_cpu;
pub use running::{ActiveRun, OfEndpoint, RunProgress};
pub use start::PreparedRun;
