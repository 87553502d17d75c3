//! Threads, tasks, clocks and queues around a node.

mod queue; // inputs, admission, results
mod shared; // state shared by threads and handles

mod alarm; // wakes the driver for a tick
mod driver; // the loop around a node

mod threads; // log and apply threads

mod handle; // propose, read, status; input from peers
mod start; // starts a member from its log

pub use driver::Driver;
pub use handle::{Handle, Inbox};
pub use queue::{Entrance, Permit, Pump, RequestOrigin};
pub use shared::Status;
pub use start::{Log, StartedMember, Threads, start};
