//! The core with proposals, reads, and the machine.

mod apply; // committed entries into the state machine, and which of them the driver applies
mod proposals; // from arrival to batch to answer
mod reads; // rounds that confirm linearizable reads

mod turn; // one turn of all of them

pub use apply::{Applier, ApplyJob, StepResult, apply_brief_first};
pub use turn::{Gauges, Node, NodeOutput, NodeSetup};
