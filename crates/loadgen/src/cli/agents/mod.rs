//! `agent`, and commands that agents execute.

mod apart; // keys of one agent alone

pub mod agent; // executes what a controller sends
pub mod controller; // sends a command to agents
