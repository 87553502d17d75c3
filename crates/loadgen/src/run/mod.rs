//! A run: starts workers, waits for them, merges their results.
//!
//! ```text
//!   Plan ─start─▶ workers open all connections ─▶ the clock starts for all workers ─▶ Run ─finish─▶ Measurement
//! ```
//!
//! * Measurements exclude the time to open connections.
//! * Stopping early retains the results so far and marks them as partial.

pub mod recorder; // the results of one worker
pub mod results; // the results of a run
pub mod schedule; // turns and their pace
pub mod stages; // rates that change

mod plan; // what defines a run

mod leader; // which endpoint leads

pub mod worker; // one thread's connections and callers

mod callers; // callers with a task each

pub mod gateway; // requests over HTTP/1.1 with JSON
pub mod watchers; // watch streams, and the events that they await

mod running; // figures so far, and the end
mod start; // connections and threads

pub use plan::{EndpointTarget, Error, LoadPlan};
pub(crate) use running::process_cpu;
pub use running::{ActiveRun, OfEndpoint, RunProgress};
pub use start::PreparedRun;
