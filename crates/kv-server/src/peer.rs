//! Member to member: messages of Raft, carried as opaque bytes, and whole stores for whoever fell too far behind.
//!
//! ```text
//!   raft-node ──send──▶ queue ──▶ link ──one stream, all that waits in one batch──▶ server of the peer ──▶ receive
//!                 (one queue, one link and one TCP connection per peer and lane)
//!   raft-node ──send_snapshot──▶ sending ──a stream of its own──▶ server of the peer ──▶ incoming ──▶ receive
//! ```
//!
//! * Sending never blocks. A full queue drops, and Raft is told that the peer cannot be reached.
//! * A message leaves a queue once: what a broken stream loses is never sent again by us.
//! * A heartbeat never waits behind a megabyte of entries: each lane has its own connection.
//! * Nobody's messages are believed before both sides agree on the cluster and on who they are.
//!
//! Knows nothing of what a message says.

mod backoff; // how long to wait before dialling again
mod link; // keeps one stream open
mod queue; // what waits to be sent
mod sending; // whole stores
mod server; // what the peer port answers
mod transport; // the face that Raft sees

use std::sync::Arc;

use bytes::Bytes;

use crate::identity::Identity;
use crate::metrics::Metrics;

pub use link::bootstrapped_elsewhere;
pub use raft_node::SnapshotOutcome;
pub use server::{PeerServer, serve};
pub use transport::Peers;

/// Version of the bytes inside a message: raft-node's encoding.
const ENCODING: u32 = 1;
/// Bytes in one batch. Large enough to catch up at the speed of a disk, small enough to be decoded in a moment.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Largest batch taken from a peer: one message may be as large as the log's largest entry and then some.
const MESSAGE_BYTES_MAX: usize = 32 << 20;
/// Bytes in flight on one connection; see `front`.
const WINDOW_BYTES: u32 = 16 << 20;

/// Raft, as the peers' traffic reaches it.
pub trait Inbox: Send + Sync + 'static {
    fn receive(&self, from: u64, message: Bytes);
    fn report_unreachable(&self, peer: u64);
    /// How a snapshot's stream to `peer` ended.
    fn report_snapshot(&self, peer: u64, outcome: SnapshotOutcome);
    /// The last index that this member knows to be committed.
    fn commit(&self) -> u64;
}

impl<O: Send + 'static> Inbox for raft_node::Handle<O> {
    fn receive(&self, from: u64, message: Bytes) {
        raft_node::Handle::receive(self, from, message);
    }

    fn report_unreachable(&self, peer: u64) {
        raft_node::Handle::report_unreachable(self, peer);
    }

    fn report_snapshot(&self, peer: u64, outcome: SnapshotOutcome) {
        raft_node::Handle::report_snapshot(self, peer, outcome);
    }

    fn commit(&self) -> u64 {
        self.status().commit
    }
}

/// Who we are, who the others are, and where to count.
#[derive(Clone)]
pub struct Context {
    pub identity: Arc<Identity>,
    pub metrics: Arc<Metrics>,
}

impl Context {
    fn hello(&self, to: u64) -> api::peer::Hello {
        let Identity { cluster_id, member_id, .. } = *self.identity;
        api::peer::Hello { cluster_id, from: member_id, to, encoding: ENCODING }
    }

    fn knows(&self, id: u64) -> bool {
        id != self.identity.member_id && self.identity.members.iter().any(|member| member.id == id)
    }
}

#[cfg(test)]
mod tests;
