//! Tasks that use the cluster, and report to the checker what they did and saw.

pub mod names; // keys and values as bytes

pub mod client; // sends operations
pub mod feed; // watches
pub mod holder; // keeps locks and elections
pub mod lessee; // keeps leases, and stops keeping them
pub mod polls; // asks members for hashes, their leader, their list and old events

use checker::Input;
use std::time::Duration;
use tokio::sync::mpsc;

/// What clients, watchers and polls send to the checker.
pub enum CheckerMessage {
    Input(Input),
    /// Another member leads, or none.
    Leader(LeaderSeen),
    /// A watcher cannot go on.
    Failed(String),
}

/// What the members say of their leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderSeen {
    pub at: Duration,
    /// The place of its endpoint; `None`: no member knows a leader, or none of the endpoints is that one.
    pub member: Option<usize>,
    pub term: u64,
}

pub type Messages = mpsc::Sender<CheckerMessage>;
