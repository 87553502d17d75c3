//! `agent`, and commands that agents execute.

pub mod agent; // executes commands of controllers
pub mod controller; // sends a command to agents
