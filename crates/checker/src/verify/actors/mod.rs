//! Tasks that use the cluster, and report observations to the checker.

pub mod names; // keys and values as bytes

pub mod client; // sends operations
pub mod feed; // watches
pub mod holder; // holds locks and elections
pub mod lessee; // holds leases, then revokes them or lets them expire
pub mod polls; // queries members for hashes, leader, membership and old events

use crate::Input;
use std::time::Duration;
use tokio::sync::mpsc;

/// Messages to the checker from clients, watchers and polls.
pub enum CheckerMessage {
    Input(Input),
    /// Another member leads, or none.
    Leader(LeaderSeen),
    /// A watcher cannot continue.
    Failed(String),
}

/// The leader according to the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderSeen {
    pub at: Duration,
    /// Index of its endpoint; `None`: no member reports a leader, or it is not among the endpoints.
    pub member: Option<usize>,
    pub term: u64,
}

pub type Messages = mpsc::Sender<CheckerMessage>;
