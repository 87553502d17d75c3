//! Threads, tasks, clocks and queues around a node.

mod queue; // what waits: who may, inputs, answers
mod shared; // what threads and handles share

mod alarm; // wakes the driver for a tick
mod driver; // the loop around a node

mod threads; // log and apply; by whom committed entries are applied

mod handle; // propose, read, status; what peers send
mod start; // brings a member up from its log

pub use driver::Driver;
pub use handle::{Handle, Inbox};
pub use queue::{Entrance, Permit, Pump, RequestOrigin};
pub use shared::Status;
pub use start::{Log, StartedMember, Threads, start};
