//! `agent`, and commands that agents execute.

pub mod agent; // executes what a controller sends
pub mod controller; // sends a command to agents
