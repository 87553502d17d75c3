//! The core with proposals, reads, and the machine.

mod apply; // committed entries into the state machine, with a fast path for the driver
mod proposals; // from arrival to batch to outcome
mod reads; // rounds that confirm linearizable reads

mod turn; // a poll of all of them

pub use apply::{Applier, ApplyJob, StepResult, apply_brief_first};
pub use turn::{Gauges, Node, NodeOutput, NodeSetup};
